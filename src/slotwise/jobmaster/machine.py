"""The JobMaster: one job's life (FLIP-6, FLIP-138). Without I/O.

It declares what the job needs, accepts the slots that are offered, starts the Spark driver once the driver's slot and
the minimum of executor slots are held, turns what the driver asks for into declarations and executors, and ends with
the program. Behaviours: D-01, D-05, D-11 … D-13, SP-01 … SP-07, A-01, A-06, F-01, F-03 … F-05, ML-01, ML-05.

A new leader of a running job knows its record (JobProgress) and learns the rest from the workers' reports: it is
RECONCILING until somebody can say what has become of the driver.

Everything it wants of a worker is kept as a wish (`HeldSlot.use`, the frees under way) and said again whenever a
report shows that it has not come true."""

from __future__ import annotations

from slotwise.jobmaster.admission import Admission, admission, initial_requirements, minimum_possible
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.deployments import Deployments
from slotwise.jobmaster.driver import DriverLife
from slotwise.jobmaster.executors import Executors, report_events
from slotwise.jobmaster.resource_link import ResourceLink
from slotwise.jobmaster.restart import Restarts
from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.jobmaster.states import may_move
from slotwise.jobmaster.status_link import StatusLink
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
)
from slotwise.model.job import JobResult, JobSpec, JobState
from slotwise.model.process import DriverReport
from slotwise.model.progress import JobProgress
from slotwise.model.restart import RestartStrategy
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import (
    CancelJob,
    DeclarationRefused,
    Envelope,
    Fenced,
    JobMasterRegistered,
    JobSlotsReport,
    JobSlotStatus,
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
        self,
        job: JobId,
        spec: JobSpec,
        config: JobMasterConfig,
        token: LeaderToken,
        ids: IdSource,
        now: float,
        progress: JobProgress | None = None,
    ) -> None:
        self.job = job
        self.spec = spec
        self.config = config
        self.state = JobState.CREATED
        self.result: JobResult | None = None
        self.pool = SlotPool()
        self.driver = DriverLife(job, token, ids, progress, now, config.driver_fence_s)
        self.shortages: tuple[Shortage, ...] = ()
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
        self._deployments = Deployments(job, spec, config, self.pool, self.driver, self._workers, self._out, ids, now)
        self._status = StatusLink(job, self._out)
        self._restarts = Restarts(self.driver.progress.failures)
        self._restart_at = now
        # While the driver may live, what an earlier leader held is taken over as its workers show it.
        self._adopting = self.driver.unseen is not None
        self._recovered = progress is not None
        # The worker of the driver that is out of sight has been heard, and not yet asked about it.
        self._ask = False
        self._release_reported = False
        self._pending_result: JobResult | None = None
        self._timers.set("start", now)

    @property
    def executors(self) -> Executors:
        """The executors of the present driver."""
        return self._deployments.executors

    @property
    def driver_starts(self) -> int:
        """How many drivers the job has had."""
        return self.driver.progress.attempt

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
            effects.shutdown = self._out.deposed(stimulus)
            if effects.shutdown is None:
                if self.state is JobState.CREATED and self._adopting:
                    self._start(now, effects)
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
            case DeclarationRefused(reason=reason) if may_move(self.state, JobState.FAILED):
                self._end(JobResult(JobState.FAILED, reason=reason), now, effects)
            case NotEnoughResources(_, missing):
                self._on_shortage(missing, now, effects)
            case WorkerLost(worker, allocations, reason, dead):
                self._lose_slots(worker, allocations, reason, now, effects, dead=dead)
                unseen = self.driver.unseen
                if dead and unseen is not None and unseen.worker == worker:
                    self._driver_gone(f"its worker is lost: {reason}", now, effects)
                self._advance(now, effects)
            case OfferSlots() as message:
                self._on_offer(message, now, effects)
            case JobSlotsReport() as message:
                self._on_report(message, now, effects)
            case CancelJob():
                self._on_cancel(now, effects)
            case JobStatusAcknowledged(_, seq):
                self._status.on_acknowledged(seq)
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

    def _on_offer(self, message: OfferSlots, now: float, effects: Effects) -> None:
        unseen = self.driver.unseen
        sought = unseen.allocation if unseen is not None and unseen.worker == message.worker else None
        self._workers.on_offer(message, now, effects, sought)
        if sought is not None and sought in self.pool.slots:
            # The earlier leader died between recording the driver's place and sending it there.
            self.driver.seen(self.pool.slots[sought])
            self._driver_found(ProcessPhase.STARTING, effects)
        elif sought is not None:
            self.driver.rearm(now)
        self._advance(now, effects)

    def _on_report(self, message: JobSlotsReport, now: float, effects: Effects) -> None:
        unseen = self.driver.unseen
        running, lost = self._workers.on_report(message, now, effects, self._may_adopt)
        for slot, status in running:
            if unseen is not None and slot.allocation == unseen.allocation:
                self._deployments.adopt(slot, status, effects)
                self._driver_found(status.process.phase if status.process else ProcessPhase.STARTING, effects)
            elif self._adopting and slot.use is None and slot.process is None:
                self._deployments.adopt(slot, status, effects)
            if status.driver is not None and slot.allocation == self.driver.slot and _runs(status, self.driver.name):
                # Not the last words of an earlier driver in the same slot: versions are counted per driver.
                self._on_driver_report(status.driver, effects)
            if status.process is not None:
                self._on_process(slot, status.process, now, effects)
        released = tuple(allocation for allocation in lost if allocation in message.gone)
        self._lose_slots(message.worker, released, "the worker released it", now, effects, dead=True)
        self._lose_slots(message.worker, lost, "the worker is releasing it", now, effects)
        unseen = self.driver.unseen
        if unseen is not None and unseen.worker == message.worker:
            if unseen.allocation in message.gone:
                self._driver_gone(f"its worker has not got it any more: {unseen.reason}", now, effects)
            else:
                # It is being released, or was never accepted: the worker is asked until it says which. With the next
                # retry and not at once: its answer to the question leads here again.
                self._ask = True
                self.driver.rearm(now)
        self._advance(now, effects)

    def _may_adopt(self, allocation: AllocationId) -> bool:
        unseen = self.driver.unseen
        ending = self.state.is_final or self.state is JobState.CANCELLING
        return not ending and (self._adopting or (unseen is not None and unseen.allocation == allocation))

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
        is_driver = slot.allocation == self.driver.slot
        if status.phase is ProcessPhase.RUNNING and is_driver and self.state is JobState.DEPLOYING:
            self._move(JobState.RUNNING, effects)
        if status.phase is not ProcessPhase.EXITED:
            return
        self.pool.mark_idle(slot, now)
        if is_driver:
            self.driver.slot = None
            self._driver_ended(status, now, effects)
        else:
            executor = self.executors.by_allocation(slot.allocation)
            if executor is not None:
                failure = self._deployments.executor_ended(executor, status, now, effects)
                self._timers.set("advance", self._deployments.not_before)
                if failure is not None:
                    self._fail(failure, now, effects)

    def _driver_ended(self, status: ProcessStatus, now: float, effects: Effects) -> None:
        if self.state in (JobState.RESTARTING, JobState.CANCELLING):
            return
        if self.state is JobState.FAILING and self._pending_result is not None:
            self._end(self._pending_result, now, effects)
        elif status.exit_code == 0:
            self._end(JobResult(JobState.FINISHED, 0, status.reason, status.log_tail), now, effects)
        else:
            reason = status.reason or f"the program ended with code {status.exit_code}"
            result = JobResult(JobState.FAILED, status.exit_code, reason, status.log_tail)
            strategy = self.spec.restart
            killed = status.killed or (status.exit_code is not None and status.exit_code < 0)
            if strategy is None and killed:
                strategy = self.config.restart
            self._restart_or_end(strategy, result, now, effects)

    def _restart_or_end(
        self, strategy: RestartStrategy | None, result: JobResult, now: float, effects: Effects
    ) -> None:
        """The driver is gone: another one after a while, if the strategy has one left, else the end."""
        ran_s = now - self.driver.started_at
        delay_s = self._restarts.delay_s(strategy, ran_s) if strategy is not None else None
        if delay_s is None:
            count = self.driver.progress.restart_count
            if count and strategy is not None:
                reason = f"{result.reason}; it was restarted {count} time(s), which is the limit"
                result = JobResult(result.state, result.exit_code, reason, result.log_tail)
            self._end(result, now, effects)
            return
        self._adopting = False
        self._restart_at = now + delay_s
        self._timers.set("advance", self._restart_at)
        self.driver.restart(result.reason, self._restarts.failures, effects)
        self._move(JobState.RESTARTING, effects, reason=result.reason)

    def _fail(self, result: JobResult, now: float, effects: Effects) -> None:
        """Fail a running job: its driver is ended first. One that is out of sight has troubles of its own."""
        if self.driver.unseen is not None:
            return
        self._pending_result = result
        if self.driver.slot is None:
            self._end(result, now, effects)
        elif self._move(JobState.FAILING, effects):
            self._timers.set("release-timeout", now + self.config.release_timeout_s)
            self._workers.end_process(self.pool.slots[self.driver.slot], effects)

    # ------------------------------------------------------------------------------------------- losses

    def _lose_slots(
        self,
        worker: WorkerId,
        allocations: tuple[AllocationId, ...],
        reason: str,
        now: float,
        effects: Effects,
        *,
        dead: bool = False,
    ) -> None:
        """``dead``: what ran in them is known to have ended."""
        for allocation in allocations:
            slot = self.pool.slots.get(allocation)
            if self._workers.freeing.get(allocation) == worker:
                del self._workers.freeing[allocation]
            # A slot that came back from a restarted worker is not lost with its earlier process.
            if slot is None or slot.worker != worker:
                continue
            self.pool.remove(allocation)
            effects.events.append(Event("slot-lost", self.job, worker, allocation, {"reason": reason}))
            executor = self.executors.by_allocation(allocation)
            if executor is not None:
                self.executors.gone(executor.executor_id, None, False, f"its slot is lost: {reason}")
            if allocation == self.driver.slot:
                self._lose_driver(slot, reason, now, effects, dead=dead)

    def _lose_driver(self, slot: HeldSlot, reason: str, now: float, effects: Effects, *, dead: bool) -> None:
        """The driver's slot is lost. Unless it is ``dead`` its program may go on: no other may begin yet."""
        if self.state is JobState.FAILING and self._pending_result is not None:
            self.driver.slot = None
            self._end(self._pending_result, now, effects)
        elif self.state not in (JobState.DEPLOYING, JobState.RUNNING):
            self.driver.slot = None
        elif dead:
            self.driver.slot = None
            self._driver_gone(f"its worker is lost: {reason}", now, effects)
        else:
            self.driver.out_of_sight(slot.worker, reason, now)
            self._timers.set("fence", now + self.config.driver_fence_s)
            self._move(JobState.RECONCILING, effects, reason=f"the driver's slot is lost: {reason}")

    def _driver_found(self, phase: ProcessPhase, effects: Effects) -> None:
        self._timers.clear("fence")
        effects.events.append(Event("driver-found", self.job, fields={"process": self.driver.name}))
        self._move(JobState.DEPLOYING if phase is ProcessPhase.STARTING else JobState.RUNNING, effects)

    def _driver_gone(self, reason: str, now: float, effects: Effects) -> None:
        """The driver that was out of sight has certainly ended."""
        self.driver.unseen = None
        self._timers.clear("fence")
        result = JobResult(JobState.FAILED, reason=f"the driver is gone: {reason}")
        self._restart_or_end(self.spec.restart or self.config.restart, result, now, effects)

    def _on_fence(self, now: float, effects: Effects) -> None:
        unseen = self.driver.unseen
        if unseen is None:
            return
        if unseen.until > now:
            self._timers.set("fence", unseen.until)
            return
        waited = f"{self.config.driver_fence_s:g} s"
        self._driver_gone(f"nothing was heard of {unseen.worker} for {waited} ({unseen.reason})", now, effects)
        self._advance(now, effects)

    def _maybe_restart(self, now: float, effects: Effects) -> None:
        """Once nothing of the old driver's executors is left, begin again with new secrets."""
        if self._deployments.end_all(effects) and now >= self._restart_at:
            self._deployments.begin_again()
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
        for key in ("stabilise", "wait"):
            self._timers.clear(key)
        self._move(JobState.DEPLOYING, effects)
        self._deployments.start_driver(now, effects)

    def _run_executors(self, now: float, effects: Effects) -> None:
        required = self._deployments.required()
        if required is not None:
            self._resources.require(required, now, effects)
        self._deployments.stop_surplus(effects)
        if not (self._adopting and self.executors.unaccounted()):
            self._deployments.start_executors(now, effects)
        self._deployments.direct(effects)

    def _on_settled(self, now: float, effects: Effects) -> None:
        """Workers have had their time to show what an earlier leader left with them."""
        self._adopting = False
        for executor_id in self.executors.unaccounted():
            self.executors.write_off(executor_id, "no worker has it")
        self._advance(now, effects)

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
            self.result = JobResult(JobState.CANCELED, reason="cancelled")
            self._move(JobState.CANCELED, effects)
            self._report_status(effects)
            return
        if self.state.is_final or self.state is JobState.CANCELLING:
            return
        self._move(JobState.CANCELLING, effects)
        self._resources.require({}, now, effects)
        if self.driver.unseen is not None:
            self._workers.freeing[self.driver.unseen.allocation] = self.driver.unseen.worker
            self.driver.unseen = None
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
        self._status.report(self.state, self.result, self.released, effects)

    # ------------------------------------------------------------------------------------------- time

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self._timers.pop_due(now):
            match key:
                case "start":
                    if self.state is JobState.CREATED:
                        self._start(now, effects)
                        self._advance(now, effects)
                case "fence":
                    self._on_fence(now, effects)
                case "settled":
                    self._on_settled(now, effects)
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

    def _start(self, now: float, effects: Effects) -> None:
        if self._recovered:
            # The record is this leader's from now on: what an earlier one that does not know it yet wants to write,
            # such as a result, is refused, and its messages are not sent.
            self.driver.record_again(effects)
        if self._adopting:
            self._timers.set("settled", now + self.config.heartbeat_timeout_s)
            effects.events.append(Event("taken-over", self.job, fields={"attempt": self.driver_starts}))
        if self.driver.unseen is not None:
            self._move(JobState.RECONCILING, effects)
            self._timers.set("fence", self.driver.unseen.until)
        else:
            self._move(JobState.WAITING_FOR_RESOURCES, effects)
            self._arm_wait(now)
        self._timers.set("register", now)
        self._timers.set("retry", now + self.config.retry_s)
        self._timers.set("heartbeat", now + self.config.heartbeat_interval_s)

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
        if self.released and self._status.acknowledged:
            return
        self._timers.set("retry", now + self.config.retry_s)
        for slot in self._workers.repeat(effects):
            self._deployments.send(slot, effects)
        unseen = self.driver.unseen
        if unseen is not None and self._ask:
            self._ask = False
            self._workers.ask_about(unseen.allocation, unseen.worker, effects)
            self.driver.rearm(now)
        self._deployments.direct(effects, again=True)
        self._status.repeat(effects)
        self._advance(now, effects)

    def _on_heartbeat(self, now: float, effects: Effects) -> None:
        if self.released:
            return
        self._timers.set("heartbeat", now + self.config.heartbeat_interval_s)
        for worker in self._workers.heartbeat(now, self.config.heartbeat_timeout_s, effects):
            lost = tuple(slot.allocation for slot in self.pool.on_worker(worker))
            self._lose_slots(worker, lost, "no heartbeat", now, effects)
        self._advance(now, effects)

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
        if self.driver.slot is not None and not self.state.is_final and self.state is not JobState.CANCELLING:
            assert self.driver.slot in self.pool.slots


def _runs(status: JobSlotStatus, process: str) -> bool:
    return status.process is not None and status.process.process == process
