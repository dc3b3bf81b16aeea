"""Spark's compiler of generated code without its signature.

A JVM checks each class of a signed jar when it loads it, and keeps none of them in a cache of loaded classes. Of
Spark's jars those of Janino are signed, and every driver and every executor loads 350 classes of them for its first
query. A cache (:mod:`slotwise.spark.jvm_cache`) therefore brings the same classes in a jar without a signature, which
comes first on the class path.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from slotwise.spark.home import SparkHome

PLAIN_JAR = "janino.jar"

_PREFIXES = ("janino-", "commons-compiler-")
_SIGNATURES = (".SF", ".RSA", ".DSA", ".EC")
_META = "META-INF/"


def make_plain_jar(spark: SparkHome, target: Path) -> bool:
    """Write the classes of Spark's signed Janino to the jar ``target``; False, and no file, where it is not signed.

    The jar's bytes depend on Spark's only. Raises OSError, and :class:`zipfile.BadZipFile` for jars that are none.
    """
    signed = [path for path in sorted(spark.jars.glob("*.jar")) if path.name.startswith(_PREFIXES) and _signed(path)]
    if not signed:
        return False
    with zipfile.ZipFile(target, "w") as plain:
        for path in signed:
            with zipfile.ZipFile(path) as jar:
                for entry in jar.infolist():
                    # What is said of the jar itself is in there: its name, and the classes' digests.
                    if not entry.is_dir() and not entry.filename.startswith(_META):
                        plain.writestr(zipfile.ZipInfo(entry.filename, entry.date_time), jar.read(entry))
    return True


def _signed(path: Path) -> bool:
    with zipfile.ZipFile(path) as jar:
        return any(name.startswith(_META) and name.upper().endswith(_SIGNATURES) for name in jar.namelist())
