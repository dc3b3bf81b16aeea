"""Makes the cache of loaded classes (:mod:`slotwise.spark.jvm_cache`), in a process of its own.

A worker starts it in the background (:mod:`slotwise.spark.jvm_cache_keeper`); ``slotwise cache build`` calls it in the
foreground. One builder at a time works in a folder of caches. What it makes appears at once and whole; what it was
about to make is gone with it: its children die with it, and its scratch folder is removed by the next builder where it
could not do so itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Coroutine
from enum import IntEnum
from pathlib import Path
from typing import Any

import psutil

from slotwise.model.errors import EnvironmentProblem, SlotwiseError
from slotwise.model.resources import GIB, format_bytes
from slotwise.runtime.children import die_with_parent
from slotwise.spark.bridge_jar import bridge_jar
from slotwise.spark.home import find_spark
from slotwise.spark.java import find_java
from slotwise.spark.jvm_cache import BUILDING_PREFIX, LOCK_FILE, JvmCache, Manifest, needs_base, supported, unusable
from slotwise.spark.jvm_flags import FromCache, file_names, use_flags
from slotwise.spark.jvm_training import Training
from slotwise.spark.plain_jars import PLAIN_JAR, make_plain_jar

LIMIT_S = 900.0
"""A build that takes longer is ended. Idle machines need one minute or two."""

_LEAST_DISK_BYTES = 1 * GIB


class Code(IntEnum):
    """The builder's exit codes."""

    MADE = 0
    FAILED = 1
    BUSY = 3
    """Another builder is at work."""
    NOT_WANTED = 4
    """There is a cache by now, or there can be none."""
    TOO_SLOW = 5
    """The time limit passed. Says more of the machine's load than of the cache."""


class BusyError(SlotwiseError):
    """Another builder is at work in this folder."""


def find_cache(root: Path) -> JvmCache:
    """The cache below ``root`` for the Java, Spark and bridge of this process; :class:`EnvironmentProblem` without."""
    spark = find_spark()
    java = find_java(spark_version=spark.version)
    jar = bridge_jar(spark, java)
    try:
        return JvmCache(root, java, spark, jar)
    except OSError as error:
        raise EnvironmentProblem(f"cannot read Spark's jars: {error}") from error


async def build(cache: JvmCache, limit_s: float = LIMIT_S) -> Manifest:
    """Make ``cache``, whatever is there already.

    Raises :class:`BusyError`, :class:`EnvironmentProblem` where it cannot be made (which is noted, to keep workers from
    trying again for a day), TimeoutError after ``limit_s`` seconds.
    """
    if reason := supported(cache.java) or unusable(cache.root):
        raise EnvironmentProblem(reason)
    try:
        cache.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (cache.root / LOCK_FILE).open("w")
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {cache.root}: {error.strerror}") from error
    with lock:
        _take(lock.fileno(), cache.root)
        cache.prune()
        if (free := shutil.disk_usage(cache.root).free) < _LEAST_DISK_BYTES:
            raise EnvironmentProblem(
                f"{cache.root} has {format_bytes(free)} free; making a cache takes {format_bytes(_LEAST_DISK_BYTES)}"
            )
        scratch = Path(tempfile.mkdtemp(prefix=BUILDING_PREFIX, dir=cache.root))
        try:
            async with asyncio.timeout(limit_s):
                manifest = await _build(cache, scratch)
        except (EnvironmentProblem, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            cache.note_failure(str(error))
            raise EnvironmentProblem(f"no cache could be made: {error}") from error
        finally:
            cache.abandon()
            shutil.rmtree(scratch, ignore_errors=True)
        cache.prune()
        return manifest


async def _build(cache: JvmCache, scratch: Path) -> Manifest:
    began = time.monotonic()
    names = file_names(cache.java, needs_base(cache.java))
    # An archive knows the paths of the one that it lies on and of all jars, so these are made in their place.
    cache.clear()
    base = [cache.folder / name for name in names[:-1]]
    jars = _plain_jars(cache)
    training = Training(cache.java, cache.spark, cache.bridge_jar, scratch, base[0] if base else None, jars)
    await training.run()
    made = [*base, scratch / names[-1]]
    for path in made:
        if not path.is_file():
            raise EnvironmentProblem(f"Java {cache.java.major} at {cache.java.path} wrote no {path.name}")
    await training.check(FromCache(use_flags(cache.java, made), jars))
    return cache.publish([*jars, *made], time.monotonic() - began)


def _plain_jars(cache: JvmCache) -> tuple[Path, ...]:
    target = cache.folder / PLAIN_JAR
    try:
        return (target,) if make_plain_jar(cache.spark, target) else ()
    except zipfile.BadZipFile as error:
        raise EnvironmentProblem(f"a jar of Spark's in {cache.spark.jars} is damaged: {error}") from error


async def foreground(building: Coroutine[Any, Any, Manifest]) -> Manifest:
    """``building``, but cancelled and cleaned up by SIGTERM as by Ctrl-C; then :class:`EnvironmentProblem`."""
    task = asyncio.ensure_future(building)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.wait([task])
    if task.cancelled():
        raise EnvironmentProblem("told to end; no cache was made")
    return task.result()


async def proved(cache: JvmCache, limit_s: float = 60.0) -> None:
    """Start a JVM from ``cache``; :class:`EnvironmentProblem` unless it does."""
    start = cache.start()
    if not start:
        raise EnvironmentProblem(f"there is no sound cache in {cache.folder}")
    with tempfile.TemporaryDirectory(prefix="slotwise-cache-") as folder:
        training = Training(cache.java, cache.spark, cache.bridge_jar, Path(folder))
        try:
            await asyncio.wait_for(training.check(start), limit_s)
        except TimeoutError:
            raise EnvironmentProblem(f"a JVM that starts from {cache.folder} did not end in {limit_s:g} s") from None


def _take(descriptor: int, root: Path) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(f"another process is making a cache in {root}") from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot lock {root}: {error.strerror}") from error


def stand_back() -> None:
    """Take processor and disk only when nobody else wants them; children inherit it."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(psutil.Error, OSError, AttributeError, ValueError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


async def _run(root: Path, limit_s: float) -> Code:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    # Instead of being killed with its worker, as every child is: what it was about to make is to be removed.
    die_with_parent(signal.SIGTERM)
    try:
        cache = find_cache(root)
        if not cache.wanted():
            return Code.NOT_WANTED
        manifest = await build(cache, limit_s)
    except BusyError:
        return Code.BUSY
    except TimeoutError:
        print(f"the cache was not made within {limit_s:g} s", file=sys.stderr)
        return Code.TOO_SLOW
    except SlotwiseError as error:
        print(error, file=sys.stderr)
        return Code.FAILED
    except asyncio.CancelledError:
        return Code.FAILED
    print(f"{cache.folder}: {format_bytes(manifest.size_bytes)} in {manifest.build_s:g} s")
    return Code.MADE


def main() -> int:
    """The background builder's entry; see :class:`Code`."""
    parser = argparse.ArgumentParser(description="Make the cache of loaded classes, at the lowest priority.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    given = parser.parse_args()
    stand_back()
    return asyncio.run(_run(given.root, given.limit_s))


if __name__ == "__main__":
    sys.exit(main())
