"""From Spark configuration and spark-submit's options to the sizes and counts of a job.

The rules are Spark's own (:mod:`slotwise.model.executor_conf`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.errors import ConfigError, SizeError
from slotwise.model.executor_conf import core_count, executor_size, heap_size, is_true, overhead_bytes, whole_number
from slotwise.model.job import DriverSize, ExecutorSize

_NO_BOUND = 2**31 - 1


@dataclass(frozen=True)
class JobSizes:
    """The sizes of a job's processes and its bounds; the fields mean what they mean in ``JobSpec``."""

    driver: DriverSize
    executor: ExecutorSize
    min_executors: int
    initial_executors: int
    max_executors: int | None
    dynamic_allocation: bool


def job_sizes(
    conf: Mapping[str, str],
    *,
    driver_memory: str | None = None,
    driver_cores: int | None = None,
    executor_memory: str | None = None,
    executor_cores: int | None = None,
    num_executors: int | None = None,
    min_executors: int | None = None,
    max_executors: int | None = None,
) -> JobSizes:
    """Sizes and bounds from ``conf`` (``spark.*``) and explicit options, which win over ``conf``.

    Raises :class:`SizeError` for what cannot be parsed, is out of range or contradicts itself, and :class:`ConfigError`
    for keys that spark-submit would act on and that are not supported here.
    """
    refuse_unsupported(conf)
    driver = _driver(conf, driver_memory, driver_cores)
    executor = executor_size(conf, executor_memory, executor_cores)
    dynamic = is_true(conf.get("spark.dynamicAllocation.enabled", "false"), "spark.dynamicAllocation.enabled")
    for name, count in (("--min-executors", min_executors), ("--max-executors", max_executors)):
        if count is not None and count < 0:
            raise SizeError(f"{name} cannot be negative: {count}")
    instances = num_executors
    if instances is None and "spark.executor.instances" in conf:
        instances = whole_number(conf["spark.executor.instances"], "spark.executor.instances", 0)
    if instances is not None and instances < (0 if dynamic else 1):
        raise SizeError(f"the number of executors (--num-executors) must be at least 1, not {instances}")
    bounds = (_dynamic_bounds if dynamic else _static_bounds)(conf, instances, min_executors, max_executors)
    return JobSizes(driver, executor, *bounds, dynamic_allocation=dynamic)


def _static_bounds(
    conf: Mapping[str, str], instances: int | None, least: int | None, most: int | None
) -> tuple[int, int, int | None]:
    if least == 0:
        raise SizeError("--min-executors 0 needs dynamic allocation (spark.dynamicAllocation.enabled=true)")
    if most is not None and most < (least or 1):
        raise SizeError(f"--max-executors {most} is below --min-executors {least or 1}")
    if instances is None:
        initial = most if most is not None else max(2, least or 0)
    else:
        initial = instances
        if least is not None and least > initial:
            raise SizeError(f"--min-executors {least} is above the number of executors, {initial}")
        if most is not None and most < initial:
            raise SizeError(f"--max-executors {most} is below the number of executors, {initial}")
    return least or 1, initial, most


def _dynamic_bounds(
    conf: Mapping[str, str], instances: int | None, least: int | None, most: int | None
) -> tuple[int, int, int | None]:
    prefix = "spark.dynamicAllocation."
    low = least
    if low is None:
        low = whole_number(conf.get(f"{prefix}minExecutors", "0"), f"{prefix}minExecutors", 0)
    high = most
    if high is None and f"{prefix}maxExecutors" in conf:
        high = whole_number(conf[f"{prefix}maxExecutors"], f"{prefix}maxExecutors", 1)
    if high is not None and high >= _NO_BOUND:
        high = None
    if high is not None and (high < low or high == 0):
        raise SizeError(f"at most {high} executors is below the least number, {max(low, 1)}")
    wished = whole_number(conf.get(f"{prefix}initialExecutors", "0"), f"{prefix}initialExecutors", 0)
    initial = max(low, wished, instances or 0)
    if high is not None and initial > high:
        raise SizeError(f"at most {high} executors is below the {initial} to start with")
    return low, initial, high


def _driver(conf: Mapping[str, str], memory: str | None, cores: int | None) -> DriverSize:
    heap = heap_size(conf, "driver", memory)
    return DriverSize(core_count(conf, "driver", cores), heap, overhead_bytes(conf, "driver", heap))


_UNSUPPORTED = {
    "spark.jars.packages": "give the jar files with --jars or spark.jars",
    "spark.jars.repositories": "give the jar files with --jars or spark.jars",
    "spark.jars.ivySettings": "give the jar files with --jars or spark.jars",
}


def refuse_unsupported(conf: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` for keys that only spark-submit acts on; they would do nothing, silently."""
    for key, advice in _UNSUPPORTED.items():
        if conf.get(key, "").strip():
            raise ConfigError(f"{key} is not supported: {advice}")


def parse_conf_options(options: Iterable[str]) -> dict[str, str]:
    """The settings of ``--conf key=value`` options; of equal keys the last wins. Raises :class:`ConfigError`."""
    conf: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"--conf {option!r}: write key=value, as in --conf spark.executor.cores=2")
        if not key.startswith("spark."):
            raise ConfigError(f"--conf {key!r}: Spark's settings start with 'spark.'")
        conf[key] = value.strip()
    return conf


def read_properties_file(path: str | Path) -> dict[str, str]:
    """The ``spark.*`` settings of a file in Java's properties format; other keys are ignored, as Spark does.

    Raises :class:`ConfigError` if the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the properties file {path}: {error}") from error
    return {key: value for key, value in parse_properties(text).items() if key.startswith("spark.")}


def parse_properties(text: str) -> dict[str, str]:
    """All keys and values of a text in Java's properties format, values without outer blanks."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        if match is not None:
            properties[_unescape(match.group(1))] = _unescape(match.group(2)).strip()
    return properties


def _logical_lines(text: str) -> Iterable[str]:
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    known = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) > 1 else known.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
