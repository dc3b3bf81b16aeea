"""The size of Spark's processes from Spark configuration, by Spark's own rules, to the byte.

What admission reserves must be what the driver's JVM will ask for (``ExecutorSizes.scala`` does the same sum on the
other side), so these rules are written here once, for jobs and for the regions of pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slotwise.model.errors import ConfigError, SizeError
from slotwise.model.job import ExecutorSize
from slotwise.model.resources import MIB, format_bytes, parse_bytes

SMALLEST_HEAP_BYTES = 450 * MIB
"""Spark refuses to start with less: 1.5 times the 300 MiB that it reserves for itself."""

_RESOURCE = re.compile(r"^spark\.executor\.resource\.([^.]+)\.amount$")


def executor_size(conf: Mapping[str, str], memory: str | None = None, cores: int | None = None) -> ExecutorSize:
    """The size of an executor under ``conf``; ``memory`` (as in ``2g``) and ``cores`` win over it.

    Raises :class:`SizeError` for what cannot be parsed or is out of its range, :class:`ConfigError` for a boolean that
    is none.
    """
    heap = heap_size(conf, "executor", memory)
    count = core_count(conf, "executor", cores)
    task_slots(conf, count)
    off_heap = 0
    if is_true(conf.get("spark.memory.offHeap.enabled", "false"), "spark.memory.offHeap.enabled"):
        off_heap = whole_mib(conf.get("spark.memory.offHeap.size", "0"), "spark.memory.offHeap.size", default_unit="")
        if off_heap == 0:
            raise SizeError("spark.memory.offHeap.enabled=true needs spark.memory.offHeap.size of at least 1m")
    python = whole_mib(conf.get("spark.executor.pyspark.memory", "0"), "spark.executor.pyspark.memory")
    extended = {
        match.group(1): whole_number(value, key, 0)
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


def task_slots(conf: Mapping[str, str], cores: int) -> int:
    """How many tasks an executor of ``cores`` runs at once under ``spark.task.cpus``.

    Raises :class:`SizeError` for what is no number, or more than the executor has.
    """
    text = conf.get("spark.task.cpus", "1")
    try:
        per_task = float(text)
    except ValueError:
        raise SizeError(f"spark.task.cpus: {text!r} is not a number") from None
    if not 0 < per_task <= cores:
        raise SizeError(f"spark.task.cpus={text} does not fit into an executor of {cores} core(s)")
    return int(cores / per_task)


def overhead_bytes(conf: Mapping[str, str], role: str, heap_bytes: int) -> int:
    """Memory beside the heap of the ``role`` ('driver' or 'executor'), in bytes, a whole number of MiB.

    As on YARN and Kubernetes: ``memoryOverhead`` where it is set, else the larger of ``memoryOverheadFactor`` (0.1) of
    the heap and ``minMemoryOverhead`` (384m). Raises :class:`SizeError`.
    """
    prefix = f"spark.{role}."
    if f"{prefix}memoryOverhead" in conf:
        return whole_mib(conf[f"{prefix}memoryOverhead"], f"{prefix}memoryOverhead")
    text = conf.get(f"{prefix}memoryOverheadFactor", "0.1")
    try:
        factor = float(text)
    except ValueError:
        raise SizeError(f"{prefix}memoryOverheadFactor: {text!r} is not a number") from None
    if not 0 < factor < float("inf"):
        raise SizeError(f"{prefix}memoryOverheadFactor must be above 0, not {text}")
    least = whole_mib(conf.get(f"{prefix}minMemoryOverhead", "384m"), f"{prefix}minMemoryOverhead")
    return max(int(factor * (heap_bytes // MIB)) * MIB, least)


def heap_size(conf: Mapping[str, str], role: str, option: str | None) -> int:
    """The JVM heap of the ``role`` in bytes; ``option`` wins over ``conf``. Raises :class:`SizeError`."""
    key = f"spark.{role}.memory"
    what, text = (f"--{role}-memory", option) if option is not None else (key, conf.get(key, "1g"))
    heap = whole_mib(text, what)
    if heap < SMALLEST_HEAP_BYTES:
        raise SizeError(f"{what}={text}: Spark needs a heap of at least {format_bytes(SMALLEST_HEAP_BYTES)}")
    return heap


def core_count(conf: Mapping[str, str], role: str, option: int | None) -> int:
    """The cores of the ``role``; ``option`` wins over ``conf``. Raises :class:`SizeError`."""
    key = f"spark.{role}.cores"
    if option is None:
        return whole_number(conf.get(key, "1"), key, 1)
    if option < 1:
        raise SizeError(f"--{role}-cores must be at least 1, not {option}")
    return option


def whole_mib(text: str, what: str, *, default_unit: str = "m") -> int:
    """Bytes, rounded down to whole MiB as Spark does."""
    return parse_bytes(text, what, default_unit=default_unit) // MIB * MIB


def whole_number(text: str, what: str, least: int) -> int:
    """``text`` as a number of at least ``least``; ``what`` names it in the :class:`SizeError`."""
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
