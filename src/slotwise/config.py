"""Configuration: one table of options with their names, types, defaults and meaning.

Values come from a YAML file, then the environment (``SLOTWISE_CONF_<key with dots and dashes as underscores>``), then
``-D key=value``; later wins. Names are Flink's where the meaning is the same. Unknown keys are refused with the
nearest valid name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.errors import ConfigError, SizeError
from slotwise.model.resources import ResourceProfile, parse_bytes, parse_cpu
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape

ENV_PREFIX = "SLOTWISE_CONF_"
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)?\s*$")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str, what: str) -> float:
    """Seconds of ``10 s``, ``500 ms``, ``5 min`` (a bare number is seconds); ``-1`` stands for 'for ever'."""
    if text.strip() in ("-1", "-1 s"):
        return -1.0
    match = _DURATION.match(text)
    if match is None:
        raise ConfigError(f"{what}: {text!r} is not a duration; write 10 s, 500 ms or 5 min")
    return float(match.group(1)) * _SECONDS[match.group(2) or "s"]


def _parse_count(text: str, what: str) -> int:
    if not text.strip().isdigit():
        raise ConfigError(f"{what}: {text!r} is not a whole number")
    return int(text)


@dataclass(frozen=True)
class Option:
    """One option. ``default`` is text as a user would write it; empty for none."""

    key: str
    default: str
    parse: Callable[[str, str], Any]
    meaning: str


OPTIONS: dict[str, Option] = {
    option.key: option
    for option in (
        Option("heartbeat.interval", "10 s", parse_duration, "How often workers and jobs report."),
        Option("heartbeat.timeout", "50 s", parse_duration, "Silence after which a worker or a job counts as lost."),
        Option(
            "resourcemanager.taskmanager-timeout", "30 s", parse_duration, "How long a worker without slots is kept."
        ),
        Option(
            "resourcemanager.standalone.start-up-time",
            "0 s",
            parse_duration,
            "No job is told of missing resources before this is over.",
        ),
        Option(
            "resourcemanager.taskmanager-registration.timeout",
            "2 min",
            parse_duration,
            "How long a started worker may take to register.",
        ),
        Option(
            "slotmanager.requirements-check-delay", "50 ms", parse_duration, "Changes within this time share a check."
        ),
        Option(
            "slotmanager.max-total-resource.cpu", "", parse_cpu, "The sum of cores over all workers is never above."
        ),
        Option("slotmanager.max-total-resource.memory", "", parse_bytes, "Likewise for memory."),
        Option("slotmanager.number-of-workers.max", "", _parse_count, "Likewise for the number of workers."),
        Option("slot.idle.timeout", "50 s", parse_duration, "How long a job keeps a slot that it does not need."),
        Option(
            "jobmanager.adaptive-scheduler.resource-wait-timeout",
            "5 min",
            parse_duration,
            "How long a job waits for its driver's slot and its minimum of executors; -1: for ever.",
        ),
        Option(
            "jobmanager.adaptive-scheduler.resource-stabilization-timeout",
            "2 s",
            parse_duration,
            "How long a job waits for more once its minimum is there.",
        ),
        Option("taskmanager.cpu.cores", "", parse_cpu, "Cores of a worker that the cluster starts (default: all)."),
        Option(
            "taskmanager.memory.process.size",
            "",
            parse_bytes,
            "Memory of a worker that the cluster starts (default: 45 % of the machine's).",
        ),
        Option(
            "taskmanager.numberOfTaskSlots", "2", _parse_count, "A default slot is a worker's total divided by this."
        ),
    )
}


class Configuration:
    """Checked values by key; ``get`` gives the default of a key that was not set."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values: dict[str, Any] = {}
        given = dict(values or {})
        for key in given:
            if key not in OPTIONS:
                raise ConfigError(_unknown(key))
        for option in OPTIONS.values():
            text = given.get(option.key, option.default)
            try:
                self._values[option.key] = option.parse(text, option.key) if text != "" else None
            except SizeError as error:
                raise ConfigError(str(error)) from error
        if self._values["heartbeat.timeout"] <= self._values["heartbeat.interval"]:
            raise ConfigError(
                f"heartbeat.timeout ({given.get('heartbeat.timeout', '50 s')}) must be longer than heartbeat.interval "
                f"({given.get('heartbeat.interval', '10 s')})"
            )

    def get(self, key: str) -> Any:
        """The value of ``key``: seconds, milli-cores, bytes or a count, None where there is none."""
        return self._values[key]

    def resource_manager(self, shape: WorkerShape | None, max_workers: int | None = None) -> ResourceManagerConfig:
        """The ResourceManager's part; ``shape`` is what the provisioner starts (None: standalone)."""
        cpu, memory = self.get("slotmanager.max-total-resource.cpu"), self.get("slotmanager.max-total-resource.memory")
        limit = None
        if shape is not None and (cpu is not None or memory is not None):
            limit = ResourceProfile(2**62 if cpu is None else cpu, 2**62 if memory is None else memory)
            if limit.cpu_milli < shape.total.cpu_milli or limit.memory_bytes < shape.total.memory_bytes:
                raise ConfigError(
                    f"the maximum (slotmanager.max-total-resource: {limit}) is less than one worker ({shape.total})"
                )
        sizing = Sizing(
            worker=shape,
            max_total=limit,
            max_workers=max_workers if max_workers is not None else self.get("slotmanager.number-of-workers.max"),
            idle_timeout_s=self.get("resourcemanager.taskmanager-timeout"),
        )
        return ResourceManagerConfig(
            sizing=sizing,
            heartbeat_interval_s=self.get("heartbeat.interval"),
            heartbeat_timeout_s=self.get("heartbeat.timeout"),
            check_delay_s=self.get("slotmanager.requirements-check-delay"),
            start_up_grace_s=self.get("resourcemanager.standalone.start-up-time"),
            worker_start_timeout_s=self.get("resourcemanager.taskmanager-registration.timeout"),
        )

    def job_master(self) -> JobMasterConfig:
        """The JobMasters' part."""
        return JobMasterConfig(
            heartbeat_interval_s=self.get("heartbeat.interval"),
            heartbeat_timeout_s=self.get("heartbeat.timeout"),
            resource_wait_timeout_s=self.get("jobmanager.adaptive-scheduler.resource-wait-timeout"),
            stabilisation_s=self.get("jobmanager.adaptive-scheduler.resource-stabilization-timeout"),
            idle_slot_timeout_s=self.get("slot.idle.timeout"),
        )


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, OPTIONS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "see `slotwise master --help` for all options"
    return f"there is no option {key!r}; {hint}"


def load(
    file: Path | None = None, options: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> Configuration:
    """The configuration from a file, the environment and ``key=value`` options. Raises :class:`ConfigError`."""
    values: dict[str, str] = {}
    if file is not None:
        values.update(_read(file))
    by_variable = {_variable(key): key for key in OPTIONS}
    for name, value in (os.environ if environment is None else environment).items():
        if name.startswith(ENV_PREFIX):
            if name not in by_variable:
                near = difflib.get_close_matches(name, by_variable, n=1, cutoff=0.5)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"the environment variable {name} names no option{hint}")
            values[by_variable[name]] = value
    for option in options:
        key, separator, value = option.partition("=")
        if not separator:
            raise ConfigError(f"-D {option}: write key=value")
        values[key.strip()] = value.strip()
    return Configuration(values)


def _variable(key: str) -> str:
    return ENV_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", key).upper()


def _read(file: Path) -> dict[str, str]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: expected `key: value` lines")
    values: dict[str, str] = {}
    _flatten("", document, values)
    return values


def _flatten(prefix: str, node: Mapping[Any, Any], values: dict[str, str]) -> None:
    """Nested maps and dotted keys mean the same."""
    for key, value in node.items():
        if isinstance(value, dict):
            _flatten(f"{prefix}{key}.", value, values)
        elif value is not None:
            values[f"{prefix}{key}"] = str(value)
