"""The JobMaster: one job's life (FLIP-6, FLIP-138). Without I/O.

It declares what the job needs, accepts the slots that are offered, starts the Spark driver once the driver's slot and
the minimum of executor slots are held, turns what the driver asks for into declarations and executors, and ends with
the program. Behaviours: D-01, D-05, D-11 … D-13, SP-01 … SP-07, A-01, F-01, F-03, F-05, ML-01, ML-05.

Everything it wants of a worker is kept as a wish (`HeldSlot.use`, the frees under way) and said again whenever a
report shows that it has not come true."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from slotwise.jobmaster.executors import Executor, Executors
from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.jobmaster.states import may_move
from slotwise.model.ids import (
    DISPATCHER,
    RESOURCE_MANAGER,
    AllocationId,
    IdSource,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.job import JobResult, JobSpec, JobState
from slotwise.model.process import DriverProcess, DriverReport, ProcessSpec
from slotwise.model.requirements import Counts, requirements_of
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import (
    AcceptSlots,
    CancelJob,
    DeclareRequirements,
    Deploy,
    DirectDriver,
    Envelope,
    Fenced,
    FreeSlots,
    JobDone,
    JobMasterHeartbeat,
    JobMasterRegistered,
    JobSlotsReport,
    JobStatus,
    JobStatusAcknowledged,
    NotEnoughResources,
    OfferSlots,
    ProcessPhase,
    ProcessStatus,
    RegisterAgain,
    RegisterJobMaster,
    RejectSlots,
    ResourceManagerHeartbeat,
    Shortage,
    StopProcess,
    WorkerLost,
)
from slotwise.protocol.outbox import Outbox


class JobMasterConfig(msgspec.Struct, frozen=True):
    """Times in seconds. ``resource_wait_timeout_s``: how long to wait for the minimum (−1: for ever);
    ``stabilisation_s``: how long to wait for more once the minimum is there (B: A-01). ``max_driver_starts``: drivers
    in all, when workers die under them.
    """

    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    registration_retry_s: float = 0.5
    registration_retry_max_s: float = 10.0
    retry_s: float = 2.0
    resource_wait_timeout_s: float = 300.0
    stabilisation_s: float = 2.0
    idle_slot_timeout_s: float = 50.0
    release_timeout_s: float = 30.0
    max_driver_starts: int = 4
    max_executor_start_failures: int = 4
    executor_restart_delay_s: float = 1.0


@dataclass
class _WorkerView:
    """What the JobMaster knows of a worker that has slots of the job."""

    seq: int
    last_heard: float


class JobMaster:
    """See the module's head. ``token`` is its leadership's fencing token."""

    def __init__(
        self, job: JobId, spec: JobSpec, config: JobMasterConfig, token: LeaderToken, ids: IdSource, now: float
    ) -> None:
        self.job = job
        self.spec = spec
        self.config = config
        self.state = JobState.CREATED
        self.result: JobResult | None = None
        self.pool = SlotPool()
        self.executors = Executors(ids)
        self.shortages: tuple[Shortage, ...] = ()
        self.driver_starts = 0
        self._ids = ids
        self._secret = ids.new_secret()
        self._out = Outbox(job_master_address(job), token)
        self._timers = Timers()
        self._version = 0
        self._status_seq = 0
        self._status_acknowledged = True
        self._registered = False
        self._rm_heard = now
        self._backoff_s = config.registration_retry_s
        self._workers: dict[WorkerId, _WorkerView] = {}
        self._freeing: dict[AllocationId, tuple[WorkerId, str]] = {}
        self._driver_slot: AllocationId | None = None
        self._no_executor_before = now
        self._directed = 0
        self._release_reported = False
        self._pending_result: JobResult | None = None
        self._timers.set("start", now)

    @property
    def token(self) -> LeaderToken:
        """The fencing token of this leadership."""
        return self._out.token

    @property
    def released(self) -> bool:
        """Whether the job is over and nothing of it is left on any worker."""
        return self.state.is_final and not self.pool.slots and not self._freeing

    def next_timer(self) -> float | None:
        """When :meth:`on_timer` wants to be called."""
        return self._timers.next()

    # ------------------------------------------------------------------------------------------- messages

    def handle(self, stimulus: Envelope, now: float) -> Effects:
        """Take a message."""
        effects = Effects()
        introduces = isinstance(stimulus.payload, OfferSlots | JobSlotsReport | CancelJob)
        if self._out.admit(stimulus, effects, introduces=introduces):
            self._dispatch(stimulus, now, effects)
        return effects

    def _dispatch(self, envelope: Envelope, now: float, effects: Effects) -> None:
        if envelope.sender == RESOURCE_MANAGER:
            if self._out.learn(RESOURCE_MANAGER, envelope.sender_token) and self._registered:
                self._register_again(now)
            self._rm_heard = now
        elif envelope.sender == DISPATCHER:
            self._out.learn(DISPATCHER, envelope.sender_token)
        match envelope.payload:
            case JobMasterRegistered():
                self._registered = True
                self._backoff_s = self.config.registration_retry_s
                self._timers.clear("register")
                self._declare(now, effects)
            case RegisterAgain():
                self._register_again(now)
            case Fenced(address, current):
                self._out.learn(address, current)
                if address == RESOURCE_MANAGER:
                    self._register_again(now)
            case NotEnoughResources(_, missing):
                self._on_shortage(missing, now, effects)
            case WorkerLost(worker, allocations, reason):
                self._lose_slots(worker, allocations, reason, now, effects)
            case OfferSlots() as message:
                self._on_offer(message, now, effects)
            case JobSlotsReport() as message:
                self._on_report(message, now, effects)
            case CancelJob():
                self._on_cancel(now, effects)
            case JobStatusAcknowledged(_, seq):
                self._status_acknowledged = self._status_acknowledged or seq == self._status_seq
            case ResourceManagerHeartbeat() | _:
                pass

    def _on_shortage(self, missing: tuple[Shortage, ...], now: float, effects: Effects) -> None:
        if missing != self.shortages:
            for shortage in missing:
                size = shortage.profile or "default slot"
                text = f"{shortage.count} × ({size}) missing: {shortage.detail}"
                effects.events.append(Event("shortage", self.job, fields={"text": text}))
        self.shortages = missing
        hopeless = next((shortage for shortage in missing if shortage.final), None)
        # Waiting cannot help only if what is missing is part of the minimum, and that is for the JM to say (B: D-11).
        if hopeless is not None and self.state is JobState.WAITING_FOR_RESOURCES and not self._minimum_possible():
            self._end(JobResult(JobState.FAILED, reason=hopeless.detail), now, effects)

    def _minimum_possible(self) -> bool:
        hopeless = {shortage.profile for shortage in self.shortages if shortage.final}
        if self.spec.driver.profile in hopeless:
            return False
        return self.spec.min_executors == 0 or self.spec.executor.profile not in hopeless

    def _on_offer(self, message: OfferSlots, now: float, effects: Effects) -> None:
        before = set(self.pool.slots)
        accepted, rejected = self.pool.offer(message.worker, message.host, message.slots, now)
        self._workers.setdefault(message.worker, _WorkerView(-1, now)).last_heard = now
        to = worker_address(message.worker)
        if accepted:
            self._out.send(effects, to, AcceptSlots(self.job, accepted))
        if rejected:
            self._out.send(effects, to, RejectSlots(self.job, rejected))
        for allocation in accepted:
            if allocation not in before:
                profile = str(self.pool.slots[allocation].profile)
                effects.events.append(Event("acquired", self.job, message.worker, allocation, {"profile": profile}))
        self._advance(now, effects)

    def _on_report(self, message: JobSlotsReport, now: float, effects: Effects) -> None:
        view = self._workers.setdefault(message.worker, _WorkerView(-1, now))
        view.last_heard = now
        for allocation in message.gone:
            self._freeing.pop(allocation, None)
        lost = [allocation for allocation in message.gone if allocation in self.pool.slots]
        if message.seq > view.seq:
            view.seq = message.seq
            reported = {status.allocation: status for status in message.slots}
            for slot in self.pool.on_worker(message.worker):
                if slot.allocation in reported:
                    slot.confirmed = True
                elif slot.confirmed:
                    lost.append(slot.allocation)
            for allocation, status in reported.items():
                held = self.pool.slots.get(allocation)
                if held is None:
                    if allocation not in self._freeing:
                        self._free(allocation, message.worker, "not held by its job", effects)
                    continue
                if status.driver is not None and allocation == self._driver_slot:
                    self._on_driver_report(status.driver, effects)
                if status.process is not None:
                    self._on_process(held, status.process, now, effects)
        if lost:
            self._lose_slots(message.worker, tuple(lost), "the worker released it", now, effects)
        self._advance(now, effects)

    def _on_driver_report(self, report: DriverReport, effects: Effects) -> None:
        before = self.executors.report
        if not self.executors.take(report):
            return
        if before is None or before.app_id != report.app_id:
            effects.events.append(Event("application", self.job, fields={"app_id": report.app_id}))
        if before is None or {t.profile_id: t.count for t in before.totals} != {
            t.profile_id: t.count for t in report.totals
        }:
            count = sum(total.count for total in report.totals)
            effects.events.append(Event("executors-wanted", self.job, fields={"count": count}))
        for executor_id in report.registered:
            if before is None or before.app_id != report.app_id or executor_id not in before.registered:
                effects.events.append(Event("executor-registered", self.job, fields={"executor": executor_id}))
        first = report.first_task_unix_s
        if first is not None and (before is None or before.first_task_unix_s is None):
            effects.events.append(Event("first-task", self.job, fields={"unix_s": first}))

    # ------------------------------------------------------------------------------------------- processes

    def _on_process(self, slot: HeldSlot, status: ProcessStatus, now: float, effects: Effects) -> None:
        before = slot.process
        if before == status:
            return
        slot.process = status
        if slot.use != status.process:
            return
        is_driver = slot.allocation == self._driver_slot
        if status.phase is ProcessPhase.RUNNING and is_driver and self.state is JobState.DEPLOYING:
            self._move(JobState.RUNNING, effects)
        if status.phase is not ProcessPhase.EXITED:
            return
        self.pool.mark_idle(slot, now)
        if is_driver:
            self._driver_ended(status, now, effects)
        else:
            executor = self.executors.by_allocation(slot.allocation)
            if executor is not None:
                self._executor_ended(executor, status, now, effects)

    def _driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        self._driver_slot = None
        if self.state is JobState.RESTARTING:
            return
        if self.state is JobState.FAILING and self._pending_result is not None:
            self._end(self._pending_result, now, effects)
        elif self.state is JobState.CANCELLING:
            return
        elif status.exit_code == 0:
            self._end(JobResult(JobState.FINISHED, 0, status.reason, status.log_tail), now, effects)
        else:
            reason = status.reason or f"the program ended with code {status.exit_code}"
            self._end(JobResult(JobState.FAILED, status.exit_code, reason, status.log_tail), now, effects)

    def _executor_ended(self, executor: Executor, status: ProcessStatus, now: float, effects: Effects) -> None:
        wanted = status.stopped or executor.stopping
        clean_end = self.executors.report is not None and self.executors.report.ended
        reason = status.reason or f"executor {executor.executor_id} ended with code {status.exit_code}"
        self.executors.gone(executor.executor_id, status.exit_code, not wanted, reason)
        fields: dict[str, str | int | float | None] = {
            "executor": executor.executor_id,
            "exit_code": status.exit_code,
            "asked": int(wanted),
        }
        effects.events.append(Event("executor-ended", self.job, allocation=executor.allocation, fields=fields))
        if wanted or clean_end:
            return
        self._no_executor_before = now + (0.0 if executor.registered else self.config.executor_restart_delay_s)
        self._timers.set("advance", self._no_executor_before)
        if not executor.registered:
            self.executors.failures_in_a_row += 1
            if self.executors.failures_in_a_row >= self.config.max_executor_start_failures:
                result = JobResult(
                    JobState.FAILED,
                    None,
                    f"{self.executors.failures_in_a_row} executors in a row ended before they joined: {reason}",
                    status.log_tail,
                )
                self._fail(result, now, effects)

    def _fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """Fail a running job: its driver is ended first."""
        self._pending_result = result
        if self._driver_slot is None:
            self._end(result, now, effects)
        elif self._move(JobState.FAILING, effects):
            self._timers.set("release-timeout", now + self.config.release_timeout_s)
            self._stop_use(self.pool.slots[self._driver_slot], effects)

    # ------------------------------------------------------------------------------------------- losses

    def _lose_slots(
        self, worker: WorkerId, allocations: tuple[AllocationId, ...], reason: str, now: float, effects: Effects
    ) -> None:
        driver_lost = False
        for allocation in allocations:
            self._freeing.pop(allocation, None)
            slot = self.pool.remove(allocation)
            if slot is None:
                continue
            effects.events.append(Event("slot-lost", self.job, worker, allocation, {"reason": reason}))
            executor = self.executors.by_allocation(allocation)
            if executor is not None:
                self.executors.gone(executor.executor_id, None, False, f"its slot is lost: {reason}")
            if allocation == self._driver_slot:
                self._driver_slot = None
                driver_lost = True
        if driver_lost:
            self._on_driver_lost(reason, now, effects)
        self._advance(now, effects)

    def _on_driver_lost(self, reason: str, now: float, effects: Effects) -> None:
        if self.state is JobState.FAILING and self._pending_result is not None:
            self._end(self._pending_result, now, effects)
        elif self.state in (JobState.DEPLOYING, JobState.RUNNING):
            if self.driver_starts >= self.config.max_driver_starts:
                text = f"the driver's worker was lost {self.driver_starts} times; the last: {reason}"
                self._end(JobResult(JobState.FAILED, reason=text), now, effects)
                return
            self._move(JobState.RESTARTING, effects, reason=f"the driver's slot is lost: {reason}")

    def _maybe_restart(self, now: float, effects: Effects) -> None:
        """Once nothing of the old driver's executors is left, begin again with new secrets."""
        for slot in self.pool.slots.values():
            if slot.busy:
                self._stop_use(slot, effects)
        if any(slot.busy for slot in self.pool.slots.values()):
            return
        self._secret = self._ids.new_secret()
        self.executors = Executors(self._ids, self.executors.next_id)
        self._directed = 0
        self._move(JobState.WAITING_FOR_RESOURCES, effects)
        self._arm_wait(now)

    # ------------------------------------------------------------------------------------------- the job goes on

    def _advance(self, now: float, effects: Effects) -> None:
        """Do what has become possible or due; harmless to call at any time."""
        if self.state is JobState.RESTARTING:
            self._maybe_restart(now, effects)
        if self.state is JobState.WAITING_FOR_RESOURCES:
            self._require(self._initial_requirements(), now, effects)
            self._maybe_deploy(now, effects)
        elif self.state in (JobState.DEPLOYING, JobState.RUNNING):
            self._run_executors(now, effects)
        if self.state is JobState.CANCELLING and not self.pool.slots and not self._freeing:
            self._end(JobResult(JobState.CANCELED, reason="cancelled"), now, effects)
        if self.released and not self._release_reported:
            self._release_reported = True
            self._timers.clear("release-timeout")
            self._report_status(effects)
        self._return_surplus(now, effects)

    def _initial_requirements(self) -> Counts:
        counts: Counts = {self.spec.driver.profile: 1}
        if self.spec.initial_executors:
            profile = self.spec.executor.profile
            counts[profile] = counts.get(profile, 0) + self.spec.initial_executors
        return counts

    def _maybe_deploy(self, now: float, effects: Effects) -> None:
        """Start the driver: at once with all, after stabilisation with the minimum, never with less (B: A-01)."""
        free: dict[object, int] = {}
        for slot in self.pool.slots.values():
            if not slot.busy:
                free[slot.profile] = free.get(slot.profile, 0) + 1
        driver, executor = self.spec.driver.profile, self.spec.executor.profile
        if free.get(driver, 0) < 1:
            return
        free[driver] -= 1
        executors = free.get(executor, 0)
        if executors < self.spec.min_executors:
            return
        if executors < self.spec.initial_executors:
            self._timers.set_once("stabilise", now + self.config.stabilisation_s)
            return
        self._deploy_driver(now, effects)

    def _deploy_driver(self, now: float, effects: Effects) -> None:
        slot = self.pool.unused(self.spec.driver.profile)
        assert slot is not None
        for key in ("stabilise", "wait"):
            self._timers.clear(key)
        self.driver_starts += 1
        self._driver_slot = slot.allocation
        slot.use = f"driver-{self.driver_starts}"
        slot.idle_since = None
        self._move(JobState.DEPLOYING, effects)
        self._deploy(slot, effects)

    def _run_executors(self, now: float, effects: Effects) -> None:
        if self.executors.report is not None:
            counts: Counts = {self.spec.driver.profile: 1}
            for profile, count in self.executors.required(self.spec.max_executors).items():
                counts[profile] = counts.get(profile, 0) + count
            self._require(counts, now, effects)
        for executor in self.executors.to_stop():
            executor.stopping = True
            slot = self.pool.slots.get(executor.allocation)
            if slot is not None:
                self._stop_use(slot, effects)
        if self.executors.active and now >= self._no_executor_before:
            for total in self.executors.to_start(self.spec.max_executors):
                for _ in range(total.count):
                    slot = self.pool.unused(total.size.profile)
                    if slot is None:
                        break
                    executor = self.executors.launch(total, slot.allocation, self._secret, self.spec.working_dir)
                    slot.use = f"executor-{executor.executor_id}"
                    slot.idle_since = None
                    self._deploy(slot, effects)
        self._direct(effects)

    def _direct(self, effects: Effects, again: bool = False) -> None:
        directives = self.executors.directives()
        if directives is None or (directives.version == self._directed and not again):
            return
        self._directed = directives.version
        if self._driver_slot is not None:
            slot = self.pool.slots[self._driver_slot]
            message = DirectDriver(self.job, slot.allocation, directives)
            self._out.send(effects, worker_address(slot.worker), message)

    def _deploy(self, slot: HeldSlot, effects: Effects) -> None:
        self._send_deploy(slot, effects)
        effects.events.append(Event("deployed", self.job, slot.worker, slot.allocation, {"process": slot.use}))

    def _send_deploy(self, slot: HeldSlot, effects: Effects) -> None:
        assert slot.use is not None
        if slot.allocation == self._driver_slot:
            spec: ProcessSpec = DriverProcess(self.spec, self._secret, self.driver_starts)
        else:
            executor = self.executors.by_allocation(slot.allocation)
            if executor is None:
                return
            spec = executor.process
        message = Deploy(self.job, slot.allocation, slot.use, spec)
        self._out.send(effects, worker_address(slot.worker), message)

    def _stop_use(self, slot: HeldSlot, effects: Effects, again: bool = False) -> None:
        process = slot.use or (slot.process.process if slot.process is not None else None)
        if process is not None and (slot.stop_sent != process or again):
            slot.stop_sent = process
            message = StopProcess(self.job, slot.allocation, process)
            self._out.send(effects, worker_address(slot.worker), message)

    # ------------------------------------------------------------------------------------------- requirements

    def _require(self, counts: Counts, now: float, effects: Effects) -> None:
        if list(counts.items()) != list(self.pool.required.items()):
            self.pool.required = dict(counts)
            self._version += 1
            self._declare(now, effects)

    def _declare(self, now: float, effects: Effects) -> None:
        self._timers.set("declare", now + self.config.heartbeat_interval_s)
        if self._registered:
            requirements = requirements_of(self.pool.required)
            message = DeclareRequirements(self.job, self._version, requirements)
            self._out.send(effects, RESOURCE_MANAGER, message)

    def _register_again(self, now: float) -> None:
        self._registered = False
        self._timers.set_once("register", now)

    def _return_surplus(self, now: float, effects: Effects) -> None:
        if self.state.is_final or self.state is JobState.CANCELLING:
            return
        for slot in self.pool.surplus(now, self.config.idle_slot_timeout_s):
            self._free(slot.allocation, slot.worker, "surplus", effects)
        due = self.pool.next_surplus(self.config.idle_slot_timeout_s)
        if due is not None:
            self._timers.set("surplus", due)
        else:
            self._timers.clear("surplus")

    def _free(self, allocation: AllocationId, worker: WorkerId, cause: str, effects: Effects) -> None:
        self.pool.remove(allocation)
        self._freeing[allocation] = (worker, cause)
        self._out.send(effects, worker_address(worker), FreeSlots(self.job, (allocation,), cause))
        effects.events.append(Event("released", self.job, worker, allocation, {"cause": cause}))

    def _free_all(self, cause: str, now: float, effects: Effects) -> None:
        by_worker: dict[WorkerId, list[AllocationId]] = {}
        for slot in list(self.pool.slots.values()):
            by_worker.setdefault(slot.worker, []).append(slot.allocation)
            self.pool.remove(slot.allocation)
            self._freeing[slot.allocation] = (slot.worker, cause)
            effects.events.append(Event("released", self.job, slot.worker, slot.allocation, {"cause": cause}))
        for worker, allocations in by_worker.items():
            self._out.send(effects, worker_address(worker), FreeSlots(self.job, tuple(allocations), cause))
        self._timers.set("release-timeout", now + self.config.release_timeout_s)

    # ------------------------------------------------------------------------------------------- the end

    def _on_cancel(self, now: float, effects: Effects) -> None:
        if self.state is JobState.CREATED:
            self._move(JobState.CANCELED, effects)
            self.result = JobResult(JobState.CANCELED, reason="cancelled")
            self._report_status(effects)
            return
        if self.state.is_final or self.state is JobState.CANCELLING:
            return
        self._move(JobState.CANCELLING, effects)
        self._require({}, now, effects)
        self._free_all("the job is cancelled", now, effects)
        self._advance(now, effects)

    def _end(self, result: JobResult, now: float, effects: Effects) -> None:
        if self.state.is_final:
            return
        self.result = result
        self._move(result.state, effects, reason=result.reason)
        for key in ("stabilise", "wait", "surplus", "advance"):
            self._timers.clear(key)
        self._require({}, now, effects)
        if self._registered:
            self._out.send(effects, RESOURCE_MANAGER, JobDone(self.job))
        self._free_all("the job is over", now, effects)
        self._report_status(effects)

    def _move(self, state: JobState, effects: Effects, reason: str = "") -> bool:
        if not may_move(self.state, state):
            return False
        self.state = state
        fields: dict[str, str | int | float | None] = {"state": state.value}
        if reason:
            fields["reason"] = reason
        effects.events.append(Event("job-state", self.job, fields=fields))
        if not state.is_final:
            self._report_status(effects)
        return True

    def _report_status(self, effects: Effects) -> None:
        self._status_seq += 1
        self._status_acknowledged = False
        self._send_status(effects)

    def _send_status(self, effects: Effects) -> None:
        message = JobStatus(self.job, self._status_seq, self.state, self.result, self.released)
        self._out.send(effects, DISPATCHER, message)

    # ------------------------------------------------------------------------------------------- time

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self._timers.pop_due(now):
            match key:
                case "start":
                    self._move(JobState.WAITING_FOR_RESOURCES, effects)
                    self._arm_wait(now)
                    self._timers.set("register", now)
                    self._timers.set("retry", now + self.config.retry_s)
                    self._timers.set("heartbeat", now + self.config.heartbeat_interval_s)
                    self._advance(now, effects)
                case "register":
                    self._register(now, effects)
                case "declare":
                    self._on_declare_due(now, effects)
                case "stabilise":
                    if self.state is JobState.WAITING_FOR_RESOURCES and self._has_minimum():
                        self._deploy_driver(now, effects)
                case "wait":
                    self._on_wait_timeout(now, effects)
                case "retry":
                    self._on_retry(now, effects)
                case "heartbeat":
                    self._on_heartbeat(now, effects)
                case "release-timeout":
                    self._on_release_timeout(now, effects)
                case _:
                    self._advance(now, effects)
        return effects

    def _register(self, now: float, effects: Effects) -> None:
        if self._registered or self.state.is_final:
            return
        self._out.send(effects, RESOURCE_MANAGER, RegisterJobMaster(self.job))
        self._timers.set("register", now + self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, self.config.registration_retry_max_s)

    def _on_declare_due(self, now: float, effects: Effects) -> None:
        if self.state.is_final:
            return
        if self._rm_heard + self.config.heartbeat_timeout_s < now:
            self._register_again(now)
        self._declare(now, effects)

    def _arm_wait(self, now: float) -> None:
        if self.config.resource_wait_timeout_s >= 0:
            self._timers.set("wait", now + self.config.resource_wait_timeout_s)

    def _has_minimum(self) -> bool:
        free = [slot.profile for slot in self.pool.slots.values() if not slot.busy]
        if self.spec.driver.profile not in free:
            return False
        free.remove(self.spec.driver.profile)
        return free.count(self.spec.executor.profile) >= self.spec.min_executors

    def _on_wait_timeout(self, now: float, effects: Effects) -> None:
        if self.state is not JobState.WAITING_FOR_RESOURCES:
            return
        waited = f"{self.config.resource_wait_timeout_s:g} s"
        why = "; ".join(shortage.detail for shortage in self.shortages) or "no answer from the ResourceManager"
        reason = (
            f"the minimum of a driver and {self.spec.min_executors} executor(s) was not there after {waited}: {why}"
        )
        self._end(JobResult(JobState.FAILED, reason=reason), now, effects)

    def _on_retry(self, now: float, effects: Effects) -> None:
        """Say again what has not come true (decision 2)."""
        if self.released and self._status_acknowledged:
            return
        self._timers.set("retry", now + self.config.retry_s)
        involved = {slot.worker for slot in self.pool.slots.values()} | {worker for worker, _ in self._freeing.values()}
        for worker in sorted(involved):
            self._repeat(worker, effects)
        self._direct(effects, again=True)
        if not self._status_acknowledged:
            self._send_status(effects)
        self._advance(now, effects)

    def _repeat(self, worker: WorkerId, effects: Effects) -> None:
        unconfirmed = tuple(slot.allocation for slot in self.pool.on_worker(worker) if not slot.confirmed)
        if unconfirmed:
            self._out.send(effects, worker_address(worker), AcceptSlots(self.job, unconfirmed))
        for slot in self.pool.on_worker(worker):
            if slot.use is not None and (slot.process is None or slot.process.process != slot.use):
                self._send_deploy(slot, effects)
            if slot.busy and slot.stop_sent is not None and slot.stop_sent == (slot.use or slot.stop_sent):
                self._stop_use(slot, effects, again=True)
        freeing = tuple(allocation for allocation, (on, _) in self._freeing.items() if on == worker)
        if freeing:
            self._out.send(effects, worker_address(worker), FreeSlots(self.job, freeing, "the job gave it back"))

    def _on_heartbeat(self, now: float, effects: Effects) -> None:
        if self.released:
            return
        self._timers.set("heartbeat", now + self.config.heartbeat_interval_s)
        involved = {slot.worker for slot in self.pool.slots.values()}
        for worker in sorted(involved):
            view = self._workers[worker]
            if view.last_heard + self.config.heartbeat_timeout_s < now:
                lost = tuple(slot.allocation for slot in self.pool.on_worker(worker))
                self._lose_slots(worker, lost, "no heartbeat", now, effects)
            else:
                self._out.send(effects, worker_address(worker), JobMasterHeartbeat(self.job))

    def _on_release_timeout(self, now: float, effects: Effects) -> None:
        """Whatever has not answered by now is left to the workers' own time-outs (B: ST-07)."""
        if self.state is JobState.FAILING and self._pending_result is not None:
            self._end(self._pending_result, now, effects)
            return
        self._freeing.clear()
        self._advance(now, effects)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the job's own books agree."""
        for executor in self.executors.live.values():
            assert executor.allocation in self.pool.slots or self.state.is_final or self.state is JobState.CANCELLING, (
                f"executor {executor.executor_id} lives in a slot that is not held"
            )
        if self._driver_slot is not None and not self.state.is_final and self.state is not JobState.CANCELLING:
            assert self._driver_slot in self.pool.slots
