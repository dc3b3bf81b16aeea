"""Configuration: one table of options with their names, types, defaults and meaning.

Values come from a YAML file, then the environment (``SLOTWISE_CONF_<key with dots and dashes as underscores>``), then
``-D key=value``; later wins. Names are Flink's where the meaning is the same. Unknown keys are refused with the
nearest valid name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from slotwise.config_options import OPTIONS
from slotwise.dispatcher.uploads import BlobLimits
from slotwise.dispatcher.warm_applications import WarmApplicationPolicy
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.errors import ConfigError, SizeError
from slotwise.model.resources import ResourceProfile
from slotwise.model.restart import RestartKind, RestartStrategy, check_strategy
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape, check_stability
from slotwise.runtime.logs import LogLimits

ENV_PREFIX = "SLOTWISE_CONF_"
# Beyond a job's silence time-outs a worker takes so long, at most, to end a driver: it looks every few seconds, keeps
# the slots for a new leader for 10 s, and gives processes 15 s to end in order. The worker may be killed and come
# back just before its keepers end the driver; then the time-outs begin anew.
_FENCE_MARGIN_S = 50.0

# More than any worker has room for.
_ALL_THAT_FIT = 10_000


class Configuration:
    """Checked values by key; ``get`` gives the default of a key that was not set. ``given``: what was set, as text."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values: dict[str, Any] = {}
        given = dict(values or {})
        self.given = given
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

    def worker_shape(self, total: ResourceProfile) -> WorkerShape:
        """A worker of ``total`` with its default slot: by the fraction, else one of the number of equal parts."""
        millionths = self.get("taskmanager.default-slot-fraction")
        if millionths is None:
            parts = self.get("taskmanager.numberOfTaskSlots")
            if parts < 1:
                raise ConfigError("taskmanager.numberOfTaskSlots must be at least 1")
            share = Fraction(1, parts)
        else:
            share = Fraction(millionths, 1_000_000)
        extended = {name: int(amount * share) for name, amount in total.extended}
        return WorkerShape(
            total, ResourceProfile.of(int(total.cpu_milli * share), int(total.memory_bytes * share), extended)
        )

    def resource_manager(self, shape: WorkerShape | None, max_workers: int | None = None) -> ResourceManagerConfig:
        """The ResourceManager's part; ``shape`` is what the provisioner starts (None: standalone, no limits apply).

        Raises :class:`ConfigError` when the limits contradict each other (B: SZ-06).
        """
        sizing = Sizing()
        if shape is not None:
            sizing = Sizing(
                worker=shape,
                max_total=self._limit(shape, "max", min, 2**62),
                max_workers=max_workers if max_workers is not None else self.get("slotmanager.number-of-workers.max"),
                min_total=self._limit(shape, "min", max, 0),
                redundant_workers=self.get("slotmanager.redundant-taskmanager-num"),
                idle_timeout_s=self.get("resourcemanager.taskmanager-timeout"),
            )
            if sizing.max_total is not None and sizing.more_workers(ResourceProfile(0, 0), 0) == 0:
                raise ConfigError(f"the maximum ({sizing.max_total}) is less than one worker ({shape.total})")
            check_stability(sizing)
        return ResourceManagerConfig(
            sizing=sizing,
            placement=self.get("slotmanager.placement-mode"),
            heartbeat_interval_s=self.get("heartbeat.interval"),
            heartbeat_timeout_s=self.get("heartbeat.timeout"),
            check_delay_s=self.get("slotmanager.requirements-check-delay"),
            start_up_grace_s=self.get("resourcemanager.standalone.start-up-time"),
            worker_start_timeout_s=self.get("resourcemanager.taskmanager-registration.timeout"),
            provisioner_retry_interval_s=self.get("resourcemanager.start-worker.retry-interval"),
            provisioner_retries_per_minute=self.get("resourcemanager.start-worker.max-failure-rate"),
        )

    def _limit(
        self, shape: WorkerShape, which: str, choose: Callable[[int, int], int], neutral: int
    ) -> ResourceProfile | None:
        """Minimum or maximum of CPU and memory, from both ways to state it."""
        cpu = self.get(f"slotmanager.{which}-total-resource.cpu")
        memory = self.get(f"slotmanager.{which}-total-resource.memory")
        slots = self.get(f"slotmanager.number-of-slots.{which}")
        if cpu is None and memory is None and slots is None:
            return None
        cpu = neutral if cpu is None else cpu
        memory = neutral if memory is None else memory
        if slots is not None:
            cpu = choose(cpu, shape.default_profile.cpu_milli * slots)
            memory = choose(memory, shape.default_profile.memory_bytes * slots)
        return ResourceProfile(cpu, memory)

    def jvm_cache_root(self, mode: str | None = None) -> Path | None:
        """Where caches of loaded classes are kept; None when they are switched off. ``mode`` (auto, off) goes before
        the configured one.
        """
        if (mode or self.get("taskmanager.jvm-cache.mode")) == "off":
            return None
        folder: Path | None = self.get("taskmanager.jvm-cache.directory")
        return folder or Path(platformdirs.user_cache_dir("slotwise")) / "jvm"

    def uploads_root(self) -> Path:
        """Where workers keep uploaded files and the environments made of them."""
        folder: Path | None = self.get("taskmanager.uploads.directory")
        return folder or Path(platformdirs.user_cache_dir("slotwise")) / "uploads"

    def warm_units(self, mode: str | None = None) -> tuple[int, int]:
        """How many drivers and executors wait on a worker, at most. ``mode`` goes before the configured one."""
        mode = mode or self.get("taskmanager.warm.mode")
        if mode == "off":
            return 0, 0
        drivers, executors = self.get("taskmanager.warm.drivers"), self.get("taskmanager.warm.executors")
        most = _ALL_THAT_FIT if mode == "full" else 1
        return 1 if drivers is None else drivers, most if executors is None else executors

    def effective(self) -> dict[str, str]:
        """Every option as text: what was set, else its default (empty for none)."""
        return {option.key: self.given.get(option.key, option.default) for option in OPTIONS.values()}

    def as_flags(self) -> tuple[str, ...]:
        """What was set, as flags for a worker that this process starts."""
        return tuple(word for key, value in self.given.items() for word in ("-D", f"{key}={value}"))

    def has_limits(self) -> bool:
        """Whether any limit is set; they have no effect in a standalone cluster, which is said once at its start."""
        keys = [
            key for key in OPTIONS if key.startswith(("slotmanager.max-", "slotmanager.min-", "slotmanager.number-"))
        ]
        return any(self.get(key) is not None for key in keys) or self.get("slotmanager.redundant-taskmanager-num") > 0

    def restart_strategy(self, kind: RestartKind | None = None) -> RestartStrategy:
        """The figures for ``kind`` (None: the configured one). Raises :class:`ConfigError` when they make no sense."""
        kind = kind or self.get("restart-strategy.type")
        if kind is RestartKind.EXPONENTIAL_DELAY:
            prefix = "restart-strategy.exponential-delay"
            strategy = RestartStrategy(
                kind,
                self.get(f"{prefix}.attempts-before-reset-backoff"),
                self.get(f"{prefix}.initial-backoff"),
                self.get(f"{prefix}.max-backoff"),
                self.get(f"{prefix}.backoff-multiplier"),
                self.get(f"{prefix}.reset-backoff-threshold"),
            )
        else:
            delay_s = self.get("restart-strategy.fixed-delay.delay")
            attempts = self.get("restart-strategy.fixed-delay.attempts")
            strategy = RestartStrategy(kind, attempts, delay_s, max(delay_s, 60.0))
        try:
            check_strategy(strategy)
        except SizeError as error:
            raise ConfigError(f"restart-strategy: {error}") from error
        return strategy

    def job_logs(self) -> LogLimits:
        """How much of jobs' output is kept."""
        return LogLimits(
            file_bytes=self.get("job.logs.max-file-size"),
            job_bytes=self.get("job.logs.max-size"),
            ended_jobs=self.get("job.logs.retention.max-jobs"),
            ended_s=self.get("job.logs.retention.max-age"),
        )

    def blobs(self) -> BlobLimits:
        """How much of uploaded files is kept."""
        return BlobLimits(
            file_bytes=self.get("blob.max-file-size"),
            total_bytes=self.get("blob.max-total-size"),
            unused_s=self.get("blob.retention.max-age"),
        )

    def warm_applications(self) -> WarmApplicationPolicy:
        """Which warm applications are kept."""
        prefix = "jobmanager.warm-applications"
        return WarmApplicationPolicy(
            self.get(f"{prefix}.max"), self.get(f"{prefix}.quiet-time"), self.get(f"{prefix}.idle-timeout")
        )

    def job_master(self) -> JobMasterConfig:
        """The JobMasters' part."""
        return JobMasterConfig(
            heartbeat_interval_s=self.get("heartbeat.interval"),
            heartbeat_timeout_s=self.get("heartbeat.timeout"),
            resource_wait_timeout_s=self.get("jobmanager.adaptive-scheduler.resource-wait-timeout"),
            stabilisation_s=self.get("jobmanager.adaptive-scheduler.resource-stabilization-timeout"),
            idle_slot_timeout_s=self.get("slot.idle.timeout"),
            restart=self.restart_strategy(),
            cool_down_s=self.get("jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling"),
            decommission_timeout_s=self.get("executor.decommission-timeout"),
            driver_fence_s=self.get("heartbeat.timeout") + self.get("taskmanager.orphan-timeout") + _FENCE_MARGIN_S,
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
    by_variable = {variable_of(key): key for key in OPTIONS}
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


def variable_of(key: str) -> str:
    """The environment variable of an option."""
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
