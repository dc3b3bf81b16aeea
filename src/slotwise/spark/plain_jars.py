"""What a cache of loaded classes (:mod:`slotwise.spark.jvm_cache`) brings of Spark's jars in a plainer form, in a jar
that comes first on the class path.

Spark's compiler of generated code, without its signature: a JVM checks each class of a signed jar when it loads it, and
keeps none of them in a cache of loaded classes. Of Spark's jars those of Janino are signed, and every driver and every
executor loads 350 classes of them for its first query.

Hadoop's default settings, without their descriptions: drivers read that file four times before their first query,
executors six times, and descriptions are two thirds of it.
"""

from __future__ import annotations

import xml.etree.ElementTree as xml
import zipfile
from pathlib import Path

from slotwise.spark.home import SparkHome

PLAIN_JAR = "plain.jar"

_PREFIXES = ("janino-", "commons-compiler-")
_SIGNATURES = (".SF", ".RSA", ".DSA", ".EC")
_META = "META-INF/"
_HADOOP = ("hadoop-client-api-", "hadoop-common-")
_DEFAULTS = "core-default.xml"


def make_plain_jar(spark: SparkHome, target: Path) -> bool:
    """Write the jar ``target``; False, and no file, where there is nothing for it.

    The jar's bytes depend on Spark's only. Raises OSError, and :class:`zipfile.BadZipFile` for jars that are none.
    """
    jars = sorted(spark.jars.glob("*.jar"))
    signed = [path for path in jars if path.name.startswith(_PREFIXES) and _signed(path)]
    defaults = next(filter(None, (_defaults(path) for path in jars if path.name.startswith(_HADOOP))), None)
    if not signed and defaults is None:
        return False
    with zipfile.ZipFile(target, "w") as plain:
        if defaults is not None:
            plain.writestr(zipfile.ZipInfo(_DEFAULTS), defaults)
        for path in signed:
            with zipfile.ZipFile(path) as jar:
                for entry in jar.infolist():
                    # What is said of the jar itself is in there: its name, and the classes' digests.
                    if not entry.is_dir() and not entry.filename.startswith(_META):
                        plain.writestr(zipfile.ZipInfo(entry.filename, entry.date_time), jar.read(entry))
    return True


def _defaults(path: Path) -> bytes | None:
    """Hadoop's default settings without what is for people; None where the jar has none that are as expected."""
    with zipfile.ZipFile(path) as jar:
        if _DEFAULTS not in jar.namelist():
            return None
        try:
            # Comments are left out by the parser.
            settings = xml.fromstring(jar.read(_DEFAULTS))
        except xml.ParseError:
            return None
    for setting in settings:
        for part in [part for part in setting if part.tag == "description"]:
            setting.remove(part)
        for blank in (setting, *setting):
            blank.tail = None
        setting.text = None
    settings.text = None
    text: bytes = xml.tostring(settings, encoding="utf-8", xml_declaration=True)
    return text


def _signed(path: Path) -> bool:
    with zipfile.ZipFile(path) as jar:
        return any(name.startswith(_META) and name.upper().endswith(_SIGNATURES) for name in jar.namelist())
