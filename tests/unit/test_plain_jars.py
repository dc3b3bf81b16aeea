"""The copy of parts of Spark's jars that a cache of loaded classes brings."""

from __future__ import annotations

import xml.etree.ElementTree as xml
import zipfile
from pathlib import Path

import pytest

from slotwise.spark.home import SparkHome, find_spark
from slotwise.spark.plain_jars import make_plain_jar


@pytest.fixture
def spark(tmp_path: Path) -> SparkHome:
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    return SparkHome(tmp_path / "pyspark", "4.3.0")


def jar(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, f"{path.name}:{name}")


def test_signed_jars_of_the_compiler_are_copied_without_their_signature(spark: SparkHome, tmp_path: Path) -> None:
    jar(
        spark.jars / "janino-3.1.9.jar",
        "META-INF/MANIFEST.MF",
        "META-INF/DUMMY.SF",
        "META-INF/DUMMY.DSA",
        "j/A.class",
    )
    jar(spark.jars / "commons-compiler-3.1.9.jar", "META-INF/DUMMY.SF", "c/B.class", "c.properties")
    # Others may have to be signed, and unsigned ones are what they should be.
    jar(spark.jars / "provider.jar", "META-INF/P.SF", "p/C.class")
    target = tmp_path / "plain.jar"
    assert make_plain_jar(spark, target)
    with zipfile.ZipFile(target) as made:
        assert sorted(made.namelist()) == ["c.properties", "c/B.class", "j/A.class"]
        assert made.read("j/A.class") == b"janino-3.1.9.jar:j/A.class"
    first = target.read_bytes()
    assert make_plain_jar(spark, target)
    assert target.read_bytes() == first


def test_hadoops_default_settings_are_all_there_without_their_descriptions(tmp_path: Path) -> None:
    installed = find_spark()
    (original,) = [path for path in installed.jars.glob("*.jar") if path.name.startswith("hadoop-client-api-")]
    assert make_plain_jar(installed, tmp_path / "plain.jar")
    with zipfile.ZipFile(original) as jar_, zipfile.ZipFile(tmp_path / "plain.jar") as made:
        before, after = jar_.read("core-default.xml"), made.read("core-default.xml")
    assert settings(before) == settings(after)
    assert len(settings(after)) > 300
    assert b"<description>" not in after
    assert len(after) < len(before) / 2


def settings(text: bytes) -> list[tuple[str, str | None, str | None]]:
    found = xml.fromstring(text).findall("property")
    return [(one.findtext("name", ""), one.findtext("value"), one.findtext("final")) for one in found]


def test_settings_that_cannot_be_read_are_left_to_hadoop(spark: SparkHome, tmp_path: Path) -> None:
    # Its text is no XML.
    jar(spark.jars / "hadoop-client-api-3.5.0.jar", "core-default.xml")
    assert not make_plain_jar(spark, tmp_path / "plain.jar")


def test_where_there_is_nothing_to_make_plainer_no_jar_is_made(spark: SparkHome, tmp_path: Path) -> None:
    jar(spark.jars / "janino-3.1.9.jar", "META-INF/MANIFEST.MF", "j/A.class")
    assert not make_plain_jar(spark, tmp_path / "plain.jar")
    assert not (tmp_path / "plain.jar").exists()
