"""Ids of jobs and workers as arguments: a unique beginning of one is enough, and shells complete them live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])

_LIMIT_S = 1.0
_MOST = 200
_LIVING_ONLY = ("cancel", "scale")


def _call(context: click.Context, path: str) -> Any:
    """What the master says, quickly."""
    from slotwise.client import Client, read_token

    file = context.params.get("token_file")
    with Client(
        context.params.get("master_url"), read_token(Path(file) if file else None), timeout_s=_LIMIT_S
    ) as client:
        return client.call("GET", path)


def complete_jobs(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs whose ids begin so, newest first. Nothing when anything goes wrong: a shell's line is no place for
    errors.
    """
    try:
        jobs = _call(context, "/v1/jobs/overview")["jobs"]
        living = context.info_name in _LIVING_ONLY
        found = [job for job in reversed(jobs) if job["jid"].startswith(incomplete)]
        return [
            CompletionItem(job["jid"], help=f"{job['name']}, {job['phase'].lower().replace('_', ' ')}")
            for job in found
            if not living or job["end-time"] < 0
        ][:_MOST]
    except Exception:
        return []


def complete_workers(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The workers whose ids begin so; nothing when anything goes wrong."""
    try:
        workers = _call(context, "/v1/taskmanagers")["taskmanagers"]
        return [
            CompletionItem(worker["id"], help=worker["host"])
            for worker in workers
            if worker["id"].startswith(incomplete)
        ][:_MOST]
    except Exception:
        return []


def job_argument(function: Function) -> Function:
    """The argument JOB_ID."""
    return click.argument("job_id", shell_complete=complete_jobs)(function)
