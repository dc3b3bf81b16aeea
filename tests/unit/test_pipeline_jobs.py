"""Pipeline jobs in virtual time: which regions run when, on executors of which size; what failures cost (B: A-07)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from slotwise.dispatcher.http import rescales
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.pipeline import Pipeline, Supply
from slotwise.jobmaster.work import PipelineWork
from slotwise.model.ids import JobId
from slotwise.model.job import ExecutorSize, JobState
from slotwise.model.job_graph import Dataset, DatasetKind, Flow, JobGraph
from slotwise.model.pipeline import PipelineOptions, PipelineReport, RegionState, RegionStatus
from slotwise.model.resources import GIB, MIB, ResourceProfile
from slotwise.model.restart import RestartKind, RestartStrategy
from slotwise.protocol.messages import JobRefused, SubmitJob
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.runtime.events import Happened
from slotwise.simulation.pipeline_model import PipelineBehaviour
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from slotwise.simulation.world import VERSION, World
from tests.unit.test_job_master import driver_slot, worker_of_driver
from tests.unit.worlds import DRIVER, spec

LARGE = ResourceProfile(64_000, 128 * GIB)
SMALL = {"spark.executor.cores": "1", "spark.executor.memory": "2g"}
BIG = {"spark.executor.cores": "2", "spark.executor.memory": "4g"}
SMALL_PROFILE = ResourceProfile(1000, 2 * GIB + 384 * MIB)
BIG_PROFILE = ResourceProfile(2000, 4 * GIB + 409 * MIB)
NAMES = itertools.count(1)


def project(
    reads: dict[str, tuple[str, ...]], conf: dict[str, dict[str, str]], **behaviour: Any
) -> tuple[str, PipelineBehaviour]:
    """A project of materialized views that read each other; its path, and what the model does with it."""
    graph = JobGraph(
        name="shop",
        catalog="spark_catalog",
        database="default",
        datasets=tuple(Dataset(name, DatasetKind.MATERIALIZED_VIEW) for name in reads),
        flows=tuple(Flow(name, name, inputs, conf.get(name, {})) for name, inputs in reads.items()),
    )
    path = f"/project-{next(NAMES)}/spark-pipeline.yml"
    found = PipelineBehaviour(graph, **behaviour)
    BEHAVIOURS[path] = Behaviour(pipeline=found)
    return path, found


def world_of(total: ResourceProfile = LARGE, **config: Any) -> World:
    world = World(jm_config=JobMasterConfig(**config))
    world.add_worker(total)
    return world


def submit(world: World, path: str, **changes: Any) -> JobId:
    given = {"pipeline": PipelineOptions(), "executor": ExecutorSize(1, 2 * GIB, 384 * MIB), "initial_executors": 2}
    return world.submit(spec(program=path, **(given | changes)))


def until_over(world: World, job: JobId, limit_s: float = 600) -> JobState:
    world.run_until(lambda: world.dispatcher.jobs[job].released, limit_s)
    return world.state(job)


def moves(world: World, state: str) -> list[object]:
    """The regions that came into this state, in order."""
    return [event.fields["region"] for event in world.named("region") if event.fields["state"] == state]


def running(world: World, job: JobId) -> dict[str, list[ResourceProfile]]:
    """By region: the sizes of the executors that work for it."""
    found: dict[str, list[ResourceProfile]] = {}
    for executor in world.jm(job).executors.live.values():
        slot = world.jm(job).pool.slots.get(executor.allocation)
        if slot is not None:
            found.setdefault(executor.region, []).append(slot.profile)
    return found


def started(world: World, what: str = "executor") -> set[str]:
    """Every executor, or driver, that was ever deployed."""
    names = {str(event.fields["process"]) for event in world.named("deployed")}
    return {name for name in names if name.startswith(what)}


DIAMOND: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_a_07_regions_run_when_what_they_read_is_there_in_executors_of_their_own_size() -> None:
    path, behaviour = project(DIAMOND, {"a": SMALL, "b": BIG, "c": SMALL, "d": SMALL})
    world = world_of()
    job = submit(world, path)
    seen: dict[str, set[ResourceProfile]] = {}

    def over() -> bool:
        if job in world.dispatcher.jobs and not world.state(job).is_final:
            for region, profiles in running(world, job).items():
                seen.setdefault(region, set()).update(profiles)
        return world.dispatcher.jobs[job].released

    world.run_until(over)
    assert world.state(job) is JobState.FINISHED
    assert moves(world, "FINISHED")[0] == "a"
    assert moves(world, "FINISHED")[-1] == "d"
    assert [region for _, region, _ in behaviour.runs].count("b") == 1
    assert seen["b"] == {BIG_PROFILE}
    assert seen["a"] == seen["c"] == seen["d"] == {SMALL_PROFILE}


def test_a_07_a_requirement_is_declared_when_its_region_can_run_and_falls_when_it_is_done() -> None:
    path, _ = project({"a": (), "b": ("a",)}, {"a": SMALL, "b": BIG})
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: moves(world, "RUNNING") == ["a"])
    assert world.jm(job).pool.required == {DRIVER.profile: 1, SMALL_PROFILE: 2}
    world.run_until(lambda: moves(world, "FINISHED") == ["a"])
    assert world.jm(job).pool.required == {DRIVER.profile: 1, BIG_PROFILE: 2}
    world.run_until(lambda: moves(world, "RUNNING") == ["a", "b"], 5)
    # Slots that do not fit go back at once, not after the idle time-out.
    world.run(2)
    assert set(world.jm(job).pool.held()) == {DRIVER.profile, BIG_PROFILE}
    assert until_over(world, job) is JobState.FINISHED


def test_a_07_the_next_regions_take_over_slots_and_executors_that_fit() -> None:
    path, _ = project({"a": (), "b": ("a",), "c": ("b",)}, dict.fromkeys("abc", SMALL))
    world = world_of()
    job = submit(world, path)
    assert until_over(world, job) is JobState.FINISHED
    assert len(started(world)) == 2
    assert len(world.named("acquired")) == 3


LIGHT_HEAVY_LIGHT: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("b",)}


def test_executors_of_a_size_that_comes_again_are_kept_while_nothing_is_lacking() -> None:
    path, _ = project(LIGHT_HEAVY_LIGHT, {"a": SMALL, "b": BIG, "c": SMALL})
    world = world_of()
    job = submit(world, path)
    assert until_over(world, job) is JobState.FINISHED
    assert len(started(world)) == 4


def test_executors_of_a_size_that_comes_again_are_not_kept_for_longer_than_idle_slots() -> None:
    path, _ = project(LIGHT_HEAVY_LIGHT, {"a": SMALL, "b": BIG, "c": SMALL}, region_s=60.0)
    world = world_of(idle_slot_timeout_s=20.0)
    job = submit(world, path)
    world.run_until(lambda: moves(world, "RUNNING") == ["a", "b"])
    world.run(10)
    assert SMALL_PROFILE in world.jm(job).pool.held()
    world.run(20)
    assert SMALL_PROFILE not in world.jm(job).pool.held()
    assert until_over(world, job) is JobState.FINISHED
    assert len(started(world)) == 6


def test_executors_of_a_size_that_comes_again_make_room_for_what_is_lacking() -> None:
    path, _ = project(LIGHT_HEAVY_LIGHT, {"a": SMALL, "b": BIG, "c": SMALL})
    # The driver, and two small executors or one big one.
    world = world_of(ResourceProfile(3000, 7 * GIB))
    job = submit(world, path)
    assert until_over(world, job, 100) is JobState.FINISHED


def test_independent_regions_run_side_by_side_when_the_slots_allow_it() -> None:
    path, _ = project({"a": (), "b": ()}, {"a": SMALL, "b": BIG})
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: set(moves(world, "RUNNING")) == {"a", "b"})
    assert moves(world, "FINISHED") == []
    assert until_over(world, job) is JobState.FINISHED


def test_independent_regions_run_one_after_the_other_when_they_do_not() -> None:
    path, _ = project({"a": (), "b": ()}, {"a": BIG, "b": BIG})
    # The driver and one big executor.
    world = world_of(ResourceProfile(3000, 6 * GIB), resource_wait_timeout_s=5.0)
    job = submit(world, path)
    assert until_over(world, job) is JobState.FINISHED
    order = [(event.fields["region"], event.fields["state"]) for event in world.named("region")]
    states = [move for move in order if move[1] in ("RUNNING", "FINISHED")]
    assert states == [("a", "RUNNING"), ("a", "FINISHED"), ("b", "RUNNING"), ("b", "FINISHED")]
    # The one executor went from the one to the other.
    assert len(started(world)) == 1


def test_what_there_is_is_shared_by_the_regions_that_run() -> None:
    path, _ = project({"a": (), "b": ()}, {"a": SMALL, "b": SMALL})
    world = world_of(ResourceProfile(5000, 64 * GIB))
    job = submit(world, path, max_executors=8)
    world.run_until(lambda: set(moves(world, "RUNNING")) == {"a", "b"})
    world.run(5)
    assert {region: len(sizes) for region, sizes in running(world, job).items()} == {"a": 2, "b": 2}


def test_a_region_starts_with_its_least_and_grows_when_slots_come() -> None:
    path, _ = project({"a": ()}, {"a": {**SMALL, "slotwise.parallelism.max": "6"}}, region_s=200.0)
    world = world_of(ResourceProfile(3000, 64 * GIB))
    job = submit(world, path)
    world.run_until(lambda: moves(world, "RUNNING") == ["a"])
    assert world.named("region")[-1].fields["parallelism"] == 2
    world.add_worker(ResourceProfile(3000, 64 * GIB))
    world.run_until(lambda: len(running(world, job).get("a", [])) == 5, 20)
    assert world.jm(job).driver_starts == 1


def test_a_region_waits_for_its_least_and_fails_after_the_time_out_with_the_reason() -> None:
    path, behaviour = project({"a": (), "b": ()}, {"a": SMALL, "b": {**SMALL, "slotwise.parallelism.min": "9"}})
    world = world_of(ResourceProfile(3000, 64 * GIB), resource_wait_timeout_s=60.0)
    job = submit(world, path)
    assert until_over(world, job) is JobState.FAILED
    assert moves(world, "FINISHED") == ["a"]
    reason = world.dispatcher.jobs[job].result
    assert reason is not None
    assert "b: 9 slot(s)" in reason.reason
    assert "60 s" in reason.reason
    assert "b" not in [region for _, region, _ in behaviour.runs]


def test_a_size_that_no_worker_can_hold_fails_its_region_alone_and_the_job_at_the_end() -> None:
    huge = {"spark.executor.cores": "1", "spark.executor.memory": "900g"}
    path, _ = project({"a": (), "b": (), "c": ("b",), "d": ("a",)}, {"a": SMALL, "b": huge, "c": SMALL, "d": SMALL})
    sizing = Sizing(WorkerShape(ResourceProfile(8000, 32 * GIB), ResourceProfile(2000, 4 * GIB)), max_workers=2)
    world = World(rm_config=ResourceManagerConfig(sizing=sizing, version=VERSION))
    job = submit(world, path)
    assert until_over(world, job) is JobState.FAILED
    assert moves(world, "FINISHED") == ["a", "d"]
    assert moves(world, "FAILED") == ["b"]
    assert moves(world, "CANCELED") == ["c"]
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert "b: " in result.reason
    assert "larger than" in result.reason


def test_a_region_that_fails_runs_again_alone_by_the_restart_strategy() -> None:
    path, behaviour = project({"a": (), "b": ("a",)}, {"a": SMALL, "b": SMALL}, failures={"b": 2})
    world = world_of()
    job = submit(world, path, restart=RestartStrategy(RestartKind.FIXED_DELAY, attempts=2, delay_s=3.0))
    assert until_over(world, job) is JobState.FINISHED
    assert [(region, attempt) for _, region, attempt in behaviour.runs] == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]
    assert len(started(world, "driver")) == 1


def test_without_a_strategy_a_failed_region_fails_the_job_when_the_others_are_done() -> None:
    path, _ = project({"a": (), "b": (), "c": ("b",)}, dict.fromkeys("abc", SMALL), failures={"b": 1})
    world = world_of()
    job = submit(world, path)
    assert until_over(world, job) is JobState.FAILED
    assert moves(world, "FINISHED") == ["a"]
    assert moves(world, "CANCELED") == ["c"]
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert result.reason == "simulated: the query failed"


def test_finished_regions_are_not_repeated_after_the_driver_was_lost() -> None:
    path, behaviour = project({"a": (), "b": ("a",)}, {"a": SMALL, "b": SMALL}, region_s=20.0)
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: len(behaviour.runs) == 2)
    worker, slot = driver_slot(world)
    world.spark[worker].end(slot, -9)
    assert until_over(world, job) is JobState.FINISHED
    assert [(app, region) for app, region, _ in behaviour.runs] == [("app-1", "a"), ("app-1", "b"), ("app-2", "b")]


def test_finished_regions_are_not_repeated_after_the_drivers_worker_was_lost() -> None:
    path, behaviour = project({"a": (), "b": ("a",)}, {"a": SMALL, "b": SMALL}, region_s=20.0)
    world = world_of()
    world.add_worker(LARGE)
    job = submit(world, path)
    world.run_until(lambda: len(behaviour.runs) == 2)
    world.kill_worker(worker_of_driver(world, job))
    assert until_over(world, job) is JobState.FINISHED
    assert [region for _, region, _ in behaviour.runs] == ["a", "b", "b"]


def test_f_02_a_new_leader_of_a_pipeline_goes_on_with_what_runs() -> None:
    path, behaviour = project({"a": (), "b": ("a",), "c": ()}, dict.fromkeys("abc", SMALL), region_s=20.0)
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: len(behaviour.runs) == 3)
    before = started(world)
    world.crash_job_master(job)
    world.run(1)
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    assert until_over(world, job) is JobState.FINISHED
    assert sorted(region for _, region, _ in behaviour.runs) == ["a", "b", "c"]
    assert started(world) == before


def test_a_lost_executor_is_replaced_in_its_region() -> None:
    path, behaviour = project({"a": ()}, {"a": SMALL}, region_s=30.0)
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: len(world.named("executor-registered")) == 2)
    executor = next(iter(world.jm(job).executors.live.values()))
    world.spark[world.workers()[0]].end(executor.allocation, -9)
    world.run_until(lambda: len(world.named("executor-registered")) == 3, 20)
    assert len(running(world, job)["a"]) == 2
    assert until_over(world, job) is JobState.FINISHED
    assert len(behaviour.runs) == 1


def test_what_is_not_selected_is_not_run_and_a_full_refresh_is_told() -> None:
    path, behaviour = project(DIAMOND, dict.fromkeys(DIAMOND, SMALL))
    world = world_of()
    job = submit(world, path, pipeline=PipelineOptions(refresh=("d",), full_refresh=("b",)))
    world.run_until(lambda: moves(world, "RUNNING") == ["b"])
    work = world.jm(job).work
    assert isinstance(work, PipelineWork)
    directives = work.pipeline.directives()
    assert directives is not None
    assert [(run.region, run.full_refresh) for run in directives.runs] == [("b", True)]
    assert until_over(world, job) is JobState.FINISHED
    assert [region for _, region, _ in behaviour.runs] == ["b", "d"]


def test_names_that_do_not_exist_fail_the_job_with_those_that_do() -> None:
    path, _ = project({"a": ()}, {"a": SMALL})
    world = world_of()
    job = submit(world, path, pipeline=PipelineOptions(refresh=("nothing",)))
    assert until_over(world, job) is JobState.FAILED
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert "has no dataset 'nothing'; it has a" in result.reason


def test_d_14_stated_and_unstated_sizes_together_are_refused_with_both_named() -> None:
    path, behaviour = project({"a": (), "b": ()}, {"a": SMALL})
    world = world_of()
    job = submit(world, path)
    assert until_over(world, job) is JobState.FAILED
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert "states those of a but not of b" in result.reason
    assert behaviour.runs == []


def test_definitions_that_cannot_be_read_fail_the_job_with_sparks_reason_and_no_restart() -> None:
    path, _ = project({"a": ()}, {"a": SMALL}, broken="a.py:2: NameError: name 'x' is not defined")
    world = world_of()
    job = submit(world, path, restart=RestartStrategy(RestartKind.FIXED_DELAY))
    assert until_over(world, job) is JobState.FAILED
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert result.reason == "a.py:2: NameError: name 'x' is not defined"
    assert len(started(world, "driver")) == 1


def test_how_the_driver_ends_after_the_last_region_does_not_matter() -> None:
    path, behaviour = project({"a": ()}, {"a": SMALL})
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: moves(world, "FINISHED") == ["a"])
    world.run(0.01)
    worker, slot = driver_slot(world)
    world.spark[worker].end(slot, -9)
    assert until_over(world, job) is JobState.FINISHED
    assert len(behaviour.runs) == 1
    assert len(started(world, "driver")) == 1


def test_f_02_a_new_leader_that_finds_the_driver_ended_knows_whether_the_work_was_done() -> None:
    path, _ = project({"a": ()}, {"a": SMALL})
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: moves(world, "FINISHED") == ["a"])
    world.run(0.01)
    world.crash_job_master(job)
    worker, slot = driver_slot(world)
    world.spark[worker].end(slot, 0)
    assert until_over(world, job) is JobState.FINISHED


def test_a_driver_that_ends_well_too_early_has_not_done_its_work() -> None:
    path, _ = project(DIAMOND, dict.fromkeys(DIAMOND, SMALL), region_s=100.0)
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: moves(world, "RUNNING") == ["a"])
    worker, slot = driver_slot(world)
    world.spark[worker].end(slot, 0)
    assert until_over(world, job) is JobState.FAILED
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert result.reason == "the program ended before the pipeline was done"


def test_a_dry_run_checks_and_runs_nothing() -> None:
    path, behaviour = project(DIAMOND, dict.fromkeys(DIAMOND, SMALL))
    world = world_of()
    job = submit(world, path, pipeline=PipelineOptions(dry_run=True))
    assert until_over(world, job) is JobState.FINISHED
    assert behaviour.runs == []
    assert started(world) == set()


def test_a_pipeline_can_be_cancelled_while_its_regions_run() -> None:
    path, _ = project(DIAMOND, dict.fromkeys(DIAMOND, SMALL), region_s=100.0)
    world = world_of()
    job = submit(world, path)
    world.run_until(lambda: moves(world, "RUNNING") == ["a"])
    world.cancel(job)
    assert until_over(world, job, 60) is JobState.CANCELED
    world.run(60)
    assert world.rm.slots.ledger.in_order() == []


# From before the driver's slot to the last region: the diamond takes less than half a minute.
MOMENTS = (0.0, 0.2, 0.5, 1.0, 3.0, 6.0, 9.0, 12.0, 16.0, 20.0)


@pytest.mark.parametrize("after_s", MOMENTS)
def test_a_pipeline_can_be_cancelled_at_any_moment(after_s: float) -> None:
    path, _ = project(DIAMOND, dict.fromkeys(DIAMOND, SMALL), region_s=8.0)
    world = world_of()
    job = submit(world, path)
    world.run(after_s)
    world.cancel(job)
    assert until_over(world, job, 120) is JobState.CANCELED
    world.run(60)
    assert world.rm.slots.ledger.in_order() == []


@pytest.mark.parametrize("after_s", MOMENTS)
def test_a_worker_may_be_lost_at_any_moment_and_no_finished_region_runs_again(after_s: float) -> None:
    path, behaviour = project(DIAMOND, {"a": SMALL, "b": BIG, "c": SMALL, "d": SMALL}, region_s=8.0)
    world = world_of()
    world.add_worker(LARGE)
    job = submit(world, path)
    world.run(after_s)
    done = set(moves(world, "FINISHED"))
    begun = [region for _, region, _ in behaviour.runs]
    world.kill_worker(world.workers()[0])
    assert until_over(world, job) is JobState.FINISHED
    assert set(moves(world, "FINISHED")) == set(DIAMOND)
    assert not done & {region for _, region, _ in behaviour.runs[len(begun) :]}


def test_bounds_can_change_while_a_region_waits_and_are_kept_for_those_that_follow() -> None:
    path, _ = project({"a": (), "b": ("a",)}, dict.fromkeys("ab", SMALL), region_s=30.0)
    world = world_of(ResourceProfile(1500, 128 * GIB))
    job = submit(world, path)
    world.run(20)
    assert moves(world, "RUNNING") == []
    world.scale(job, 1, 3)
    world.add_worker(LARGE)
    for region in "ab":
        world.run_until(lambda region=region: len(running(world, job).get(region, [])) == 3, 120)  # type: ignore[misc]
    assert until_over(world, job) is JobState.FINISHED


def test_a_02_lowering_the_bound_takes_executors_of_a_region_away_gracefully() -> None:
    path, _ = project({"a": ()}, {"a": SMALL}, region_s=300.0)
    world = world_of()
    job = submit(world, path, max_executors=4)
    world.run_until(lambda: len(running(world, job).get("a", [])) == 4, 60)
    world.run(40)
    world.scale(job, 1, 2)
    world.run_until(lambda: len(running(world, job)["a"]) == 2, 60)
    assert len(world.named("decommissioning")) == 2
    assert world.state(job) is JobState.RUNNING


def test_a_02_the_history_has_each_regions_executors() -> None:
    path, _ = project({"a": (), "b": ("a",)}, dict.fromkeys("ab", SMALL), region_s=60.0)
    world = world_of()
    job = submit(world, path, max_executors=2)
    world.run_until(lambda: bool(world.named("rescaled")), 60)
    world.scale(job, 1, 3)
    assert until_over(world, job) is JobState.FINISHED
    fields = [event.fields for event in world.named("rescaling")]
    assert [(one["region"], one["cause"], one["from"], one["to"]) for one in fields] == [
        ("a", "INITIAL_SCHEDULE", 0, 2),
        ("a", "UPDATE_REQUIREMENT", 2, 3),
        ("b", "INITIAL_SCHEDULE", 0, 3),
    ]
    assert {event.fields["state"] for event in world.named("rescaled")} == {"COMPLETED"}
    told = [event for _, event in world.events if event.job == job]
    shown = rescales.history(
        Happened(number, 0.0, event.name, event.job, event.worker, event.allocation, dict(event.fields))
        for number, event in enumerate(told)
    ).rescales
    assert [list(rescale.vertices) for rescale in shown] == [["a"], ["a"], ["b"]]
    assert {rescale.terminalState for rescale in shown} == {"COMPLETED"}


def test_a_region_that_could_run_again_and_has_no_slots_is_not_looked_at_all_the_time() -> None:
    path, behaviour = project({"a": ()}, {"a": SMALL})
    given = spec(program=path, pipeline=PipelineOptions())
    pipeline = Pipeline(JobId("j"), given, (), stabilisation_s=1.0, wait_timeout_s=60.0)
    strategy = RestartStrategy(RestartKind.FIXED_DELAY, attempts=3, delay_s=2.0)
    pipeline.take(PipelineReport(behaviour.text), strategy, 0.0)
    pipeline.decide(Supply({}, {}, {SMALL_PROFILE: 9}), None, 0.0)
    failed = RegionStatus("a", 1, RegionState.FAILED, "simulated")
    pipeline.take(PipelineReport(None, regions=(failed,)), strategy, 10.0)
    assert pipeline.due(10.0) == 12.0
    pipeline.decide(Supply({}, {}, {}), None, 12.0)
    # Nothing is due before the wait is over.
    assert pipeline.due(12.0) == 72.0


def test_a_pipeline_with_dynamic_allocation_is_refused() -> None:
    world = world_of()
    given = spec(program="/p/spark-pipeline.yml", pipeline=PipelineOptions(), dynamic_allocation=True)
    answer = world.ask(SubmitJob("key", given))
    assert isinstance(answer, JobRefused)
    assert "follow its regions" in answer.reason
