"""The ResourceManager: a broker without I/O and without stored state (FLIP-6, FLIP-138).

Workers register and report, jobs register and declare; a check (see slot_manager) runs shortly after every change.
Behaviours: D-01 … D-12, SM-01 … SM-12, ML-01 … ML-07, F-01, F-02. What it sends may be lost, so everything is
repeated: allocations until they show in a report, acknowledgements with each heartbeat, notices with each declaration
while something is missing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from slotwise.model.ids import (
    RESOURCE_MANAGER,
    Address,
    AllocationId,
    IdSource,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.requirements import Counts, counts_of, requirements_of
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.model.timers import Timers
from slotwise.protocol.effects import (
    ConnectionClosed,
    Effects,
    Event,
    StartWorker,
    StopWorker,
    WorkerExited,
)
from slotwise.protocol.messages import (
    AllocateSlots,
    AllocationsRefused,
    BlockWorker,
    DeclareRequirements,
    Envelope,
    JobDone,
    JobMasterRegistered,
    NotEnoughResources,
    RegisterAgain,
    RegisterJobMaster,
    RegisterWorker,
    RegistrationRefused,
    ResourceManagerHeartbeat,
    Shortage,
    ShortageReason,
    ShutdownWorker,
    SlotAllocation,
    SlotReport,
    WorkerBlocked,
    WorkerLeaving,
    WorkerLost,
    WorkerRegistered,
    WorkerReport,
)
from slotwise.protocol.outbox import Outbox
from slotwise.resourcemanager.explain import Explanation, explain_shortages
from slotwise.resourcemanager.matching import Plan
from slotwise.resourcemanager.sizing import Sizing
from slotwise.resourcemanager.slot_manager import PendingWorker, SlotManager
from slotwise.resourcemanager.worker_index import PlacementMode

_FORGET_AFTER_TIMEOUTS = 10
_FAILED_CHECK_RETRY_S = 1.0


class ResourceManagerConfig(msgspec.Struct, frozen=True):
    """Times in seconds. ``placement``: pack or spread. ``start_up_grace_s``: no shortage is announced before it is
    over (B: D-09). ``provisioner_retries_per_minute``: the cap on worker starts after failures (B: SZ-11).
    """

    sizing: Sizing = Sizing()
    placement: str = "pack"
    version: str = ""
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    check_delay_s: float = 0.05
    start_up_grace_s: float = 0.0
    allocation_retry_s: float = 2.0
    disconnect_grace_s: float = 0.5
    worker_start_timeout_s: float = 120.0
    provisioner_retry_interval_s: float = 3.0
    provisioner_retries_per_minute: int = 10


@dataclass
class _Job:
    """A registered JobMaster."""

    address: Address
    last_heard: float
    notified: NotEnoughResources | None = None
    suspended: bool = False


class ResourceManager:
    """See the module's head. ``token`` is its leadership's fencing token."""

    def __init__(self, config: ResourceManagerConfig, token: LeaderToken, ids: IdSource, now: float) -> None:
        self.config = config
        self.slots = SlotManager(ids, config.sizing, PlacementMode(config.placement))
        self.jobs: dict[JobId, _Job] = {}
        self._out = Outbox(RESOURCE_MANAGER, token)
        self._timers = Timers()
        self._grace_ends = now + config.start_up_grace_s
        self._plan = Plan()
        self._start_failures: deque[float] = deque(maxlen=config.provisioner_retries_per_minute)
        self._start_failure = ""
        if config.start_up_grace_s:
            self._timers.set("grace", self._grace_ends)
        self._timers.set("watch", now + 1.0)
        if config.sizing.min_total is not None or config.sizing.redundant_workers:
            self._want_check(now)

    @property
    def token(self) -> LeaderToken:
        """The fencing token of this leadership."""
        return self._out.token

    def next_timer(self) -> float | None:
        """When :meth:`on_timer` wants to be called."""
        return self._timers.next()

    def handle(self, stimulus: Envelope | ConnectionClosed | WorkerExited, now: float) -> Effects:
        """Take a message, or what the runtime or the provisioner has seen."""
        effects = Effects()
        match stimulus:
            case Envelope():
                introduces = isinstance(stimulus.payload, RegisterWorker | RegisterJobMaster | BlockWorker)
                if self._out.admit(stimulus, effects, introduces=introduces):
                    effects.shutdown = self._out.deposed(stimulus)
                    self._dispatch(stimulus, now, effects)
            case ConnectionClosed():
                if stimulus.worker in self.slots.workers:
                    self._timers.set(("gone", stimulus.worker), now + self.config.disconnect_grace_s)
            case WorkerExited():
                self._on_worker_exited(stimulus, now, effects)
        return effects

    def _dispatch(self, envelope: Envelope, now: float, effects: Effects) -> None:
        sender = envelope.sender
        match envelope.payload:
            case RegisterWorker() as message:
                self._on_register_worker(sender, message, now, effects)
            case WorkerReport() as message:
                self._on_report(sender, message, now, effects)
            case AllocationsRefused() as message:
                self._on_refused(sender, message, now, effects)
            case WorkerLeaving() as message:
                worker = _worker_of(sender)
                self._lose_worker(worker, f"worker stopped: {message.reason}", now, effects)
            case RegisterJobMaster() as message:
                self._on_register_job(envelope, message, now, effects)
            case DeclareRequirements() as message:
                self._on_declare(envelope, message, now, effects)
            case BlockWorker(worker, blocked):
                self._on_block(sender, worker, blocked, now, effects)
            case JobDone() as message:
                if self.jobs.pop(message.job, None) is not None:
                    effects.events.append(Event("job-gone", job=message.job))
                self.slots.ledger.forget(message.job)
                self._want_check(now)
            case _:
                pass

    # ------------------------------------------------------------------------------------------- workers

    def _on_register_worker(self, sender: Address, message: RegisterWorker, now: float, effects: Effects) -> None:
        if message.version != self.config.version:
            reason = f"worker runs slotwise {message.version}, master {self.config.version}: install the same version"
            self._out.send(effects, sender, RegistrationRefused(reason))
            return
        if not _adds_up(message.total, message.report):
            reason = "the slots that the worker reports and what it has left do not add up to its total"
            self._out.send(effects, sender, RegistrationRefused(reason))
            return
        is_new = message.worker not in self.slots.workers
        if is_new and not self._has_room_for(message):
            reason = "the cluster is at its maximum"
            self._out.send(effects, sender, RegistrationRefused(reason))
            effects.events.append(Event("worker-refused", worker=message.worker, fields={"reason": reason}))
            return
        self._timers.clear(("gone", message.worker))
        self.slots.register(
            message.worker, message.host, message.pid, message.total, message.default_profile, message.report, now
        )
        config = self.config
        registered = WorkerRegistered(config.heartbeat_interval_s, config.heartbeat_timeout_s)
        self._out.send(effects, sender, registered)
        if is_new:
            fields: dict[str, str | int | float | None] = {"host": message.host, "total": str(message.total)}
            effects.events.append(Event("worker-registered", worker=message.worker, fields=fields))
            self._start_failure = ""
        self._want_check(now)

    def _has_room_for(self, message: RegisterWorker) -> bool:
        """Whether a worker may join: one that was asked for has its place, and so has one that takes its place."""
        slots = self.slots
        if message.worker in slots.pending or message.report.slots:
            return True
        if any(pending.total == message.total for pending in slots.pending.values()):
            return True
        count = len(slots.workers) + len(slots.pending)
        return self.config.sizing.admits(slots.total_there(), count, message.total)

    def _on_report(self, sender: Address, message: WorkerReport, now: float, effects: Effects) -> None:
        worker = _worker_of(sender)
        entry = self.slots.workers.get(worker)
        if entry is None:
            self._out.send(effects, sender, RegisterAgain())
            return
        if not _adds_up(entry.total, message.report):
            return
        self._timers.clear(("gone", worker))
        entry.rss_bytes = message.rss_bytes
        if self.slots.report(worker, message.report, now):
            self._want_check(now)
        self._out.send(effects, sender, ResourceManagerHeartbeat())
        if entry.leaving:
            self._out.send(effects, sender, ShutdownWorker("idle"))
        self._arm_idle(now)

    def _on_refused(self, sender: Address, message: AllocationsRefused, now: float, effects: Effects) -> None:
        worker = _worker_of(sender)
        if worker not in self.slots.workers:
            self._out.send(effects, sender, RegisterAgain())
            return
        if not _adds_up(self.slots.workers[worker].total, message.report):
            return
        # First the roll-back, then the report: what the worker says is the truth about the rest (B: SM-07).
        rolled_back = self.slots.refuse(worker, message.allocations, now)
        changed = self.slots.report(worker, message.report, now)
        if rolled_back or changed:
            self._want_check(now)

    def _on_block(self, sender: Address, worker: WorkerId, blocked: bool, now: float, effects: Effects) -> None:
        entry = self.slots.workers.get(worker)
        if entry is not None and entry.blocked != blocked:
            entry.blocked = blocked
            effects.events.append(Event("worker-blocked" if blocked else "worker-unblocked", worker=worker))
            self._want_check(now)
        self._out.send(effects, sender, WorkerBlocked(worker, blocked, entry is not None))

    def _lose_worker(self, worker: WorkerId, reason: str, now: float, effects: Effects, *, dead: bool = False) -> None:
        """``dead``: what ran on it is known to have ended."""
        known = worker in self.slots.workers
        lost = self.slots.remove_worker(worker)
        for key in (("gone", worker), ("start", worker)):
            self._timers.clear(key)
        by_job: dict[JobId, list[AllocationId]] = {}
        for allocation, slot in lost:
            by_job.setdefault(slot.job, []).append(allocation)
        for job, allocations in by_job.items():
            if job in self.jobs:
                self._out.send(effects, self.jobs[job].address, WorkerLost(worker, tuple(allocations), reason, dead))
        if known:
            effects.events.append(Event("worker-lost", worker=worker, fields={"reason": reason}))
            if self.config.sizing.worker is not None:
                effects.workers.append(StopWorker(worker))
            self._want_check(now)

    def _on_worker_exited(self, message: WorkerExited, now: float, effects: Effects) -> None:
        if message.worker in self.slots.pending:
            self._start_failure = message.reason
            self._start_failures.append(now)
            fields: dict[str, str | int | float | None] = {"reason": message.reason}
            effects.events.append(Event("worker-failed", worker=message.worker, fields=fields))
            self.slots.remove_worker(message.worker)
            self._timers.set_once("retry-workers", now + self.config.provisioner_retry_interval_s)
            self._want_check(now)
        elif message.worker in self.slots.workers:
            self._lose_worker(message.worker, message.reason, now, effects, dead=True)
        else:
            # It was lost before its end was known: jobs may wait for the certainty.
            for job in self.jobs.values():
                self._out.send(effects, job.address, WorkerLost(message.worker, (), message.reason, dead=True))

    # ------------------------------------------------------------------------------------------- jobs

    def _on_register_job(self, envelope: Envelope, message: RegisterJobMaster, now: float, effects: Effects) -> None:
        self._out.learn(envelope.sender, envelope.sender_token)
        if message.job not in self.jobs:
            self.jobs[message.job] = _Job(envelope.sender, now)
        else:
            self.jobs[message.job].last_heard = now
        config = self.config
        self._out.send(
            effects, envelope.sender, JobMasterRegistered(config.heartbeat_interval_s, config.heartbeat_timeout_s)
        )

    def _on_declare(self, envelope: Envelope, message: DeclareRequirements, now: float, effects: Effects) -> None:
        job = self.jobs.get(message.job)
        if job is None:
            self._out.send(effects, envelope.sender, RegisterAgain())
            return
        if self._out.learn(envelope.sender, envelope.sender_token):
            # A new leader of the job counts its versions afresh.
            self.slots.ledger.suspend(message.job)
        job.last_heard = now
        job.suspended = False
        if self.slots.ledger.declare(message.job, message.version, counts_of(message.requirements)):
            effects.events.append(
                Event(
                    "declared",
                    job=message.job,
                    fields={"requirements": _words(counts_of(message.requirements)), "version": message.version},
                )
            )
            self._want_check(now)
        self._out.send(effects, envelope.sender, ResourceManagerHeartbeat())
        if job.notified is not None and job.notified.missing:
            self._out.send(effects, job.address, job.notified)

    # ------------------------------------------------------------------------------------------- time

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self._timers.pop_due(now):
            match key:
                case "check" | "grace":
                    self._check(now, effects)
                case "retry-workers":
                    self._want_check(now)
                case "watch":
                    self._watch(now, effects)
                case "idle":
                    self._release_idle(now, effects)
                case ("gone", worker):
                    self._lose_worker(WorkerId(str(worker)), "its connection closed", now, effects)
                case ("start", worker):
                    self._on_start_timeout(WorkerId(str(worker)), now, effects)
                case _:
                    pass
        return effects

    def _want_check(self, now: float) -> None:
        self._timers.set_once("check", now + self.config.check_delay_s)

    def _watch(self, now: float, effects: Effects) -> None:
        """Heartbeat time-outs, and the repetition of allocations that no report has shown yet (B: ML-03)."""
        self._timers.set("watch", now + 1.0)
        for worker in [w for w in self.slots.workers.values() if w.last_heard + self.config.heartbeat_timeout_s < now]:
            self._lose_worker(worker.worker, "no heartbeat", now, effects)
        for job_id, job in self.jobs.items():
            if not job.suspended and job.last_heard + self.config.heartbeat_timeout_s < now:
                job.suspended = True
                self.slots.ledger.suspend(job_id)
                effects.events.append(Event("job-silent", job=job_id))
                self._want_check(now)
        for job_id in [job_id for job_id, job in self.jobs.items() if self._is_forgotten(job, now)]:
            del self.jobs[job_id]
            self.slots.ledger.forget(job_id)
        for worker in self.slots.workers.values():
            late = [
                SlotAllocation(
                    allocation,
                    slot.job,
                    slot.profile,
                    job_master_address(slot.job),
                    self._out.known_token(job_master_address(slot.job)),
                )
                for allocation, slot in worker.slots.items()
                if slot.pending_since is not None and slot.pending_since + self.config.allocation_retry_s <= now
            ]
            if late:
                self._out.send(effects, worker_address(worker.worker), AllocateSlots(tuple(late)))

    def _is_forgotten(self, job: _Job, now: float) -> bool:
        """A job that has been silent for so long has ended and its farewell was lost."""
        return job.suspended and job.last_heard + _FORGET_AFTER_TIMEOUTS * self.config.heartbeat_timeout_s < now

    def _check(self, now: float, effects: Effects) -> None:
        try:
            result = self.slots.check(now)
        except Exception as error:
            # A check that fails must neither go unseen nor silence all later ones (B: SM-01).
            effects.events.append(Event("check-failed", fields={"error": repr(error)}))
            self._timers.set("check", now + _FAILED_CHECK_RETRY_S)
            return
        self._plan = result.plan
        by_worker: dict[WorkerId, list[SlotAllocation]] = {}
        for given in result.given:
            job_master = job_master_address(given.job)
            by_worker.setdefault(given.worker, []).append(
                SlotAllocation(
                    given.allocation, given.job, given.profile, job_master, self._out.known_token(job_master)
                )
            )
            effects.events.append(
                Event("allocated", given.job, given.worker, given.allocation, {"profile": str(given.profile)})
            )
        for worker, slots in by_worker.items():
            self._out.send(effects, worker_address(worker), AllocateSlots(tuple(slots)))
        self._start_workers(result.started, now, effects)
        for surplus in result.surplus:
            self._timers.clear(("start", surplus))
            effects.workers.append(StopWorker(surplus))
            effects.events.append(Event("worker-cancelled", worker=surplus))
        if now >= self._grace_ends:
            self._notify(effects)
        self._arm_idle(now)

    def _start_workers(self, started: list[PendingWorker], now: float, effects: Effects) -> None:
        """Ask the provisioner, unless it failed so recently or so often that it must wait (B: SZ-11)."""
        failures = self._start_failures
        wait_until = failures[-1] + self.config.provisioner_retry_interval_s if failures else now
        if len(failures) == failures.maxlen:
            wait_until = max(wait_until, failures[0] + 60.0)
        if started and wait_until > now:
            for pending in started:
                del self.slots.pending[pending.worker]
            self._timers.set_once("retry-workers", wait_until)
            return
        for pending in started:
            effects.workers.append(StartWorker(pending.worker, pending.total, pending.default_profile))
            effects.events.append(
                Event("worker-requested", worker=pending.worker, fields={"total": str(pending.total)})
            )
            self._timers.set(("start", pending.worker), now + self.config.worker_start_timeout_s)

    def _on_start_timeout(self, worker: WorkerId, now: float, effects: Effects) -> None:
        if worker not in self.slots.pending:
            return
        effects.workers.append(StopWorker(worker))
        reason = f"it did not register within {self.config.worker_start_timeout_s:g} s"
        self._on_worker_exited(WorkerExited(worker, reason, started=True), now, effects)

    def _arm_idle(self, now: float) -> None:
        """Wake when the next idle worker is due. Standalone workers are not ours to stop."""
        if self.config.sizing.worker is None:
            return
        idle = [w.idle_since for w in self.slots.workers.values() if w.idle_since is not None and not w.leaving]
        timeout = self.config.sizing.idle_timeout_s
        due = [since + timeout for since in idle]
        if due:
            # Those that are due and still here are needed now; whether they stay so is looked at again and again.
            later = [at for at in due if at > now]
            again = now + max(1.0, timeout / 4)
            self._timers.set("idle", min([*later, again] if len(later) < len(due) else later))

    def _release_idle(self, now: float, effects: Effects) -> None:
        for worker in self.slots.idle_workers(now):
            self.slots.workers[worker].leaving = True
            self._out.send(effects, worker_address(worker), ShutdownWorker("idle"))
            effects.events.append(Event("worker-released", worker=worker, fields={"reason": "idle"}))
        self._arm_idle(now)

    # ------------------------------------------------------------------------------------------- notices

    def _notify(self, effects: Effects) -> None:
        """Tell each job what it lacks and why, when that has changed (B: D-09, D-10)."""
        for job_id, job in self.jobs.items():
            entry = self.slots.ledger.get(job_id)
            if entry is None:
                continue
            notice = NotEnoughResources(requirements_of(entry.held), tuple(self.shortages(job_id)))
            before = job.notified.missing if job.notified is not None else ()
            if notice.missing != before:
                job.notified = notice
                self._out.send(effects, job.address, notice)

    def shortages(self, job: JobId) -> list[Shortage]:
        """What ``job`` lacked at the last check, and why."""
        found = []
        for profile, count in self._plan.waiting.get(job, {}).items():
            coming = len(self.slots.pending)
            if coming:
                detail = f"{coming} worker(s) starting"
                found.append(Shortage(profile, count, ShortageReason.WORKERS_COMING, detail))
            else:
                detail = f"the last attempt failed: {self._start_failure}; trying again"
                found.append(Shortage(profile, count, ShortageReason.PROVISIONER_FAILING, detail))
        for profile, count in self._plan.unserved.get(job, {}).items():
            shape = self.config.sizing.worker
            workers = self.slots.workers.values()
            if profile is not None and not self.slots.fits_any_worker(profile) and (workers or shape):
                largest = shape.total if shape else max((w.total for w in workers), key=lambda t: t.memory_bytes)
                detail = f"a slot of {profile} is larger than any worker ({largest})"
                found.append(Shortage(profile, count, ShortageReason.TOO_LARGE, detail, final=shape is not None))
            elif shape is None and self._is_blocked_capacity(profile):
                detail = "there is room for it on blocked workers only"
                found.append(Shortage(profile, count, ShortageReason.BLOCKED, detail))
            elif shape is None:
                detail = f"{len(workers)} worker(s) registered, none with room for it"
                found.append(Shortage(profile, count, ShortageReason.NO_WORKERS, detail))
            else:
                there = len(workers) + len(self.slots.pending)
                detail = f"{there} worker(s) of {shape.total} are all that is allowed"
                found.append(Shortage(profile, count, ShortageReason.CLUSTER_FULL, detail))
        return found

    def _is_blocked_capacity(self, profile: ResourceProfile | None) -> bool:
        return any(
            entry.blocked and fits(entry.default_profile if profile is None else profile, entry.free)
            for entry in self.slots.workers.values()
        )

    def explain(self, job: JobId) -> Explanation:
        """Why ``job`` has what it has."""
        entry = self.slots.ledger.get(job)
        if entry is None or job not in self.jobs:
            return Explanation(job, known=False)
        pending = sum(
            1
            for worker in self.slots.workers.values()
            for slot in worker.slots.values()
            if slot.job == job and slot.pending_since is not None
        )
        return Explanation(
            job,
            known=True,
            required=requirements_of(entry.required),
            acquired=requirements_of(entry.held),
            pending=pending,
            ahead=sum(1 for other in self.slots.ledger.in_order() if other.order < entry.order and other.missing()),
            unmet=explain_shortages(self.shortages(job)),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the machine's state is consistent."""
        self.slots.check_invariants()


def _worker_of(address: Address) -> WorkerId:
    return WorkerId(address.removeprefix("te:"))


def _adds_up(total: ResourceProfile, report: SlotReport) -> bool:
    """Whether a report can be true; one that cannot must not reach the sums."""
    used = ZERO
    for slot in report.slots:
        used += slot.profile
    return used + report.available == total


def _words(counts: Counts) -> str:
    return "; ".join(
        f"{requirement.count} × ({requirement.profile or 'default slot'})" for requirement in requirements_of(counts)
    )
