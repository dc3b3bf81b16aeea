"""Minimum, redundancy, maximum, blocked workers and placement on the real machines (B: SZ-02 … SZ-10, SM-15, SM-16)."""

from __future__ import annotations

from typing import Any

import msgspec

from slotwise.model.ids import RESOURCE_MANAGER, WorkerId
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.messages import BlockWorker, RegistrationRefused, ShortageReason
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.simulation.world import VERSION, World
from tests.unit.test_declarations import SIZE, Job
from tests.unit.worlds import WORKER

SHAPE = WorkerShape(WORKER, SIZE)


def world_with(config: dict[str, Any] | None = None, **sizing: Any) -> World:
    """A provisioned world; a worker has four default slots."""
    given = Sizing(SHAPE, **{"max_workers": 10, **sizing})
    return World(rm_config=ResourceManagerConfig(sizing=given, version=VERSION, **(config or {})))


def block(world: World, worker: WorkerId, blocked: bool = True) -> None:
    """As a client would."""
    world.ask(BlockWorker(worker, blocked), to=RESOURCE_MANAGER)


def test_sz_05_the_minimum_is_reached_without_any_job_and_kept() -> None:
    world = world_with(min_total=ResourceProfile(9000, 0))
    world.run(10)
    assert len(world.workers()) == 3
    world.run(300)
    assert len(world.workers()) == 3
    assert len(world.started_workers) == 3


def test_sz_05_the_minimum_is_best_effort_and_does_not_hold_up_a_job() -> None:
    world = world_with(min_total=WORKER * 3)
    world.worker_starts_fail = lambda wish: None if wish.worker == "worker-2" else "no machine"
    job = Job(world, "a")
    job.declare(2)
    world.run(5)
    assert job.held() == {SIZE: 2}
    world.worker_starts_fail = lambda _: None
    world.run_until(lambda: len(world.workers()) == 3, 60)


def test_sz_07_idle_workers_above_the_minimum_go_and_those_of_the_minimum_stay() -> None:
    world = world_with(min_total=WORKER)
    job = Job(world, "a")
    job.declare(9)
    world.run(5)
    assert len(world.workers()) == 3
    for worker in world.workers():
        world.te(worker).table.slots.clear()
        world.te(worker).table.available = WORKER
    job.declare(0)
    world.run(5)
    assert len(world.workers()) == 3
    world.run(60)
    assert len(world.workers()) == 1
    world.run(300)
    assert len(world.workers()) == 1


def test_sz_08_a_lost_worker_that_the_minimum_needs_is_replaced_at_once() -> None:
    world = world_with(min_total=WORKER * 2)
    world.run(10)
    world.kill_worker(world.workers()[0])
    lost = world.now
    world.run_until(lambda: len(world.started_workers) == 3, 10)
    assert world.now - lost <= 1.0
    world.run(10)
    assert len(world.workers()) == 2


def test_sz_09_the_redundancy_is_kept_free_in_whole_default_slots() -> None:
    world = world_with(redundant_workers=1)
    world.run(10)
    assert len(world.workers()) == 1
    job = Job(world, "a")
    job.declare(1)
    world.run(4)
    # Three of four slots are left on the first worker: not a whole worker's worth.
    assert len(world.workers()) == 2
    job.declare(5)
    world.run(4)
    assert world.rm.slots.free_default_slots() >= 4
    assert len(world.workers()) == 3


def test_sz_09_fragments_do_not_count() -> None:
    world = world_with(redundant_workers=1)
    world.run(10)
    job = Job(world, "a")
    job.declare(3, ResourceProfile(1000, 2 * GIB + 1))
    world.run(10)
    assert world.rm.slots.free_default_slots() >= 4


def test_sz_04_minimum_and_redundancy_stay_below_the_maximum() -> None:
    world = world_with(max_workers=2, redundant_workers=1, min_total=WORKER)
    jobs = [Job(world, str(i)) for i in range(3)]
    for job in jobs:
        job.declare(20)
    for _ in range(50):
        world.run(1)
        assert len(world.rm.slots.workers) + len(world.rm.slots.pending) <= 2
    assert len(world.workers()) == 2


def test_sz_04_a_worker_that_registers_above_the_maximum_is_refused() -> None:
    world = world_with(max_workers=1, min_total=WORKER)
    world.run(10)
    uninvited = world.add_worker(WORKER)
    world.run(5)
    refused = [m.payload for m in world.delivered if m.to == f"te:{uninvited}"]
    assert refused == [RegistrationRefused("the cluster is at its maximum")]
    assert uninvited not in world.workers()


def test_sz_02_an_uninvited_worker_of_the_same_size_takes_a_pending_ones_place() -> None:
    world = world_with(max_workers=1)
    world.worker_start_s = 30
    job = Job(world, "a")
    job.declare(2)
    assert len(world.rm.slots.pending) == 1
    world.add_worker(WORKER)
    world.run(2)
    assert world.rm.slots.pending == {}
    assert job.held() == {SIZE: 2}
    assert len(world.named("worker-cancelled")) == 1


def test_sz_02_a_worker_of_another_size_does_not_use_up_a_pending_one() -> None:
    world = world_with()
    world.worker_start_s = 30
    job = Job(world, "a")
    job.declare(4)
    world.add_worker(ResourceProfile(1000, 2 * GIB))
    world.run(2)
    assert job.held() == {SIZE: 1}
    assert len(world.rm.slots.pending) == 1
    world.run(35)
    assert job.held() == {SIZE: 4}


def test_sz_10_surplus_pending_workers_are_cancelled_and_the_fewest_kept() -> None:
    world = world_with()
    world.worker_start_s = 30
    job = Job(world, "a")
    job.declare(12)
    assert len(world.rm.slots.pending) == 3
    job.declare(5)
    assert len(world.rm.slots.pending) == 2
    job.declare(0)
    assert world.rm.slots.pending == {}


def test_sm_15_a_blocked_worker_gets_no_new_slot_and_is_no_capacity() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    world.run(1)
    first = Job(world, "a")
    first.declare(1)
    block(world, worker)
    second = Job(world, "b")
    second.declare(1)
    assert second.held() == {}
    assert first.held() == {SIZE: 1}
    assert [s.reason for s in world.rm.shortages(second.job)] == [ShortageReason.BLOCKED]
    block(world, worker, blocked=False)
    world.run(1)
    assert second.held() == {SIZE: 1}


def test_sm_15_blocking_leads_to_a_replacement_for_the_minimum_and_to_no_flapping() -> None:
    world = world_with(min_total=WORKER)
    world.run(10)
    block(world, world.workers()[0])
    world.run(10)
    assert len(world.started_workers) == 2
    world.run(300)
    assert len(world.started_workers) == 2


def test_blocking_an_unknown_worker_says_so() -> None:
    answer = World().ask(BlockWorker(WorkerId("nobody"), True), to=RESOURCE_MANAGER)
    assert msgspec.structs.asdict(answer) == {"worker": "nobody", "blocked": True, "known": False}


def test_sm_16_pack_fills_one_worker_first_and_spread_uses_both() -> None:
    used = {}
    for mode in ("pack", "spread"):
        world = World(rm_config=ResourceManagerConfig(version=VERSION, placement=mode))
        for _ in range(2):
            world.add_worker(WORKER)
        world.run(1)
        job = Job(world, "a")
        job.declare(2)
        job.declare(4)
        used[mode] = sorted(len(worker.slots) for worker in world.rm.slots.workers.values())
    assert used == {"pack": [0, 4], "spread": [2, 2]}
