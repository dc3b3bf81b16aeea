"""The options with which a JVM records, makes and uses a cache of loaded classes, by its version, and those with which
it compiles less at its start. Pure: no I/O.

From Java 24 on there are AOT caches (JEP 483), made in two steps: a JVM records while it works, another makes the
cache of the recording. Before, a JVM writes a dynamic class-data archive at its end (JEP 350).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.resources import GIB
from slotwise.spark.java import Java

FIRST_AOT_MAJOR = 24

_OWN_ARCHIVE = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:SharedClassListFile", "-XX:AOT", "-Xshare:")
_OTHER_CLASSES = (
    *("-javaagent", "-agentlib", "-agentpath", "-Xbootclasspath", "-Djava.system.class.loader"),
    *("--patch-module", "--upgrade-module-path", "--limit-modules", "-XX:-UseSharedSpaces"),
    *("-XX:+AutoCreateSharedArchive", "-XX:DumpLoadedClassList", "-XX:+RecordDynamicDumpInfo"),
)
_OTHER_LAYOUT = (
    *("-XX:+UseZGC", "-XX:-UseCompressed", "-XX:+UseCompactObjectHeaders", "-XX:-UseCompactObjectHeaders"),
    "-XX:ObjectAlignmentInBytes",
)
_OTHER_MODULES = ("--add-", "-Djdk.module.")
"""An AOT cache holds for one set of opened modules; a class-data archive does not mind."""
_LARGE_HEAP_BYTES = 31 * GIB
"""From somewhere below 32 GiB on, references take eight bytes."""
OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""The variables of the environment in which a JVM finds options too."""

HOT_LATER = (
    *("-XX:Tier4InvocationThreshold=50000", "-XX:Tier4MinInvocationThreshold=6000"),
    *("-XX:Tier4CompileThreshold=150000", "-XX:Tier4BackEdgeThreshold=400000"),
)
"""Ten times as many calls and loops as by HotSpot's defaults before its optimising compiler takes up a method. In a
job's first seconds that compiler takes half of all processor time otherwise, mostly for what is soon over; until then
methods run as the quick compiler has made them. Work with many rows gets there in a fraction of a second more."""


@dataclass(frozen=True)
class FromCache:
    """How a JVM starts from a cache: with options, and jars that come first on its class path. Empty: from none."""

    flags: tuple[str, ...] = ()
    jars: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.flags)


NO_CACHE = FromCache()


def file_names(java: Java, own_base: bool) -> tuple[str, ...]:
    """The names of the cache's files. A class-data archive lies on an archive of Java's own classes; ``own_base``: this
    Java brings none, so the cache has one, as its first file.
    """
    if _is_aot(java):
        return ("spark.aot",)
    return ("java.jsa", "spark.jsa") if own_base else ("spark.jsa",)


def use_flags(java: Java, files: Sequence[Path]) -> tuple[str, ...]:
    """What makes a JVM start from the ``files`` of a cache, or without and without a word where they do not fit."""
    if _is_aot(java):
        # Otherwise the optimising compiler would at once take up all that it had compiled in the training run.
        replay = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-AOTReplayTraining")
        return (f"-XX:AOTCache={files[-1]}", *replay, *quiet_flags(java))
    return (f"-XX:SharedArchiveFile={os.pathsep.join(map(str, files))}", "-Xshare:auto", *quiet_flags(java))


def base_flags(java: Java, base: Path) -> tuple[str, ...]:
    """What makes a JVM write the archive of Java's own classes to ``base``, and do nothing else."""
    return ("-Xshare:dump", f"-XX:SharedArchiveFile={base}", *quiet_flags(java))


def record_flags(java: Java, folder: Path, base: Path | None = None) -> tuple[str, ...]:
    """What makes a JVM keep what it has loaded, in ``folder``, at its end: as the cache itself before Java 24, which
    lies on ``base`` and knows its path, or on Java's own.
    """
    if _is_aot(java):
        # The collector that the making step needs: a recording tells with which one it was made.
        return ("-XX:AOTMode=record", f"-XX:AOTConfiguration={folder / 'recorded'}", "-XX:+UseG1GC", *quiet_flags(java))
    lies_on = (f"-XX:SharedArchiveFile={base}",) if base else ()
    return (*lies_on, f"-XX:ArchiveClassesAtExit={folder / file_names(java, False)[0]}", *quiet_flags(java))


def make_flags(java: Java, folder: Path) -> tuple[str, ...]:
    """What makes a JVM turn the recording in ``folder`` into the cache, and do nothing else; none before Java 24."""
    if not _is_aot(java):
        return ()
    recorded, made = folder / "recorded", folder / file_names(java, False)[0]
    return (
        *("-XX:AOTMode=create", f"-XX:AOTConfiguration={recorded}", f"-XX:AOTCache={made}", "-XX:+UseG1GC"),
        *quiet_flags(java),
    )


def quiet_flags(java: Java) -> tuple[str, ...]:
    """What keeps a JVM's remarks on its cache out of the job's logs. A name that it lacks would end it."""
    return ("-Xlog:cds*=off", "-Xlog:aot*=off") if _is_aot(java) else ("-Xlog:cds*=off",)


def fits(
    java: Java, heap_bytes: int, options: Iterable[str], env: Mapping[str, str], own_class_path: Iterable[str]
) -> bool:
    """Whether a JVM with a heap of ``heap_bytes`` and the user's ``options``, ``env`` and class path entries before
    Spark's can start from the cache.

    It cannot where the user has an archive of their own or an agent, where their classes come first (a cache holds for
    the beginning of the class path) or where objects are laid out differently. The JVM notices all of that, and then
    does without the archive of Java's own classes too, which costs a second: better not to ask it.
    """
    if any(own_class_path) or heap_bytes >= _LARGE_HEAP_BYTES:
        return False
    refused = (*_OWN_ARCHIVE, *_OTHER_CLASSES, *_OTHER_LAYOUT, *(_OTHER_MODULES if _is_aot(java) else ()))
    words = [*options, *(word for name in OPTION_VARIABLES for word in env.get(name, "").split())]
    return not any(word.startswith(refused) for word in words)


def _is_aot(java: Java) -> bool:
    return java.major >= FIRST_AOT_MAJOR
