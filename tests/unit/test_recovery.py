"""Leaders and workers that die and come back, with the real machines in virtual time (B: F-01 … F-08, ML-06, ML-07,
ST-09, A-06)."""

from __future__ import annotations

import pytest

from slotwise.jobmaster.restart import Restarts
from slotwise.model.errors import SizeError
from slotwise.model.ids import DISPATCHER, JobId, WorkerId, job_master_address, worker_address
from slotwise.model.job import JobState
from slotwise.model.process import DriverProcess
from slotwise.model.restart import RestartKind, RestartStrategy, check_strategy
from slotwise.protocol.effects import StopRequested
from slotwise.protocol.messages import Deploy, Envelope, Fenced, JobAccepted, SubmitJob
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from slotwise.simulation.world import World
from tests.unit.test_job_master import driver_slot, executors, until_running, worker_of_driver
from tests.unit.worlds import WORKER, provisioned, spec

BEHAVIOURS["/recovers.py"] = Behaviour(seconds=200)
BEHAVIOURS["/fails.py"] = Behaviour(seconds=5, exit_code=3)
JOB = spec(program="/recovers.py")


def drivers_deployed(world: World) -> set[str]:
    """The names of all drivers that any worker was ever told to start."""
    return {
        envelope.payload.process
        for envelope in world.delivered
        if isinstance(envelope.payload, Deploy) and isinstance(envelope.payload.spec, DriverProcess)
    }


def running_job(world: World) -> JobId:
    """A job that runs with both its executors on two workers."""
    world.add_worker(WORKER)
    world.add_worker(WORKER)
    job = world.submit(JOB)
    until_running(world, job)
    return job


def until_over(world: World, job: JobId, limit_s: float = 600) -> None:
    world.run_until(lambda: world.dispatcher.jobs[job].released, limit_s)


def test_f_02_f_03_f_06_a_new_master_takes_the_running_job_over_with_its_driver_and_executors() -> None:
    world = World()
    job = running_job(world)
    before = executors(world)
    world.crash_master()
    world.run(5)
    world.start_master()
    until_running(world, job)
    world.run(1)
    assert executors(world) == before
    assert world.state(job) is JobState.RUNNING
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}
    world.run(120)
    assert all(not world.te(worker).table.slots for worker in world.workers())


def test_f_03_a_job_master_that_dies_alone_is_followed_by_one_that_takes_over() -> None:
    world = World()
    job = running_job(world)
    token = world.jm(job).token
    world.crash_job_master(job)
    until_running(world, job)
    assert world.jm(job).token > token
    until_over(world, job)
    assert drivers_deployed(world) == {"driver-1"}
    assert world.state(job) is JobState.FINISHED


def test_f_03_a_job_whose_job_master_always_fails_fails_in_the_end() -> None:
    world = World()
    job = running_job(world)
    for _ in range(6):
        world.crash_job_master(job)
        world.run(1)
    assert world.state(job) is JobState.FAILED
    assert "JobMaster failed 6 times" in world.store[job].result.reason  # type: ignore[union-attr]


def test_f_04_worker_and_master_die_together_and_the_job_goes_on() -> None:
    world = World()
    job = running_job(world)
    loser = next(worker for worker in world.workers() if worker != worker_of_driver(world, job))
    world.crash_master()
    world.kill_worker(loser)
    world.add_worker(WORKER)
    world.start_master()
    until_running(world, job)
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}


def test_f_04_a_driver_that_died_with_the_master_is_started_again_only_when_it_must_be_gone() -> None:
    world = World()
    job = running_job(world)
    world.crash_master()
    world.kill_worker(worker_of_driver(world, job))
    world.start_master()
    world.run(world.jm_config.driver_fence_s - 1)
    assert world.state(job) is JobState.RECONCILING
    assert drivers_deployed(world) == {"driver-1"}
    world.add_worker(WORKER)
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1", "driver-2"}
    assert world.store[job].progress.restart_count == 1  # type: ignore[union-attr]


def test_f_01_a_provisioners_certainty_makes_the_fence_needless() -> None:
    world = provisioned()
    job = world.submit(JOB)
    until_running(world, job)
    at = world.now
    world.kill_worker(worker_of_driver(world, job))
    world.run_until(lambda: "driver-2" in drivers_deployed(world), 200)
    assert world.now - at < world.jm_config.driver_fence_s / 2
    assert drivers_deployed(world) == {"driver-1", "driver-2"}


def test_f_08_a_driver_whose_worker_was_cut_off_is_found_again_and_not_restarted() -> None:
    world = World()
    job = running_job(world)
    worker = worker_of_driver(world, job)
    address = worker_address(worker)
    world.lose = lambda envelope: address in (envelope.to, envelope.sender)
    world.run_until(lambda: world.state(job) is JobState.RECONCILING, 200)
    world.lose = lambda _: False
    world.run_until(lambda: world.state(job) is JobState.RUNNING, 60)
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}


def test_f_08_a_driver_that_stays_cut_off_is_ended_by_its_worker_before_another_begins() -> None:
    world = World()
    job = running_job(world)
    world.add_worker(WORKER)
    worker, allocation = driver_slot(world)
    address = worker_address(worker)
    world.lose = lambda envelope: address in (envelope.to, envelope.sender)
    world.run_until(lambda: "driver-2" in drivers_deployed(world), 400)
    assert allocation not in world.spark[worker].running
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED


def test_f_06_a_submission_that_was_acknowledged_survives_and_its_key_names_the_same_job() -> None:
    world = World()
    job = world.submit(JOB, key="once")
    world.crash_master()
    world.start_master()
    assert world.ask(SubmitJob("once", JOB)) == JobAccepted(job)
    world.add_worker(WORKER)
    until_over(world, job)
    assert drivers_deployed(world) == {"driver-1"}
    assert list(world.dispatcher.jobs) == [job]


@pytest.mark.parametrize("moment_s", [0.002, 0.01, 0.06, 0.2, 0.6, 1.2, 2.0, 3.0])
def test_f_06_a_master_that_dies_at_any_moment_never_leads_to_a_second_driver(moment_s: float) -> None:
    world = World()
    world.add_worker(WORKER)
    world.add_worker(WORKER)
    job = world.submit(spec())
    world.run(moment_s)
    world.crash_master()
    world.run(3)
    world.start_master()
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}


def test_f_06_a_deployment_that_was_recorded_and_never_sent_is_sent_by_the_next_leader() -> None:
    world = World()
    world.add_worker(WORKER)
    world.lose = lambda envelope: isinstance(envelope.payload, Deploy)
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.DEPLOYING, 60)
    world.crash_master()
    world.lose = lambda _: False
    world.start_master()
    until_over(world, job)
    assert drivers_deployed(world) == {"driver-1"}
    assert world.state(job) is JobState.FINISHED


def test_f_06_a_driver_that_ended_while_no_leader_was_there_is_not_run_again() -> None:
    world = World()
    job = running_job(world)
    world.crash_master()
    worker, allocation = driver_slot(world)
    world.spark[worker].end(allocation, 0)
    world.run(5)
    world.start_master()
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}


def test_f_06_a_cancel_that_was_acknowledged_survives() -> None:
    world = World()
    job = running_job(world)
    world.lose = lambda envelope: envelope.to == job_master_address(job)
    world.cancel(job)
    world.crash_master()
    world.lose = lambda _: False
    world.start_master()
    until_over(world, job)
    assert world.state(job) is JobState.CANCELED
    world.run(100)
    assert all(not world.te(worker).table.slots for worker in world.workers())


def test_f_07_finished_jobs_stay_with_their_result() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec(program="/fails.py"))
    until_over(world, job)
    world.crash_master()
    world.start_master()
    record = world.dispatcher.jobs[job]
    assert (record.state, record.released) == (JobState.FAILED, True)
    assert record.result is not None
    assert record.result.exit_code == 3
    world.run(60)
    assert drivers_deployed(world) == {"driver-1"}


def test_st_09_a_restarted_worker_adopts_its_slots_and_the_job_notices_nothing() -> None:
    world = World()
    job = running_job(world)
    worker = worker_of_driver(world, job)
    before = set(world.te(worker).table.slots)
    world.restart_worker(worker)
    world.run(30)
    assert set(world.te(worker).table.slots) == before
    assert world.state(job) is JobState.RUNNING
    assert len(world.rm.slots.workers[worker].slots) == len(before)
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}


def test_st_09_f_04_worker_and_master_restart_together() -> None:
    world = World()
    job = running_job(world)
    world.crash_master()
    for worker in world.workers():
        world.restart_worker(worker)
    world.start_master()
    until_running(world, job)
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1"}


def test_ml_07_a_stale_job_master_changes_nothing_and_ends_when_it_hears_of_the_new_one() -> None:
    world = World()
    job = running_job(world)
    worker = worker_of_driver(world, job)
    address = job_master_address(job)
    stale = world.machines[address]
    world.crash_master()
    world.start_master()
    until_running(world, job)
    effects = stale.handle(
        Envelope(1, address, stale.token, worker_address(worker), stale.token, Fenced(address, world.jm(job).token)),
        world.now,
    )
    assert effects.shutdown is not None
    assert "newer leader" in effects.shutdown
    assert not effects.send


def test_ml_07_a_worker_tells_a_stale_leader_who_leads_now() -> None:
    world = World()
    job = running_job(world)
    worker = worker_of_driver(world, job)
    stale = world.jm(job).token
    world.crash_master()
    world.start_master()
    until_running(world, job)
    slots = dict(world.te(worker).table.slots)
    message = Deploy(job, next(iter(slots)), "driver-9", DriverProcess(JOB, "secret", 9))
    envelope = Envelope(9, worker_address(worker), 0, job_master_address(job), stale, message)  # type: ignore[arg-type]
    effects = world.te(worker).handle(envelope, world.now)
    assert [e.payload for e in effects.send] == [Fenced(job_master_address(job), world.jm(job).token)]
    assert not effects.processes


def test_a_06_a_program_that_fails_is_restarted_only_when_its_job_says_so() -> None:
    world = World()
    world.add_worker(WORKER)
    once = world.submit(spec(program="/fails.py"))
    until_over(world, once)
    assert world.store[once].progress.restart_count == 0  # type: ignore[union-attr]
    strategy = RestartStrategy(RestartKind.FIXED_DELAY, attempts=2, delay_s=3)
    thrice = world.submit(spec(program="/fails.py", restart=strategy))
    until_over(world, thrice)
    progress = world.store[thrice].progress
    assert progress is not None
    assert (progress.attempt, progress.restart_count) == (3, 2)
    assert [restart.reason for restart in progress.restarts] == ["the program ended with code 3"] * 2
    assert "restarted 2 time(s)" in world.store[thrice].result.reason  # type: ignore[union-attr]


def test_a_06_a_killed_driver_is_restarted_by_the_clusters_strategy() -> None:
    world = World()
    job = running_job(world)
    worker, allocation = driver_slot(world)
    world.spark[worker].end(allocation, -9)
    until_over(world, job)
    assert world.state(job) is JobState.FINISHED
    assert drivers_deployed(world) == {"driver-1", "driver-2"}


def test_a_06_exponential_delays_grow_to_their_bound_and_reset_after_a_quiet_time() -> None:
    strategy = RestartStrategy(attempts=-1, delay_s=1, max_delay_s=5, multiplier=2, reset_s=100)
    restarts = Restarts()
    assert [restarts.delay_s(strategy, 1) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert restarts.delay_s(strategy, 100) == 1
    for _ in range(3000):
        assert restarts.delay_s(strategy, 0) is not None


def test_a_06_a_fixed_number_of_restarts_is_for_the_whole_life_of_a_job() -> None:
    strategy = RestartStrategy(RestartKind.FIXED_DELAY, attempts=1, delay_s=2, reset_s=10)
    restarts = Restarts()
    assert [restarts.delay_s(strategy, 1000) for _ in range(2)] == [2, None]
    assert Restarts().delay_s(RestartStrategy(RestartKind.NONE), 0) is None


@pytest.mark.parametrize(
    "bad",
    [
        RestartStrategy(attempts=-2),
        RestartStrategy(delay_s=-1),
        RestartStrategy(delay_s=9, max_delay_s=1),
        RestartStrategy(multiplier=0.5),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused(bad: RestartStrategy) -> None:
    with pytest.raises(SizeError):
        check_strategy(bad)


def test_f_04_a_worker_that_stops_in_order_says_that_the_driver_has_ended() -> None:
    world = World()
    job = running_job(world)
    worker: WorkerId = worker_of_driver(world, job)
    world.add_worker(WORKER)
    at = world.now
    world.stimulate(worker_address(worker), StopRequested("signal SIGTERM"))
    world.run_until(lambda: "driver-2" in drivers_deployed(world), 200)
    assert world.now - at < 20
    assert world.machines[DISPATCHER] is world.dispatcher
