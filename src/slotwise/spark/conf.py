"""From Spark configuration and spark-submit's options to the sizes and counts of a job.

The rules are Spark's own, to the byte, so that what admission reserves is what the driver's JVM will ask for
(``ExecutorSizes.scala`` does the same sum on the other side).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.errors import ConfigError, SizeError
from slotwise.model.job import DriverSize, ExecutorSize
from slotwise.model.resources import MIB, format_bytes, parse_bytes

SMALLEST_HEAP_BYTES = 450 * MIB
"""Spark refuses to start with less: 1.5 times the 300 MiB that it reserves for itself."""

_NO_BOUND = 2**31 - 1
_RESOURCE = re.compile(r"^spark\.executor\.resource\.([^.]+)\.amount$")


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
    executor = _executor(conf, executor_memory, executor_cores)
    dynamic = is_true(conf.get("spark.dynamicAllocation.enabled", "false"), "spark.dynamicAllocation.enabled")
    for name, count in (("--min-executors", min_executors), ("--max-executors", max_executors)):
        if count is not None and count < 0:
            raise SizeError(f"{name} cannot be negative: {count}")
    instances = num_executors
    if instances is None and "spark.executor.instances" in conf:
        instances = _count(conf["spark.executor.instances"], "spark.executor.instances", 0)
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
    low = least if least is not None else _count(conf.get(f"{prefix}minExecutors", "0"), f"{prefix}minExecutors", 0)
    high = most
    if high is None and f"{prefix}maxExecutors" in conf:
        high = _count(conf[f"{prefix}maxExecutors"], f"{prefix}maxExecutors", 1)
    if high is not None and high >= _NO_BOUND:
        high = None
    if high is not None and (high < low or high == 0):
        raise SizeError(f"at most {high} executors is below the least number, {max(low, 1)}")
    wished = _count(conf.get(f"{prefix}initialExecutors", "0"), f"{prefix}initialExecutors", 0)
    initial = max(low, wished, instances or 0)
    if high is not None and initial > high:
        raise SizeError(f"at most {high} executors is below the {initial} to start with")
    return low, initial, high


def _driver(conf: Mapping[str, str], memory: str | None, cores: int | None) -> DriverSize:
    heap = _heap(conf, "driver", memory)
    return DriverSize(_cores(conf, "driver", cores), heap, overhead_bytes(conf, "driver", heap))


def _executor(conf: Mapping[str, str], memory: str | None, cores: int | None) -> ExecutorSize:
    heap = _heap(conf, "executor", memory)
    count = _cores(conf, "executor", cores)
    task_cpus = conf.get("spark.task.cpus", "1")
    try:
        per_task = float(task_cpus)
    except ValueError:
        raise SizeError(f"spark.task.cpus: {task_cpus!r} is not a number") from None
    if not 0 < per_task <= count:
        raise SizeError(f"spark.task.cpus={task_cpus} does not fit into an executor of {count} core(s)")
    off_heap = 0
    if is_true(conf.get("spark.memory.offHeap.enabled", "false"), "spark.memory.offHeap.enabled"):
        off_heap = _mib(conf.get("spark.memory.offHeap.size", "0"), "spark.memory.offHeap.size", default_unit="")
        if off_heap == 0:
            raise SizeError("spark.memory.offHeap.enabled=true needs spark.memory.offHeap.size of at least 1m")
    python = _mib(conf.get("spark.executor.pyspark.memory", "0"), "spark.executor.pyspark.memory")
    extended = {
        match.group(1): _count(value, key, 0)
        for key, value in conf.items()
        if (match := _RESOURCE.match(key)) is not None
    }
    return ExecutorSize(
        count,
        heap,
        overhead_bytes(conf, "executor", heap),
        off_heap,
        python,
        tuple(sorted((name, amount) for name, amount in extended.items() if amount)),
    )


def overhead_bytes(conf: Mapping[str, str], role: str, heap_bytes: int) -> int:
    """Memory beside the heap of the ``role`` ('driver' or 'executor'), in bytes, a whole number of MiB.

    As on YARN and Kubernetes: ``memoryOverhead`` where it is set, else the larger of ``memoryOverheadFactor`` (0.1) of
    the heap and ``minMemoryOverhead`` (384m). Raises :class:`SizeError`.
    """
    prefix = f"spark.{role}."
    if f"{prefix}memoryOverhead" in conf:
        return _mib(conf[f"{prefix}memoryOverhead"], f"{prefix}memoryOverhead")
    text = conf.get(f"{prefix}memoryOverheadFactor", "0.1")
    try:
        factor = float(text)
    except ValueError:
        raise SizeError(f"{prefix}memoryOverheadFactor: {text!r} is not a number") from None
    if not 0 < factor < float("inf"):
        raise SizeError(f"{prefix}memoryOverheadFactor must be above 0, not {text}")
    least = _mib(conf.get(f"{prefix}minMemoryOverhead", "384m"), f"{prefix}minMemoryOverhead")
    return max(int(factor * (heap_bytes // MIB)) * MIB, least)


def _heap(conf: Mapping[str, str], role: str, option: str | None) -> int:
    key = f"spark.{role}.memory"
    what, text = (f"--{role}-memory", option) if option is not None else (key, conf.get(key, "1g"))
    heap = _mib(text, what)
    if heap < SMALLEST_HEAP_BYTES:
        raise SizeError(f"{what}={text}: Spark needs a heap of at least {format_bytes(SMALLEST_HEAP_BYTES)}")
    return heap


def _cores(conf: Mapping[str, str], role: str, option: int | None) -> int:
    key = f"spark.{role}.cores"
    if option is None:
        return _count(conf.get(key, "1"), key, 1)
    if option < 1:
        raise SizeError(f"--{role}-cores must be at least 1, not {option}")
    return option


def _mib(text: str, what: str, *, default_unit: str = "m") -> int:
    """Bytes, rounded down to whole MiB as Spark does."""
    return parse_bytes(text, what, default_unit=default_unit) // MIB * MIB


def _count(text: str, what: str, least: int) -> int:
    try:
        count = int(text.strip())
    except ValueError:
        raise SizeError(f"{what}: {text!r} is not a whole number") from None
    if count < least:
        raise SizeError(f"{what} must be at least {least}, not {count}")
    return count


def is_true(text: str, what: str) -> bool:
    """A boolean as Spark reads it; raises :class:`ConfigError`."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{what} must be true or false, not {text!r}")
    return word == "true"


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
