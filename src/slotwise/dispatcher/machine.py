"""The Dispatcher: takes jobs, starts a JobMaster for each, and keeps how they ended (FLIP-6). Without I/O.

It never runs a job's code. A submission is persisted before it is acknowledged, and told apart by its idempotency key
(B: F-06). Cancelling is repeated until the JobMaster reports a final state. A new Dispatcher takes the jobs of the
store over: it shows the ended ones and starts JobMasters, with tokens above all earlier ones, for the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from slotwise.dispatcher.warm_applications import WarmApplicationPolicy, WarmApplications
from slotwise.model.errors import SizeError
from slotwise.model.ids import DISPATCHER, Address, IdSource, JobId, LeaderToken, job_master_address
from slotwise.model.job import ExecutorBounds, JobResult, JobSpec, JobState, check_bounds, check_spec
from slotwise.model.progress import JobProgress, RecoveredJob
from slotwise.model.timers import Timers
from slotwise.protocol.effects import (
    Effects,
    Event,
    JobMasterExited,
    PersistBounds,
    PersistCancel,
    PersistJob,
    PersistResult,
    StartJobMaster,
    StopJobMaster,
)
from slotwise.protocol.messages import (
    CancelAccepted,
    CancelJob,
    Envelope,
    Fenced,
    JobAccepted,
    JobRefused,
    JobStatus,
    JobStatusAcknowledged,
    ProgramTaken,
    RunProgram,
    ScaleAccepted,
    ScaleJob,
    ScaleTaken,
    SubmitJob,
)
from slotwise.protocol.outbox import Outbox

_LOOK_S = 0.5
_BEGINNING = (JobState.CREATED, JobState.WAITING_FOR_RESOURCES, JobState.DEPLOYING)


class DispatcherConfig(msgspec.Struct, frozen=True):
    """``retry_s``: how often an unanswered cancel is repeated. ``max_active_jobs``: more are refused.
    ``max_job_master_failures``: a job whose JobMaster fails more often than that has failed. ``warm``: which warm
    applications are kept.
    """

    retry_s: float = 2.0
    max_active_jobs: int = 10_000
    max_job_master_failures: int = 5
    warm: WarmApplicationPolicy = WarmApplicationPolicy()


@dataclass
class JobRecord:
    """What the Dispatcher knows of a job. ``released``: its JobMaster has nothing left to do and is gone.
    ``failures``: how many of its JobMasters have failed under this Dispatcher. ``bounds``: how many executors it may
    have; ``bounds_version`` is 0 for those of its specification. ``handing_over``: a warm application is to be its, and
    has not said yet that it is.
    """

    job: JobId
    key: str
    spec: JobSpec
    state: JobState = JobState.CREATED
    result: JobResult | None = None
    status_seq: int = 0
    cancelling: bool = False
    released: bool = False
    failures: int = 0
    given_bounds: ExecutorBounds | None = None
    bounds_version: int = 0
    handing_over: bool = False

    @property
    def bounds(self) -> ExecutorBounds:
        """How many executors the job may have now."""
        return self.given_bounds or self.spec.bounds


class Dispatcher:
    """See the module's head."""

    def __init__(
        self,
        config: DispatcherConfig,
        token: LeaderToken,
        ids: IdSource,
        now: float = 0.0,
        recovered: Iterable[RecoveredJob] = (),
    ) -> None:
        """``recovered``: the jobs of the store, in the order of their acceptance."""
        self.config = config
        self.jobs: dict[JobId, JobRecord] = {}
        self.warm = WarmApplications(config.warm)
        self._by_key: dict[str, JobId] = {}
        self._out = Outbox(DISPATCHER, token)
        self._ids = ids
        self._timers = Timers()
        for known in recovered:
            record = JobRecord(known.job, known.key, known.spec, cancelling=known.cancelled)
            record.given_bounds, record.bounds_version = known.bounds, known.bounds_version
            self.jobs[known.job] = record
            self._by_key[known.key] = known.job
            if known.result is not None:
                record.state, record.result, record.released = known.result.state, known.result, True
            else:
                self._timers.set(("recover", known.job, known.progress), now)

    @property
    def token(self) -> LeaderToken:
        """The fencing token of this leadership."""
        return self._out.token

    def next_timer(self) -> float | None:
        """When :meth:`on_timer` wants to be called."""
        return self._timers.next()

    def knows_key(self, key: str) -> bool:
        """Whether a job was accepted under this idempotency key."""
        return key in self._by_key

    def handle(self, stimulus: Envelope | JobMasterExited, now: float) -> Effects:
        """Take a message, or the news that a JobMaster is gone."""
        effects = Effects()
        if isinstance(stimulus, JobMasterExited):
            self._on_job_master_exited(stimulus, now, effects)
            return effects
        payload = stimulus.payload
        introduces = isinstance(payload, SubmitJob | CancelJob | ScaleJob | JobStatus)
        if not self._out.admit(stimulus, effects, introduces=introduces):
            return effects
        effects.shutdown = self._out.deposed(stimulus)
        match payload:
            case SubmitJob():
                self._on_submit(stimulus.sender, payload, now, effects)
            case CancelJob(job):
                self._on_cancel(stimulus.sender, job, now, effects)
            case ScaleJob():
                self._on_scale(stimulus.sender, payload, now, effects)
            case ScaleTaken(job, version):
                if job in self.jobs and version >= self.jobs[job].bounds_version:
                    self._timers.clear(("scale", job))
            case Fenced(address, current):
                self._out.learn(address, current)
            case ProgramTaken(job):
                self._timers.clear(("hand-over", job))
                if job in self.jobs:
                    self.jobs[job].handing_over = False
            case JobStatus(job) if job in self.warm.entries:
                self._on_warm_status(stimulus, payload, now, effects)
            case JobStatus():
                self._on_status(stimulus, payload, now, effects)
            case _:
                pass
        return effects

    def _on_submit(self, sender: Address, message: SubmitJob, now: float, effects: Effects) -> None:
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
        warm = self.warm.take(message.spec, now)
        job = warm.job if warm is not None else JobId(self._ids.new_id("job"))
        record = self.jobs[job] = JobRecord(job, message.key, message.spec)
        self._by_key[message.key] = job
        effects.persist.append(PersistJob(job, message.key, message.spec))
        if warm is None:
            self._start_job_master(record, None, effects)
        else:
            record.state, record.status_seq, record.handing_over = JobState.RUNNING, warm.seq, True
            self._hand_over(record, now, effects)
        if self.warm.active:
            self._timers.set_once("warm", now + _LOOK_S)
        effects.events.append(Event("submitted", job, fields={"name": message.spec.name}))
        self._out.send(effects, sender, JobAccepted(job))

    def _start_job_master(self, record: JobRecord, progress: JobProgress | None, effects: Effects) -> None:
        # Between this Dispatcher's token and the next one's: above those of all earlier JobMasters of the job.
        token = LeaderToken(self.token + record.failures)
        record.status_seq = 0
        self._out.learn(job_master_address(record.job), token)
        effects.job_masters.append(
            StartJobMaster(record.job, record.spec, token, progress, record.given_bounds, record.bounds_version)
        )

    # ------------------------------------------------------------------------------------------- warm applications

    def _hand_over(self, record: JobRecord, now: float, effects: Effects) -> None:
        self._out.send(effects, job_master_address(record.job), RunProgram(record.job, record.spec))
        self._timers.set(("hand-over", record.job), now + self.config.retry_s)

    def _on_warm_status(self, envelope: Envelope, message: JobStatus, now: float, effects: Effects) -> None:
        job = message.job
        self._out.learn(envelope.sender, envelope.sender_token)
        self.warm.heard(job, message.seq, message.waits and not message.state.is_final)
        if message.released:
            failed = message.state is JobState.FAILED
            self.warm.gone(job, now, failed=failed)
            effects.job_masters.append(StopJobMaster(job, message.result if failed else None))
        else:
            self._out.send(effects, envelope.sender, JobStatusAcknowledged(job, message.seq))

    def _look_after_warm(self, now: float, effects: Effects) -> None:
        """Begin one that is missing, while no job waits to begin; end those that are not wanted."""
        if self.warm.active:
            self._timers.set("warm", now + _LOOK_S)
        kind = self.warm.wanted(now)
        for entry in self.warm.entries.values():
            if entry.ending:
                self._out.send(effects, job_master_address(entry.job), CancelJob(entry.job))
        if kind is None or any(record.state in _BEGINNING for record in self.jobs.values()):
            return
        job = JobId(self._ids.new_id("job"))
        self._out.learn(job_master_address(job), self.token)
        self.warm.begun(job, kind)
        effects.job_masters.append(StartJobMaster(job, kind, self.token, warm=True))

    def end_warm(self, now: float) -> Effects:
        """End all warm applications, and begin no more."""
        effects = Effects()
        self.warm.stop()
        self._look_after_warm(now, effects)
        return effects

    def _start_cold(self, record: JobRecord, now: float, effects: Effects) -> None:
        """The warm application ended before it knew of its job, which begins like any other."""
        record.handing_over = False
        record.state = JobState.CREATED
        record.failures += 1
        self._timers.clear(("hand-over", record.job))
        self._start_job_master(record, None, effects)
        if record.cancelling:
            self._send_cancel(record, now, effects)

    # ------------------------------------------------------------------------------------------- JobMasters

    def _on_job_master_exited(self, message: JobMasterExited, now: float, effects: Effects) -> None:
        if message.job in self.warm.entries:
            self.warm.gone(message.job, now, failed=True)
            failure = JobResult(JobState.FAILED, reason=message.reason)
            effects.job_masters.append(StopJobMaster(message.job, failure))
            return
        record = self.jobs.get(message.job)
        if record is None or record.released:
            return
        record.failures += 1
        record.handing_over = False
        self._timers.clear(("hand-over", record.job))
        fields: dict[str, str | int | float | None] = {"reason": message.reason, "failures": record.failures}
        effects.events.append(Event("job-master-failed", record.job, fields=fields))
        if message.result is not None and not record.state.is_final:
            # It had recorded how the job ended, and its word of that was lost with it.
            self._ended(record, message.result)
            record.released = True
        elif record.state.is_final:
            # Its slots are left to the workers' own time-outs.
            record.released = True
        elif record.failures > self.config.max_job_master_failures:
            text = f"its JobMaster failed {record.failures} times; the last: {message.reason}"
            result = JobResult(JobState.FAILED, reason=text)
            self._ended(record, result)
            record.released = True
            token = LeaderToken(self.token + record.failures)
            effects.persist.append(PersistResult(record.job, result, token))
            effects.events.append(Event("job-state", record.job, fields={"state": "FAILED", "reason": text}))
        else:
            self._start_job_master(record, message.progress, effects)
            if record.cancelling:
                self._send_cancel(record, now, effects)

    def _ended(self, record: JobRecord, result: JobResult) -> None:
        """It is known how the job ended: nothing more is asked of its JobMaster."""
        record.state, record.result = result.state, result
        for key in ("cancel", "scale", "hand-over"):
            self._timers.clear((key, record.job))

    def forget(self, job: JobId) -> None:
        """A job whose record could not be written was never accepted."""
        record = self.jobs.pop(job, None)
        if record is not None:
            del self._by_key[record.key]
            self._timers.clear(("hand-over", job))
            if record.handing_over:
                self.warm.give_back(job, record.spec)

    def _on_cancel(self, sender: Address, job: JobId, now: float, effects: Effects) -> None:
        record = self.jobs.get(job)
        if record is None:
            self._out.send(effects, sender, JobRefused(f"there is no job {job}"))
            return
        self._out.send(effects, sender, CancelAccepted(job, record.state))
        if not record.state.is_final and not record.cancelling:
            record.cancelling = True
            effects.persist.append(PersistCancel(job))
            effects.events.append(Event("cancel-requested", job))
            self._send_cancel(record, now, effects)

    def keep_running(self, job: JobId) -> None:
        """A cancel that could not be recorded was never accepted."""
        record = self.jobs.get(job)
        if record is not None:
            record.cancelling = False
            self._timers.clear(("cancel", job))

    def _on_scale(self, sender: Address, message: ScaleJob, now: float, effects: Effects) -> None:
        record = self.jobs.get(message.job)
        refusal = ""
        if record is None:
            refusal = f"there is no job {message.job}"
        elif record.state.is_final or record.cancelling:
            refusal = f"{message.job} is {record.state.value}: it does not run any more"
        else:
            try:
                check_bounds(record.spec, message.bounds)
            except SizeError as error:
                refusal = str(error)
        if record is None or refusal:
            self._out.send(effects, sender, JobRefused(refusal))
            return
        self._out.send(effects, sender, ScaleAccepted(record.job, message.bounds))
        if message.bounds != record.bounds:
            record.given_bounds = message.bounds
            record.bounds_version += 1
            effects.persist.append(PersistBounds(record.job, message.bounds, record.bounds_version))
            fields: dict[str, str | int | float | None] = {"least": message.bounds.least, "most": message.bounds.most}
            effects.events.append(Event("scale-requested", record.job, fields=fields))
            self._send_bounds(record, now, effects)

    def take_back_bounds(self, job: JobId, before: ExecutorBounds | None) -> None:
        """Bounds that could not be recorded were never accepted: ``before`` holds (None: the specification's)."""
        record = self.jobs.get(job)
        if record is not None:
            record.given_bounds = before
            self._timers.clear(("scale", job))

    def _send_bounds(self, record: JobRecord, now: float, effects: Effects) -> None:
        message = ScaleJob(record.job, record.bounds, record.bounds_version)
        self._out.send(effects, job_master_address(record.job), message)
        self._timers.set(("scale", record.job), now + self.config.retry_s)

    def _send_cancel(self, record: JobRecord, now: float, effects: Effects) -> None:
        self._out.send(effects, job_master_address(record.job), CancelJob(record.job))
        self._timers.set(("cancel", record.job), now + self.config.retry_s)

    def _on_status(self, envelope: Envelope, message: JobStatus, now: float, effects: Effects) -> None:
        record = self.jobs.get(message.job)
        self._out.learn(envelope.sender, envelope.sender_token)
        if record is None and message.warm and not message.state.is_final:
            # A warm application of an earlier Dispatcher: nobody would ever take it.
            self._out.send(effects, envelope.sender, CancelJob(message.job))
        if record is not None and message.seq > record.status_seq:
            if record.handing_over and message.warm and message.state.is_final:
                self._start_cold(record, now, effects)
                return
            record.status_seq = message.seq
            was_final = record.state.is_final
            if message.state.is_final and not was_final:
                self._ended(record, message.result or JobResult(message.state))
            elif not was_final:
                record.state = message.state
            record.released = record.released or message.released
        if record is None or record.released:
            if message.released:
                # Also for a JobMaster of an earlier Dispatcher whose job has ended: nobody else would end it.
                effects.job_masters.append(StopJobMaster(message.job))
            return
        self._out.send(effects, envelope.sender, JobStatusAcknowledged(message.job, message.seq))

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self._timers.pop_due(now):
            match key:
                case ("recover", job, progress):
                    record = self.jobs[JobId(str(job))]
                    assert progress is None or isinstance(progress, JobProgress)
                    self._start_job_master(record, progress, effects)
                    if record.cancelling:
                        self._send_cancel(record, now, effects)
                case "warm":
                    self._look_after_warm(now, effects)
                case ("hand-over", job):
                    self._hand_over(self.jobs[JobId(str(job))], now, effects)
                case ("scale", job):
                    self._send_bounds(self.jobs[JobId(str(job))], now, effects)
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
