"""The slot manager step by step: whatever is kept up to date equals what is worked out from scratch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.requirements import match_slots
from slotwise.model.resources import ZERO, ResourceProfile, fits, times_fitting
from slotwise.protocol.messages import SlotReport, SlotStatus
from slotwise.resourcemanager.fleet import Slot
from slotwise.resourcemanager.matching import Need, Plan, Template, plan
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.resourcemanager.slot_manager import SlotManager
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerIndex
from tests.unit.test_matching import SIZES


class Counter:
    """Ids that count up."""

    def __init__(self) -> None:
        self.last = 0

    def new_id(self, prefix: str) -> str:
        self.last += 1
        return f"{prefix}-{self.last:06d}"

    def new_secret(self) -> str:
        return "0" * 32


@dataclass
class Steps:
    """Random steps on a slot manager; every check is compared with one from scratch."""

    drawn: random.Random
    manager: SlotManager
    now: float = 0.0
    version: int = 0
    checks: int = 0

    def step(self) -> None:
        self.now += 1.0
        kinds = [self.declare, self.declare, self.confirm, self.free, self.free, self.arrive, self.leave]
        kinds += [self.refuse, self.end, self.silence, self.block, self.adopt]
        self.drawn.choice(kinds)()
        if self.drawn.random() < 0.7:
            self.check()
        self.manager.check_invariants()
        self.compare_timers()

    def compare_timers(self) -> None:
        """What timers read, worked out by a walk over everything."""
        manager, now = self.manager, self.now
        late: dict[WorkerId, list[tuple[AllocationId, Slot]]] = {}
        for worker in manager.workers.values():
            for allocation, slot in worker.slots.items():
                if slot.pending_since is not None and slot.pending_since + 2.0 <= now:
                    late.setdefault(worker.worker, []).append((allocation, slot))
        assert manager.late(2.0, now) == late
        silent = [w for w in manager.workers.values() if w.last_heard + 20.0 < now]
        found = manager.fleet.heard.silent(20.0, now)
        assert set(found) == {w.worker for w in silent}
        assert [manager.workers[w].last_heard for w in found] == sorted(w.last_heard for w in silent)
        for entry in manager.ledger.in_order():
            ahead = [other for other in manager.ledger.in_order() if other.order < entry.order and other.missing()]
            assert manager.ledger.ahead_of(entry) == len(ahead)
            pending = [s for w in manager.workers.values() for s in w.slots.values() if s.pending_since is not None]
            assert manager.unconfirmed.of_job(entry.job) == sum(1 for slot in pending if slot.job == entry.job)
        self.compare_idle()

    def compare_idle(self) -> None:
        manager, now, timeout = self.manager, self.now, self.manager.sizing.idle_timeout_s
        shape = manager.sizing.worker
        assert shape is not None
        usable = [w for w in manager.workers.values() if not w.leaving and not w.blocked]
        there = sum((w.total for w in usable), ZERO)
        free = sum(times_fitting(shape.default_profile, w.free, 1000) for w in usable)
        assert (manager.fleet.capacity, manager.free_default_slots()) == (there, free)
        idle = [w for w in manager.workers.values() if w.idle_since is not None and not w.leaving]
        expected = []
        for worker in sorted(idle, key=lambda w: (w.idle_since, w.position)):
            assert worker.idle_since is not None
            if worker.idle_since + timeout > now:
                continue
            if not worker.blocked:
                if not manager.sizing.can_spare(there, worker.total, free):
                    continue
                there -= worker.total
                free -= times_fitting(shape.default_profile, worker.total, 1000)
            expected.append(worker.worker)
        assert manager.idle_workers(now) == expected
        due = [w.idle_since + timeout for w in idle if w.idle_since is not None]
        later = min((at for at in due if at > now), default=None)
        assert manager.fleet.idle.next_due(timeout, now) == (later, any(at <= now for at in due))

    def check(self) -> None:
        expected = self.from_scratch()
        result = self.manager.check(self.now)
        assert result.plan == expected
        assert len(result.given) == sum(a.count for a in expected.assignments)
        self.checks += 1

    def from_scratch(self) -> Plan:
        manager = self.manager
        needs = [
            Need(entry.job, missing)
            for entry in manager.ledger.in_order()
            if (missing := match_slots(entry.required, entry.held)[0])
        ]
        index, pending = WorkerIndex(manager.index.mode), WorkerIndex()
        for worker in manager.workers.values():
            if not worker.leaving and not worker.blocked:
                index.add(worker.worker, worker.position, worker.total, worker.free, worker.default_profile)
        for coming in manager.pending.values():
            pending.add(coming.worker, coming.position, coming.total, coming.total, coming.default_profile)
        shape = manager.sizing.worker
        assert shape is not None
        there = ZERO
        for total in [one.total for one in manager.workers.values()] + [one.total for one in manager.pending.values()]:
            there += total
        at_most = manager.sizing.more_workers(there, len(manager.workers) + len(manager.pending))
        return plan(needs, index, pending, Template(shape.total, shape.default_profile, at_most))

    def job(self) -> JobId:
        return JobId(f"job{self.drawn.randrange(8)}")

    def worker(self) -> WorkerId | None:
        return self.drawn.choice(list(self.manager.workers)) if self.manager.workers else None

    def declare(self) -> None:
        self.version += 1
        profiles: list[ResourceProfile | None] = [None, *SIZES]
        wanted = {profile: self.drawn.randrange(6) for profile in self.drawn.sample(profiles, 3)}
        self.manager.ledger.declare(self.job(), self.version, wanted)

    def end(self) -> None:
        self.manager.ledger.forget(self.job())

    def silence(self) -> None:
        self.manager.ledger.suspend(self.job())

    def arrive(self) -> None:
        coming = list(self.manager.pending.values())
        if coming and self.drawn.random() < 0.7:
            first = coming[0]
            self.register(first.worker, first.total, first.default_profile)
        elif len(self.manager.workers) < 12:
            total = ResourceProfile.of(
                self.drawn.randint(2, 12), self.drawn.randint(2, 12), {"gpu": self.drawn.choice((0, 0, 2))}
            )
            self.register(WorkerId(self.manager._ids.new_id("own")), total, self.drawn.choice(SIZES[:4]))

    def register(self, worker: WorkerId, total: ResourceProfile, default: ResourceProfile) -> None:
        self.manager.register(worker, "host", 1, total, default, SlotReport(0, (), total), self.now)

    def leave(self) -> None:
        worker = self.worker()
        if worker is not None and self.drawn.random() < 0.5:
            self.manager.remove_worker(worker)

    def block(self) -> None:
        worker = self.worker()
        if worker is not None:
            entry = self.manager.workers[worker]
            if self.drawn.random() < 0.5:
                self.manager.fleet.mark(entry, blocked=not entry.blocked)
            else:
                self.manager.fleet.mark(entry, leaving=not entry.leaving)

    def report(self, worker: WorkerId, slots: Iterable[SlotStatus]) -> None:
        entry = self.manager.workers[worker]
        self.manager.report(worker, SlotReport(entry.report_seq + 1, tuple(slots), ZERO), self.now)

    def statuses(self, worker: WorkerId) -> list[SlotStatus]:
        entry = self.manager.workers[worker]
        return [SlotStatus(allocation, slot.job, slot.profile) for allocation, slot in entry.slots.items()]

    def confirm(self) -> None:
        worker = self.worker()
        if worker is not None:
            self.report(worker, self.statuses(worker))

    def free(self) -> None:
        worker = self.worker()
        if worker is not None:
            self.report(worker, [status for status in self.statuses(worker) if self.drawn.random() < 0.6])

    def adopt(self) -> None:
        worker = self.worker()
        if worker is not None and fits(SIZES[0], self.manager.workers[worker].free):
            found = SlotStatus(AllocationId(self.manager._ids.new_id("old")), self.job(), SIZES[0])
            self.report(worker, [*self.statuses(worker), found])

    def refuse(self) -> None:
        worker = self.worker()
        if worker is not None:
            self.manager.refuse(worker, tuple(self.manager.workers[worker].slots), self.now)


LIMITS: dict[str, dict[str, Any]] = {
    "no minimum": {},
    "minimum": {"min_total": ResourceProfile(40, 30), "idle_timeout_s": 5.0},
    "redundancy": {"redundant_workers": 2, "idle_timeout_s": 3.0},
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("mode", PlacementMode)
@pytest.mark.parametrize("seed", range(3))
def test_sm_14_sm_15_sz_07_increments_equal_a_rebuild_from_scratch(seed: int, mode: PlacementMode, limits: str) -> None:
    shape = WorkerShape(ResourceProfile(8, 8), SIZES[1])
    sizing = Sizing(shape, max_workers=14, max_total=ResourceProfile(150, 150), **LIMITS[limits])
    steps = Steps(random.Random(seed), SlotManager(Counter(), sizing, mode))
    for _ in range(700):
        steps.step()
    assert steps.checks > 200


def test_ml_03_two_workers_that_report_the_same_allocation_do_not_upset_the_sums() -> None:
    total = ResourceProfile(8, 8)
    manager = SlotManager(Counter(), Sizing())
    first, second = WorkerId("first"), WorkerId("second")
    manager.register(first, "host", 1, total, SIZES[0], SlotReport(1, (), total), 0.0)
    manager.ledger.declare(JobId("job"), 1, {SIZES[0]: 1})
    (given,) = manager.check(1.0).given
    copied = SlotStatus(given.allocation, JobId("job"), SIZES[0])
    report = SlotReport(1, (copied,), total - SIZES[0])
    manager.register(second, "host", 2, total, SIZES[0], report, 2.0)
    manager.check_invariants()
    manager.remove_worker(second)
    manager.check_invariants()
    assert list(manager.late(2.0, 3.0)) == [first]
