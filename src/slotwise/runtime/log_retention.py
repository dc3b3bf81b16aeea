"""How long logs of ended jobs are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from slotwise.model.ids import JobId
from slotwise.runtime.clock import unix_time
from slotwise.runtime.logs import LogLimits, LogStore

log = structlog.get_logger(__name__)

_INTERVAL_S = 60.0


def outlived(ended: Iterable[tuple[JobId, float]], limits: LogLimits, now_unix_s: float) -> dict[JobId, str]:
    """Of jobs with the time of their end those whose logs are not kept any longer, with the reason."""
    found = {}
    for place, (job, end) in enumerate(sorted(ended, key=lambda entry: (-entry[1], entry[0]))):
        if place >= limits.ended_jobs:
            found[job] = f"logs are kept of the {limits.ended_jobs} jobs that ended last (job.logs.retention.max-jobs)"
        elif 0 <= limits.ended_s < now_unix_s - end:
            days = limits.ended_s / 86400
            found[job] = f"logs are kept for {days:g} days after a job's end (job.logs.retention.max-age)"
    return found


async def remove_outlived(logs: LogStore, ended: Callable[[], Iterable[tuple[JobId, float]]]) -> None:
    """Remove them now and every minute. ``ended``: the jobs with logs that have ended, with the time of their end."""
    while True:
        found = []
        for entry in ended():
            found.append(entry)
            # A look at each may read a file: others have their turn in between.
            await asyncio.sleep(0)
        for job, reason in outlived(found, logs.limits, unix_time()).items():
            try:
                await asyncio.to_thread(logs.remove, job, reason)
            except OSError as error:
                log.warning("cannot remove old logs", job=job, error=str(error))
            else:
                log.info("removed old logs", job=job, reason=reason)
        await asyncio.sleep(_INTERVAL_S)
