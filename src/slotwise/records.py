"""The first part of carrying effects out: what is to be recorded is, before anything else of the same effects is done;
what cannot be recorded decides what of the rest may be (see :class:`~slotwise.protocol.effects.Effects`).

- A job that cannot be recorded is refused, and a cancel or new bounds likewise; nothing is changed.
- Progress that cannot be recorded: nothing else of the effects is done. The JobMaster repeats what it wants, with the
  record.
- A result that cannot be recorded is kept and tried again. Until it is on the disk the Dispatcher is not told of it,
  and the job's slots are not given back: to a master that comes after a crash, they show that the driver has run.
- A record that a newer leader has written: this master leads no more, and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import structlog

from slotwise.dispatcher.job_store import JobStore
from slotwise.dispatcher.machine import Dispatcher
from slotwise.model.errors import StaleLeader, StoreError
from slotwise.model.ids import JobId, job_master_address
from slotwise.model.job import ExecutorBounds, JobResult
from slotwise.model.progress import JobProgress, RecoveredJob
from slotwise.protocol.effects import (
    Effects,
    Event,
    PersistBounds,
    PersistCancel,
    PersistJob,
    PersistProgress,
    PersistRecord,
    PersistResult,
)
from slotwise.protocol.messages import (
    CancelAccepted,
    FreeSlots,
    JobAccepted,
    JobRefused,
    JobStatus,
    Message,
    ScaleAccepted,
)

log = structlog.get_logger(__name__)


class Records:
    """Writes to ``store`` for the machines of a master. ``progress``: the last recorded one of each unfinished job.
    ``results``: those of jobs whose JobMasters have not been stopped yet. ``unwritten``: results that the store would
    not take yet. ``errors``: how often a record could not be written, by its kind.
    """

    def __init__(self, store: JobStore, dispatcher: Dispatcher, recovered: Sequence[RecoveredJob]) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self.progress: dict[JobId, JobProgress] = {
            job.job: job.progress for job in recovered if job.progress is not None and job.result is None
        }
        self.results: dict[JobId, JobResult] = {}
        self._bounds: dict[JobId, ExecutorBounds] = {
            job.job: job.bounds for job in recovered if job.bounds is not None and job.result is None
        }
        self.unwritten: dict[JobId, PersistResult] = {}
        self.errors: Counter[str] = Counter()

    def keep(self, effects: Effects) -> None:
        """Write what is to be persisted, and take out of ``effects`` what may not be done without it."""
        for record in effects.persist:
            try:
                self._store.persist(record)
            except StaleLeader as error:
                _do_nothing(effects)
                effects.shutdown = str(error)
                return
            except StoreError as error:
                self._without(record, error, effects)
            else:
                self._kept(record)
        if self.unwritten:
            held_back = {job_master_address(job) for job in self.unwritten}
            effects.send = [
                envelope
                for envelope in effects.send
                if envelope.sender not in held_back or not isinstance(envelope.payload, JobStatus | FreeSlots)
            ]

    def retry(self) -> None:
        """Try again to write the results that are not written yet."""
        for job, record in list(self.unwritten.items()):
            try:
                self._store.persist(record)
            except StoreError as error:
                self.errors[_kind(record)] += 1
                log.debug("still cannot write a job's result", job=job, error=str(error))
            else:
                log.info("the job's result is written now", job=job)
                self._kept(record)

    def _kept(self, record: PersistRecord) -> None:
        match record:
            case PersistBounds(job, bounds):
                self._bounds[job] = bounds
            case PersistProgress(job, progress):
                self.progress[job] = progress
            case PersistResult(job, result):
                self.results.setdefault(job, result)
                self.unwritten.pop(job, None)
                self._bounds.pop(job, None)
                self.progress.pop(job, None)
            case _:
                pass

    def _without(self, record: PersistRecord, error: StoreError, effects: Effects) -> None:
        self.errors[_kind(record)] += 1
        if record.job not in self.unwritten:
            log.error("cannot write a job's record", job=record.job, record=type(record).__name__, error=str(error))
        reason = f"the master cannot write the job's record: {error}"
        match record:
            case PersistJob(job):
                self._dispatcher.forget(job)
                _refuse(effects, JobAccepted, reason)
            case PersistCancel(job):
                self._dispatcher.keep_running(job)
                _refuse(effects, CancelAccepted, reason)
            case PersistBounds(job):
                self._dispatcher.take_back_bounds(job, self._bounds.get(job))
                _refuse(effects, ScaleAccepted, reason)
            case PersistResult(job):
                if job not in self.unwritten:
                    effects.events.append(Event("record-failed", job, fields={"reason": reason}))
                self.unwritten[job] = record
            case PersistProgress(job):
                _do_nothing(effects)
                effects.events.append(Event("record-failed", job, fields={"reason": reason}))


def _kind(record: PersistRecord) -> str:
    return type(record).__name__.removeprefix("Persist").lower()


def _refuse(effects: Effects, accepted: type[Message], reason: str) -> None:
    """Only the answer to the client remains, and it says no."""
    answers = [
        msgspec.structs.replace(envelope, payload=JobRefused(reason))
        for envelope in effects.send
        if isinstance(envelope.payload, accepted)
    ]
    _do_nothing(effects)
    effects.send = answers
    effects.events = []


def _do_nothing(effects: Effects) -> None:
    """What the machine has decided is history all the same, so the events stay."""
    effects.send = []
    effects.processes = []
    effects.workers = []
    effects.job_masters = []
