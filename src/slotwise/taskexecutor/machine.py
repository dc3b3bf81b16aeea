"""The TaskExecutor: makes slots when told, offers them, runs what their jobs deploy, and says what is true (FLIP-6,
FLIP-56).

Behaviours: ST-01 … ST-10, ML-02 … ML-05, F-01, F-02. Its reports are absolute and repeated; it repeats offers until
they are answered and its registration, with back-off, until it is accepted. When the ResourceManager or a JobMaster
is lost, what runs goes on. A restarted TaskExecutor keeps the worker's id and adopts the slots whose processes the
earlier one left behind (B: ST-09)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from slotwise.model.ids import (
    RESOURCE_MANAGER,
    AllocationId,
    JobId,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.process import ExecutorIdentity, ExecutorProcess
from slotwise.model.resources import ResourceProfile
from slotwise.model.timers import Timers
from slotwise.model.warm import WarmUnits
from slotwise.protocol.effects import (
    AdoptedSlot,
    CleanSlot,
    DriverSaid,
    Effects,
    EndProcess,
    Event,
    ProcessChanged,
    StartProcess,
    StopRequested,
    TellDriver,
)
from slotwise.protocol.messages import (
    AcceptSlots,
    AllocateSlots,
    AllocationsRefused,
    Deploy,
    DirectDriver,
    Envelope,
    Fenced,
    FreeSlots,
    JobMasterHeartbeat,
    JobSlotsReport,
    OfferSlots,
    ProcessPhase,
    ProcessStatus,
    RegisterAgain,
    RegisterWorker,
    RegistrationRefused,
    RejectSlots,
    ResourceManagerHeartbeat,
    ShutdownWorker,
    SlotOffer,
    SlotReport,
    StopProcess,
    WorkerLeaving,
    WorkerRegistered,
    WorkerReport,
)
from slotwise.protocol.outbox import Outbox
from slotwise.taskexecutor.slot_table import Refusal, SlotState, SlotTable, TableSlot

_FREED_REMEMBERED = 4096


class TaskExecutorConfig(msgspec.Struct, frozen=True):
    """Times in seconds. ``slot_timeout_s``: how long an offer may stay unanswered (B: ST-04).
    ``job_master_timeout_s``: how long slots are kept for a silent job before they are offered anew, and again before
    they are released (B: ST-07). ``incarnation`` rises with each process of the same worker.
    ``registration_timeout_s``: without any ResourceManager for so long the worker ends itself. ``drain_timeout_s``: how
    long executors may take to leave when the worker is asked to go in order.
    """

    worker: WorkerId
    host: str
    pid: int
    version: str
    total: ResourceProfile
    default_profile: ResourceProfile
    incarnation: int = 0
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    registration_retry_s: float = 0.5
    registration_retry_max_s: float = 10.0
    registration_timeout_s: float = 300.0
    offer_retry_s: float = 1.0
    slot_timeout_s: float = 10.0
    job_master_timeout_s: float = 50.0
    job_takeover_s: float = 10.0
    drain_timeout_s: float = 30.0


class TaskExecutor:
    """See the module's head."""

    def __init__(self, config: TaskExecutorConfig, now: float, adopted: Iterable[AdoptedSlot] = ()) -> None:
        """``adopted``: what an earlier process of this worker left. Raises Refusal when it does not fit."""
        self.config = config
        self.table = SlotTable(config.total)
        self.registered = False
        self.stopping: str | None = None
        self.draining: str | None = None
        self.rss_bytes = 0
        self.warm: WarmUnits | None = None
        self._out = Outbox(worker_address(config.worker))
        self._timers = Timers()
        # Reports of this process are newer than all of the earlier ones.
        self._first_seq = config.incarnation << 32
        self._report_seq = self._first_seq
        self._job_seq: dict[JobId, int] = {}
        self._jobs_heard: dict[JobId, float] = {}
        self._freed: OrderedDict[AllocationId, None] = OrderedDict()
        self._backoff_s = config.registration_retry_s
        self._rm_heard = now
        self._timers.set("register", now)
        self._timers.set("give-up", now + config.registration_timeout_s)
        for known in adopted:
            self.table.allocate(known.allocation, known.job, known.profile, known.job_master, now)
            slot = self.table.slots[known.allocation]
            slot.state, slot.process, slot.executor = SlotState.ACTIVE, known.process, known.executor
            slot.started.add(known.process.process)
            self._out.learn(known.job_master, known.job_master_token)
            self._jobs_heard[known.job] = now
            self._arm_watch(now)

    def next_timer(self) -> float | None:
        """When :meth:`on_timer` wants to be called."""
        return self._timers.next()

    def handle(self, stimulus: Envelope | ProcessChanged | DriverSaid | StopRequested, now: float) -> Effects:
        """Take a message, or what the runtime has seen of a process."""
        effects = Effects()
        match stimulus:
            case Envelope():
                if self._out.admit(stimulus, effects):
                    self._dispatch(stimulus, now, effects)
            case ProcessChanged():
                self._on_process(stimulus, now, effects)
            case DriverSaid():
                slot = self.table.slots.get(stimulus.allocation)
                if slot is not None and slot.state is SlotState.ACTIVE:
                    slot.driver = stimulus.report
                    self._report_to_job(slot.job, effects)
            case StopRequested(reason, drain):
                if drain:
                    self._drain(reason, now, effects)
                else:
                    self._stop(reason, now, effects)
        return effects

    def _dispatch(self, envelope: Envelope, now: float, effects: Effects) -> None:
        if envelope.sender == RESOURCE_MANAGER:
            self._from_resource_manager(envelope, now, effects)
            return
        match envelope.payload:
            case Fenced(address, current):
                # The job has a new leader: from now on it is told of the slots and offered them (B: ST-07).
                if self._out.learn(address, current):
                    for job in sorted({slot.job for slot in self.table.slots.values()}):
                        if address == job_master_address(job):
                            self._report_to_job(job, effects)
                return
            case _:
                pass
        if envelope.sender_token:
            self._out.learn(envelope.sender, envelope.sender_token)
        self._from_job_master(envelope, now, effects)

    # ------------------------------------------------------------------------------------------- ResourceManager

    def _from_resource_manager(self, envelope: Envelope, now: float, effects: Effects) -> None:
        newer = self._out.learn(RESOURCE_MANAGER, envelope.sender_token)
        if newer and not isinstance(envelope.payload, WorkerRegistered):
            self._register_again(now)
        self._rm_heard = now
        match envelope.payload:
            case WorkerRegistered() as message:
                if not self.registered:
                    effects.events.append(Event("registered", worker=self.config.worker))
                self.registered = True
                self._timers.clear("register")
                self._timers.clear("give-up")
                self._backoff_s = self.config.registration_retry_s
                self._timers.set("heartbeat", now + message.heartbeat_interval_s)
            case RegistrationRefused() as message:
                self._stop(f"the master refused this worker: {message.reason}", now, effects)
            case RegisterAgain() | Fenced():
                self._register_again(now)
            case AllocateSlots() as message:
                # Only from the leader that has this worker's report: another's view of it may be an old one.
                if self.registered:
                    self._on_allocate(message, now, effects)
            case ShutdownWorker() as message:
                self._stop(f"the master said so: {message.reason}", now, effects)
            case ResourceManagerHeartbeat() | _:
                pass

    def _register_again(self, now: float) -> None:
        self.registered = False
        self._timers.set_once("register", now)
        self._timers.set_once("give-up", now + self.config.registration_timeout_s)

    def _on_allocate(self, message: AllocateSlots, now: float, effects: Effects) -> None:
        refused: list[AllocationId] = []
        why = ""
        made: set[JobId] = set()
        for wanted in message.slots:
            self._out.learn(wanted.job_master, wanted.job_master_token)
            going = self.stopping is not None or self.draining is not None
            if going or wanted.allocation in self._freed:
                why = "the worker is stopping" if going else "the slot was released already"
                refused.append(wanted.allocation)
                continue
            try:
                fresh = self.table.allocate(wanted.allocation, wanted.job, wanted.profile, wanted.job_master, now)
            except Refusal as refusal:
                refused.append(wanted.allocation)
                why = str(refusal)
                continue
            if fresh:
                made.add(wanted.job)
                self._jobs_heard.setdefault(wanted.job, now)
        if refused:
            report = self._slot_report()
            self._out.send(effects, RESOURCE_MANAGER, AllocationsRefused(tuple(refused), why, report))
        else:
            self._report(effects)
        for job in sorted(made):
            self._offer(job, now, effects)

    # ------------------------------------------------------------------------------------------- JobMasters

    def _from_job_master(self, envelope: Envelope, now: float, effects: Effects) -> None:
        match envelope.payload:
            case AcceptSlots(job, allocations):
                slots, gone = self._own(job, allocations)
                for slot in slots:
                    if slot.state is SlotState.OFFERED:
                        slot.state = SlotState.ACTIVE
                self._heard(job, now, effects, gone)
            case RejectSlots(job, allocations):
                for slot in self._own(job, allocations)[0]:
                    self._release(slot, "rejected by its job", now, effects)
            case FreeSlots(job, allocations, cause):
                slots, gone = self._own(job, allocations)
                for slot in slots:
                    self._release(slot, cause, now, effects)
                self._heard(job, now, effects, (*gone, *(s.allocation for s in slots if s.allocation in self._freed)))
            case Deploy() as message:
                slots, gone = self._own(message.job, (message.allocation,))
                for slot in slots:
                    self._deploy(slot, message, effects)
                self._heard(message.job, now, effects, gone)
            case StopProcess(job, allocation, process):
                slots, gone = self._own(job, (allocation,))
                for slot in slots:
                    if slot.process is not None and slot.process.process == process:
                        self._end_process(slot, effects)
                self._heard(job, now, effects, gone)
            case DirectDriver(job, allocation, directives):
                for slot in self._own(job, (allocation,))[0]:
                    if slot.directives is None or directives.version > slot.directives.version:
                        slot.directives = directives
                    effects.processes.append(TellDriver(allocation, slot.directives))
            case JobMasterHeartbeat(job):
                self._heard(job, now, effects)
            case _:
                pass

    def _own(
        self, job: JobId, allocations: tuple[AllocationId, ...]
    ) -> tuple[list[TableSlot], tuple[AllocationId, ...]]:
        """The named slots that are the job's, and the named ids that are not here: nobody touches another job's (B:
        ST-05).
        """
        slots = [self.table.slots.get(allocation) for allocation in allocations]
        gone = tuple(allocation for allocation in allocations if allocation not in self.table.slots)
        return [slot for slot in slots if slot is not None and slot.job == job], gone

    def _heard(self, job: JobId, now: float, effects: Effects, gone: tuple[AllocationId, ...] = ()) -> None:
        if self.table.of_job(job):
            self._jobs_heard[job] = now
        self._report_to_job(job, effects, gone)
        self._arm_watch(now)

    def _deploy(self, slot: TableSlot, message: Deploy, effects: Effects) -> None:
        if slot.state is not SlotState.ACTIVE or slot.busy:
            return
        if message.process in slot.started:
            # Doubled on its way: what has run must not run again, also after another process in the same slot.
            return
        slot.started.add(message.process)
        slot.process = ProcessStatus(message.process, ProcessPhase.STARTING)
        slot.driver = None
        slot.directives = None
        slot.executor = None
        if isinstance(message.spec, ExecutorProcess):
            spec = message.spec
            slot.executor = ExecutorIdentity(spec.executor_id, spec.ticket, spec.app_id, spec.profile_id)
        leader = self._out.known_token(slot.job_master)
        effects.processes.append(
            StartProcess(
                slot.allocation, slot.job, message.process, message.spec, slot.profile, slot.job_master, leader
            )
        )
        effects.events.append(
            Event("process-starting", slot.job, self.config.worker, slot.allocation, {"process": message.process})
        )

    # ------------------------------------------------------------------------------------------- slots and processes

    def _on_process(self, change: ProcessChanged, now: float, effects: Effects) -> None:
        slot = self.table.slots.get(change.allocation)
        if slot is None or slot.process is None or slot.process.process != change.status.process:
            return
        if slot.process.phase is ProcessPhase.EXITED:
            return
        stopping = slot.process.phase is ProcessPhase.STOPPING
        if stopping and change.status.phase is not ProcessPhase.EXITED:
            return
        slot.process = msgspec.structs.replace(change.status, stopped=stopping or change.status.stopped)
        if change.status.phase is ProcessPhase.EXITED:
            fields: dict[str, str | int | float | None] = {
                "process": change.status.process,
                "exit_code": change.status.exit_code,
            }
            effects.events.append(Event("process-exited", slot.job, self.config.worker, slot.allocation, fields))
            if slot.state is SlotState.RELEASING:
                self._destroy(slot, now, effects)
                return
        self._report_to_job(slot.job, effects)
        self._maybe_shut_down(now, effects)

    def _end_process(self, slot: TableSlot, effects: Effects) -> None:
        assert slot.process is not None
        if slot.process.phase in (ProcessPhase.STARTING, ProcessPhase.RUNNING):
            slot.process = msgspec.structs.replace(slot.process, phase=ProcessPhase.STOPPING, stopped=True)
            effects.processes.append(EndProcess(slot.allocation, slot.process.process))

    def _release(self, slot: TableSlot, cause: str, now: float, effects: Effects) -> None:
        """End what runs in the slot, then destroy it; the resources come back only then (B: ST-06)."""
        if slot.state is SlotState.RELEASING:
            return
        slot.state = SlotState.RELEASING
        effects.events.append(Event("slot-releasing", slot.job, self.config.worker, slot.allocation, {"cause": cause}))
        if slot.busy:
            self._end_process(slot, effects)
        else:
            self._destroy(slot, now, effects)

    def _destroy(self, slot: TableSlot, now: float, effects: Effects) -> None:
        self.table.free(slot.allocation)
        self._freed[slot.allocation] = None
        if len(self._freed) > _FREED_REMEMBERED:
            self._freed.popitem(last=False)
        effects.processes.append(CleanSlot(slot.allocation))
        effects.events.append(Event("slot-freed", slot.job, self.config.worker, slot.allocation))
        self._report_to_job(slot.job, effects, (slot.allocation,))
        if not self.table.of_job(slot.job):
            self._jobs_heard.pop(slot.job, None)
            self._timers.clear(("offer", slot.job))
        self._report(effects)
        self._maybe_shut_down(now, effects)

    def _offer(self, job: JobId, now: float, effects: Effects) -> None:
        """Offer what is not accepted yet; what has waited too long is released and announced (B: ST-04)."""
        offered = [slot for slot in self.table.of_job(job) if slot.state is SlotState.OFFERED]
        for slot in offered:
            if slot.made_at + self.config.slot_timeout_s <= now:
                self._release(slot, "no answer from its job", now, effects)
        offered = [slot for slot in offered if slot.allocation in self.table.slots]
        if not offered:
            return
        offers = tuple(SlotOffer(slot.allocation, slot.profile) for slot in offered)
        self._out.send(effects, offered[0].job_master, OfferSlots(self.config.worker, self.config.host, offers))
        self._timers.set(("offer", job), now + self.config.offer_retry_s)

    # ------------------------------------------------------------------------------------------- reports

    def _slot_report(self) -> SlotReport:
        self._report_seq += 1
        return SlotReport(self._report_seq, self.table.statuses(), self.table.available)

    def _report(self, effects: Effects) -> None:
        if self.registered:
            draining = self.draining is not None
            self._out.send(
                effects, RESOURCE_MANAGER, WorkerReport(self._slot_report(), self.rss_bytes, draining, self.warm)
            )

    def _report_to_job(self, job: JobId, effects: Effects, gone: tuple[AllocationId, ...] = ()) -> None:
        seq = self._job_seq.get(job, self._first_seq) + 1
        self._job_seq[job] = seq
        statuses, draining = self.table.job_statuses(job), self.draining is not None
        report = JobSlotsReport(self.config.worker, self.config.host, seq, statuses, gone, draining)
        self._out.send(effects, job_master_address(job), report)

    # ------------------------------------------------------------------------------------------- time

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        effects = Effects()
        for key in self._timers.pop_due(now):
            match key:
                case "register":
                    self._register(now, effects)
                case "give-up":
                    if not self.registered:
                        limit = f"{self.config.registration_timeout_s:g} s"
                        self._stop(f"no ResourceManager accepted this worker within {limit}", now, effects)
                case "heartbeat":
                    self._heartbeat(now, effects)
                case "watch-jobs":
                    self._watch_jobs(now, effects)
                case ("offer", job):
                    self._offer(JobId(str(job)), now, effects)
                case "drained":
                    self._stop(f"{self.draining}; executors did not leave in time", now, effects)
                case "leave":
                    self._out.send(effects, RESOURCE_MANAGER, WorkerLeaving(self.stopping or ""))
                    self._timers.set("leave", now + 2.0)
                case _:
                    pass
        return effects

    def _register(self, now: float, effects: Effects) -> None:
        if self.registered or self.stopping is not None:
            return
        config = self.config
        message = RegisterWorker(
            config.worker,
            config.host,
            config.pid,
            config.version,
            config.total,
            config.default_profile,
            self._slot_report(),
        )
        self._out.send(effects, RESOURCE_MANAGER, message)
        self._timers.set("register", now + self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, config.registration_retry_max_s)

    def _heartbeat(self, now: float, effects: Effects) -> None:
        self._timers.set("heartbeat", now + self.config.heartbeat_interval_s)
        if self.registered and self._rm_heard + self.config.heartbeat_timeout_s < now:
            effects.events.append(Event("resource-manager-lost", worker=self.config.worker))
            self._register_again(now)
        self._report(effects)
        for job in sorted({slot.job for slot in self.table.slots.values()}):
            self._report_to_job(job, effects)

    def _arm_watch(self, now: float) -> None:
        self._timers.set_once("watch-jobs", now + self.config.job_master_timeout_s)

    def _watch_jobs(self, now: float, effects: Effects) -> None:
        """Jobs not heard of: first their slots are offered to a possible new leader, then released (B: ST-07)."""
        for job in sorted({slot.job for slot in self.table.slots.values()}):
            silent_s = now - self._jobs_heard.get(job, now)
            if silent_s >= self.config.job_master_timeout_s + self.config.job_takeover_s:
                for slot in self.table.of_job(job):
                    self._release(slot, "its job is not heard of", now, effects)
            elif silent_s >= self.config.job_master_timeout_s:
                self._report_to_job(job, effects)
        if self.table.slots:
            self._timers.set("watch-jobs", now + min(self.config.job_takeover_s, 5.0) / 2)

    # ------------------------------------------------------------------------------------------- the end

    def connection_opened(self, now: float) -> Effects:
        """The stream to the master is up (again): register at once, whatever the back-off says."""
        self._backoff_s = self.config.registration_retry_s
        if self.stopping is None:
            self._register_again(now)
            self._timers.set("register", now)
        effects = self.on_timer(now)
        for job in sorted({slot.job for slot in self.table.slots.values()}):
            # A new leader of the job may be at the other end.
            self._report_to_job(job, effects)
        return effects

    def _drain(self, reason: str, now: float, effects: Effects) -> None:
        """Take nothing new, and give the executors time to move what they hold. A driver cannot move."""
        if self.stopping is not None or self.draining is not None:
            return
        if self.config.drain_timeout_s <= 0 or not self._has_executors():
            self._stop(reason, now, effects)
            return
        self.draining = reason
        self._timers.set("drained", now + self.config.drain_timeout_s)
        effects.events.append(Event("worker-draining", worker=self.config.worker, fields={"reason": reason}))
        for slot in list(self.table.slots.values()):
            if slot.state is SlotState.OFFERED:
                self._release(slot, f"worker leaves: {reason}", now, effects)
        self._report(effects)
        for job in sorted({slot.job for slot in self.table.slots.values()}):
            self._report_to_job(job, effects)

    def _has_executors(self) -> bool:
        return any(slot.executor is not None and slot.busy for slot in self.table.slots.values())

    def _stop(self, reason: str, now: float, effects: Effects) -> None:
        if self.stopping is not None:
            return
        self.stopping = reason
        self._timers.clear("drained")
        self._timers.clear("register")
        self._timers.clear("give-up")
        effects.events.append(Event("worker-stopping", worker=self.config.worker, fields={"reason": reason}))
        for slot in list(self.table.slots.values()):
            self._release(slot, f"worker stops: {reason}", now, effects)
        self._maybe_shut_down(now, effects)
        if effects.shutdown is None:
            self._timers.set("leave", now)

    def _maybe_shut_down(self, now: float, effects: Effects) -> None:
        if self.draining is not None and self.stopping is None and not self._has_executors():
            self._stop(self.draining, now, effects)
            return
        if self.stopping is not None and not self.table.slots and effects.shutdown is None:
            self._out.send(effects, RESOURCE_MANAGER, WorkerLeaving(self.stopping))
            effects.shutdown = self.stopping

    def check_invariants(self) -> None:
        """Raise AssertionError unless the slot table adds up."""
        self.table.check_invariants()
