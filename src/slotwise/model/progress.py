"""What must outlive a JobMaster: the record from which a new leader takes a job over.

All else of a running job is rebuilt from what the workers report (decision 4). The record exists because some things
cannot be asked of a worker that is away: whether a driver may still live there, and which numbers are used up."""

from __future__ import annotations

import msgspec

from slotwise.model.ids import AllocationId, JobId, LeaderToken, WorkerId
from slotwise.model.job import ExecutorBounds, JobResult, JobSpec


class Restart(msgspec.Struct, frozen=True):
    """One restart: which driver ended (1 is the first) and why."""

    attempt: int
    reason: str


class JobProgress(msgspec.Struct, frozen=True):
    """A job's record while it runs; written before what it says is done.

    ``token``: the leader that wrote it; a store refuses the writing of one with a smaller token. ``attempt``: drivers
    deployed so far. ``driver_worker`` and ``driver_allocation``: where the last one was sent, None once it is known to
    be gone. ``secret``: its spark.authenticate secret. ``executor_ids_below``: executor ids under this may have been
    used. ``restarts``: the latest ones; ``restart_count``: how many in all; ``failures``: those that the strategy
    still counts. ``finished_regions``: those of a pipeline that need not run again; ``pipeline_done``: it has done all
    that it was to do. ``warm``: the last driver was started before its program was known."""

    token: LeaderToken
    attempt: int = 0
    driver_worker: WorkerId | None = None
    driver_allocation: AllocationId | None = None
    secret: str = ""
    executor_ids_below: int = 1
    restart_count: int = 0
    failures: int = 0
    restarts: tuple[Restart, ...] = ()
    finished_regions: tuple[str, ...] = ()
    pipeline_done: bool = False
    warm: bool = False


class RecoveredJob(msgspec.Struct, frozen=True):
    """A job as the store has it. ``result`` is there once it has ended; ``cancelled``: its end was asked for.
    ``bounds``: those that it was given after its submission, if any, with their version.
    """

    job: JobId
    key: str
    spec: JobSpec
    progress: JobProgress | None = None
    cancelled: bool = False
    result: JobResult | None = None
    bounds: ExecutorBounds | None = None
    bounds_version: int = 0
