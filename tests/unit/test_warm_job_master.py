"""The JobMaster of a warm application, with real TaskExecutors, ResourceManager and Dispatcher in virtual time."""

from __future__ import annotations

import pytest

from slotwise.dispatcher.warm_applications import WarmApplicationPolicy
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.ids import DISPATCHER, RESOURCE_MANAGER, Address, JobId, job_master_address
from slotwise.model.job import JobSpec, JobState
from slotwise.model.process import DriverProcess, Program
from slotwise.model.restart import RestartKind, RestartStrategy
from slotwise.protocol.effects import Effects, PersistJob, PersistProgress, PersistRecord
from slotwise.protocol.messages import (
    CancelJob,
    DeclareRequirements,
    Deploy,
    DirectDriver,
    Envelope,
    GiveWay,
    JobStatus,
    Message,
    ProgramTaken,
    RunProgram,
)
from tests.unit.warm_worlds import WarmWorld
from tests.unit.worlds import spec

MINE = spec(name="mine", program="/mine.py", args=("a", "b"))
LONG = spec(program="/long.py")


def tell(world: WarmWorld, job: JobId, sender: Address, payload: Message) -> Effects:
    """A message to a JobMaster; returns what it wants done, which is not done."""
    token = world.machines[sender].token
    envelope = Envelope(0, job_master_address(job), world.jm(job).token, sender, token, payload)
    return world.jm(job).handle(envelope, world.now)


def from_dispatcher(world: WarmWorld, job: JobId, payload: Message) -> None:
    """A message to a JobMaster that arrives, with all that follows from it."""
    to, token = job_master_address(job), world.jm(job).token
    world.arrive(Envelope(0, to, token, DISPATCHER, world.dispatcher.token, payload))


def statuses(world: WarmWorld, job: JobId) -> list[JobStatus]:
    return [status for status in world.sent(JobStatus) if status.job == job]


def declared(world: WarmWorld, job: JobId) -> list[DeclareRequirements]:
    return [message for message in world.sent(DeclareRequirements) if message.job == job]


def records(world: WarmWorld, job: JobId) -> list[PersistRecord]:
    return [record for record in world.persisted if isinstance(record, PersistRecord) and record.job == job]


def drivers(world: WarmWorld, job: JobId) -> list[DriverProcess]:
    found = {}
    for message in world.sent(Deploy):
        if message.job == job and isinstance(message.spec, DriverProcess):
            found[message.spec.secret] = message.spec
    return list(found.values())


def handing_over(world: WarmWorld, job: JobSpec = MINE) -> JobId:
    """A job has been given a warm application that has not heard of it: what tells it is lost."""
    warm = world.warm_waiting()
    world.lose_all(RunProgram)
    taken = world.submit(job)
    assert taken == warm
    return taken


def handed_over(world: WarmWorld, job: JobSpec = LONG) -> JobId:
    """A job whose program a warm application runs."""
    taken = handing_over(world, job)
    world.keep_all()
    world.run_until(lambda: world.programs() == [job.program], 10)
    world.run(1)
    return taken


# ----------------------------------------------------------------------------------------------- nobody's job yet


def test_nothing_is_recorded_of_it_and_it_has_no_history() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    world.run(100)
    assert records(world, warm) == []
    assert world.said_by(job_master_address(warm)) == []
    assert world.said_by(job_master_address(JobId("job-1"))) != []


def test_nothing_is_recorded_of_its_end() -> None:
    world = WarmWorld(WarmApplicationPolicy(most=1, idle_s=60))
    warm = world.warm_waiting()
    world.run_until(lambda: warm in world.stopped, 120)
    assert records(world, warm) == []
    assert world.said_by(job_master_address(warm)) == []
    world.run(10)
    assert [world.te(worker).table.slots for worker in world.workers()] == [{}, {}]
    assert world.rm.slots.ledger.in_order() == []


def test_it_says_that_it_yields() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    assert {message.yields for message in declared(world, warm)} == {True}
    assert {message.yields for message in declared(world, JobId("job-1"))} == {False}


def test_its_driver_is_started_without_a_program_and_its_executors_as_those_of_a_warm_one() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    deployed = [message.spec for message in world.sent(Deploy) if message.job == warm]
    assert len(deployed) == 3
    assert all(process.warm for process in deployed)
    assert all(message.directives.program is None for message in world.sent(DirectDriver))


def test_it_waits_once_its_driver_does_and_all_executors_to_begin_with_have_joined() -> None:
    world = WarmWorld(workers=4)
    world.submit(spec(initial_executors=3))
    warm = world.warm_begun()
    seen = []
    while not any(status.waits for status in statuses(world, warm)):
        executors = world.jm(warm).executors
        seen.append((executors.report is not None and executors.report.waits, executors.staying()[1]))
        world._step(world.now + 60)
    # The driver alone, and some of the executors, were there before.
    assert {(True, 0), (True, 1), (True, 2)} <= set(seen)
    assert all(status.warm for status in statuses(world, warm))


def test_it_does_not_wait_when_an_executor_is_lost_until_another_has_joined() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    worker, allocation = world.executors(warm)[0]
    world.spark[worker].end(allocation, -9)
    world.run_until(lambda: not world.dispatcher.warm.entries[warm].waits, 1)
    world.run_until(lambda: world.dispatcher.warm.entries[warm].waits, 20)


def test_another_dispatcher_hears_that_it_is_there_and_ends_it() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    world.start_dispatcher()
    world.run_until(lambda: warm in world.stopped, 30)
    assert warm not in world.dispatcher.jobs


@pytest.mark.parametrize("exit_code", [0, 1, -9])
def test_when_its_driver_ends_it_ends_and_is_not_restarted(exit_code: int) -> None:
    world = WarmWorld(jm_config=JobMasterConfig(restart=RestartStrategy(RestartKind.FIXED_DELAY, attempts=5)))
    warm = world.warm_waiting()
    world.end_driver(warm, exit_code)
    world.run_until(lambda: warm in world.stopped, 20)
    assert world.jm(warm).state.is_final
    assert len(drivers(world, warm)) == 1
    assert records(world, warm) == []


def test_it_gives_way_and_gives_all_back() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    world.arrive(
        Envelope(0, job_master_address(warm), world.jm(warm).token, RESOURCE_MANAGER, world.rm.token, GiveWay(warm))
    )
    world.run_until(lambda: warm in world.stopped, 20)
    assert world.jm(warm).state is JobState.CANCELED
    assert [world.te(worker).table.slots for worker in world.workers()] == [{}, {}]


# ----------------------------------------------------------------------------------------------- the hand-over


def test_f_06_the_record_is_written_with_the_word_that_the_program_is_taken() -> None:
    world = WarmWorld()
    job = handing_over(world)
    effects = tell(world, job, DISPATCHER, RunProgram(job, MINE))
    assert ProgramTaken(job) in [sent.payload for sent in effects.send]
    written = [record.progress for record in effects.persist if isinstance(record, PersistProgress)]
    assert written
    assert written[-1].warm
    assert written[-1] == world.jm(job).driver.progress
    assert written[-1].driver_allocation == world.driver(job)[1]


def test_the_next_directives_have_the_program() -> None:
    world = WarmWorld()
    job = handing_over(world)
    effects = tell(world, job, DISPATCHER, RunProgram(job, MINE))
    directives = [sent.payload.directives for sent in effects.send if isinstance(sent.payload, DirectDriver)]
    assert [one.program for one in directives] == [Program("mine", "/mine.py", ("a", "b"))]
    assert directives[0].version > world.sent(DirectDriver)[-1].directives.version


def test_it_does_not_yield_any_more() -> None:
    world = WarmWorld()
    job = handing_over(world)
    before = declared(world, job)[-1]
    effects = tell(world, job, DISPATCHER, RunProgram(job, MINE))
    (message,) = [sent.payload for sent in effects.send if isinstance(sent.payload, DeclareRequirements)]
    assert not message.yields
    assert message.requirements == before.requirements
    assert message.version > before.version


def test_it_does_not_yield_for_the_rest_of_its_life() -> None:
    world = WarmWorld()
    job = handed_over(world)
    before = len(declared(world, job))
    world.run(100)
    later = declared(world, job)[before:]
    assert len(later) > 5
    assert not any(message.yields for message in later)


def test_it_is_a_job_with_a_history_from_then_on() -> None:
    world = WarmWorld()
    job = handed_over(world)
    names = [event.name for event in world.said_by(job_master_address(job))]
    assert names[:2] == ["handed-over", "job-state"]
    assert not statuses(world, job)[-1].warm
    assert world.state(job) is JobState.RUNNING


def test_a_job_that_takes_one_runs_its_own_program_in_the_processes_that_are_there() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    before = len(world.sent(Deploy))
    job = world.submit(MINE)
    world.until_finished(job)
    assert job == warm
    assert world.programs() == ["/mine.py"]
    assert [message for message in world.sent(Deploy)[before:] if message.job == job] == []
    assert isinstance(records(world, job)[0], PersistJob)


def test_ml_the_program_runs_once_however_often_it_is_told() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    world.double = lambda envelope: isinstance(envelope.payload, RunProgram | DirectDriver | ProgramTaken)
    job = world.submit(MINE)
    assert job == warm
    world.until_finished(job)
    assert world.programs() == ["/mine.py"]
    assert len([event for event in world.named("handed-over") if event.job == job]) == 1


@pytest.mark.parametrize("lost", [RunProgram, ProgramTaken, DirectDriver])
def test_ml_the_program_runs_once_when_the_first_word_of_it_is_lost(lost: type) -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    world.lose_all(lost)
    assert world.submit(MINE) == warm
    world.run(1)
    world.keep_all()
    world.until_finished(warm)
    assert world.programs() == ["/mine.py"]
    assert [change.warm for change in world.started if change.job == warm] == [True]


def test_f_06_the_job_does_not_run_again_when_no_word_that_its_program_is_taken_arrives() -> None:
    world = WarmWorld()
    warm = world.warm_waiting()
    world.lose_all(ProgramTaken)
    assert world.submit(MINE) == warm
    world.until_finished(warm)
    world.run(60)
    assert len(drivers(world, warm)) == 1


def test_f_06_the_driver_hears_its_program_only_with_the_record_that_it_has_one() -> None:
    # The store may fail: then nothing of the same effects is done, and all is said again later.
    world = WarmWorld()
    job = handing_over(world)
    tell(world, job, DISPATCHER, RunProgram(job, MINE))
    again = tell(world, job, DISPATCHER, RunProgram(job, MINE))
    assert ProgramTaken(job) in [sent.payload for sent in again.send]
    assert [type(record) for record in again.persist] == [PersistProgress]
    told: list[Envelope] = []
    while not told:
        later = world.jm(job).on_timer(world.jm(job).next_timer() or world.now)
        told = [sent for sent in later.send if isinstance(sent.payload, DirectDriver)]
    assert PersistProgress in [type(record) for record in later.persist]


@pytest.mark.parametrize("state", [JobState.CANCELLING, JobState.FAILING, JobState.CANCELED])
def test_one_that_ends_takes_no_program(state: JobState) -> None:
    world = WarmWorld()
    job = handing_over(world)
    if state is JobState.FAILING:
        while world.jm(job).state is JobState.RUNNING:
            for worker, allocation in world.executors(job):
                world.spark[worker].end(allocation, 1)
            world.run(0.2)
    else:
        from_dispatcher(world, job, CancelJob(job))
        if state.is_final:
            world.run_until(lambda: world.jm(job).state is state, 10)
    assert world.jm(job).state is state
    assert world.jm(job).warm is not None
    effects = tell(world, job, DISPATCHER, RunProgram(job, MINE))
    assert ProgramTaken not in [type(sent.payload) for sent in effects.send]
    assert effects.persist == []


def test_one_that_is_asked_before_its_driver_runs_takes_the_program_all_the_same() -> None:
    world = WarmWorld()
    world.submit(spec())
    early = world.warm_begun()
    world.run_until(lambda: world.jm(early).state is JobState.DEPLOYING, 20)
    world._persist(PersistJob(early, "early", MINE))
    before = len(records(world, early))
    from_dispatcher(world, early, RunProgram(early, MINE))
    assert [type(record) for record in records(world, early)[before:]] == [PersistProgress]
    world.run_until(lambda: world.jm(early).state is JobState.FINISHED)
    assert world.programs() == ["/mine.py"]


# ----------------------------------------------------------------------------------------------- a job like any other


def test_a_job_does_not_give_way() -> None:
    world = WarmWorld()
    job = handed_over(world)
    effects = tell(world, job, RESOURCE_MANAGER, GiveWay(job))
    assert effects.send == []
    assert world.jm(job).state is JobState.RUNNING


def test_f_01_when_its_driver_dies_the_next_one_runs_the_program_from_its_start() -> None:
    world = WarmWorld()
    job = handed_over(world)
    world.end_driver(job)
    world.run_until(lambda: world.jm(job).state is JobState.RESTARTING, 5)
    world.until_finished(job)
    first, second = drivers(world, job)
    assert (first.warm, second.warm) == (True, False)
    assert second.spec.program == "/long.py"
    assert first.secret != second.secret
    assert [started.job for started in world.started if started.job == job] == [job]
    deployed = {message.process: message.spec for message in world.sent(Deploy) if message.job == job}
    assert [spec.warm for process, spec in deployed.items() if process.startswith("executor")][2:] == [False, False]


def test_f_01_without_a_strategy_the_job_fails_with_its_program() -> None:
    world = WarmWorld()
    job = handed_over(world)
    world.end_driver(job, 3)
    world.run_until(lambda: world.state(job).is_final, 20)
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert (result.state, result.exit_code) == (JobState.FAILED, 3)


def test_a_06_the_jobs_own_strategy_counts_and_not_that_of_whoever_was_before() -> None:
    world = WarmWorld()
    job = handed_over(world, spec(program="/long.py", restart=RestartStrategy(RestartKind.FIXED_DELAY, attempts=1)))
    world.end_driver(job, 3)
    world.run_until(lambda: world.jm(job).state is JobState.RESTARTING, 5)
    world.until_finished(job)
    assert len(drivers(world, job)) == 2


def test_f_03_a_new_leader_tells_the_driver_its_program_again() -> None:
    world = WarmWorld()
    job = handing_over(world, LONG)
    # It takes the program and dies before its driver has heard of that.
    world.lose_all(DirectDriver)
    world.run_until(lambda: job not in world.dispatcher.jobs or not world.dispatcher.jobs[job].handing_over, 10)
    assert world.programs() == []
    world.crash_job_master(job)
    assert world.started[-1].progress is not None
    assert world.started[-1].progress.warm
    world.keep_all()
    world.run_until(lambda: world.programs() == ["/long.py"], 200)
    world.until_finished(job)
    assert len(drivers(world, job)) == 1


def test_f_03_a_new_leader_does_not_disturb_a_driver_that_has_its_program() -> None:
    world = WarmWorld()
    job = handed_over(world)
    world.crash_job_master(job)
    world.until_finished(job)
    assert world.programs() == ["/long.py"]
    assert len(drivers(world, job)) == 1


def test_f_03_a_new_master_takes_over_a_job_that_took_one() -> None:
    world = WarmWorld()
    job = handed_over(world)
    world.crash_master()
    world.start_master()
    world.until_finished(job)
    assert world.programs() == ["/long.py"]
    assert len(drivers(world, job)) == 1


def test_f_03_a_driver_after_a_new_leader_and_a_restart_is_not_warm() -> None:
    world = WarmWorld()
    job = handed_over(world)
    world.crash_job_master(job)
    world.run_until(lambda: world.state(job) is JobState.RUNNING, 200)
    world.end_driver(job)
    world.until_finished(job)
    assert [driver.warm for driver in drivers(world, job)] == [True, False]
    assert world.programs() == ["/long.py"]


# ----------------------------------------------------------------------------------------------- the cold start


def test_f_01_a_job_whose_application_ends_before_it_knew_starts_cold_and_at_once() -> None:
    world = WarmWorld()
    job = handing_over(world)
    world.keep_all()
    world.end_driver(job)
    begun = world.now
    world.until_finished(job)
    assert world.now - begun < 30
    assert [(change.warm, change.spec.program) for change in world.started if change.job == job] == [
        (True, "/"),
        (False, "/mine.py"),
    ]
    assert world.programs() == []
    assert len(drivers(world, job)) == 2


@pytest.mark.parametrize("crash", ["JobMaster", "master"])
def test_f_03_a_crash_while_handing_over_costs_a_cold_start_and_nothing_runs_twice(crash: str) -> None:
    world = WarmWorld()
    job = handing_over(world)
    world.keep_all()
    if crash == "master":
        world.crash_master()
        world.start_master()
    else:
        world.crash_job_master(job)
    world.until_finished(job)
    assert world.programs() == []
    warm, cold = drivers(world, job)
    assert (warm.warm, cold.warm, cold.spec.program) == (True, False, "/mine.py")


def test_a_job_that_is_cancelled_while_handing_over_never_runs() -> None:
    world = WarmWorld()
    job = handing_over(world)
    world.cancel(job)
    world.keep_all()
    world.run_until(lambda: world.state(job).is_final, 60)
    assert world.state(job) is JobState.CANCELED
    world.run(60)
    assert world.programs() == []
    assert len(drivers(world, job)) == 1
    slots = [slot for worker in world.workers() for slot in world.te(worker).table.slots.values()]
    assert [slot for slot in slots if slot.job == job] == []


def test_a_job_that_is_cancelled_at_any_moment_after_its_submission_ends_cancelled() -> None:
    for step in range(12):
        world = WarmWorld()
        world.warm_waiting()
        job = world.submit(LONG)
        world.run(step * 0.0005)
        world.cancel(job)
        world.run_until(lambda world=world, job=job: world.dispatcher.jobs[job].released, 60)  # type: ignore[misc]
        assert world.state(job) is JobState.CANCELED


@pytest.mark.parametrize("seed", range(10))
def test_ml_with_messages_lost_and_doubled_each_job_runs_once_to_its_end(seed: int) -> None:
    world = WarmWorld(WarmApplicationPolicy(most=2), seed=seed, workers=4)
    world.warm_waiting()
    world.lose = lambda envelope: (
        not envelope.to.startswith("client:") and not envelope.sender.startswith("client:") and world.rng.random() < 0.2
    )
    world.double = lambda _: world.rng.random() < 0.2
    jobs = [world.submit(spec(program=f"/{number}.py")) for number in range(3)]
    world.run_until(lambda: all(world.state(job).is_final for job in jobs), 2000)
    assert [world.state(job) for job in jobs] == [JobState.FINISHED] * 3
    cold = [driver.spec.program for job in jobs for driver in drivers(world, job) if not driver.warm]
    assert sorted(world.programs() + cold) == ["/0.py", "/1.py", "/2.py"]
