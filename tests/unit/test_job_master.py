"""The JobMaster and the Dispatcher, with real TaskExecutors and a real ResourceManager in virtual time."""

from __future__ import annotations

import pytest

from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.slot_pool import SlotPool
from slotwise.jobmaster.states import MOVES, may_move
from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.job import ExecutorSize, JobState
from slotwise.model.process import DriverProcess, ExecutorProcess, ExecutorTotal
from slotwise.model.resources import GIB, MIB, ResourceProfile
from slotwise.protocol.messages import (
    CancelAccepted,
    Deploy,
    JobAccepted,
    JobRefused,
    JobStatus,
    OfferSlots,
    SlotOffer,
    SubmitJob,
)
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from slotwise.simulation.world import VERSION, World
from tests.unit.worlds import DRIVER, EXECUTOR, WORKER, provisioned, spec

BEHAVIOURS["/exits-3.py"] = Behaviour(seconds=5, exit_code=3)
BEHAVIOURS["/long.py"] = Behaviour(seconds=300)


def worker_of_driver(world: World, job: JobId) -> WorkerId:
    for worker in world.workers():
        for running in world.spark[worker].running.values():
            if isinstance(running.spec, DriverProcess):
                return worker
    raise AssertionError(f"{job} has no driver")


def driver_slot(world: World) -> tuple[WorkerId, AllocationId]:
    return next(
        (worker, allocation)
        for worker in world.workers()
        for allocation, running in world.spark[worker].running.items()
        if isinstance(running.spec, DriverProcess)
    )


def executors(world: World) -> dict[str, tuple[WorkerId, AllocationId]]:
    return {
        running.spec.executor_id: (worker, allocation)
        for worker in world.workers()
        for allocation, running in world.spark[worker].running.items()
        if isinstance(running.spec, ExecutorProcess)
    }


def until_running(world: World, job: JobId, count: int = 2) -> None:
    world.run_until(lambda: sum(e.registered for e in world.jm(job).executors.live.values()) == count, 200)


def test_a_job_runs_from_submission_to_its_end_and_leaves_nothing() -> None:
    world = provisioned()
    job = world.submit(spec())
    world.run_until(lambda: world.dispatcher.jobs[job].released)
    assert world.state(job) is JobState.FINISHED
    world.run(60)
    assert world.workers() == []
    assert world.rm.slots.ledger.in_order() == []


def test_executors_get_the_jobs_secret_and_a_ticket_of_their_own() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec())
    until_running(world, job)
    deployed = {m.payload.process: m.payload.spec for m in world.delivered if isinstance(m.payload, Deploy)}
    driver = deployed["driver-1"]
    assert isinstance(driver, DriverProcess)
    found = [s for s in deployed.values() if isinstance(s, ExecutorProcess)]
    assert {executor.secret for executor in found} == {driver.secret}
    assert len({executor.ticket for executor in found} | {driver.secret}) == 3


def test_no_driver_starts_before_the_minimum_of_executors_is_held() -> None:
    world = World(jm_config=JobMasterConfig(resource_wait_timeout_s=60))
    world.add_worker(DRIVER.profile)
    job = world.submit(spec(min_executors=2))
    world.run(10)
    world.add_worker(EXECUTOR.profile)
    world.run(10)
    assert world.state(job) is JobState.WAITING_FOR_RESOURCES
    world.add_worker(EXECUTOR.profile)
    world.run_until(lambda: world.state(job) is JobState.RUNNING, 10)


def test_the_driver_comes_first_when_there_is_not_enough_for_all() -> None:
    world = World()
    world.add_worker(ResourceProfile(8000, 3 * EXECUTOR.profile.memory_bytes))
    job = world.submit(spec(initial_executors=3))
    until_running(world, job, 2)


def test_a_01_with_the_minimum_only_it_waits_for_stabilisation_then_starts() -> None:
    world = World(jm_config=JobMasterConfig(stabilisation_s=5))
    world.add_worker(DRIVER.profile + EXECUTOR.profile)
    job = world.submit(spec())
    world.run(4)
    assert world.state(job) is JobState.WAITING_FOR_RESOURCES
    world.run(3)
    assert world.state(job) is JobState.RUNNING


def test_a_01_below_the_minimum_at_the_timeout_it_fails_with_the_reason_and_nothing_was_started() -> None:
    world = World(jm_config=JobMasterConfig(resource_wait_timeout_s=30))
    world.add_worker(DRIVER.profile)
    job = world.submit(spec())
    world.run(35)
    record = world.dispatcher.jobs[job]
    assert record.state is JobState.FAILED
    assert record.result is not None
    assert "larger than any worker" in record.result.reason
    assert str(EXECUTOR.profile) in record.result.reason
    assert not [m for m in world.delivered if isinstance(m.payload, Deploy)]
    world.run(20)
    assert world.te(world.workers()[0]).table.slots == {}


def test_a_01_it_waits_for_ever_when_told_so() -> None:
    world = World(jm_config=JobMasterConfig(resource_wait_timeout_s=-1))
    job = world.submit(spec())
    world.run(5000)
    assert world.state(job) is JobState.WAITING_FOR_RESOURCES


def test_f_05_a_job_that_started_small_grows_when_a_worker_comes() -> None:
    world = World()
    world.add_worker(DRIVER.profile + EXECUTOR.profile)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job, 1)
    world.add_worker(EXECUTOR.profile)
    until_running(world, job, 2)


def test_the_programs_exit_code_is_the_jobs() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec(program="/exits-3.py"))
    world.run_until(lambda: world.state(job).is_final)
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert (result.state, result.exit_code) == (JobState.FAILED, 3)


def test_an_executor_that_dies_is_told_to_the_driver_and_replaced_under_a_new_id() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec())
    until_running(world, job)
    worker, allocation = executors(world)["1"]
    world.spark[worker].end(allocation, -9)
    world.run_until(
        lambda: {e.executor_id for e in world.jm(job).executors.live.values() if e.registered} == {"2", "3"}, 20
    )
    world.run_until(lambda: world.state(job) is JobState.FINISHED)


def test_executors_that_never_join_fail_the_job_with_their_words() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job = world.submit(spec())

    def end_all() -> None:
        for _, allocation in executors(world).values():
            world.spark[worker].end(allocation, 1)
        if not world.state(job).is_final:
            world.after(0.2, end_all)

    world.run_until(lambda: len(executors(world)) == 2)
    end_all()
    world.run_until(lambda: world.state(job).is_final, 60)
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert result.state is JobState.FAILED
    assert "before they joined" in result.reason


def test_f_01_a_workers_death_is_seen_at_once_and_its_executor_replaced() -> None:
    world = World()
    world.add_worker(DRIVER.profile + EXECUTOR.profile)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job, 1)
    world.add_worker(EXECUTOR.profile)
    until_running(world, job)
    victim = next(w for w in world.workers() if w != worker_of_driver(world, job))
    died = world.now
    world.kill_worker(victim)
    world.run_until(lambda: len(world.jm(job).executors.live) == 1, 10)
    assert world.now - died <= 1.0
    world.add_worker(EXECUTOR.profile)
    until_running(world, job, 2)
    assert world.jm(job).driver_starts == 1


def test_f_01_the_drivers_worker_dies_and_the_job_starts_again_elsewhere() -> None:
    world = provisioned()
    job = world.submit(spec())
    until_running(world, job)
    world.kill_worker(worker_of_driver(world, job))
    world.run_until(lambda: world.state(job) is JobState.FINISHED)
    assert world.jm(job).driver_starts == 2
    secrets = {
        m.payload.spec.secret
        for m in world.delivered
        if isinstance(m.payload, Deploy) and isinstance(m.payload.spec, DriverProcess)
    }
    assert len(secrets) == 2


def test_a_job_whose_workers_keep_dying_fails_in_the_end() -> None:
    world = provisioned()
    job = world.submit(spec())
    for _ in range(4):
        world.run_until(lambda: world.state(job) is JobState.RUNNING, 200)
        world.kill_worker(worker_of_driver(world, job))
        world.run_until(lambda: world.state(job) is not JobState.RUNNING, 200)
    assert world.state(job) is JobState.FAILED


def test_sp_04_the_job_goes_on_while_the_resource_manager_is_away() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec())
    until_running(world, job)
    world.stop_resource_manager()
    worker, allocation = executors(world)["2"]
    world.spark[worker].end(allocation, -9)
    world.run_until(lambda: "3" in world.jm(job).executors.live, 20)
    until_running(world, job)
    world.run_until(lambda: world.state(job) is JobState.FINISHED)


def test_sp_05_on_a_new_resource_manager_all_requirements_are_declared_again() -> None:
    world = World()
    world.add_worker(DRIVER.profile + EXECUTOR.profile)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job, 1)
    world.stop_resource_manager()
    world.start_resource_manager()
    world.run_until(lambda: world.rm.slots.ledger.get(job) is not None, 120)
    world.run_until(lambda: bool(world.rm.slots.workers), 120)
    world.add_worker(EXECUTOR.profile)
    until_running(world, job, 2)


def test_d_05_d_13_totals_that_fall_are_declared_and_slots_returned_after_the_idle_timeout() -> None:
    world = World(jm_config=JobMasterConfig(idle_slot_timeout_s=20))
    worker = world.add_worker(WORKER)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job)
    home, slot = driver_slot(world)
    total = ExecutorTotal(0, EXECUTOR, 1)
    world.spark[home].change(slot, totals=(total,), kills=("1",))
    world.run_until(lambda: set(executors(world)) == {"2"}, 10)
    fell = world.now
    assert len(world.te(worker).table.slots) == 3
    world.run_until(lambda: len(world.te(worker).table.slots) == 2, 60)
    assert 19 <= world.now - fell <= 25
    assert world.jm(job).pool.required == {DRIVER.profile: 1, EXECUTOR.profile: 1}


def test_an_executor_that_spark_has_decommissioned_is_not_replaced_nor_a_failure() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job)
    home, slot = driver_slot(world)
    world.spark[home].change(slot, totals=(ExecutorTotal(0, EXECUTOR, 1),))
    worker, allocation = executors(world)["1"]
    world.spark[worker].end(allocation, 0)
    world.run(30)
    assert set(executors(world)) == {"2"}
    assert [event.fields["asked"] for event in world.named("executor-ended")] == [1]


def test_d_13_a_kept_slot_is_used_again_without_a_trip_to_the_resource_manager() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job)
    home, slot = driver_slot(world)
    world.spark[home].change(slot, totals=(ExecutorTotal(0, EXECUTOR, 1),), kills=("1",))
    world.run_until(lambda: set(executors(world)) == {"2"}, 10)
    given = len(world.named("allocated"))
    world.spark[home].change(slot, totals=(ExecutorTotal(0, EXECUTOR, 2),))
    until_running(world, job, 2)
    assert len(world.named("allocated")) == given


def test_executors_of_another_profile_come_in_slots_of_that_size() -> None:
    world = World()
    worker = world.add_worker(ResourceProfile(8000, 16 * GIB))
    job = world.submit(spec(program="/long.py"))
    until_running(world, job)
    home, slot = driver_slot(world)
    wide = ExecutorSize(2, 3 * GIB, 512 * MIB)
    world.spark[home].change(slot, totals=(ExecutorTotal(0, EXECUTOR, 2), ExecutorTotal(1, wide, 1)))
    until_running(world, job, 3)
    sizes = sorted(str(s.profile) for s in world.te(worker).table.slots.values())
    assert sizes == sorted(str(p) for p in [DRIVER.profile, EXECUTOR.profile, EXECUTOR.profile, wide.profile])


def test_max_executors_bounds_what_dynamic_allocation_asks_for() -> None:
    world = World()
    world.add_worker(ResourceProfile(64000, 128 * GIB))
    job = world.submit(spec(program="/long.py", max_executors=3))
    until_running(world, job)
    home, slot = driver_slot(world)
    world.spark[home].change(slot, totals=(ExecutorTotal(0, EXECUTOR, 40),))
    world.run(30)
    assert len(executors(world)) == 3
    assert world.jm(job).pool.required[EXECUTOR.profile] == 3


@pytest.mark.parametrize("after_s", [0.0, 0.05, 1.0, 2.1, 2.3, 3.0, 4.0, 10.0])
def test_cancel_at_any_moment_ends_the_job_and_frees_everything(after_s: float) -> None:
    world = provisioned()
    job = world.submit(spec())
    world.run(after_s)
    answer = world.cancel(job)
    assert isinstance(answer, CancelAccepted)
    world.run_until(lambda: world.dispatcher.jobs[job].released, 60)
    assert world.state(job) is JobState.CANCELED
    world.run(40)
    assert world.workers() == []


def test_cancelling_an_ended_job_tells_its_state_and_changes_nothing() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.FINISHED)
    assert world.cancel(job) == CancelAccepted(job, JobState.FINISHED)
    world.run(5)
    assert world.state(job) is JobState.FINISHED


def test_cancelling_an_unknown_job_is_refused() -> None:
    assert isinstance(World().cancel(JobId("nobody")), JobRefused)


def test_f_06_the_same_submission_twice_is_one_job() -> None:
    world = World()
    first = world.ask(SubmitJob("key", spec()))
    again = world.ask(SubmitJob("key", spec()))
    assert isinstance(first, JobAccepted)
    assert first == again
    assert len(world.persisted) == 1


def test_a_key_used_for_another_job_is_refused() -> None:
    world = World()
    world.ask(SubmitJob("key", spec()))
    assert isinstance(world.ask(SubmitJob("key", spec(name="another"))), JobRefused)
    assert len(world.dispatcher.jobs) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"program": "relative.py"},
        {"executor": ExecutorSize(0, GIB, 0)},
        {"executor": ExecutorSize(1, -1, 0)},
        {"executor": ExecutorSize(1, GIB, 0, extended=(("gpu", -1),))},
        {"min_executors": -1},
        {"min_executors": 3, "initial_executors": 2},
        {"max_executors": 1, "initial_executors": 2},
    ],
)
def test_a_specification_that_cannot_be_is_refused_and_changes_nothing(changes: dict[str, object]) -> None:
    world = World()
    assert isinstance(world.ask(SubmitJob("key", spec(**changes))), JobRefused)
    assert world.dispatcher.jobs == {}
    assert world.persisted == []


def test_sp_01_offers_beyond_the_requirement_are_rejected_and_doubles_accepted_again() -> None:
    pool = SlotPool()
    pool.required = {EXECUTOR.profile: 1}
    offers = tuple(SlotOffer(AllocationId(name), EXECUTOR.profile) for name in "ab")
    assert pool.offer(WorkerId("w"), "h", offers, 0.0) == ((AllocationId("a"),), (AllocationId("b"),))
    assert pool.offer(WorkerId("w"), "h", offers[:1], 0.0) == ((AllocationId("a"),), ())
    assert len(pool.slots) == 1


def test_sp_01_an_offer_of_another_size_is_rejected() -> None:
    pool = SlotPool()
    pool.required = {EXECUTOR.profile: 1}
    offer = SlotOffer(AllocationId("a"), EXECUTOR.profile * 2)
    assert pool.offer(WorkerId("w"), "h", (offer,), 0.0)[1] == (AllocationId("a"),)


def test_final_states_cannot_be_left_and_every_other_can() -> None:
    for state, moves in MOVES.items():
        assert (not moves) == state.is_final
    assert not may_move(JobState.FINISHED, JobState.RUNNING)


def _tries(world: World, jobs: list[JobId]) -> bool:
    return all(world.dispatcher.jobs[job].released for job in jobs)


@pytest.mark.parametrize("seed", range(12))
def test_ml_messages_lost_doubled_and_late_still_lead_to_the_right_end(seed: int) -> None:
    """B: ML-01 … ML-07, F-08. Faults for two minutes, then none; every job ends and nothing is left."""
    world = provisioned(max_workers=3)
    client_side = (SubmitJob, JobStatus)
    world.lose = lambda m: (
        world.now < 1120
        and not m.to.startswith("client:")
        and not isinstance(m.payload, client_side)
        and world.rng.random() < 0.15
    )
    world.double = lambda _: world.rng.random() < 0.1
    jobs = [world.submit(spec(initial_executors=1 + i % 3)) for i in range(3)]
    for wait in (15, 35, 60):
        world.run(wait)
        if world.workers():
            world.kill_worker(world.rng.choice(world.workers()), noticed=world.rng.random() < 0.5)
    world.run_until(lambda: _tries(world, jobs), 1500)
    assert {world.state(job) for job in jobs} <= {JobState.FINISHED, JobState.FAILED}
    world.run(200)
    assert world.workers() == []
    assert world.rm.slots.workers == {}
    assert world.rm.slots.pending == {}


def test_ml_05_a_lost_offer_is_made_good() -> None:
    world = World()
    world.add_worker(WORKER)
    lost: list[object] = []

    def first_offer(message: object) -> bool:
        if isinstance(getattr(message, "payload", None), OfferSlots) and not lost:
            lost.append(message)
            return True
        return False

    world.lose = first_offer
    job = world.submit(spec())
    until_running(world, job)
    assert lost
    assert len(world.named("acquired")) == 3


def test_nothing_is_said_without_end_when_nothing_happens() -> None:
    world = World(rm_config=ResourceManagerConfig(version=VERSION))
    world.add_worker(WORKER)
    job = world.submit(spec(program="/long.py"))
    until_running(world, job)
    world.run(5)
    before = len(world.delivered)
    world.run(100)
    # Heartbeats alone: a few each ten seconds.
    assert len(world.delivered) - before <= 10 * 12
