"""The Dispatcher: takes jobs, starts a JobMaster for each, and keeps how they ended (FLIP-6). Without I/O.

It never runs a job's code. A submission is persisted before it is acknowledged, and told apart by its idempotency key
(B: F-06). Cancelling is repeated until the JobMaster reports a final state."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from slotwise.model.errors import SizeError
from slotwise.model.ids import DISPATCHER, Address, IdSource, JobId, LeaderToken, job_master_address
from slotwise.model.job import JobResult, JobSpec, JobState, check_spec
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects, Event, PersistJob, PersistResult, StartJobMaster, StopJobMaster
from slotwise.protocol.messages import (
    CancelAccepted,
    CancelJob,
    Envelope,
    JobAccepted,
    JobRefused,
    JobStatus,
    JobStatusAcknowledged,
    SubmitJob,
)
from slotwise.protocol.outbox import Outbox


class DispatcherConfig(msgspec.Struct, frozen=True):
    """``retry_s``: how often an unanswered cancel is repeated. ``max_active_jobs``: more are refused."""

    retry_s: float = 2.0
    max_active_jobs: int = 10_000


@dataclass
class JobRecord:
    """What the Dispatcher knows of a job. ``released``: its JobMaster has nothing left to do and is gone."""

    job: JobId
    key: str
    spec: JobSpec
    state: JobState = JobState.CREATED
    result: JobResult | None = None
    status_seq: int = 0
    cancelling: bool = False
    released: bool = False


class Dispatcher:
    """See the module's head."""

    def __init__(self, config: DispatcherConfig, token: LeaderToken, ids: IdSource) -> None:
        self.config = config
        self.jobs: dict[JobId, JobRecord] = {}
        self._by_key: dict[str, JobId] = {}
        self._out = Outbox(DISPATCHER, token)
        self._ids = ids
        self._timers = Timers()

    @property
    def token(self) -> LeaderToken:
        """The fencing token of this leadership."""
        return self._out.token

    def next_timer(self) -> float | None:
        """When :meth:`on_timer` wants to be called."""
        return self._timers.next()

    def handle(self, stimulus: Envelope, now: float) -> Effects:
        """Take a message."""
        effects = Effects()
        payload = stimulus.payload
        introduces = isinstance(payload, SubmitJob | CancelJob | JobStatus)
        if not self._out.admit(stimulus, effects, introduces=introduces):
            return effects
        match payload:
            case SubmitJob():
                self._on_submit(stimulus.sender, payload, effects)
            case CancelJob(job):
                self._on_cancel(stimulus.sender, job, now, effects)
            case JobStatus():
                self._on_status(stimulus, payload, effects)
            case _:
                pass
        return effects

    def _on_submit(self, sender: Address, message: SubmitJob, effects: Effects) -> None:
        known = self._by_key.get(message.key)
        if known is not None:
            if self.jobs[known].spec != message.spec:
                reason = f"the idempotency key {message.key!r} was used for another job ({known})"
                self._out.send(effects, sender, JobRefused(reason))
            else:
                self._out.send(effects, sender, JobAccepted(known))
            return
        try:
            check_spec(message.spec)
        except SizeError as error:
            self._out.send(effects, sender, JobRefused(str(error)))
            return
        active = sum(1 for record in self.jobs.values() if not record.state.is_final)
        if active >= self.config.max_active_jobs:
            self._out.send(effects, sender, JobRefused(f"{active} jobs are active, which is the limit"))
            return
        job = JobId(self._ids.new_id("job"))
        self.jobs[job] = JobRecord(job, message.key, message.spec)
        self._by_key[message.key] = job
        effects.persist.append(PersistJob(job, message.key, message.spec))
        # The JobMaster's token is the Dispatcher's: a new Dispatcher leader starts new JobMasters above all old ones.
        effects.job_masters.append(StartJobMaster(job, message.spec, self.token))
        effects.events.append(Event("submitted", job, fields={"name": message.spec.name}))
        self._out.send(effects, sender, JobAccepted(job))

    def forget(self, job: JobId) -> None:
        """A job whose record could not be written was never accepted."""
        record = self.jobs.pop(job, None)
        if record is not None:
            del self._by_key[record.key]

    def _on_cancel(self, sender: Address, job: JobId, now: float, effects: Effects) -> None:
        record = self.jobs.get(job)
        if record is None:
            self._out.send(effects, sender, JobRefused(f"there is no job {job}"))
            return
        self._out.send(effects, sender, CancelAccepted(job, record.state))
        if not record.state.is_final and not record.cancelling:
            record.cancelling = True
            effects.events.append(Event("cancel-requested", job))
            self._send_cancel(record, now, effects)

    def _send_cancel(self, record: JobRecord, now: float, effects: Effects) -> None:
        self._out.send(effects, job_master_address(record.job), CancelJob(record.job))
        self._timers.set(("cancel", record.job), now + self.config.retry_s)

    def _on_status(self, envelope: Envelope, message: JobStatus, effects: Effects) -> None:
        record = self.jobs.get(message.job)
        self._out.learn(envelope.sender, envelope.sender_token)
        if record is not None and message.seq > record.status_seq:
            record.status_seq = message.seq
            was_final = record.state.is_final
            if not was_final:
                record.state = message.state
            if message.state.is_final and not was_final:
                record.result = message.result or JobResult(message.state)
                self._timers.clear(("cancel", message.job))
                effects.persist.append(PersistResult(message.job, record.result))
            if message.released and not record.released:
                record.released = True
                effects.job_masters.append(StopJobMaster(message.job))
        if record is not None and record.released:
            return
        self._out.send(effects, envelope.sender, JobStatusAcknowledged(message.job, message.seq))

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self._timers.pop_due(now):
            match key:
                case ("cancel", job):
                    record = self.jobs[JobId(str(job))]
                    if not record.state.is_final:
                        self._send_cancel(record, now, effects)
                case _:
                    pass
        return effects

    def check_invariants(self) -> None:
        """Raise AssertionError unless every final job has a result and every key one job."""
        for record in self.jobs.values():
            assert record.state.is_final == (record.result is not None)
        assert len(self._by_key) == len(self.jobs)
