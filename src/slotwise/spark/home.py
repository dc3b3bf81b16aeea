"""Find the Spark that pyspark brings: its folder, jars and version, without importing it (which takes a second)."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem

_VERSION_LINE = re.compile(r'^__version__\s*(?::\s*\w+\s*)?=\s*["\']([^"\']+)["\']', re.MULTILINE)
_OLDEST = (4, 0)


@dataclass(frozen=True)
class SparkHome:
    """An installed pyspark: its package folder (Spark's SPARK_HOME) and its version, such as ``4.0.1``."""

    path: Path
    version: str

    @property
    def jars(self) -> Path:
        """The folder with Spark's jars."""
        return self.path / "jars"

    @property
    def python_zips(self) -> tuple[Path, ...]:
        """pyspark and py4j as archives, for interpreters that lack them."""
        return tuple(sorted((self.path / "python" / "lib").glob("*.zip"), reverse=True))


def find_spark() -> SparkHome:
    """The pyspark of this interpreter.

    SPARK_HOME is not looked at: program and JVM must be of one version, and the program imports this pyspark.
    Raises :class:`EnvironmentProblem` if there is none, it is too old, or it has no jars (pyspark-client).
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentProblem("pyspark is not installed here; run: pip install pyspark")
    return spark_at(Path(next(iter(spec.submodule_search_locations))))


def spark_at(path: Path) -> SparkHome:
    """The pyspark in the package folder ``path``; raises as :func:`find_spark` does."""
    try:
        match = _VERSION_LINE.search((path / "version.py").read_text(encoding="utf-8"))
    except OSError as error:
        raise EnvironmentProblem(f"there is no usable pyspark in {path}: {error}") from error
    if match is None:
        raise EnvironmentProblem(f"{path / 'version.py'} does not say which version of pyspark it is")
    version = match.group(1)
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _OLDEST:
        raise EnvironmentProblem(f"pyspark {version} in {path} is too old; 4.0 or newer is needed")
    if not (path / "jars").is_dir():
        raise EnvironmentProblem(f"pyspark in {path} has no jars; install the package pyspark, not pyspark-client")
    return SparkHome(path, version)
