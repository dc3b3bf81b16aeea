"""Every configuration option: its name, its default, how its text is read, and what it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from slotwise.model.errors import ConfigError
from slotwise.model.resources import parse_bytes, parse_cpu
from slotwise.model.restart import RestartKind
from slotwise.runtime.cut_log import LEAST_LIMIT_BYTES

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


def _parse_cache_mode(text: str, what: str) -> str:
    if text not in ("auto", "off"):
        raise ConfigError(f"{what}: {text!r} is neither auto nor off")
    return text


def _parse_warm_mode(text: str, what: str) -> str:
    if text not in ("off", "minimal", "full"):
        raise ConfigError(f"{what}: {text!r} is neither off nor minimal nor full")
    return text


def _parse_folder(text: str, _what: str) -> Path:
    return Path(text).expanduser().absolute()


@dataclass(frozen=True)
class Option:
    """One option. ``default`` is text as a user would write it; empty for none."""

    key: str
    default: str
    parse: Callable[[str, str], Any]
    meaning: str


def _parse_fraction(text: str, what: str) -> int:
    """Millionths of a fraction above 0 and up to 1."""
    try:
        fraction = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{what}: {text!r} is not a fraction; write 0.25 or 1/4") from None
    if not 0 < fraction <= 1:
        raise ConfigError(f"{what}: {text} is not above 0 and at most 1")
    return int(fraction * 1_000_000)


def _parse_placement(text: str, what: str) -> str:
    if text not in ("pack", "spread"):
        raise ConfigError(f"{what}: {text!r} is neither pack nor spread")
    return text


def _parse_strategy(text: str, what: str) -> RestartKind:
    try:
        return RestartKind(text)
    except ValueError:
        raise ConfigError(f"{what}: {text!r} is none of none, fixed-delay and exponential-delay") from None


def _parse_attempts(text: str, what: str) -> int:
    return -1 if text.strip() == "-1" else _parse_count(text, what)


def _parse_multiplier(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{what}: {text!r} is not a number") from None


def _parse_log_bytes(text: str, what: str) -> int:
    size = parse_bytes(text, what)
    if size < LEAST_LIMIT_BYTES:
        raise ConfigError(f"{what}: {text} is less than {LEAST_LIMIT_BYTES} bytes, which keeps nothing worth reading")
    return size


def _one_of(*words: str) -> Callable[[str, str], str]:
    def parse(text: str, what: str) -> str:
        if text not in words:
            raise ConfigError(f"{what}: {text!r} is none of {', '.join(words)}")
        return text

    return parse


_parse_installer = _one_of("auto", "uv", "pip")
_parse_level = _one_of("debug", "info", "warning", "error")
_parse_format = _one_of("text", "json")


_D, _N = parse_duration, _parse_count
_ALL = (
    Option("heartbeat.interval", "10 s", _D, "How often workers and jobs report."),
    Option("heartbeat.timeout", "50 s", _D, "Silence after which a worker or a job counts as lost."),
    Option("resourcemanager.taskmanager-timeout", "30 s", _D, "How long a worker without slots is kept."),
    Option(
        "resourcemanager.standalone.start-up-time",
        "0 s",
        _D,
        "No job is told of missing resources before so much time has passed since the master's start.",
    ),
    Option(
        "resourcemanager.taskmanager-registration.timeout",
        "2 min",
        _D,
        "How long a started worker may take to register.",
    ),
    Option("resourcemanager.start-worker.retry-interval", "3 s", _D, "Pause after a worker could not be started."),
    Option("resourcemanager.start-worker.max-failure-rate", "10", _N, "Failed starts of workers a minute, at most."),
    Option(
        "slotmanager.requirements-check-delay",
        "50 ms",
        _D,
        "Changes within this time share a check; the first after a quiet time has one of its own, at once.",
    ),
    Option(
        "slotmanager.placement-mode", "pack", _parse_placement, "pack: fewest workers. spread: even use of workers."
    ),
    Option("slotmanager.max-total-resource.cpu", "", parse_cpu, "The sum of cores over all workers is never above."),
    Option("slotmanager.max-total-resource.memory", "", parse_bytes, "Likewise for memory."),
    Option(
        "slotmanager.number-of-slots.max", "", _N, "Likewise, as a number of default slots; the smaller limit wins."
    ),
    Option("slotmanager.number-of-workers.max", "", _N, "Likewise for the number of workers."),
    Option("slotmanager.min-total-resource.cpu", "", parse_cpu, "Cores that are kept up without any job."),
    Option("slotmanager.min-total-resource.memory", "", parse_bytes, "Likewise for memory."),
    Option("slotmanager.number-of-slots.min", "", _N, "Likewise, as a number of default slots; the larger limit wins."),
    Option("slotmanager.redundant-taskmanager-num", "0", _N, "So many workers' worth of default slots is kept free."),
    Option(
        "job.logs.max-file-size",
        "64m",
        _parse_log_bytes,
        "Each log of a job keeps its beginning and its end within this; what was cut out between is said in it.",
    ),
    Option(
        "job.logs.max-size",
        "512m",
        _parse_log_bytes,
        "Likewise for all logs of a job together: the largest ones are cut.",
    ),
    Option(
        "job.logs.retention.max-jobs", "1000", _N, "Of so many ended jobs, the ones that ended last, logs are kept."
    ),
    Option("job.logs.retention.max-age", "30 d", _D, "For so long after their job's end logs are kept; -1: for ever."),
    Option("blob.max-file-size", "4g", parse_bytes, "An uploaded file may have so much."),
    Option(
        "blob.max-total-size",
        "50g",
        parse_bytes,
        "All uploaded files together, in the master's directory: those that no job needs go when there is no room.",
    ),
    Option(
        "blob.retention.max-age",
        "1 d",
        _D,
        "How long an uploaded file is kept that no unfinished job needs, after it was last asked for; -1: until there "
        "is no room.",
    ),
    Option(
        "log.level", "info", _parse_level, "What masters and workers log of themselves: debug, info, warning, error."
    ),
    Option("log.format", "text", _parse_format, "text: key=value. json: a JSON object a line."),
    Option("slot.idle.timeout", "50 s", _D, "How long a job keeps a slot that it does not need."),
    Option("taskmanager.slot.timeout", "10 s", _D, "How long a slot waits for its job to accept it."),
    Option("taskmanager.registration.timeout", "5 min", _D, "A worker that no master accepts for so long ends itself."),
    Option(
        "taskmanager.orphan-timeout",
        "15 s",
        _D,
        "What runs in the slots of a worker that was killed ends after so long, unless the worker is started again on "
        "that host; 0: at once. Workers that the cluster starts itself take 0. Masters must know it as well: a driver "
        "of a worker out of sight is not replaced before.",
    ),
    Option(
        "taskmanager.drain-timeout",
        "30 s",
        _D,
        "How long executors of a worker that gets SIGTERM may move their shuffle and cached blocks to others; 0: they "
        "end at once, as with SIGINT. Workers that the cluster starts itself take 0.",
    ),
    Option(
        "jobmanager.adaptive-scheduler.resource-wait-timeout",
        "5 min",
        _D,
        "How long a job waits for its driver's slot and its minimum of executors; -1: for ever.",
    ),
    Option(
        "jobmanager.adaptive-scheduler.resource-stabilization-timeout",
        "2 s",
        _D,
        "How long a job waits for more once its minimum is there.",
    ),
    Option(
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling",
        "30 s",
        _D,
        "After a job's number of executors has changed, none is taken away for so long; growing is never put off.",
    ),
    Option(
        "executor.decommission-timeout",
        "1 min",
        _D,
        "How long an executor that is taken away may move its shuffle and cached blocks to others.",
    ),
    Option(
        "restart-strategy.type",
        "exponential-delay",
        _parse_strategy,
        "What follows when a job's driver is lost or killed: none, fixed-delay or exponential-delay. A program that "
        "fails by itself is only run again if its job asks for it (slotwise submit --restart-strategy).",
    ),
    Option("restart-strategy.fixed-delay.attempts", "3", _parse_attempts, "Restarts of a job in all; -1: any number."),
    Option("restart-strategy.fixed-delay.delay", "1 s", _D, "The wait before each."),
    Option(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        "3",
        _parse_attempts,
        "Restarts without a quiet time between them; -1: any number.",
    ),
    Option("restart-strategy.exponential-delay.initial-backoff", "1 s", _D, "The wait before the first restart."),
    Option("restart-strategy.exponential-delay.max-backoff", "1 min", _D, "The longest wait."),
    Option(
        "restart-strategy.exponential-delay.backoff-multiplier",
        "1.5",
        _parse_multiplier,
        "How the wait grows each time.",
    ),
    Option(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        "1 h",
        _D,
        "A driver that ran for so long makes the count begin anew.",
    ),
    Option(
        "taskmanager.cpu.cores", "", parse_cpu, "Cores of a worker that the cluster starts (default: all, at least 2)."
    ),
    Option(
        "taskmanager.memory.process.size",
        "",
        parse_bytes,
        "Memory of a worker that the cluster starts (default: 45 % of the machine's).",
    ),
    Option("taskmanager.numberOfTaskSlots", "2", _N, "A default slot is a worker's total divided by this."),
    Option(
        "taskmanager.default-slot-fraction",
        "",
        _parse_fraction,
        "A default slot is this part of a worker's total, as in 0.25 or 1/4; wins over numberOfTaskSlots.",
    ),
    Option(
        "taskmanager.jvm-cache.mode",
        "auto",
        _parse_cache_mode,
        "auto: drivers and executors start from a cache of loaded classes, which a worker makes in the background "
        "where there is none. off: neither.",
    ),
    Option(
        "taskmanager.jvm-cache.directory",
        "",
        _parse_folder,
        "Where these caches are, 200 MB each (default: jvm in the user's cache folder for slotwise).",
    ),
    Option(
        "taskmanager.jvm-cache.quiet-time",
        "15 s",
        _D,
        "A cache is made when for so long no driver or executor was started on the worker and its machine is not busy; "
        "0: at once, and however busy it is.",
    ),
    Option(
        "taskmanager.uploads.directory",
        "",
        _parse_folder,
        "Where a worker keeps uploaded files and Python environments made of them, for all workers of this user on its "
        "machine (default: uploads in the user's cache folder for slotwise).",
    ),
    Option(
        "taskmanager.uploads.max-size",
        "10g",
        parse_bytes,
        "Uploaded files that are kept there, for the next job: those used longest ago go first.",
    ),
    Option(
        "taskmanager.environments.max-size",
        "20g",
        parse_bytes,
        "Likewise for Python environments; one that a slot uses never goes.",
    ),
    Option(
        "taskmanager.environments.build-timeout",
        "15 min",
        _D,
        "A Python environment that is not built after so long fails its job.",
    ),
    Option(
        "taskmanager.environments.installer",
        "auto",
        _parse_installer,
        "What builds them: uv, pip, or auto (uv where a worker finds it, else pip). A uv.lock needs uv.",
    ),
    Option(
        "taskmanager.warm.mode",
        "minimal",
        _parse_warm_mode,
        "Processes that a worker starts before anybody needs them, in what its slots leave free. minimal: one driver "
        "and one executor. full: as many executors as have room beside one driver. off: none, as ever with slotwise "
        "run.",
    ),
    Option("taskmanager.warm.executors", "", _N, "Another number of executors, at most."),
    Option("taskmanager.warm.drivers", "", _N, "Another number of drivers, at most."),
    Option(
        "taskmanager.warm.rounds",
        "2",
        _N,
        "How often each goes through a little work of its own first: more is faster for the first queries of a "
        "job. 0: processes that wait do none.",
    ),
    Option(
        "taskmanager.warm.quiet-time",
        "3 s",
        _D,
        "They are started, one at a time, when for so long no driver or executor was started on the worker and its "
        "machine is not busy; 0: at once, and however busy it is.",
    ),
    Option(
        "jobmanager.warm-applications.max",
        "0",
        _N,
        "Drivers with a Spark context and executors that wait for jobs like those submitted last, at most. They hold "
        "slots, and give them back when a job waits for them.",
    ),
    Option(
        "jobmanager.warm-applications.idle-timeout",
        "10 min",
        _D,
        "So long after the last job that could have used one, a warm application ends.",
    ),
    Option(
        "jobmanager.warm-applications.quiet-time",
        "3 s",
        _D,
        "One is begun when for so long no job was submitted that could have used one.",
    ),
)
OPTIONS: dict[str, Option] = {option.key: option for option in _ALL}
