"""A job's drivers, one after the other: what is durable of them, and what is not known of one that is out of sight
(B: F-01, F-03, F-06).

A driver must never run twice at the same time. So its place is recorded before it is sent there, and when its worker
is out of sight it counts as living until somebody who can know says that it has ended, or until the worker's own
time-outs must have ended it (``fence_s``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from slotwise.jobmaster.slot_pool import HeldSlot
from slotwise.model.ids import AllocationId, IdSource, JobId, LeaderToken, WorkerId
from slotwise.model.progress import JobProgress, Restart
from slotwise.protocol.effects import Effects, PersistProgress

_RESTARTS_KEPT = 20
_ID_BLOCK = 1000


@dataclass
class Unseen:
    """A driver that may live on a worker which is out of sight. ``until``: monotonic seconds after which it cannot.
    ``reason``: why it went out of sight.
    """

    worker: WorkerId
    allocation: AllocationId
    reason: str
    until: float


class DriverLife:
    """``slot``: the held slot that the present driver is meant to run in. ``progress``: the job's record."""

    def __init__(
        self, job: JobId, token: LeaderToken, ids: IdSource, progress: JobProgress | None, now: float, fence_s: float
    ) -> None:
        self.slot: AllocationId | None = None
        self.unseen: Unseen | None = None
        self.started_at = now
        self._job = job
        self._ids = ids
        self._fence_s = fence_s
        if progress is None:
            self.progress = JobProgress(token)
            return
        self.progress = msgspec.structs.replace(progress, token=token)
        if progress.driver_worker is not None and progress.driver_allocation is not None:
            reason = "the job has a new leader"
            self.unseen = Unseen(progress.driver_worker, progress.driver_allocation, reason, now + fence_s)

    @property
    def name(self) -> str:
        """What the present driver's process is called."""
        return f"driver-{self.progress.attempt}"

    def deploy(
        self, slot: HeldSlot, next_executor_id: int, now: float, effects: Effects, *, warm: bool = False
    ) -> None:
        """A new driver is about to be sent into ``slot``, with a new secret; ``warm``: without its program."""
        self.slot = slot.allocation
        self.started_at = now
        self._record(
            effects,
            attempt=self.progress.attempt + 1,
            driver_worker=slot.worker,
            driver_allocation=slot.allocation,
            secret=self._ids.new_secret(),
            executor_ids_below=next_executor_id + _ID_BLOCK,
            warm=warm,
        )

    def reserve_ids(self, next_executor_id: int, effects: Effects) -> None:
        """Executor ids up to ``next_executor_id`` are about to be used: none may ever be used twice."""
        if next_executor_id > self.progress.executor_ids_below:
            self._record(effects, executor_ids_below=next_executor_id + _ID_BLOCK)

    def restart(self, reason: str, failures: int, effects: Effects) -> None:
        """The driver has ended and is to be followed by another."""
        restarts = (*self.progress.restarts, Restart(self.progress.attempt, reason))[-_RESTARTS_KEPT:]
        self._record(
            effects,
            driver_worker=None,
            driver_allocation=None,
            failures=failures,
            restart_count=self.progress.restart_count + 1,
            restarts=restarts,
        )

    def regions_finished(self, names: Iterable[str], effects: Effects) -> None:
        """These regions of the pipeline need not run again, whatever becomes of the driver."""
        self._record(effects, finished_regions=tuple(dict.fromkeys((*self.progress.finished_regions, *names))))

    def pipeline_done(self, effects: Effects) -> None:
        """Whatever becomes of the driver, the job has done its work."""
        self._record(effects, pipeline_done=True)

    def record_again(self, effects: Effects) -> None:
        """Have the record written, in case that it could not be before."""
        effects.persist.append(PersistProgress(self._job, self.progress))

    def out_of_sight(self, worker: WorkerId, reason: str, now: float) -> None:
        """The held driver slot was lost, and nobody can say whether the driver has ended."""
        assert self.slot is not None
        self.unseen = Unseen(worker, self.slot, reason, now + self._fence_s)
        self.slot = None

    def rearm(self, now: float) -> None:
        """The job has just talked to the worker that is in question: its time-outs begin anew."""
        if self.unseen is not None:
            self.unseen.until = now + self._fence_s

    def seen(self, slot: HeldSlot) -> None:
        """The slot of the driver that was out of sight is there again."""
        self.unseen = None
        self.slot = slot.allocation
        slot.use = self.name
        slot.idle_since = None

    def _record(self, effects: Effects, **changes: object) -> None:
        self.progress = msgspec.structs.replace(self.progress, **changes)
        effects.persist.append(PersistProgress(self._job, self.progress))
