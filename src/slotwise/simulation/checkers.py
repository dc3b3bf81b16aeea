"""Safety: what must hold after every step, checked on what the step touched.

Each rule looks at the machines from outside: it keeps its own books from the messages that were delivered and from
what really runs on the hosts, so that a machine whose own books are wrong cannot hide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotwise.jobmaster.machine import JobMaster
from slotwise.model.ids import RESOURCE_MANAGER, Address, AllocationId, JobId, WorkerId
from slotwise.model.job import JobState
from slotwise.model.process import DriverProcess, ExecutorProcess
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.protocol.effects import Effects, Event, PersistRecord, PersistResult, StartWorker
from slotwise.protocol.messages import (
    AcceptSlots,
    AllocateSlots,
    BlockWorker,
    CancelJob,
    DeclareRequirements,
    Deploy,
    Envelope,
    Fenced,
    FreeSlots,
    JobMasterHeartbeat,
    JobSlotsReport,
    JobStatus,
    OfferSlots,
    RegisterJobMaster,
    RegisterWorker,
    ScaleJob,
    StopProcess,
    SubmitJob,
    WorkerReport,
)
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.simulation.engine import Actor
from slotwise.simulation.fingerprint import fingerprint
from slotwise.simulation.orders import Orders
from slotwise.simulation.story import Violation
from slotwise.taskexecutor.machine import TaskExecutor
from slotwise.taskexecutor.slot_table import SlotState

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.hosts import Host
    from slotwise.simulation.orders import Orders
from slotwise.simulation.programs import SlotProcess

# First words to a leader, which may leave its token open (messages' head).
_INTRODUCTIONS = (RegisterWorker, RegisterJobMaster, BlockWorker, SubmitJob, CancelJob, ScaleJob, JobStatus)
_TO_JOB_MASTER = (OfferSlots, JobSlotsReport)
# Messages by which a component knows that the other one lives.
_SIGNS_OF_JOB_MASTER = (AcceptSlots, FreeSlots, Deploy, StopProcess, JobMasterHeartbeat)
_SIGNS_TO_RESOURCE_MANAGER = (RegisterWorker, WorkerReport, RegisterJobMaster, DeclareRequirements)
_CHECK_RM_EVERY = 8


class Checks:
    """See the module's head. Raises :class:`Violation`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tokens: dict[tuple[Actor, Address], int] = {}
        self._slots: dict[AllocationId, tuple[JobId, WorkerId]] = {}
        self._executors: dict[tuple[JobId, str], AllocationId] = {}
        self._queues: dict[Actor, dict[JobId, int]] = {}
        self._heard: dict[tuple[Actor, Address], float] = {}
        self.orders = Orders()
        self._places = 0
        self._rm_steps = 0

    # ------------------------------------------------------------------------------------------- every step

    def before_step(self, actor: Actor, stimulus: object) -> Any:
        """Remember the state of a machine that gets a stale message, to see that it has no effect (B: ML-07)."""
        if isinstance(stimulus, Envelope):
            if self._is_stale(actor, stimulus):
                return (fingerprint(actor.machine),)
            if stimulus.sender_token:
                self._tokens[actor, stimulus.sender] = stimulus.sender_token
        return None

    def _is_stale(self, actor: Actor, envelope: Envelope) -> bool:
        payload = envelope.payload
        if actor.token and envelope.to_token != actor.token:
            introduces = isinstance(payload, _INTRODUCTIONS) or (
                isinstance(payload, _TO_JOB_MASTER) and isinstance(actor.machine, JobMaster)
            )
            if envelope.to_token or not introduces:
                return True
        return 0 < envelope.sender_token < self._tokens.get((actor, envelope.sender), 0)

    def after_step(self, actor: Actor, stimulus: object, effects: Effects, before: Any) -> None:
        """Everything that can be checked at this step."""
        machine = actor.machine
        if before is not None:
            assert isinstance(stimulus, Envelope)
            self._no_effect(actor, stimulus, effects, before[0])
        if isinstance(stimulus, Envelope) and isinstance(stimulus.payload, Fenced) and before is None:
            newer = stimulus.payload.current > actor.token > 0
            if stimulus.payload.address == actor.address and newer and effects.shutdown is None:
                text = f"{actor.name} was told of leader {stimulus.payload.current} and goes on"
                raise Violation("deposed-leader-ends", text, actor.address)
        self.orders.after_step(actor, stimulus, effects, stale=before is not None)
        if isinstance(machine, TaskExecutor):
            machine.check_invariants()
            self._task_executor(actor, machine, stimulus, effects, before)
        elif isinstance(machine, ResourceManager):
            self._rm_steps += 1
            if self._rm_steps % _CHECK_RM_EVERY == 0 or effects.workers:
                machine.check_invariants()
            self._resource_manager(actor, machine, stimulus, effects, before)
        else:
            machine.check_invariants()
            if isinstance(machine, JobMaster):
                self._job_master(actor, machine, stimulus, effects, before)

    def _no_effect(self, actor: Actor, envelope: Envelope, effects: Effects, before: object) -> None:
        payload = envelope.payload
        if isinstance(payload, Fenced):
            # News of a newer leader may come from anybody who knows it.
            return
        answers = all(isinstance(answer.payload, Fenced) for answer in effects.send)
        others = effects.persist or effects.processes or effects.workers or effects.job_masters or effects.shutdown
        if others or not answers or fingerprint(actor.machine) != before:
            text = f"{actor.name} let a stale {type(payload).__name__} of {envelope.sender}#{envelope.sender_token} act"
            raise Violation("stale-leader-without-effect", text, actor.address, envelope.sender)

    def _hear(self, actor: Actor, envelope: Envelope, before: Any) -> None:
        """A sign of life, unless it is a stale one."""
        if before is None:
            self._heard[actor, envelope.sender] = self._cluster.engine.now

    # ------------------------------------------------------------------------------------------- workers

    def _task_executor(
        self, actor: Actor, machine: TaskExecutor, stimulus: object, effects: Effects, before: Any
    ) -> None:
        if isinstance(stimulus, Envelope):
            payload = stimulus.payload
            if isinstance(payload, _SIGNS_OF_JOB_MASTER):
                self._hear(actor, stimulus, before)
            if isinstance(payload, AllocateSlots):
                for wanted in payload.slots:
                    self._note_slot(wanted.allocation, wanted.job, machine.config.worker)
                for slot in machine.table.slots.values():
                    self._note_slot(slot.allocation, slot.job, machine.config.worker)
        for event in effects.events:
            if event.name == "slot-releasing" and event.fields.get("cause") == "its job is not heard of":
                self._job_was_silent(actor, machine, event)

    def _note_slot(self, allocation: AllocationId, job: JobId, worker: WorkerId) -> None:
        owner = self._slots.setdefault(allocation, (job, worker))
        if owner != (job, worker):
            text = f"{allocation} is {owner[0]}'s on {owner[1]} and {job}'s on {worker}"
            raise Violation("one-job-per-slot", text, allocation, job, owner[0])

    def _job_was_silent(self, actor: Actor, machine: TaskExecutor, event: Event) -> None:
        heard = self._heard.get((actor, Address(f"jm:{event.job}")))
        if heard is not None and self._cluster.engine.now - heard < machine.config.job_master_timeout_s - 1e-3:
            text = f"{actor.name} gives up {event.allocation} although it heard of {event.job} at {heard:.3f}"
            raise Violation("silent-before-released", text, str(event.job), str(event.worker), str(event.allocation))

    def process_starts(self, process: SlotProcess) -> None:
        """A host is about to start a process in a slot."""
        self.orders.process_starts(process)
        host, spec = process.host, process.spec
        owner = self._slots.get(process.allocation)
        if owner is None or owner != (process.job, host.name):
            raise Violation("one-job-per-slot", f"{process} starts in a slot of {owner}", process.job)
        used = ZERO
        for other in host.slots.values():
            if other.alive:
                used += other.profile
        if not fits(used, host.total):
            text = f"{host.name} has {host.total}, and its processes would take {used}"
            raise Violation("worker-sums", text, host.name, process.job)
        if isinstance(spec, DriverProcess):
            for other in self._living(process.job):
                if other.is_driver and other is not process:
                    text = f"{process} starts while {other} lives"
                    raise Violation("one-driver", text, process.job, host.name, other.host.name)
        elif isinstance(spec, ExecutorProcess):
            known = self._executors.setdefault((process.job, spec.executor_id), process.allocation)
            if known != process.allocation:
                text = f"executor {spec.executor_id} of {process.job} is used in {known} and in {process.allocation}"
                raise Violation("executor-ids-once", text, process.job)

    def slot_cleaned(self, host: Host, allocation: AllocationId, process: SlotProcess | None) -> None:
        """A worker has destroyed a slot."""
        if process is not None and process.alive:
            raise Violation("slot-ends-after-process", f"{process} lives in a destroyed slot", allocation, process.job)

    def _living(self, job: JobId) -> list[SlotProcess]:
        return [
            process
            for host in self._cluster.hosts.values()
            for process in host.slots.values()
            if process.alive and process.job == job
        ]

    # ------------------------------------------------------------------------------------------- ResourceManager

    def _resource_manager(
        self, actor: Actor, machine: ResourceManager, stimulus: object, effects: Effects, before: Any
    ) -> None:
        queue = self._queues.setdefault(actor, {})
        for job in [job for job in queue if machine.slots.ledger.get(job) is None]:
            del queue[job]
        if isinstance(stimulus, Envelope):
            payload = stimulus.payload
            if isinstance(payload, _SIGNS_TO_RESOURCE_MANAGER):
                self._hear(actor, stimulus, before)
            if isinstance(payload, DeclareRequirements):
                self._queue(queue, machine, payload.job)
            elif isinstance(payload, RegisterWorker | WorkerReport):
                for slot in payload.report.slots:
                    self._queue(queue, machine, slot.job)
            if isinstance(payload, RegisterWorker):
                self._maximum(actor, machine, stimulus.sender, bool(payload.report.slots))
        if effects.workers and any(isinstance(wish, StartWorker) for wish in effects.workers):
            self._maximum(actor, machine, None, False)
        given: list[Event] = []
        for event in effects.events:
            if event.name == "allocated":
                given.append(event)
            elif event.name == "worker-released":
                self._released(machine, event)
            elif event.name == "worker-lost" and event.fields.get("reason") == "no heartbeat":
                self._silent(actor, machine.config.heartbeat_timeout_s, f"te:{event.worker}", event)
            elif event.name == "job-silent":
                self._silent(actor, machine.config.heartbeat_timeout_s, f"jm:{event.job}", event)
        if given:
            silenced = {event.job for event in effects.events if event.name == "job-silent"}
            given = [event for event in given if event.job not in silenced]
        if given:
            self._first_come_first_served(machine, queue, given)

    def _queue(self, queue: dict[JobId, int], machine: ResourceManager, job: JobId) -> None:
        if job not in queue and machine.slots.ledger.get(job) is not None:
            self._places += 1
            queue[job] = self._places

    def _maximum(self, actor: Actor, machine: ResourceManager, admitted: Address | None, with_slots: bool) -> None:
        """No worker is asked for, and none without slots admitted, above the maximum (B: SZ-04)."""
        sizing, slots = machine.config.sizing, machine.slots
        if sizing.worker is None:
            return
        if admitted is not None:
            refused = WorkerId(admitted[3:]) not in slots.workers
            if refused or self._was_there(actor, admitted) or with_slots:
                return
        there = ZERO
        for worker in slots.workers.values():
            there += worker.total
        for pending in slots.pending.values():
            there += pending.total
        count = len(slots.workers) + len(slots.pending)
        over = sizing.max_workers is not None and count > sizing.max_workers
        if over or (sizing.max_total is not None and not fits(there, sizing.max_total)):
            allowed = f"{sizing.max_workers}, {sizing.max_total}"
            text = f"{count} workers with {there} are there or asked for; allowed: {allowed}"
            raise Violation("maximum", text, RESOURCE_MANAGER, admitted or "")

    def _was_there(self, actor: Actor, worker: Address) -> bool:
        """Whether the worker had registered with this leader before."""
        key = (actor, Address(f"registered:{worker}"))
        known = key in self._heard
        self._heard[key] = self._cluster.engine.now
        return known

    def _released(self, machine: ResourceManager, event: Event) -> None:
        worker = machine.slots.workers[WorkerId(str(event.worker))]
        if worker.slots:
            text = f"{event.worker} is released as idle with {len(worker.slots)} slot(s)"
            raise Violation("idle-means-empty", text, str(event.worker), *worker.slots)
        idle_for = machine.config.sizing.idle_timeout_s
        minimum = machine.config.sizing.min_total
        if minimum is not None:
            left = ZERO
            for other in machine.slots.workers.values():
                if not other.leaving and not other.blocked:
                    left += other.total
            if not worker.blocked and not fits(minimum, left):
                text = f"{event.worker} is released after {idle_for:g} s, which leaves {left} of at least {minimum}"
                raise Violation("minimum", text, str(event.worker))

    def _silent(self, actor: Actor, timeout_s: float, sender: str, event: Event) -> None:
        heard = self._heard.get((actor, Address(sender)))
        if heard is not None and self._cluster.engine.now - heard < timeout_s - 1e-3:
            text = f"{actor.name} takes {sender} for silent although it was heard at {heard:.3f}"
            raise Violation("silent-before-lost", text, actor.address, sender)

    def _first_come_first_served(self, machine: ResourceManager, queue: dict[JobId, int], given: list[Event]) -> None:
        """No job gets a slot whose room an earlier one lacks (B: D-07), and none more than it requires."""
        slots = machine.slots
        # Warm applications come after all jobs.
        last_place = max(queue.values(), default=0) + 1
        queue = {job: place + last_place * (job in slots.ledger.yielding) for job, place in queue.items()}
        by_worker: dict[WorkerId, list[tuple[JobId, ResourceProfile]]] = {}
        for event in given:
            assert event.worker is not None
            assert event.allocation is not None
            assert event.job is not None
            if event.worker not in slots.workers:
                # Given and lost in the same step.
                continue
            profile = slots.workers[event.worker].slots[event.allocation].profile
            by_worker.setdefault(event.worker, []).append((event.job, profile))
            entry = slots.ledger.get(event.job)
            held = sum(
                1
                for worker in slots.workers.values()
                for slot in worker.slots.values()
                if slot.job == event.job and slot.profile == profile
            )
            if entry is None or held > entry.required.get(profile, 0):
                wanted = 0 if entry is None else entry.required.get(profile, 0)
                text = f"{event.job} requires {wanted} × ({profile}) and is given {held}"
                raise Violation("no-more-than-required", text, event.job, event.allocation)
        last = max(queue.get(event.job, 0) for event in given if event.job is not None)
        for earlier, place in queue.items():
            entry = slots.ledger.get(earlier)
            if place >= last or entry is None:
                continue
            # Slots of one size may be written out to jobs in any way; the room of a later job's slot can only be told
            # for sizes that no earlier job was given at the same time.
            shared = {profile for gifts in by_worker.values() for job, profile in gifts if queue.get(job, 0) <= place}
            for wanted_profile in entry.missing():
                for worker, gifts in by_worker.items():
                    room = slots.workers[worker].free
                    later = [
                        (job, profile) for job, profile in gifts if queue.get(job, 0) > place and profile not in shared
                    ]
                    for _, profile in later:
                        room += profile
                    if later and wanted_profile is not None and fits(wanted_profile, room):
                        text = f"{later[0][0]} is given room on {worker} that {earlier}, which came first, lacks"
                        raise Violation("first-come-first-served", text, earlier, later[0][0], worker)

    # ------------------------------------------------------------------------------------------- JobMasters

    def _job_master(self, actor: Actor, machine: JobMaster, stimulus: object, effects: Effects, before: Any) -> None:
        if isinstance(stimulus, Envelope):
            if isinstance(stimulus.payload, _TO_JOB_MASTER):
                self._hear(actor, stimulus, before)
            if isinstance(stimulus.payload, OfferSlots):
                for offer in stimulus.payload.slots:
                    owner = self._slots.get(offer.allocation)
                    if owner is not None and owner[0] != machine.job and offer.allocation in machine.pool.slots:
                        text = f"{offer.allocation} of {owner[0]} is held by {machine.job}"
                        raise Violation("one-job-per-slot", text, offer.allocation, machine.job, owner[0])
        found = False
        for event in effects.events:
            if event.name == "slot-lost" and stimulus is None and event.fields.get("reason") == "no heartbeat":
                self._silent(actor, machine.config.heartbeat_timeout_s, f"te:{event.worker}", event)
            elif event.name == "driver-found":
                found = True
            elif event.name == "job-state":
                self._job_moves(actor, machine, str(event.fields.get("state")), found)
        # A pipeline's are of its regions, each of which has a bound of its own.
        most = machine.rescaling.most if machine.spec.pipeline is None else None
        # One that takes over finds what there is first, and then ends what is too much.
        if most is not None and effects.send and machine.state in (JobState.DEPLOYING, JobState.RUNNING):
            running = machine.executors.staying()[0]
            if running > most:
                text = f"{machine.job} runs {running} executors; it allows {most}"
                raise Violation("executors-bounded", text, machine.job)

    def _job_moves(self, actor: Actor, machine: JobMaster, state: str, found: bool) -> None:
        """``found``: its driver was started by an earlier leader."""
        if state == JobState.DEPLOYING.value and not found:
            spec, least = machine.spec, machine.rescaling.bounds.least
            held = [slot.profile for slot in machine.pool.slots.values()]
            driver = held.count(spec.driver.profile)
            executors = held.count(spec.executor.profile) - (spec.driver.profile == spec.executor.profile)
            if not driver or executors < least:
                text = f"{machine.job} starts its driver with {executors} executor slot(s) of {least}"
                raise Violation("never-below-minimum", text, machine.job)
        elif state == JobState.RESTARTING.value and not self._cluster.disturbed():
            if not self._cluster.store.accepts(machine.job, actor.token, actor.owner.token):
                # A replaced leader that does not know it: what it does next is refused.
                return
            living = [process for process in self._living(machine.job) if process.is_driver]
            if living:
                text = f"{machine.job} is restarted although {living[0]} lives and can be reached"
                raise Violation("living-driver-not-restarted", text, machine.job, living[0].host.name)

    # ------------------------------------------------------------------------------------------- the store

    def persisted(self, record: PersistRecord) -> None:
        """A record has been written."""
        if not isinstance(record, PersistResult):
            return
        job, state = record.job, record.result.state
        if not state.is_final:
            raise Violation("one-final-state", f"{job} is recorded as ended in state {state.value}", job)
        stored = self._cluster.store.jobs[job]
        if stored.spec.pipeline is not None:
            if state is JobState.FINISHED and not (stored.progress is not None and stored.progress.pipeline_done):
                raise Violation("true-result", f"{job} is FINISHED, but its pipeline is not done", job)
        elif state is JobState.FINISHED and (job, 0) not in self._cluster.programs.exits:
            raise Violation("true-result", f"{job} is FINISHED, but none of its drivers ended with code 0", job)
        asked = any(client.job == job and client.cancel_wanted for client in self._cluster.clients)
        if state is JobState.CANCELED and not asked:
            raise Violation("true-result", f"{job} is CANCELED, but nobody asked for that", job)


def active_slots(machine: TaskExecutor, job: JobId) -> set[AllocationId]:
    """The slots of ``job`` that it has accepted on this worker."""
    return {slot.allocation for slot in machine.table.of_job(job) if slot.state is SlotState.ACTIVE}
