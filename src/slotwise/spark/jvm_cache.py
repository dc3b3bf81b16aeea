"""The cache of loaded classes that Spark's JVMs start from: where it lies, what it is valid for, when it is used.

One file serves drivers and executors: an AOT cache from Java 24 on, a dynamic class-data archive before. Its folder is
named by a hash of all that it depends on (Java, jars, flags), so that whatever changes leads to another folder and
nothing is ever overwritten. Who makes it is :mod:`slotwise.spark.jvm_cache_builder`.

A cache is a gain and never a condition: whatever is wrong with it, JVMs start without it, and say nothing of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slotwise.spark.home import SparkHome
from slotwise.spark.java import Java
from slotwise.spark.jvm_flags import FIRST_AOT_MAJOR, NO_CACHE, FromCache, use_flags
from slotwise.spark.jvm_modules import module_options

MANIFEST = "manifest.json"
LOCK_FILE = "lock"
BUILDING_PREFIX = ".building-"
KEPT_ENTRIES = 4
"""Caches that are kept; the one that was used longest ago goes first."""

_FORMAT = 1
_UNUSED_S = 30 * 86400.0
_RETRY_AFTER_S = 86400.0
_HERE = Path(__file__).resolve().parent
_TRAINING = ("jvm_flags.py", "jvm_training.py", "jvm_training_program.py", "plain_jars.py")
_CHUNK_BYTES = 1 << 20
_KEY = re.compile(r"[0-9a-f]{24}")


class CacheFile(msgspec.Struct, frozen=True):
    """A file of a finished cache."""

    name: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What is said of a finished cache, beside it. ``build_s`` is how long it took to make."""

    files: tuple[CacheFile, ...]
    java: str
    spark: str
    made_unix_s: float
    build_s: float

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)


class Failure(msgspec.Struct, frozen=True):
    """Why the last attempt to make a cache gave none."""

    reason: str
    unix_s: float


@dataclass(frozen=True)
class Status:
    """The state of this machine's cache, for people. ``state``: ready, missing, failed, damaged or unusable (the
    folder cannot be used, ``reason`` says why)."""

    state: str
    folder: Path
    reason: str = ""
    manifest: Manifest | None = None


def supported(java: Java) -> str:
    """Empty where this Java can have a cache, else the reason why not."""
    release = _release(java)
    variant = next((line for line in release.splitlines() if line.startswith("JVM_VARIANT=")), "")
    if variant and "hotspot" not in variant.lower():
        name = variant.partition("=")[2].strip('"')
        return f"Java at {java.path} is not HotSpot ({name})"
    library = _library(java)
    if library is None:
        return f"there is no HotSpot library beside {java.path}"
    return ""


def needs_base(java: Java) -> bool:
    """Whether a cache for this Java has to bring the archive of Java's own classes, as some small runtimes do not."""
    library = _library(java)
    return java.major < FIRST_AOT_MAJOR and library is not None and not (library.parent / "classes.jsa").is_file()


def cache_key(java: Java, spark: SparkHome, bridge_jar: Path) -> str:
    """24 hexadecimal digits that change with Java, the jars, the flags and the way in which caches are made.

    Jars count by path, size and time of change, as they do for the JVM itself. Raises OSError where they cannot be
    read.
    """
    digest = hashlib.sha256()
    words = [str(_FORMAT), platform.machine(), str(java.path), str(java.major), _release(java), str(needs_base(java))]
    words += module_options(java.major)
    jars = sorted(path for path in spark.jars.iterdir() if path.suffix.lower() == ".jar")
    for path in (_library(java), bridge_jar, *jars):
        if path is not None:
            status = path.stat()
            words.append(f"{path}:{status.st_size}:{status.st_mtime_ns}")
    words += [hashlib.sha256((_HERE / name).read_bytes()).hexdigest() for name in _TRAINING]
    for word in words:
        digest.update(word.encode() + b"\0")
    return digest.hexdigest()[:24]


class JvmCache:
    """The cache for one Java, Spark and bridge below ``root``. Used from one thread at a time."""

    def __init__(self, root: Path, java: Java, spark: SparkHome, bridge_jar: Path) -> None:
        self.root = root
        self.java = java
        self.spark = spark
        self.bridge_jar = bridge_jar
        self.folder = root / cache_key(java, spark, bridge_jar)
        self._checked: dict[Path, tuple[int, int, int]] = {}

    def start(self) -> FromCache:
        """What makes a JVM start from this cache; nothing where there is no sound one. Counts as its use.

        The files' hashes are compared once in this object's life, and again whenever a file has changed.
        """
        try:
            files = self._sound()
        except (OSError, ValueError, msgspec.DecodeError):
            return NO_CACHE
        if not files:
            return NO_CACHE
        with contextlib.suppress(OSError):
            os.utime(self.folder / MANIFEST)
        jars = tuple(path for path in files if path.suffix == ".jar")
        return FromCache(use_flags(self.java, [path for path in files if path not in jars]), jars)

    def status(self) -> Status:
        """What there is. Reads the whole file, some tenths of a second."""
        if reason := supported(self.java) or unusable(self.root):
            return Status("unusable", self.folder, reason)
        try:
            manifest = self._manifest()
            self._checked.clear()
            if self._sound():
                return Status("ready", self.folder, manifest=manifest)
            return Status("damaged", self.folder, "the file is not what was made", manifest)
        except FileNotFoundError:
            failure = self.failure()
            if failure is not None:
                return Status("failed", self.folder, failure.reason)
            return Status("missing", self.folder)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            return Status("damaged", self.folder, str(error))

    def wanted(self) -> bool:
        """Whether one should be made now: there is none, it is possible, and no attempt failed within a day."""
        if supported(self.java) or unusable(self.root) or self.start():
            return False
        failure = self.failure()
        return failure is None or not 0 <= time.time() - failure.unix_s < _RETRY_AFTER_S

    def failure(self) -> Failure | None:
        """The noted failure of the last attempt."""
        try:
            return msgspec.json.decode(self._failure_file.read_bytes(), type=Failure)
        except (OSError, msgspec.DecodeError):
            return None

    def note_failure(self, reason: str) -> None:
        """Keep others from trying the same again for a day."""
        with contextlib.suppress(OSError):
            _write(self._failure_file, msgspec.json.encode(Failure(reason, time.time())))

    def clear(self) -> None:
        """Make the folder anew and empty, for the holder of the lock. Whoever runs from a damaged cache keeps that."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(mode=0o700)

    def abandon(self) -> None:
        """Remove the folder if it was not finished."""
        if self.folder.exists() and not (self.folder / MANIFEST).exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def publish(self, made: Iterable[Path], build_s: float) -> Manifest:
        """Make the files ``made``, on the same file system, this cache's own. The folder is there and has no others.

        Without its manifest a cache does not exist; that comes last, at once and whole. Raises OSError.
        """
        files = []
        for path in made:
            path.chmod(0o600)
            path.rename(self.folder / path.name)
            kept = self.folder / path.name
            files.append(CacheFile(kept.name, kept.stat().st_size, _sha256(kept)))
        manifest = Manifest(tuple(files), str(self.java.path), self.spark.version, time.time(), round(build_s, 1))
        _write(self.folder / MANIFEST, msgspec.json.encode(manifest))
        self._failure_file.unlink(missing_ok=True)
        return manifest

    def remove(self) -> bool:
        """Remove this cache and the note of a failure; whether there was any. Who runs from it keeps it open."""
        found = self.folder.exists() or self._failure_file.exists()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._failure_file.unlink(missing_ok=True)
        return found

    def prune(self) -> None:
        """Remove what other builders left unfinished, failures of a day ago, and caches beyond the newest few that
        were used in the last month. Only for the holder of the lock."""
        entries = []
        now = time.time()
        for path in self.root.iterdir():
            with contextlib.suppress(OSError):
                if path.name.startswith(BUILDING_PREFIX):
                    shutil.rmtree(path, ignore_errors=True)
                elif path.suffix == ".failed" and now - path.stat().st_mtime > _RETRY_AFTER_S:
                    path.unlink()
                elif _KEY.fullmatch(path.name) and not (path / MANIFEST).exists():
                    shutil.rmtree(path, ignore_errors=True)
                elif (path / MANIFEST).is_file() and path != self.folder:
                    entries.append(((path / MANIFEST).stat().st_mtime, path))
        entries.sort(reverse=True)
        for rank, (used, path) in enumerate(entries):
            if rank >= KEPT_ENTRIES - 1 or now - used > _UNUSED_S:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _failure_file(self) -> Path:
        return self.folder.with_suffix(".failed")

    def _manifest(self) -> Manifest:
        return msgspec.json.decode((self.folder / MANIFEST).read_bytes(), type=Manifest)

    def _sound(self) -> list[Path]:
        """The files if they are what was made, and nobody else could have put them there; else none."""
        if unusable(self.root) or _foreign(self.folder):
            return []
        files = []
        for file in self._manifest().files:
            path = self.folder / file.name
            status = path.stat()
            if _foreign(path) or path.parent != self.folder or status.st_size != file.size_bytes:
                return []
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._checked.get(path) != seen:
                if _sha256(path) != file.sha256:
                    return []
                self._checked[path] = seen
            files.append(path)
        return files


def unusable(root: Path) -> str:
    """Why nothing below ``root`` is to be trusted or could be found; empty where all is well, or nothing there yet."""
    try:
        return _foreign(root)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{root}: {error.strerror}"


def unwritable(root: Path) -> str:
    """Why no cache can be made below ``root``, which is made if it is not there; empty where one can be."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return ""
    except OSError as error:
        return f"cannot write {root}: {error.strerror}"


def _foreign(path: Path) -> str:
    """Others could have put classes of theirs there. Root could anyway."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others"
    return ""


def _release(java: Java) -> str:
    try:
        return (java.path.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _library(java: Java) -> Path | None:
    lib = java.path.resolve().parent.parent / "lib" / "server"
    return next((path for path in (lib / "libjvm.so", lib / "libjvm.dylib") if path.is_file()), None)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def describe(status: Status) -> str:
    """One line about a ready cache."""
    assert status.manifest is not None
    size_mib = status.manifest.size_bytes // (1 << 20)
    return f"{size_mib} MiB, made in {status.manifest.build_s:g} s, in {status.folder}"


def to_json(status: Status) -> str:
    """For scripts."""
    said: dict[str, object] = {"state": status.state, "folder": str(status.folder), "reason": status.reason}
    if status.manifest is not None:
        said |= {"size_bytes": status.manifest.size_bytes, "build_s": status.manifest.build_s}
    return json.dumps(said, indent=2)
