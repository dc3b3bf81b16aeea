"""The JobMaster: one job's life (FLIP-6, FLIP-138). Without I/O.

It declares what the job needs, accepts the slots that are offered, starts the Spark driver once the driver's slot and
the minimum of executor slots are held, turns what the driver asks for into declarations and executors, and ends with
the program. Behaviours: D-01, D-05, D-11 … D-13, SP-01 … SP-07, A-01, F-01, F-03, F-05, ML-01, ML-05.

Everything it wants of a worker is kept as a wish (`HeldSlot.use`, the frees under way) and said again whenever a
report shows that it has not come true."""

from __future__ import annotations

from slotwise.jobmaster.admission import Admission, admission, initial_requirements, minimum_possible
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.executors import Executor, Executors, report_events
from slotwise.jobmaster.resource_link import ResourceLink
from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.jobmaster.states import may_move
from slotwise.jobmaster.worker_link import WorkerLink
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
from slotwise.model.requirements import Counts
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import (
    CancelJob,
    Deploy,
    DirectDriver,
    Envelope,
    Fenced,
    JobMasterRegistered,
    JobSlotsReport,
    JobStatus,
    JobStatusAcknowledged,
    NotEnoughResources,
    OfferSlots,
    ProcessPhase,
    ProcessStatus,
    RegisterAgain,
    ResourceManagerHeartbeat,
    Shortage,
    WorkerLost,
)
from slotwise.protocol.outbox import Outbox


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
        self._resources = ResourceLink(
            job,
            self.pool,
            self._out,
            self._timers,
            now,
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            retry_s=config.registration_retry_s,
            retry_max_s=config.registration_retry_max_s,
        )
        self._workers = WorkerLink(job, self.pool, self._out)
        self._status_seq = 0
        self._status_acknowledged = True
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
        return self.state.is_final and not self.pool.slots and not self._workers.freeing

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
            self._resources.heard(envelope.sender_token, now)
        elif envelope.sender == DISPATCHER:
            self._out.learn(DISPATCHER, envelope.sender_token)
        match envelope.payload:
            case JobMasterRegistered():
                self._resources.registered(now, effects)
            case RegisterAgain():
                self._resources.register_again(now)
            case Fenced(address, current):
                self._out.learn(address, current)
                if address == RESOURCE_MANAGER:
                    self._resources.register_again(now)
            case NotEnoughResources(_, missing):
                self._on_shortage(missing, now, effects)
            case WorkerLost(worker, allocations, reason):
                self._lose_slots(worker, allocations, reason, now, effects)
            case OfferSlots() as message:
                self._workers.on_offer(message, now, effects)
                self._advance(now, effects)
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
        if (
            hopeless is not None
            and self.state is JobState.WAITING_FOR_RESOURCES
            and not minimum_possible(self.spec, missing)
        ):
            self._end(JobResult(JobState.FAILED, reason=hopeless.detail), now, effects)

    def _on_report(self, message: JobSlotsReport, now: float, effects: Effects) -> None:
        running, lost = self._workers.on_report(message, now, effects)
        for slot, status in running:
            if status.driver is not None and slot.allocation == self._driver_slot:
                self._on_driver_report(status.driver, effects)
            if status.process is not None:
                self._on_process(slot, status.process, now, effects)
        if lost:
            self._lose_slots(message.worker, lost, "the worker released it", now, effects)
        self._advance(now, effects)

    def _on_driver_report(self, report: DriverReport, effects: Effects) -> None:
        before = self.executors.report
        if not self.executors.take(report):
            return
        effects.events += report_events(self.job, before, report)

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
        # Spark itself ends an executor that it decommissions, and then with code 0.
        decommissioned = executor.registered and status.exit_code == 0
        wanted = status.stopped or executor.stopping or decommissioned
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
            self._workers.end_process(self.pool.slots[self._driver_slot], effects)

    # ------------------------------------------------------------------------------------------- losses

    def _lose_slots(
        self, worker: WorkerId, allocations: tuple[AllocationId, ...], reason: str, now: float, effects: Effects
    ) -> None:
        driver_lost = False
        for allocation in allocations:
            self._workers.freeing.pop(allocation, None)
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
                self._workers.end_process(slot, effects)
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
            self._resources.require(initial_requirements(self.spec), now, effects)
            self._maybe_deploy(now, effects)
        elif self.state in (JobState.DEPLOYING, JobState.RUNNING):
            self._run_executors(now, effects)
        if self.state is JobState.CANCELLING and not self.pool.slots and not self._workers.freeing:
            self._end(JobResult(JobState.CANCELED, reason="cancelled"), now, effects)
        if self.released and not self._release_reported:
            self._release_reported = True
            self._timers.clear("release-timeout")
            self._report_status(effects)
        self._return_surplus(now, effects)

    def _maybe_deploy(self, now: float, effects: Effects) -> None:
        """Start the driver: at once with all, after stabilisation with the minimum, never with less (B: A-01)."""
        allowed = admission(self.spec, self.pool.slots.values())
        if allowed is Admission.ALL:
            self._deploy_driver(now, effects)
        elif allowed is Admission.MINIMUM:
            self._timers.set_once("stabilise", now + self.config.stabilisation_s)

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
            self._resources.require(counts, now, effects)
        for executor in self.executors.to_stop():
            executor.stopping = True
            slot = self.pool.slots.get(executor.allocation)
            if slot is not None:
                self._workers.end_process(slot, effects)
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

    def _return_surplus(self, now: float, effects: Effects) -> None:
        if self.state.is_final or self.state is JobState.CANCELLING:
            return
        for slot in self.pool.surplus(now, self.config.idle_slot_timeout_s):
            self._workers.free(slot.allocation, slot.worker, "surplus", effects)
        due = self.pool.next_surplus(self.config.idle_slot_timeout_s)
        if due is not None:
            self._timers.set("surplus", due)
        else:
            self._timers.clear("surplus")

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
        self._resources.require({}, now, effects)
        self._give_all_back("the job is cancelled", now, effects)
        self._advance(now, effects)

    def _end(self, result: JobResult, now: float, effects: Effects) -> None:
        if self.state.is_final:
            return
        self.result = result
        self._move(result.state, effects, reason=result.reason)
        for key in ("stabilise", "wait", "surplus", "advance"):
            self._timers.clear(key)
        self._resources.over(now, effects)
        self._give_all_back("the job is over", now, effects)
        self._report_status(effects)

    def _give_all_back(self, cause: str, now: float, effects: Effects) -> None:
        self._workers.free_all(cause, effects)
        self._timers.set("release-timeout", now + self.config.release_timeout_s)

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
                    self._resources.on_register_due(now, effects)
                case "declare":
                    self._resources.on_declare_due(now, effects)
                case "stabilise":
                    self._on_stabilised(now, effects)
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

    def _arm_wait(self, now: float) -> None:
        if self.config.resource_wait_timeout_s >= 0:
            self._timers.set("wait", now + self.config.resource_wait_timeout_s)

    def _on_stabilised(self, now: float, effects: Effects) -> None:
        waiting = self.state is JobState.WAITING_FOR_RESOURCES
        if waiting and admission(self.spec, self.pool.slots.values()) is not Admission.NONE:
            self._deploy_driver(now, effects)

    def _on_wait_timeout(self, now: float, effects: Effects) -> None:
        if self.state is not JobState.WAITING_FOR_RESOURCES:
            return
        waited = f"{self.config.resource_wait_timeout_s:g} s"
        why = (
            "; ".join(shortage.detail for shortage in self.shortages)
            or "slots were given, but their workers did not offer them"
        )
        reason = (
            f"the minimum of a driver and {self.spec.min_executors} executor(s) was not there after {waited}: {why}"
        )
        self._end(JobResult(JobState.FAILED, reason=reason), now, effects)

    def _on_retry(self, now: float, effects: Effects) -> None:
        """Say again what has not come true (decision 2)."""
        if self.released and self._status_acknowledged:
            return
        self._timers.set("retry", now + self.config.retry_s)
        for slot in self._workers.repeat(effects):
            self._send_deploy(slot, effects)
        self._direct(effects, again=True)
        if not self._status_acknowledged:
            self._send_status(effects)
        self._advance(now, effects)

    def _on_heartbeat(self, now: float, effects: Effects) -> None:
        if self.released:
            return
        self._timers.set("heartbeat", now + self.config.heartbeat_interval_s)
        for worker in self._workers.heartbeat(now, self.config.heartbeat_timeout_s, effects):
            lost = tuple(slot.allocation for slot in self.pool.on_worker(worker))
            self._lose_slots(worker, lost, "no heartbeat", now, effects)

    def _on_release_timeout(self, now: float, effects: Effects) -> None:
        """Whatever has not answered by now is left to the workers' own time-outs (B: ST-07)."""
        if self.state is JobState.FAILING and self._pending_result is not None:
            self._end(self._pending_result, now, effects)
            return
        self._workers.freeing.clear()
        self._advance(now, effects)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the job's own books agree."""
        for executor in self.executors.live.values():
            assert executor.allocation in self.pool.slots or self.state.is_final or self.state is JobState.CANCELLING, (
                f"executor {executor.executor_id} lives in a slot that is not held"
            )
        if self._driver_slot is not None and not self.state.is_final and self.state is not JobState.CANCELLING:
            assert self._driver_slot in self.pool.slots
