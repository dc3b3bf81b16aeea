"""What is on the clusters that the dashboard is shown: jobs that run, wait, have failed; a pipeline; many workers."""

from __future__ import annotations

from typing import Any

from slotwise.model.ids import JobId
from slotwise.model.job import DriverSize, ExecutorSize, JobSpec, JobState
from slotwise.model.job_graph import Dataset, DatasetKind, Flow, JobGraph
from slotwise.model.pipeline import PipelineOptions
from slotwise.model.resources import GIB, MIB, ResourceProfile
from slotwise.simulation.pipeline_model import PipelineBehaviour
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from tests.browser.fleet import LiveMaster

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'&quot;'
SMALL_WORKER = ResourceProfile(8_000, 32 * GIB)
ENDLESS, SHORT, FAILS = "/programs/endless.py", "/programs/short.py", "/programs/fails.py"
BEHAVIOURS[ENDLESS] = Behaviour(seconds=1e9)
BEHAVIOURS[SHORT] = Behaviour(seconds=1)
BEHAVIOURS[FAILS] = Behaviour(seconds=1, exit_code=3)


def spec(name: str, program: str = ENDLESS, executors: int = 2, gib: int = 2, cores: int = 1, **more: Any) -> JobSpec:
    """A job with executors of ``gib`` GiB and ``cores`` cores."""
    given: dict[str, Any] = {
        "name": name,
        "program": program,
        "driver": DriverSize(1, GIB, 512 * MIB),
        "executor": ExecutorSize(cores, gib * GIB - 384 * MIB, 384 * MIB),
        "initial_executors": executors,
        "min_executors": 1,
    }
    return JobSpec(**(given | more))


def pipeline(name: str, path: str = "/projects/flights/spark-pipeline.yml") -> JobSpec:
    """A pipeline of six regions, one of which fails once."""
    reads = {
        "raw_flights": (),
        "raw_airlines": (),
        "flights": ("raw_flights",),
        "airlines": ("raw_airlines",),
        "delays": ("flights", "airlines"),
        "carriers": ("airlines",),
    }
    datasets = tuple(Dataset(dataset, DatasetKind.MATERIALIZED_VIEW) for dataset in reads)
    flows = tuple(Flow(dataset, dataset, inputs) for dataset, inputs in reads.items())
    graph = JobGraph(name=name, catalog="spark_catalog", database="default", datasets=datasets, flows=flows)
    BEHAVIOURS[path] = Behaviour(pipeline=PipelineBehaviour(graph, region_s=1e9 if "endless" in path else 5.0))
    return spec(name, pipeline=PipelineOptions(), program=path)


def state(master: LiveMaster, job: JobId, *states: JobState) -> None:
    """Wait until the job is in one of these states."""
    master.until(lambda m: m.dispatcher.jobs[job].state in states)


def furnish(master: LiveMaster) -> dict[str, JobId]:
    """A small cluster in the middle of its day."""
    master.add_workers(4, SMALL_WORKER)
    finished, failed = master.submit(spec("daily-report", SHORT), spec("clean-up", FAILS, gib=1))
    text = "".join(
        f"line {number}: 2013-01-{number % 28 + 1:02}, {number * 7919 % 1000} flights\n" for number in range(400)
    )
    master.write_log(finished, "driver-1.out", text)
    master.write_log(
        failed, "driver-1.err", 'Traceback (most recent call last):\n  File "clean.py"\nValueError: no column "x"\n'
    )
    state(master, finished, JobState.FINISHED)
    state(master, failed, JobState.FAILED)
    running, large, evil, flights = master.submit(
        spec("flights-by-carrier", executors=4),
        spec("train-model", executors=3, gib=8, cores=2),
        spec(EVIL, executors=1, gib=3),
        pipeline("flights pipeline"),
    )
    for job in (running, large, evil, flights):
        state(master, job, JobState.RUNNING, JobState.FINISHED)
    (waiting,) = master.submit(spec("too-much", executors=6, gib=24, min_executors=6))
    master.until(lambda m: m.resource_manager.shortages(waiting))
    return {
        "finished": finished,
        "failed": failed,
        "running": running,
        "large": large,
        "evil": evil,
        "pipeline": flights,
        "waiting": waiting,
    }


def crowd(master: LiveMaster, workers: int = 200, jobs: int = 40, executors: int = 249) -> list[JobId]:
    """A large cluster: 200 workers with 10,000 slots of 40 jobs."""
    master.add_workers(workers, ResourceProfile(64_000, 256 * GIB))
    found = master.submit(
        *(spec(f"job-{number:02}", executors=executors, gib=1 + number % 6) for number in range(jobs))
    )
    wanted = jobs * (executors + 1)
    master.until(
        lambda m: (
            sum(len(entry.slots) for entry in m.resource_manager.slots.workers.values()) >= wanted
            and all(m.dispatcher.jobs[job].state is JobState.RUNNING for job in found)
        )
    )
    return found
