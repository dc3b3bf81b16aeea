"""The JobMaster: one job's life (FLIP-6, FLIP-138). Without I/O.

It talks with the ResourceManager, the workers and the Dispatcher, and keeps the books: slots, processes, the driver's
record. What is to be done with what it learns is the business of its present phase
(:mod:`slotwise.jobmaster.phases`). Behaviours: D-01, D-05, D-11 … D-13, SP-01 … SP-07, A-01, A-06, F-01, F-03 … F-05,
ML-01, ML-05.

A new leader of a running job knows its record (JobProgress) and learns the rest from the workers' reports.

One may also be started for nobody's job yet: a *warm application*, whose driver has made its SparkContext and waits for
its program (:class:`~slotwise.jobmaster.warm_application.WarmApplication`).

Everything it wants of a worker is kept as a wish (`HeldSlot.use`, the frees under way) and said again whenever a
report shows that it has not come true."""

from __future__ import annotations

from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.deployments import Deployments
from slotwise.jobmaster.driver import DriverLife
from slotwise.jobmaster.executors import Executors
from slotwise.jobmaster.phases import Created, Finished, Phase, Reconciling, Restarting
from slotwise.jobmaster.rescaling import Rescaling
from slotwise.jobmaster.resource_link import ResourceLink
from slotwise.jobmaster.restart import Restarts, limit_reached
from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.jobmaster.states import may_move
from slotwise.jobmaster.status_link import StatusLink
from slotwise.jobmaster.warm_application import WarmApplication
from slotwise.jobmaster.work import ApplicationWork, PipelineWork, Work
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
from slotwise.model.job import UNLIMITED_EXECUTORS, ExecutorBounds, JobResult, JobSpec, JobState
from slotwise.model.progress import JobProgress
from slotwise.model.requirements import Counts
from slotwise.model.restart import RestartStrategy
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import (
    CancelJob,
    DeclarationRefused,
    Envelope,
    Fenced,
    GiveWay,
    JobMasterRegistered,
    JobSlotsReport,
    JobSlotStatus,
    JobStatusAcknowledged,
    NotEnoughResources,
    OfferSlots,
    ProcessPhase,
    ProcessStatus,
    ProgramTaken,
    RegisterAgain,
    ResourceManagerHeartbeat,
    RunProgram,
    ScaleJob,
    ScaleTaken,
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
        bounds: ExecutorBounds | None = None,
        bounds_version: int = 0,
        *,
        warm: bool = False,
    ) -> None:
        """``progress``: the record of an earlier leader. ``bounds``: those that were given after the submission.
        ``warm``: it is for a warm application; the program of ``spec`` does not count.
        """
        self.job = job
        self.spec = spec
        self.config = config
        self.phase: Phase = Created(self)
        self.result: JobResult | None = None
        self.pool = SlotPool()
        self.driver = DriverLife(job, token, ids, progress, now, config.driver_fence_s)
        self.shortages: tuple[Shortage, ...] = ()
        self._out = Outbox(job_master_address(job), token)
        self.timers = Timers()
        self._resources = ResourceLink(
            job,
            self.pool,
            self._out,
            self.timers,
            now,
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            retry_s=config.registration_retry_s,
            retry_max_s=config.registration_retry_max_s,
        )
        self.rescaling = Rescaling(job, bounds or spec.bounds, bounds_version, config.cool_down_s, self.timers)
        self.workers = WorkerLink(job, self.pool, self._out)
        self.deployments = Deployments(
            job, spec, config, self.pool, self.driver, self.workers, self._out, ids, now, warm=warm
        )
        self.warm = WarmApplication(self) if warm else None
        self._resources.yields = warm
        self.work: Work = ApplicationWork(self) if spec.pipeline is None else PipelineWork(self)
        self._status = StatusLink(job, self._out)
        self._restarts = Restarts(self.driver.progress.failures)
        # While the driver may live, what an earlier leader held is taken over as its workers show it.
        self._adopting = self.driver.unseen is not None
        # Until then nobody knows how many executors that was.
        self.inherits = self._adopting
        self._recovered = progress is not None
        # The worker of the driver that is out of sight has been heard, and not yet asked about it.
        self._ask = False
        self.timers.set("start", now)

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.phase.state

    @property
    def executors(self) -> Executors:
        """The executors of the present driver."""
        return self.deployments.executors

    @property
    def knows_executors(self) -> bool:
        """Whether all executors that the driver has are known here, so that it is safe to start others."""
        return not (self._adopting and self.executors.unaccounted())

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
        return self.state.is_final and not self.pool.slots and not self.workers.freeing

    def next_timer(self) -> float | None:
        """When :meth:`on_timer` wants to be called."""
        return self.timers.next()

    # ------------------------------------------------------------------------------------------- messages

    def handle(self, stimulus: Envelope, now: float) -> Effects:
        """Take a message."""
        effects = Effects()
        introduces = isinstance(stimulus.payload, OfferSlots | JobSlotsReport | CancelJob | ScaleJob | RunProgram)
        if self._out.admit(stimulus, effects, introduces=introduces):
            effects.shutdown = self._out.deposed(stimulus)
            if effects.shutdown is None:
                if isinstance(self.phase, Created) and self._adopting:
                    self.phase.start(now, effects)
                self._dispatch(stimulus, now, effects)
        if self.warm is not None:
            self.warm.hush(effects)
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
                self.end(JobResult(JobState.FAILED, reason=reason), now, effects)
            case NotEnoughResources(_, missing):
                self._on_shortage(missing, now, effects)
                self.advance(now, effects)
            case WorkerLost(worker, allocations, reason, dead):
                self._lose_slots(worker, allocations, reason, now, effects, dead=dead)
                unseen = self.driver.unseen
                if dead and unseen is not None and unseen.worker == worker:
                    self.phase.driver_gone(f"its worker is lost: {reason}", now, effects)
                self.advance(now, effects)
            case OfferSlots() as message:
                self._on_offer(message, now, effects)
            case JobSlotsReport() as message:
                self._on_report(message, now, effects)
            case ScaleJob(_, bounds, version):
                self._on_scale(bounds, version, now, effects)
            case CancelJob():
                self.phase.cancel(now, effects)
            case GiveWay() if self.warm is not None:
                self.phase.cancel(now, effects)
            case RunProgram(_, spec):
                self._on_program(spec, now, effects)
            case JobStatusAcknowledged(_, seq):
                self._status.on_acknowledged(seq)
            case ResourceManagerHeartbeat() | _:
                pass

    def _on_shortage(self, missing: tuple[Shortage, ...], now: float, effects: Effects) -> None:
        if self.rescaling.bounds.most == UNLIMITED_EXECUTORS and self.state is not JobState.WAITING_FOR_RESOURCES:
            # It takes what there is, and lacks nothing.
            missing = ()
        if missing != self.shortages:
            for shortage in missing:
                size = shortage.profile or "default slot"
                text = f"{shortage.count} × ({size}) missing: {shortage.detail}"
                effects.events.append(Event("shortage", self.job, fields={"text": text}))
        self.shortages = missing
        hopeless = next((shortage for shortage in missing if shortage.final), None)
        if hopeless is not None:
            self.phase.on_hopeless(hopeless, now, effects)

    def _on_offer(self, message: OfferSlots, now: float, effects: Effects) -> None:
        unseen = self.driver.unseen
        sought = unseen.allocation if unseen is not None and unseen.worker == message.worker else None
        self.workers.on_offer(message, now, effects, sought)
        if sought is not None and sought in self.pool.slots:
            # The earlier leader died between recording the driver's place and sending it there.
            self.driver.seen(self.pool.slots[sought])
            self._driver_found(ProcessPhase.STARTING, now, effects)
        elif sought is not None:
            self.driver.rearm(now)
        self.advance(now, effects)

    def _on_report(self, message: JobSlotsReport, now: float, effects: Effects) -> None:
        unseen = self.driver.unseen
        running, lost = self.workers.on_report(message, now, effects, self._may_adopt)
        for slot, status in running:
            if unseen is not None and slot.allocation == unseen.allocation:
                self.deployments.adopt(slot, status, effects)
                self._driver_found(status.process.phase if status.process else ProcessPhase.STARTING, now, effects)
            elif self._adopting and slot.use is None and slot.process is None:
                self.deployments.adopt(slot, status, effects)
            if status.driver is not None and slot.allocation == self.driver.slot and _runs(status, self.driver.name):
                # Not the last words of an earlier driver in the same slot: versions are counted per driver.
                self.work.take(status.driver, now, effects)
            if status.process is not None:
                self._on_process(slot, status.process, now, effects)
        for slot in self.pool.on_worker(message.worker):
            self._leave(slot, message.draining)
        released = tuple(allocation for allocation in lost if allocation in message.gone)
        self._lose_slots(message.worker, released, "the worker released it", now, effects, dead=True)
        self._lose_slots(message.worker, lost, "the worker is releasing it", now, effects)
        unseen = self.driver.unseen
        if unseen is not None and unseen.worker == message.worker:
            if unseen.allocation in message.gone:
                self.phase.driver_gone(f"its worker has not got it any more: {unseen.reason}", now, effects)
            else:
                # It is being released, or was never accepted: the worker is asked until it says which. With the next
                # retry and not at once: its answer to the question leads here again.
                self._ask = True
                self.driver.rearm(now)
        self.advance(now, effects)

    def _leave(self, slot: HeldSlot, draining: bool) -> None:
        """Whether its worker is about to go: then the executor in it hands over what it holds, and ends (B: F-05)."""
        slot.leaving = draining
        executor = self.executors.by_allocation(slot.allocation)
        if executor is not None:
            executor.moving = draining

    def _may_adopt(self, allocation: AllocationId) -> bool:
        unseen = self.driver.unseen
        ending = self.state.is_final or self.state is JobState.CANCELLING
        return not ending and (self._adopting or (unseen is not None and unseen.allocation == allocation))

    def _on_scale(self, bounds: ExecutorBounds, version: int, now: float, effects: Effects) -> None:
        if self.rescaling.ask(bounds, version):
            fields: dict[str, str | int | float | None] = {"least": bounds.least, "most": bounds.most}
            effects.events.append(Event("bounds-changed", self.job, fields=fields))
            self.advance(now, effects)
        self._out.send(effects, DISPATCHER, ScaleTaken(self.job, self.rescaling.version))

    def _on_program(self, spec: JobSpec, now: float, effects: Effects) -> None:
        """The warm application is somebody's job now. One that ends says so, and cannot be."""
        if self.warm is not None:
            if self.state.is_final or self.state in (JobState.CANCELLING, JobState.FAILING):
                return
            fields: dict[str, str | int | float | None] = {"executors": self.executors.staying()[1]}
            effects.events.append(Event("handed-over", self.job, fields=fields))
            effects.events.append(Event("job-state", self.job, fields={"state": self.state.value}))
            self.warm = None
            self.spec = spec
            self.deployments.run(spec)
            self.driver.record_again(effects)
            self._resources.keep(now, effects)
            self.report_status(effects)
            self.advance(now, effects)
        elif not self.state.is_final:
            self.driver.record_again(effects)
        self._out.send(effects, DISPATCHER, ProgramTaken(self.job))

    # ------------------------------------------------------------------------------------------- processes

    def _on_process(self, slot: HeldSlot, status: ProcessStatus, now: float, effects: Effects) -> None:
        before = slot.process
        if before == status:
            return
        slot.process = status
        if slot.use != status.process:
            return
        is_driver = slot.allocation == self.driver.slot
        if status.phase is ProcessPhase.RUNNING and is_driver:
            self.phase.driver_runs(now, effects)
        if status.phase is not ProcessPhase.EXITED:
            return
        self.pool.mark_idle(slot, now)
        if is_driver:
            self.driver.slot = None
            self.phase.driver_ended(status, now, effects)
        else:
            executor = self.executors.by_allocation(slot.allocation)
            if executor is not None:
                failure = self.deployments.executor_ended(executor, status, now, effects)
                self.timers.set("advance", self.deployments.not_before)
                if failure is not None:
                    self.phase.fail(failure, now, effects)

    def _driver_found(self, process: ProcessPhase, now: float, effects: Effects) -> None:
        if isinstance(self.phase, Reconciling):
            self.phase.driver_found(process, now, effects)

    def restart_or_end(self, strategy: RestartStrategy | None, result: JobResult, now: float, effects: Effects) -> None:
        """The driver is gone: another one after a while, if the strategy has one left, else the end."""
        ran_s = now - self.driver.started_at
        if self.warm is not None:
            strategy = None
        delay_s = self._restarts.delay_s(strategy, ran_s) if strategy is not None else None
        if delay_s is None:
            count = self.driver.progress.restart_count
            self.end(result if strategy is None else limit_reached(result, count), now, effects)
            return
        self._adopting = self.inherits = False
        self.driver.restart(result.reason, self._restarts.failures, effects)
        self.go(Restarting(self, now + delay_s), now, effects, reason=result.reason)

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
            if self.workers.freeing.get(allocation) == worker:
                del self.workers.freeing[allocation]
            # A slot that came back from a restarted worker is not lost with its earlier process.
            if slot is None or slot.worker != worker:
                continue
            self.pool.remove(allocation)
            effects.events.append(Event("slot-lost", self.job, worker, allocation, {"reason": reason}))
            executor = self.executors.by_allocation(allocation)
            if executor is not None:
                self.executors.gone(executor.executor_id, None, False, f"its slot is lost: {reason}")
            if allocation == self.driver.slot:
                self.phase.driver_lost(slot, reason, dead, now, effects)

    # ------------------------------------------------------------------------------------------- the job goes on

    def advance(self, now: float, effects: Effects) -> None:
        """Do what has become possible or due; harmless to call at any time."""
        before: Phase | None = None
        while before is not self.phase:
            # One that has just begun has its say at once.
            before = self.phase
            before.advance(now, effects)
        self._return_surplus(now, effects)
        if self.warm is not None:
            self.warm.look(effects)

    def require(self, counts: Counts, now: float, effects: Effects) -> None:
        """Declare what the job requires from now on; and what takes the place of executors whose worker is about to go,
        while they are still there.
        """
        counts = dict(counts)
        for executor in self.executors.live.values():
            slot = self.pool.slots.get(executor.allocation)
            if executor.moving and slot is not None and slot.profile in counts:
                counts[slot.profile] += 1
        self._resources.require(counts, now, effects)

    def _on_settled(self, now: float, effects: Effects) -> None:
        """Workers have had their time to show what an earlier leader left with them."""
        self._adopting = False
        for executor_id in self.executors.unaccounted():
            self.executors.write_off(executor_id, "no worker has it")
        self.advance(now, effects)

    def _return_surplus(self, now: float, effects: Effects) -> None:
        if self.state.is_final or self.state is JobState.CANCELLING:
            return
        timeout_s = self.work.idle_slot_timeout_s
        for slot in list(self.pool.slots.values()):
            if slot.leaving and not slot.busy:
                self.workers.free(slot.allocation, slot.worker, "its worker leaves", effects)
        for slot in self.pool.surplus(now, timeout_s):
            self.workers.free(slot.allocation, slot.worker, "surplus", effects)
        due = self.pool.next_surplus(timeout_s)
        if due is not None:
            self.timers.set("surplus", due)
        else:
            self.timers.clear("surplus")

    # ------------------------------------------------------------------------------------------- the end

    def end(self, result: JobResult, now: float, effects: Effects) -> None:
        """The job is over, unless it has ended before."""
        if may_move(self.state, result.state):
            self.result = result
            self.go(Finished(self, result), now, effects, reason=result.reason)

    def over(self, now: float, effects: Effects) -> None:
        """Nothing is wanted any more; said until the Dispatcher has it."""
        for key in ("surplus", "advance", "cool-down", "decommission", "regions"):
            self.timers.clear(key)
        self.timers.set_once("retry", now + self.config.retry_s)
        self._resources.over(now, effects)
        self.give_all_back("the job is over", now, effects)
        self.report_status(effects)

    def give_all_back(self, cause: str, now: float, effects: Effects) -> None:
        """Release every slot; what has not answered after the release time-out is left to its worker."""
        self.workers.free_all(cause, effects)
        self.timers.set("release-timeout", now + self.config.release_timeout_s)

    def go(self, phase: Phase, now: float, effects: Effects, reason: str = "") -> None:
        """Leave the present phase for ``phase``, if that may follow it."""
        if not may_move(self.state, phase.state):
            return
        for key in self.phase.timers:
            self.timers.clear(key)
        self.phase = phase
        fields: dict[str, str | int | float | None] = {"state": phase.state.value}
        if reason:
            fields["reason"] = reason
        effects.events.append(Event("job-state", self.job, fields=fields))
        if not phase.state.is_final:
            self.report_status(effects)
        phase.enter(now, effects)

    def report_status(self, effects: Effects) -> None:
        """Tell the Dispatcher how the job is."""
        waits = None if self.warm is None else self.warm.waits
        self._status.report(self.state, self.result, self.released, effects, waits)

    # ------------------------------------------------------------------------------------------- time

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self.timers.pop_due(now):
            match key:
                case "start":
                    if isinstance(self.phase, Created):
                        self.phase.start(now, effects)
                        self.advance(now, effects)
                case "settled":
                    self._on_settled(now, effects)
                case "register":
                    self._resources.on_register_due(now, effects)
                case "declare":
                    self._resources.on_declare_due(now, effects)
                case "retry":
                    self._on_retry(now, effects)
                case "heartbeat":
                    self._on_heartbeat(now, effects)
                case "advance" | "surplus" | "cool-down" | "decommission" | "regions":
                    self.advance(now, effects)
                case _:
                    self.phase.on_timer(str(key), now, effects)
        if self.warm is not None:
            self.warm.hush(effects)
        return effects

    def begin(self, now: float, effects: Effects) -> None:
        """Make oneself known, and the job's record one's own."""
        if self._recovered:
            # The record is this leader's from now on: what an earlier one that does not know it yet wants to write,
            # such as a result, is refused, and its messages are not sent.
            self.driver.record_again(effects)
        if self._adopting:
            self.timers.set("settled", now + self.config.heartbeat_timeout_s)
            effects.events.append(Event("taken-over", self.job, fields={"attempt": self.driver_starts}))
        self.timers.set("register", now)
        self.timers.set("retry", now + self.config.retry_s)
        self.timers.set("heartbeat", now + self.config.heartbeat_interval_s)

    def _on_retry(self, now: float, effects: Effects) -> None:
        """Say again what has not come true (decision 2)."""
        if self.released and self._status.acknowledged:
            return
        self.timers.set("retry", now + self.config.retry_s)
        for slot in self.workers.repeat(effects):
            self.deployments.send(slot, effects)
        unseen = self.driver.unseen
        if unseen is not None and self._ask:
            self._ask = False
            self.workers.ask_about(unseen.allocation, unseen.worker, effects)
            self.driver.rearm(now)
        self.deployments.direct(effects, again=True)
        if self.warm is not None:
            # Another Dispatcher than the one that wanted it must learn that it is there.
            self.report_status(effects)
        self._status.repeat(effects)
        self.advance(now, effects)

    def _on_heartbeat(self, now: float, effects: Effects) -> None:
        if self.released:
            return
        self.timers.set("heartbeat", now + self.config.heartbeat_interval_s)
        for worker in self.workers.heartbeat(now, self.config.heartbeat_timeout_s, effects):
            lost = tuple(slot.allocation for slot in self.pool.on_worker(worker))
            self._lose_slots(worker, lost, "no heartbeat", now, effects)
        self.advance(now, effects)

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
