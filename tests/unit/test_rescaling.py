"""Jobs that change their size while they run (B: A-02, A-03, A-04): no driver is restarted, no more goes than must."""

from __future__ import annotations

import itertools

import pytest

from slotwise.cli.single_job import reactive
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.rescaling import RescaleCause, Rescaling
from slotwise.model.errors import UsageError
from slotwise.model.ids import JobId, WorkerId, worker_address
from slotwise.model.job import ExecutorBounds, JobState
from slotwise.model.process import ExecutorTotal
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.model.timers import Timers
from slotwise.protocol.effects import StopRequested
from slotwise.protocol.messages import JobRefused, ScaleAccepted
from slotwise.simulation.spark_model import SparkModel
from slotwise.simulation.world import World
from tests.unit.test_job_master import driver_slot, executors, until_running
from tests.unit.worlds import DRIVER, EXECUTOR, WORKER, spec

LARGE = ResourceProfile(64_000, 128 * GIB)
LONG = "/long.py"


def running(
    initial: int = 2, cool_down_s: float = 30.0, total: ResourceProfile = LARGE, **changes: object
) -> tuple[World, JobId]:
    """A world with a job that runs with ``initial`` executors."""
    world = World(jm_config=JobMasterConfig(cool_down_s=cool_down_s, idle_slot_timeout_s=5.0))
    world.add_worker(total)
    job = world.submit(spec(program=LONG, initial_executors=initial, **changes))
    until_running(world, job, initial)
    return world, job


def history(world: World, job: JobId) -> list[tuple[object, object, object]]:
    """(cause, from, to) of each rescale so far."""
    begun = [event for event in world.named("rescaling") if event.job == job]
    return [(event.fields["cause"], event.fields["from"], event.fields["to"]) for event in begun]


def test_a_02_raising_the_upper_bound_grows_a_running_job_at_once() -> None:
    world, job = running()
    assert world.scale(job, 1, 5) == ScaleAccepted(job, ExecutorBounds(1, 5))
    asked = world.now
    world.run_until(lambda: len(executors(world)) == 5, 10)
    assert world.now - asked < 1.0
    until_running(world, job, 5)
    assert world.jm(job).driver_starts == 1
    assert history(world, job) == [("INITIAL_SCHEDULE", 0, 2), ("UPDATE_REQUIREMENT", 2, 5)]
    assert [event.fields["state"] for event in world.named("rescaled")] == ["COMPLETED", "COMPLETED"]


def test_a_02_lowering_the_upper_bound_takes_the_youngest_executors_away_gracefully() -> None:
    world, job = running(4)
    world.run(1)
    world.scale(job, 1, 2)
    world.run_until(lambda: len(world.named("executor-ended")) == 2, 60)
    ended = world.named("executor-ended")
    assert [(event.fields["executor"], event.fields["exit_code"]) for event in ended] == [("3", 0), ("4", 0)]
    world.run(60)
    assert set(executors(world)) == {"1", "2"}
    assert world.state(job) is JobState.RUNNING
    assert world.jm(job).driver_starts == 1


def test_a_04_a_down_scale_gives_back_exactly_the_surplus_slots() -> None:
    world, job = running(4)
    before = {slot.allocation for slot in world.te(world.workers()[0]).table.slots.values()}
    leaving = {executors(world)[number][1] for number in ("3", "4")}
    world.scale(job, 1, 2)
    world.run(60)
    left = {slot.allocation for slot in world.te(world.workers()[0]).table.slots.values()}
    assert before - left == leaving
    assert world.jm(job).pool.required == {DRIVER.profile: 1, EXECUTOR.profile: 2}


def test_a_02_a_lower_bound_above_what_there_is_keeps_the_job_running_and_is_reached_later() -> None:
    world, job = running(2, total=ResourceProfile(3000, 9 * GIB))
    world.scale(job, 5, 6)
    world.run(200)
    assert world.state(job) is JobState.RUNNING
    assert len(executors(world)) == 2
    world.add_worker(WORKER)
    until_running(world, job, 5)
    assert world.jm(job).driver_starts == 1


def test_a_03_after_a_rescale_the_cool_down_holds_and_the_last_change_is_taken_at_its_end() -> None:
    world, job = running(2)
    world.scale(job, 1, 6)
    world.run_until(lambda: len(executors(world)) == 6, 10)
    grown = world.now
    until_running(world, job, 6)
    world.scale(job, 1, 3)
    world.run(5)
    world.scale(job, 1, 4)
    world.run(30 - (world.now - grown) - 1)
    assert len(executors(world)) == 6
    world.run_until(lambda: len(executors(world)) == 4, 10)
    assert world.now - grown >= 30
    assert history(world, job)[-1] == ("UPDATE_REQUIREMENT", 6, 4)


def test_a_03_a_change_that_is_taken_back_during_the_cool_down_leaves_nothing_behind() -> None:
    world, job = running(2)
    world.scale(job, 1, 6)
    until_running(world, job, 6)
    world.scale(job, 1, 3)
    world.run(1)
    world.scale(job, 1, 6)
    world.run(120)
    assert len(executors(world)) == 6
    assert len(history(world, job)) == 2


def test_a_03_growing_is_never_put_off() -> None:
    world, job = running(2)
    for most in (3, 4, 5):
        world.scale(job, 1, most)
        world.run_until(lambda most=most: len(executors(world)) == most, 2)  # type: ignore[misc]


def test_a_03_slots_that_come_while_the_job_runs_are_used() -> None:
    world = World(jm_config=JobMasterConfig(stabilisation_s=2.0))
    world.add_worker(ResourceProfile(3000, 7 * GIB))
    job = world.submit(spec(program=LONG, initial_executors=8, min_executors=1))
    until_running(world, job, 2)
    world.add_worker(ResourceProfile(3000, 9 * GIB))
    until_running(world, job, 5)
    world.kill_worker(world.workers()[1])
    world.run(5)
    assert world.jm(job).driver_starts == 1
    assert history(world, job) == [
        ("INITIAL_SCHEDULE", 0, 2),
        ("NEW_RESOURCE_AVAILABLE", 2, 5),
        ("RECOVERABLE_FAILOVER", 5, 2),
    ]


def test_one_that_cannot_move_its_blocks_in_time_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    world, job = running(2)
    for model in world.spark.values():
        monkeypatch.setattr(model, "_decommission", lambda executor_id: None)
    world.scale(job, 1, 1)
    world.run(55)
    assert len(executors(world)) == 2
    world.run_until(lambda: set(executors(world)) == {"1"}, 10)


def test_the_end_of_an_application_is_no_rescale_and_the_next_one_starts_anew() -> None:
    world, job = running(2)
    home, slot = driver_slot(world)
    world.spark[home].change(slot, ended=True)
    world.run(5)
    assert executors(world) == {}
    total = ExecutorTotal(0, EXECUTOR, 2)
    world.spark[home].change(slot, app_id="app-next", ended=False, totals=(total,), registered=(), directives_seen=0)
    world.run(10)
    assert history(world, job) == [("INITIAL_SCHEDULE", 0, 2), ("INITIAL_SCHEDULE", 0, 2)]


def test_a_02_bounds_change_while_the_job_waits() -> None:
    world = World(jm_config=JobMasterConfig(stabilisation_s=2.0))
    world.add_worker(ResourceProfile(2000, 4 * GIB))
    job = world.submit(spec(program=LONG, initial_executors=4, min_executors=3))
    world.run(30)
    assert world.state(job) is JobState.WAITING_FOR_RESOURCES
    world.scale(job, 1, 4)
    until_running(world, job, 1)


def test_bounds_outlive_the_master_and_the_job_master() -> None:
    world, job = running(2)
    world.scale(job, 1, 4)
    until_running(world, job, 4)
    world.crash_job_master(job)
    world.run(60)
    assert world.jm(job).rescaling.bounds == ExecutorBounds(1, 4)
    world.crash_master()
    world.start_master()
    world.run(60)
    assert world.jm(job).rescaling.bounds == ExecutorBounds(1, 4)
    assert len(executors(world)) == 4
    assert world.jm(job).driver_starts == 1
    assert len(history(world, job)) == 2


@pytest.mark.parametrize(
    ("least", "most", "word"),
    [(3, 2, "below"), (-1, 2, "negative"), (0, 0, "at least 1"), (1, None, "dynamic allocation")],
)
def test_bounds_that_no_job_can_have_are_refused(least: int, most: int | None, word: str) -> None:
    world, job = running(2)
    answer = world.scale(job, least, most)
    assert isinstance(answer, JobRefused)
    assert word in answer.reason
    world.run(40)
    assert len(executors(world)) == 2


def test_a_job_that_is_over_or_unknown_is_not_scaled() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.FINISHED)
    over, unknown = world.scale(job, 1, 2), world.scale(JobId("job-none"), 1, 2)
    assert isinstance(over, JobRefused)
    assert "FINISHED" in over.reason
    assert isinstance(unknown, JobRefused)


def test_dynamic_allocation_is_bounded_anew() -> None:
    world, job = running(2, dynamic_allocation=True)
    home, slot = driver_slot(world)
    world.spark[home].change(slot, totals=(ExecutorTotal(0, EXECUTOR, 40),))
    world.run_until(lambda: len(executors(world)) > 10, 30)
    world.scale(job, 0, 3)
    world.run_until(lambda: len(executors(world)) == 3, 60)
    assert world.jm(job).pool.required[EXECUTOR.profile] == 3
    causes = [cause for cause, _, _ in history(world, job)]
    assert causes == ["INITIAL_SCHEDULE", "DYNAMIC_ALLOCATION", "UPDATE_REQUIREMENT"]


def test_a_05_a_reactive_job_uses_all_slots_that_there_are_at_once() -> None:
    world = World(jm_config=JobMasterConfig())
    world.add_worker(ResourceProfile(4000, 10 * GIB))
    job = world.submit(reactive(spec(program=LONG, initial_executors=2)))
    until_running(world, job, 3)
    for count, lost in ((3, None), (7, None), (3, 1), (3, None)):
        if lost is None and count > 3:
            world.add_worker(ResourceProfile(4000, 10 * GIB))
            joined = world.now
            world.run_until(lambda count=count: len(executors(world)) == count, 5)  # type: ignore[misc]
            assert world.now - joined < 1.0
        elif lost is not None:
            world.kill_worker(world.workers()[lost])
        world.run(5)
        assert len(executors(world)) == count
        assert world.state(job) is JobState.RUNNING
        assert world.jm(job).shortages == ()
    assert world.jm(job).driver_starts == 1
    assert [event.name for event in world.named("shortage")] == []


def test_a_05_a_reactive_job_cannot_be_bounded() -> None:
    with pytest.raises(UsageError, match="dynamic allocation"):
        reactive(spec(dynamic_allocation=True))
    with pytest.raises(UsageError, match="max-executors"):
        reactive(spec(max_executors=4))


def test_a_03_stale_timers_of_the_cool_down_do_nothing() -> None:
    timers = Timers()
    rescaling = Rescaling(JobId("job"), ExecutorBounds(1, 4), 0, 30.0, timers)
    rescaling.observe(4, 4, 0.0)
    rescaling.because(RescaleCause.DYNAMIC_ALLOCATION)
    rescaling.observe(3, 3, 1.0)
    for version, most in zip(itertools.count(1), (2, 4), strict=False):
        rescaling.ask(ExecutorBounds(1, most), version)
        rescaling.apply(2.0)
    assert timers.next() is None
    rescaling.ask(ExecutorBounds(1, 1), 3)
    rescaling.apply(3.0)
    assert (rescaling.most, timers.next()) == (4, 31.0)
    rescaling.apply(31.0)
    assert (rescaling.most, timers.next()) == (1, None)


def draining(worker: WorkerId) -> StopRequested:
    return StopRequested(f"signal SIGTERM of {worker}", drain=True)


def test_f_05_executors_of_a_worker_that_leaves_in_order_move_what_they_hold_first() -> None:
    world = World(jm_config=JobMasterConfig(stabilisation_s=2.0))
    stays = world.add_worker(ResourceProfile(3000, 7 * GIB))
    job = world.submit(spec(program=LONG, initial_executors=4, min_executors=1))
    until_running(world, job, 2)
    goes = world.add_worker(ResourceProfile(2000, 6 * GIB))
    until_running(world, job, 4)
    world.stimulate(worker_address(goes), draining(goes))
    world.run_until(lambda: world.workers() == [stays], 20)
    world.run(1)
    ended = world.named("executor-ended")
    # By themselves, after they had moved their blocks: with code 0, and before the worker's time was up.
    assert [(event.fields["exit_code"], event.fields["asked"]) for event in ended] == [(0, 1), (0, 1)]
    assert len(world.named("decommissioning")) == 2
    until_running(world, job, 2)
    assert world.jm(job).driver_starts == 1
    assert history(world, job)[-1] == ("RECOVERABLE_FAILOVER", 4, 2)
    assert world.rm.slots.ledger.in_order()[0].held == world.jm(job).pool.held()


def test_f_05_those_that_take_the_place_are_there_before_the_others_leave() -> None:
    world = World()
    world.add_worker(ResourceProfile(1000, 2 * GIB))
    job = world.submit(spec(program=LONG, initial_executors=2))
    goes = world.add_worker(ResourceProfile(2000, 6 * GIB))
    until_running(world, job, 2)
    world.add_worker(ResourceProfile(2000, 6 * GIB))
    world.stimulate(worker_address(goes), draining(goes))
    world.run_until(lambda: bool(world.named("decommissioning")), 20)
    registered = [event.fields["executor"] for event in world.named("executor-registered")]
    assert len(registered) >= 3
    world.run_until(lambda: goes not in world.workers(), 30)
    until_running(world, job, 2)
    world.run(60)
    assert world.jm(job).pool.required == {DRIVER.profile: 1, EXECUTOR.profile: 2}
    assert len(world.jm(job).pool.slots) == 3
    assert world.jm(job).driver_starts == 1


def test_f_05_a_worker_that_leaves_gets_nothing_new_and_what_it_had_is_made_elsewhere() -> None:
    world = World()
    goes = world.add_worker(ResourceProfile(3000, 9 * GIB))
    job = world.submit(spec(program=LONG, initial_executors=2))
    until_running(world, job, 2)
    other = world.submit(spec(program=LONG, initial_executors=1))
    world.stimulate(worker_address(goes), draining(goes))
    world.run(1)
    assert world.state(other) is JobState.WAITING_FOR_RESOURCES
    world.add_worker(LARGE)
    until_running(world, job, 2)
    until_running(world, other, 1)
    world.run(60)
    assert goes not in world.workers()


def test_f_05_executors_that_do_not_leave_in_time_are_ended_with_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkModel, "_decommission", lambda *_: None)
    world = World()
    world.add_worker(ResourceProfile(3000, 7 * GIB))
    job = world.submit(spec(program=LONG, initial_executors=4, min_executors=1))
    until_running(world, job, 2)
    goes = world.add_worker(ResourceProfile(2000, 6 * GIB))
    until_running(world, job, 4)
    at = world.now
    world.stimulate(worker_address(goes), draining(goes))
    world.run_until(lambda: goes not in world.workers(), 60)
    assert 30 <= world.now - at < 35
    until_running(world, job, 2)


def test_a_worker_without_executors_leaves_at_once() -> None:
    world = World()
    goes = world.add_worker(WORKER)
    world.run(1)
    world.stimulate(worker_address(goes), draining(goes))
    world.run_until(lambda: goes not in world.workers(), 2)
