"""Find or build the bridge: the jar that makes Slotwise a Spark master, for exactly the installed Spark version.

Spark's schedulers are private to Spark, so a jar fits the version that it was compiled against. A wheel carries one
such jar; for another version the sources, which a wheel carries too, are compiled on first use with the Scala compiler
in pyspark's own jars (some seconds) and kept in the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem
from slotwise.spark.home import SparkHome
from slotwise.spark.java import Java

JAR_NAME = "slotwise-bridge.jar"
_HERE = Path(__file__).resolve().parent
_FIRST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_COMPILE_TIMEOUT_S = 300
_SOURCES_FROM = ((4, 3), (4, 0))


def bridge_jar(spark: SparkHome, java: Java) -> Path:
    """The path of the bridge for ``spark``; compiles it where there is none yet.

    Several processes may call it at once. Raises :class:`EnvironmentProblem` if the sources do not compile.
    """
    shipped = shipped_jar(spark.version)
    if shipped.is_file():
        return shipped
    sources = source_folder()
    folder = _writable_cache() / source_hash(sources, spark.version)
    jar = folder / JAR_NAME
    if jar.is_file():
        return jar
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not jar.is_file():
            compile_bridge(spark, java, sources, jar)
    return jar


def shipped_jar(spark_version: str) -> Path:
    """Where a wheel has its jar for this version of Spark, if it has one."""
    return _HERE / "jars" / f"slotwise-bridge-{spark_version}.jar"


def source_folder() -> Path:
    """The folder with ``src`` and ``resources`` of the bridge: in the wheel, or in the source checkout."""
    for folder in (_HERE / "jvm", _HERE.parents[2] / "jvm"):
        if (folder / "src").is_dir():
            return folder
    raise EnvironmentProblem(f"the sources of the Spark bridge are missing beside {_HERE}; install slotwise anew")


def source_hash(sources: Path, spark_version: str) -> str:
    """16 hexadecimal digits that change with the sources and with the version of Spark."""
    digest = hashlib.sha256(spark_version.encode())
    for path in _files(sources):
        digest.update(f"\0{path.relative_to(sources)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def version_folder(spark_version: str) -> str:
    """The folder with the few sources that differ between versions: the newest that is not newer than Spark."""
    major, minor = (int(number) for number in spark_version.split(".")[:2])
    return next(f"spark-{first[0]}.{first[1]}" for first in _SOURCES_FROM if (major, minor) >= first)


def compile_bridge(spark: SparkHome, java: Java, sources: Path, target: Path) -> None:
    """Compile ``sources`` into the jar ``target``, which appears at once and whole.

    The jar's bytes depend on the sources and the compiler only. Raises :class:`EnvironmentProblem` with the compiler's
    first lines.
    """
    with tempfile.TemporaryDirectory(prefix="slotwise-bridge-") as scratch:
        classes = Path(scratch) / "classes"
        classes.mkdir()
        class_path = str(spark.jars / "*")
        # TieredStopAtLevel: a short-lived compiler run gains nothing from the optimising compiler.
        jvm = [str(java.path), "-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
        scalac = ["scala.tools.nsc.Main", "-nowarn", "-classpath", class_path, "-d", str(classes)]
        folders = (sources / "src", sources / version_folder(spark.version))
        files = [str(path) for folder in folders for path in _files(folder)]
        try:
            result = subprocess.run(
                [*jvm, *scalac, *files], capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentProblem(f"cannot compile the bridge for Spark {spark.version}: {error}") from error
        if result.returncode != 0:
            lines = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
            said = "\n  ".join(lines[:10])
            raise EnvironmentProblem(
                f"the bridge does not compile against Spark {spark.version} in {spark.path} "
                f"(Java {java.major} at {java.path}):\n  {said}"
            )
        packed = Path(scratch) / JAR_NAME
        _pack(packed, [(classes, path) for path in _files(classes)], sources / "resources")
        target.parent.mkdir(parents=True, exist_ok=True)
        # The scratch folder may be on another file system; the rename must not be.
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(packed, beside)
        beside.replace(target)


def _pack(jar: Path, classes: list[tuple[Path, Path]], resources: Path) -> None:
    entries = classes + [(resources, path) for path in _files(resources)]
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, path in sorted(entries, key=lambda entry: entry[1].relative_to(entry[0]).as_posix()):
            info = zipfile.ZipInfo(path.relative_to(root).as_posix(), _FIRST_ZIP_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@cache
def _writable_cache() -> Path:
    """The cache in the user's folder, or a folder that lives as long as the machine where that cannot be written."""
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("slotwise")) / "bridge"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        # A name that nobody can guess: in a shared temporary folder another user could put a jar of theirs first.
        return Path(tempfile.mkdtemp(prefix="slotwise-bridge-"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
