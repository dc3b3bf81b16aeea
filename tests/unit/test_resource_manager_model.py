"""The whole ResourceManager in any order of events, beside a model that remembers everything and works out the rest.

The workers here answer at once or not at all; what is told to jobs, who is given up as silent, what is asked again and
who is let go must be what the model says after every step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slotwise.model.ids import (
    RESOURCE_MANAGER,
    UNKNOWN_TOKEN,
    Address,
    AllocationId,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.requirements import Requirement
from slotwise.model.resources import GIB, ZERO, ResourceProfile
from slotwise.protocol.effects import Effects, StartWorker, WorkerExited
from slotwise.protocol.messages import (
    AllocateSlots,
    AllocationsRefused,
    BlockWorker,
    DeclareRequirements,
    Envelope,
    JobDone,
    Message,
    NotEnoughResources,
    RegisterJobMaster,
    RegisterWorker,
    Shortage,
    ShutdownWorker,
    SlotReport,
    SlotStatus,
    WorkerLeaving,
    WorkerReport,
)
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from tests.unit.test_slot_manager import Counter

TOKEN = LeaderToken(7)
TOTAL = ResourceProfile(4000, 8 * GIB)
SIZES = [ResourceProfile(1000, 2 * GIB), ResourceProfile(2000, GIB), ResourceProfile(3000, 7 * GIB)]
SIZES.append(ResourceProfile(1000, 9 * GIB))
TIMEOUT_S = 50.0
JOBS = [JobId(name) for name in "abcd"]
OWN = [WorkerId(name) for name in ("own-1", "own-2", "own-3")]

jobs = st.sampled_from(JOBS)
sizings = st.sampled_from(
    [
        Sizing(),
        Sizing(WorkerShape(TOTAL, SIZES[0]), max_workers=4),
        Sizing(WorkerShape(TOTAL, SIZES[0]), max_workers=5, min_total=TOTAL * 2, redundant_workers=1),
    ]
)


class ResourceManagerModel(RuleBasedStateMachine):
    """``slots``: what each worker really has, by itself; ``told``: what each job was told last."""

    @initialize(sizing=sizings, grace_s=st.sampled_from([0.0, 5.0]))
    def begin(self, sizing: Sizing, grace_s: float) -> None:
        self.now = 100.0
        self.grace_ends = self.now + grace_s
        config = ResourceManagerConfig(sizing=sizing, start_up_grace_s=grace_s)
        self.rm = ResourceManager(config, TOKEN, Counter(), self.now)
        self.slots: dict[WorkerId, dict[AllocationId, SlotStatus]] = {}
        self.coming: list[WorkerId] = []
        self.heard: dict[WorkerId, float] = {}
        self.told: dict[JobId, tuple[Shortage, ...]] = {}
        self.asked: dict[WorkerId, dict[AllocationId, float]] = {}
        self.versions: dict[JobId, int] = {}
        self.seq = 0

    # --------------------------------------------------------------------------------------- what happens

    def say(self, sender: Address, payload: Message) -> None:
        token = LeaderToken(1) if sender.startswith("jm:") else UNKNOWN_TOKEN
        self.take(self.rm.handle(Envelope(0, RESOURCE_MANAGER, TOKEN, sender, token, payload), self.now))

    def take(self, effects: Effects) -> None:
        for envelope in effects.send:
            match envelope.payload:
                case NotEnoughResources(_, missing):
                    assert self.now >= self.grace_ends
                    self.told[JobId(envelope.to.removeprefix("jm:"))] = missing
                case AllocateSlots(slots):
                    for slot in slots:
                        asked = self.asked.setdefault(WorkerId(envelope.to.removeprefix("te:")), {})
                        asked[slot.allocation] = self.now
                case ShutdownWorker():
                    worker = WorkerId(envelope.to.removeprefix("te:"))
                    assert not self.rm.slots.workers[worker].slots
                case _:
                    pass
        for wish in effects.workers:
            if isinstance(wish, StartWorker):
                self.coming.append(wish.worker)
        for event in effects.events:
            if event.name == "worker-lost" and event.fields["reason"] == "no heartbeat":
                assert event.worker is not None
                assert self.heard[event.worker] + TIMEOUT_S < self.now

    def report_of(self, worker: WorkerId) -> SlotReport:
        self.seq += 1
        used = sum((slot.profile for slot in self.slots[worker].values()), ZERO)
        return SlotReport(self.seq, tuple(self.slots[worker].values()), TOTAL - used)

    def register(self, worker: WorkerId) -> None:
        self.slots.setdefault(worker, {})
        report = self.report_of(worker)
        self.say(worker_address(worker), RegisterWorker(worker, "host", 1, "", TOTAL, SIZES[0], report))
        if worker in self.rm.slots.workers:
            self.heard[worker] = self.now

    def some(self, data: st.DataObject) -> WorkerId:
        return data.draw(st.sampled_from(sorted(self.rm.slots.workers)))

    @rule(worker=st.sampled_from(OWN))
    def arrive(self, worker: WorkerId) -> None:
        self.register(worker)

    @precondition(lambda self: self.coming)
    @rule(comes=st.booleans())
    def start(self, comes: bool) -> None:
        worker = self.coming.pop(0)
        if comes:
            self.register(worker)
        else:
            self.take(self.rm.handle(WorkerExited(worker, "no machine", started=False), self.now))

    @precondition(lambda self: self.rm.slots.workers)
    @rule(data=st.data(), makes=st.booleans(), drops=st.integers(0, 2))
    def report(self, data: st.DataObject, makes: bool, drops: int) -> None:
        """The worker makes what it was asked for, or not yet, and gives up some slots."""
        worker = self.some(data)
        for allocation in list(self.slots[worker])[:drops]:
            del self.slots[worker][allocation]
        for allocation, slot in self.rm.slots.workers[worker].slots.items() if makes else ():
            if slot.pending_since is not None:
                self.slots[worker][allocation] = SlotStatus(allocation, slot.job, slot.profile)
        self.heard[worker] = self.now
        self.say(worker_address(worker), WorkerReport(self.report_of(worker)))

    @precondition(lambda self: self.rm.slots.workers)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        worker = self.some(data)
        slots = self.rm.slots.workers[worker].slots
        pending = tuple(allocation for allocation, slot in slots.items() if slot.pending_since is not None)
        self.heard[worker] = self.now
        self.say(worker_address(worker), AllocationsRefused(pending, "no", self.report_of(worker)))

    @precondition(lambda self: self.rm.slots.workers)
    @rule(data=st.data(), blocked=st.booleans())
    def block(self, data: st.DataObject, blocked: bool) -> None:
        self.say(Address("client:1"), BlockWorker(self.some(data), blocked))

    @precondition(lambda self: self.rm.slots.workers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = self.some(data)
        self.say(worker_address(worker), WorkerLeaving("maintenance"))
        del self.slots[worker]

    @rule(job=jobs, wanted=st.dictionaries(st.sampled_from(SIZES), st.integers(1, 6), max_size=3))
    def declare(self, job: JobId, wanted: dict[ResourceProfile, int]) -> None:
        if job not in self.rm.jobs:
            self.say(job_master_address(job), RegisterJobMaster(job))
        self.versions[job] = self.versions.get(job, 0) + 1
        requirements = tuple(Requirement(profile, count) for profile, count in wanted.items())
        self.say(job_master_address(job), DeclareRequirements(job, self.versions[job], requirements))

    @rule(job=jobs)
    def end(self, job: JobId) -> None:
        self.say(job_master_address(job), JobDone(job))
        self.told.pop(job, None)
        self.versions.pop(job, None)

    @rule(seconds=st.sampled_from([0.06, 0.5, 2.5, 12.0, 31.0, 60.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.rm.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            self.take(self.rm.on_timer(self.now))
            self.rm.check_invariants()
            self.compare()
        self.now = until

    # --------------------------------------------------------------------------------------- what must hold

    @invariant()
    def consistent(self) -> None:
        self.rm.check_invariants()

    def compare(self) -> None:
        manager = self.rm.slots
        for worker in [worker for worker in self.slots if worker not in manager.workers]:
            # It is gone for the ResourceManager; here, it has ended.
            del self.slots[worker]
        # The watch runs each second: nobody is kept that has been silent for longer.
        for worker in manager.workers:
            assert self.heard[worker] + TIMEOUT_S + 1.0 >= self.now, f"{worker} has been silent for too long"
        for entry in manager.workers.values():
            for allocation, slot in entry.slots.items():
                if slot.pending_since is not None:
                    again = self.asked[entry.worker][allocation] + max(1.0, self.rm.config.allocation_retry_s)
                    assert again + 1.0 >= self.now, f"{allocation} was not asked for again"
        if self.now > self.grace_ends and not self.rm._timers.is_set("check"):
            for job in self.rm.jobs:
                missing = tuple(self.rm.shortages(job))
                assert self.told.get(job, ()) == missing, f"{job} was not told what it lacks"
        for job in self.rm.jobs:
            slots = [slot for entry in manager.workers.values() for slot in entry.slots.values() if slot.job == job]
            pending = sum(1 for slot in slots if slot.pending_since is not None)
            assert self.rm.explain(job).pending == (pending if self.rm.explain(job).known else 0)


TestResourceManagerModel = ResourceManagerModel.TestCase
"""B: D-06, D-09, D-10, SM-14, SM-15, SZ-07, ML-03."""
TestResourceManagerModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
