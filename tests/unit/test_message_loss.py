"""FLIP-6's table of lost messages, one by one, in virtual time (B: ML-01 … ML-07, F-05, F-09)."""

from __future__ import annotations

import functools

import pytest

from slotwise.model.ids import WorkerId
from slotwise.model.job import JobState
from slotwise.protocol.messages import (
    AcceptSlots,
    AllocateSlots,
    DeclareRequirements,
    Deploy,
    Envelope,
    FreeSlots,
    JobDone,
    JobMasterRegistered,
    JobSlotsReport,
    OfferSlots,
    RegisterJobMaster,
    RegisterWorker,
    ResourceManagerHeartbeat,
    WorkerRegistered,
    WorkerReport,
)
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from slotwise.simulation.world import World
from tests.unit.test_job_master import until_running, worker_of_driver
from tests.unit.worlds import WORKER, provisioned, spec

BEHAVIOURS["/steady.py"] = Behaviour(seconds=120)


class Losses:
    """Loses the first ``count`` messages of a kind, and counts them."""

    def __init__(self, kind: type, count: int) -> None:
        self.left = count
        self._kind = kind

    def __call__(self, envelope: Envelope) -> bool:
        if self.left and isinstance(envelope.payload, self._kind):
            self.left -= 1
            return True
        return False


EVERY_KIND = [
    RegisterJobMaster,
    JobMasterRegistered,
    DeclareRequirements,
    ResourceManagerHeartbeat,
    RegisterWorker,
    WorkerRegistered,
    WorkerReport,
    AllocateSlots,
    OfferSlots,
    AcceptSlots,
    JobSlotsReport,
    Deploy,
    FreeSlots,
    JobDone,
]


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("count", [1, 3])
def test_ml_01_ml_02_ml_03_ml_04_ml_05_any_message_may_be_lost_and_the_job_ends_well(kind: type, count: int) -> None:
    world = provisioned()
    world.lose = losses = Losses(kind, count)
    job = world.submit(spec())
    world.run_until(lambda: world.dispatcher.jobs[job].released, 1000)
    assert world.state(job) is JobState.FINISHED
    # A farewell that was lost is made good by the job's silence.
    world.run(10 * world.rm_config.heartbeat_timeout_s + 300)
    assert losses.left < count, "the case did not happen"
    assert world.workers() == []
    assert world.rm.jobs == {}


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.__name__)
def test_ml_05_any_message_may_come_twice_and_late(kind: type) -> None:
    world = provisioned()
    late: list[Envelope] = []

    def keep(envelope: Envelope) -> bool:
        if isinstance(envelope.payload, kind) and len(late) < 20:
            late.append(envelope)
            world.after(7, functools.partial(world.arrive, envelope))
        return False

    world.lose = keep
    job = world.submit(spec())
    world.run_until(lambda: world.dispatcher.jobs[job].released, 1000)
    assert world.state(job) is JobState.FINISHED
    world.run(10 * world.rm_config.heartbeat_timeout_s + 300)
    assert late, "the case did not happen"
    assert world.workers() == []
    deployed = {m.payload.process for m in world.delivered if isinstance(m.payload, Deploy)}
    assert "driver-2" not in deployed


def test_ml_01_a_repeated_declaration_asks_for_no_second_worker() -> None:
    world = provisioned(max_workers=5)
    world.lose = Losses(ResourceManagerHeartbeat, 50)
    world.double = lambda envelope: isinstance(envelope.payload, DeclareRequirements)
    job = world.submit(spec(program="/steady.py"))
    until_running(world, job)
    world.run(60)
    assert len(world.started_workers) == 1


def test_ml_02_a_registration_that_comes_twice_makes_one_worker() -> None:
    world = World()
    world.double = lambda envelope: isinstance(envelope.payload, RegisterWorker)
    worker = world.add_worker(WORKER)
    world.run(5)
    assert list(world.rm.slots.workers) == [worker]


def test_ml_03_an_allocation_that_is_lost_is_asked_for_again_under_its_own_id() -> None:
    world = World()
    world.add_worker(WORKER)
    losses = Losses(AllocateSlots, 1)
    lost: list[Envelope] = []

    def lose(envelope: Envelope) -> bool:
        if losses(envelope):
            lost.append(envelope)
            return True
        return False

    world.lose = lose
    job = world.submit(spec(program="/steady.py"))
    until_running(world, job)
    assert isinstance(lost[0].payload, AllocateSlots)
    asked = {slot.allocation for slot in lost[0].payload.slots}
    assert asked <= set(world.jm(job).pool.slots)


def test_ml_06_a_slot_released_before_the_retry_costs_one_worker_at_most_and_that_one_leaves() -> None:
    world = provisioned(max_workers=5)
    job = world.submit(spec())
    until_running(world, job)
    # The workers' word that the first job's slots are free is lost, when another wants as many.
    world.run_until(lambda: world.state(job) is JobState.FINISHED, 200)
    until = world.now + 8
    world.lose = lambda envelope: isinstance(envelope.payload, WorkerReport) and world.now < until
    again = world.submit(spec())
    world.run_until(lambda: world.dispatcher.jobs[again].released, 500)
    assert world.state(again) is JobState.FINISHED
    assert len(world.started_workers) <= 2
    world.run(200)
    assert world.workers() == []


def test_f_05_after_a_loss_the_job_goes_on_with_less_and_grows_again() -> None:
    world = World()
    world.add_worker(WORKER)
    world.add_worker(WORKER)
    job = world.submit(spec(program="/steady.py", initial_executors=4))
    until_running(world, job, 4)
    loser: WorkerId = next(worker for worker in world.workers() if worker != worker_of_driver(world, job))
    world.kill_worker(loser)
    world.run(20)
    assert world.state(job) is JobState.RUNNING
    left = sum(executor.registered for executor in world.jm(job).executors.live.values())
    assert 0 < left < 4
    world.add_worker(WORKER)
    until_running(world, job, 4)
    assert world.jm(job).driver_starts == 1


def test_f_09_machines_see_monotonic_time_only_so_each_may_count_from_where_it_likes() -> None:
    """Machines import no clock (held by an import rule); a world that begins at another time behaves the same."""
    assert _story(0.0) == _story(1e9)


def _story(start_s: float) -> list[tuple[float, str, str | None]]:
    world = provisioned()
    world.now = start_s
    world.machines.clear()
    world.start_resource_manager()
    world.start_dispatcher()
    job = world.submit(spec())
    world.run_until(lambda: world.dispatcher.jobs[job].released, 1000)
    return [(round(at - start_s, 3), event.name, event.job) for at, event in world.events]
