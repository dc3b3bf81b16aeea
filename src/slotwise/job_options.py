"""A job described in Python, with the names of the command line's options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slotwise.model.errors import UsageError
from slotwise.model.job import JobSpec

_LISTS = ("py_files", "files", "archives", "jars")
_PAIRS = ("conf", "env")
_REPEATED = ("refresh", "full_refresh")


def describe(program: str | Path | JobSpec, args: Sequence[str], options: Mapping[str, Any]) -> JobSpec:
    """The specification of a job. ``options`` are those of ``slotwise submit`` with underscores for dashes: ``name``,
    ``conf`` and ``env`` (mappings), ``py_files``, ``files``, ``archives`` and ``jars`` (paths), ``executor_memory``
    ("2g"), ``executor_cores``, ``num_executors``, ``min_executors``, ``max_executors``, ``driver_memory``,
    ``driver_cores``, ``restart_strategy``, ``python``, and so on. A specification is taken as it is.

    Raises :class:`UsageError` for what cannot be.
    """
    if isinstance(program, JobSpec):
        if args or options:
            raise UsageError("a whole specification takes neither arguments nor options beside it")
        return program
    # The command line's module is not needed by who only asks for jobs.
    from slotwise.cli.options import JOB_PARAMETERS, job_spec

    if isinstance(args, str):
        raise UsageError("args is a list of the program's arguments, not one text")
    for name in options:
        if name not in JOB_PARAMETERS:
            near = difflib.get_close_matches(name, JOB_PARAMETERS, n=1)
            raise UsageError(f"a job has no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    given: dict[str, Any] = dict.fromkeys(JOB_PARAMETERS)
    given.update(dict.fromkeys((*_PAIRS, *_REPEATED), ()), full_refresh_all=False, dry_run=False)
    given.update(options)
    for name in _PAIRS:
        if isinstance(given[name], Mapping):
            given[name] = tuple(f"{key}={_text(value)}" for key, value in given[name].items())
    for name in _LISTS:
        if given[name] is not None and not isinstance(given[name], str):
            given[name] = ",".join(str(path) for path in _paths(name, given[name]))
    return job_spec(str(program), tuple(str(argument) for argument in args), given)


def _text(value: object) -> str:
    """As Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _paths(name: str, value: object) -> Iterable[object]:
    if isinstance(value, Path):
        return [value]
    if not isinstance(value, Iterable):
        raise UsageError(f"{name} is a list of paths")
    return value
