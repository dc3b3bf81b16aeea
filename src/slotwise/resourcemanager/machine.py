"""The ResourceManager: a broker without I/O and without stored state (FLIP-6, FLIP-138).

Workers register and report, jobs register and declare; a check (see slot_manager) runs shortly after every change.
Behaviours: D-01 … D-12, SM-01 … SM-12, ML-01 … ML-07, F-01, F-02. What it sends may be lost, so everything is
repeated: allocations until they show in a report, acknowledgements with each heartbeat, notices with each declaration
while something is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slotwise.model.errors import SizeError
from slotwise.model.ids import (
    RESOURCE_MANAGER,
    UNKNOWN_TOKEN,
    Address,
    AllocationId,
    IdSource,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.requirements import Counts, check_all_or_none_stated, counts_of, requirements_of
from slotwise.model.resources import ZERO, ResourceProfile
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
    DeclarationRefused,
    DeclareRequirements,
    Envelope,
    Fenced,
    GiveWay,
    JobDone,
    JobMasterRegistered,
    RegisterAgain,
    RegisterJobMaster,
    RegisterWorker,
    RegistrationRefused,
    ResourceManagerHeartbeat,
    Shortage,
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
from slotwise.resourcemanager.config import ResourceManagerConfig
from slotwise.resourcemanager.explain import Explanation, explain_shortages
from slotwise.resourcemanager.notices import Notices
from slotwise.resourcemanager.provisioning import Provisioning
from slotwise.resourcemanager.silence import LastHeard
from slotwise.resourcemanager.slot_manager import SlotManager
from slotwise.resourcemanager.worker_index import PlacementMode

__all__ = ["ResourceManager", "ResourceManagerConfig"]

_FORGET_AFTER_TIMEOUTS = 10
_FAILED_CHECK_RETRY_S = 1.0
_TOGETHER_S = 0.005
"""A change after a quiet time waits so long for those that come with it; the others for the end of the delay."""


@dataclass(slots=True)
class _Job:
    """A registered JobMaster. ``declared``: the first profile that it has declared, if any. ``declared_by``: the token
    of the leader whose declarations count. ``suspended``: it has been silent for so long that nothing is required for
    it."""

    address: Address
    declared: tuple[ResourceProfile | None, ...] = ()
    declared_by: LeaderToken = UNKNOWN_TOKEN
    suspended: bool = False


class ResourceManager:
    """See the module's head. ``token`` is its leadership's fencing token; ``before``: the workers that earlier leaders
    have asked for and that the provisioner still has. They count as pending ones until they register.
    """

    def __init__(
        self,
        config: ResourceManagerConfig,
        token: LeaderToken,
        ids: IdSource,
        now: float,
        before: Sequence[StartWorker] = (),
    ) -> None:
        self.config = config
        self.slots = SlotManager(ids, config.sizing, PlacementMode(config.placement))
        self.jobs: dict[JobId, _Job] = {}
        self.checks = 0
        """How many checks were made."""
        self._checked_at = -math.inf
        self._out = Outbox(RESOURCE_MANAGER, token)
        self._timers = Timers()
        self._grace_ends = now + config.start_up_grace_s
        self._notices = Notices(self.slots, self._out)
        self._provisioning = Provisioning(config, self.slots, self._out, self._timers)
        self._heard: LastHeard[JobId] = LastHeard()
        self._suspended: LastHeard[JobId] = LastHeard()
        self._provisioning.expect(before, now)
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
            case Fenced(address, current):
                self._out.learn(address, current)
            case JobDone() as message:
                if message.job in self.jobs:
                    effects.events.append(Event("job-gone", job=message.job))
                self._forget_job(message.job)
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
            self._timers.clear(("start", message.worker))
            self.slots.fleet.give_up(message.worker)
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
            self._notices.start_failure = ""
        self._want_check(now)

    def _has_room_for(self, message: RegisterWorker) -> bool:
        """Whether a worker may join: one that was asked for has its place, and so has one that takes its place."""
        slots = self.slots
        if message.report.slots:
            return True
        pending = slots.pending.get(message.worker)
        if pending is not None:
            # The leader before may have given up one that comes back all the same, and asked for another.
            return not pending.from_before or self.config.sizing.allows(slots.fleet.there, slots.fleet.count())
        if slots.fleet.last_pending(message.total) is not None:
            return True
        return self.config.sizing.admits(slots.fleet.there, slots.fleet.count(), message.total)

    def _on_report(self, sender: Address, message: WorkerReport, now: float, effects: Effects) -> None:
        worker = _worker_of(sender)
        entry = self.slots.workers.get(worker)
        if entry is None:
            self._out.send(effects, sender, RegisterAgain())
            return
        if not _adds_up(entry.total, message.report):
            return
        self._timers.clear(("gone", worker))
        entry.rss_bytes, entry.warm = message.rss_bytes, message.warm
        if message.draining and not entry.leaving:
            self.slots.fleet.mark(entry, leaving=True)
            self._want_check(now)
        if self.slots.report(worker, message.report, now):
            self._want_check(now)
        self._out.send(effects, sender, ResourceManagerHeartbeat())
        if entry.leaving and not message.draining:
            self._out.send(effects, sender, ShutdownWorker("idle"))
        self._provisioning.arm_idle(now)

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
            self.slots.fleet.mark(entry, blocked=blocked)
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
        pending = self.slots.pending.get(message.worker)
        if pending is not None and pending.from_before:
            self._provisioning.not_back(message.worker, message.reason, effects)
            self._tell_dead(message, effects)
            self._want_check(now)
        elif pending is not None:
            self._notices.start_failure = message.reason
            self._provisioning.failed(message.worker, message.reason, now, effects)
            self._want_check(now)
        elif message.worker in self.slots.workers:
            self._lose_worker(message.worker, message.reason, now, effects, dead=True)
        else:
            self._tell_dead(message, effects)

    def _tell_dead(self, message: WorkerExited, effects: Effects) -> None:
        """It was lost, or an earlier leader's, before its end was known: jobs may wait for the certainty."""
        for job in self.jobs.values():
            self._out.send(effects, job.address, WorkerLost(message.worker, (), message.reason, dead=True))

    # ------------------------------------------------------------------------------------------- jobs

    def _on_register_job(self, envelope: Envelope, message: RegisterJobMaster, now: float, effects: Effects) -> None:
        self._out.learn(envelope.sender, envelope.sender_token)
        self.jobs.setdefault(message.job, _Job(envelope.sender))
        self._hear_job(message.job, now)
        config = self.config
        self._out.send(
            effects, envelope.sender, JobMasterRegistered(config.heartbeat_interval_s, config.heartbeat_timeout_s)
        )

    def _on_declare(self, envelope: Envelope, message: DeclareRequirements, now: float, effects: Effects) -> None:
        job = self.jobs.get(message.job)
        if job is None:
            self._out.send(effects, envelope.sender, RegisterAgain())
            return
        self._hear_job(message.job, now)
        counts = counts_of(message.requirements)
        try:
            check_all_or_none_stated((*job.declared, *counts))
        except SizeError as error:
            self._out.send(effects, envelope.sender, DeclarationRefused(message.job, message.version, str(error)))
            effects.events.append(Event("declaration-refused", job=message.job, fields={"reason": str(error)}))
            return
        job.declared = job.declared or tuple(counts)[:1]
        self._out.learn(envelope.sender, envelope.sender_token)
        if envelope.sender_token > job.declared_by:
            # A new leader of the job counts its versions afresh. It was heard of before: it has registered.
            job.declared_by = envelope.sender_token
            self.slots.ledger.renew(message.job)
        if self.slots.ledger.declare(message.job, message.version, counts, yields=message.yields):
            effects.events.append(
                Event(
                    "declared",
                    job=message.job,
                    fields={"requirements": _words(counts), "version": message.version},
                )
            )
            self._want_check(now)
        self._out.send(effects, envelope.sender, ResourceManagerHeartbeat())
        self._notices.repeat(message.job, job.address, effects)
        if message.yields and now >= self._grace_ends and self.slots.wanted_by_others(self._notices.plan):
            self._out.send(effects, job.address, GiveWay(message.job))

    def _hear_job(self, job: JobId, now: float) -> None:
        self.jobs[job].suspended = False
        self._suspended.forget(job)
        self._heard.hear(job, now)

    def _forget_job(self, job: JobId) -> None:
        self.jobs.pop(job, None)
        self._heard.forget(job)
        self._suspended.forget(job)
        self._notices.forget(job)
        self.slots.ledger.forget(job)

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
                    self._provisioning.release_idle(now, effects)
                case ("gone", worker):
                    self._lose_worker(WorkerId(str(worker)), "its connection closed", now, effects)
                case ("start", worker):
                    late = WorkerId(str(worker))
                    if reason := self._provisioning.overdue(late, effects):
                        self._on_worker_exited(WorkerExited(late, reason, started=True), now, effects)
                    self._want_check(now)
                case _:
                    pass
        return effects

    def _want_check(self, now: float) -> None:
        delay_s = self.config.check_delay_s
        soon = now + min(delay_s, _TOGETHER_S)
        self._timers.set_once("check", max(soon, self._checked_at + delay_s))

    def _watch(self, now: float, effects: Effects) -> None:
        """Heartbeat time-outs, and the repetition of allocations that no report has shown yet (B: ML-03)."""
        self._timers.set("watch", now + 1.0)
        timeout_s = self.config.heartbeat_timeout_s
        for worker in self.slots.fleet.heard.silent(timeout_s, now):
            self._lose_worker(worker, "no heartbeat", now, effects)
        for job_id in self._heard.silent(timeout_s, now):
            self.jobs[job_id].suspended = True
            self._suspended.hear(job_id, self._heard.last(job_id))
            self._heard.forget(job_id)
            self.slots.ledger.suspend(job_id)
            effects.events.append(Event("job-silent", job=job_id))
            self._want_check(now)
        # One that has been silent for so long has ended, and its farewell was lost.
        for job_id in self._suspended.silent(_FORGET_AFTER_TIMEOUTS * timeout_s, now):
            self._forget_job(job_id)
        for worker, late in self.slots.late(self.config.allocation_retry_s, now).items():
            allocations = [self._allocation(allocation, slot.job, slot.profile) for allocation, slot in late]
            self._out.send(effects, worker_address(worker), AllocateSlots(tuple(allocations)))

    def _allocation(self, allocation: AllocationId, job: JobId, profile: ResourceProfile) -> SlotAllocation:
        job_master = job_master_address(job)
        return SlotAllocation(allocation, job, profile, job_master, self._out.known_token(job_master))

    def _check(self, now: float, effects: Effects) -> None:
        self.checks += 1
        self._checked_at = now
        try:
            result = self.slots.check(now)
        except Exception as error:
            # A check that fails must neither go unseen nor silence all later ones (B: SM-01).
            effects.events.append(Event("check-failed", fields={"error": repr(error)}))
            self._timers.set("check", now + _FAILED_CHECK_RETRY_S)
            return
        self._notices.plan = result.plan
        by_worker: dict[WorkerId, list[SlotAllocation]] = {}
        for given in result.given:
            by_worker.setdefault(given.worker, []).append(self._allocation(given.allocation, given.job, given.profile))
            effects.events.append(
                Event("allocated", given.job, given.worker, given.allocation, {"profile": str(given.profile)})
            )
        for worker, slots in by_worker.items():
            self._out.send(effects, worker_address(worker), AllocateSlots(tuple(slots)))
        self._provisioning.start(result.started, now, effects)
        self._provisioning.cancel(result.surplus, effects)
        if now >= self._grace_ends:
            self._notices.announce(self._address_of, effects)
            if self.slots.ledger.yielding and self.slots.wanted_by_others(result.plan):
                for job in sorted(self.slots.ledger.yielding):
                    if (address := self._address_of(job)) is not None:
                        self._out.send(effects, address, GiveWay(job))
        self._provisioning.arm_idle(now)

    def _address_of(self, job: JobId) -> Address | None:
        known = self.jobs.get(job)
        return known.address if known is not None else None

    def end_workers(self, reason: str) -> Effects:
        """The cluster is over: every worker is to end."""
        effects = Effects()
        for worker in self.slots.workers:
            self._out.send(effects, worker_address(worker), ShutdownWorker(reason))
        return effects

    # ------------------------------------------------------------------------------------------- questions

    def shortages(self, job: JobId) -> list[Shortage]:
        """What ``job`` lacked at the last check, and why."""
        return self._notices.shortages(job)

    def explain(self, job: JobId) -> Explanation:
        """Why ``job`` has what it has."""
        entry = self.slots.ledger.get(job)
        if entry is None or job not in self.jobs:
            return Explanation(job, known=False)
        return Explanation(
            job,
            known=True,
            required=requirements_of(entry.required),
            acquired=requirements_of(entry.held),
            pending=self.slots.unconfirmed.of_job(job),
            ahead=self.slots.ledger.ahead_of(entry),
            unmet=explain_shortages(self.shortages(job)),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the machine's state is consistent."""
        self.slots.check_invariants()
        self._notices.check_invariants()
        heard = {job: self._heard.last(job) for job, entry in self.jobs.items() if not entry.suspended}
        silent = {job: self._suspended.last(job) for job, entry in self.jobs.items() if entry.suspended}
        self._heard.check_invariants(heard)
        self._suspended.check_invariants(silent)


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
