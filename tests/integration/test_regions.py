"""Regions against real Spark: tasks of a region run on the executors of that region, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from slotwise.model.executor_conf import executor_size
from tests.integration.spark_worker import INTERPRETER, Driver, Worker

# The short form is test_pipeline_program.py, which runs regions side by side and moves executors between them.
pytestmark = [pytest.mark.spark, pytest.mark.long]

SMALL = executor_size({"spark.executor.memory": "512m"})
LARGE = executor_size({"spark.executor.memory": "700m", "spark.executor.cores": "2"})

PROGRAM = """
import threading, time
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast, sum as total, udf
spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext
outcomes = {}

def query(rows):
    # A shuffle, a broadcast join, adaptive execution and a Python function.
    twice = udf(lambda n: n * 2, "long")
    keys = broadcast(spark.range(3).withColumnRenamed("id", "key"))
    table = spark.range(0, rows, 1, 6).selectExpr("id % 3 as key", "id as value").join(keys, "key")
    table = table.repartition(4, "value").groupBy("key").agg(total(twice("value")).alias("sum"))
    return sorted([row.key, row.sum] for row in table.collect())

def start(name, region, rows):
    def work():
        sc.setJobGroup(name, name)
        if region:
            sc.setLocalProperty("spark.slotwise.region", region)
        outcomes[name] = query(rows)
    InheritableThread(target=work, daemon=True).start()

def outcome(name):
    while name not in outcomes:
        time.sleep(0.05)
    return outcomes[name]

def ran_on(name):
    "The executors on which any task of this job group ran, of all its jobs and stages."
    store = sc._jsc.sc().statusStore()
    found = set()
    jobs = store.jobsList(None)
    for i in range(jobs.size()):
        job = jobs.apply(i)
        if job.jobGroup().isDefined() and job.jobGroup().get() == name:
            for j in range(job.stageIds().size()):
                tasks = store.taskList(job.stageIds().apply(j), 0, 1000)
                found |= {tasks.apply(k).executorId() for k in range(tasks.size())}
    return sorted(found)
result = sc.applicationId
"""


def expected(rows: int) -> list[list[int]]:
    return [[key, 2 * sum(range(key, rows, 3))] for key in range(3)]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("regions"))
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def driver(worker: Worker) -> Driver:
    """A driver that asks for no executors itself; the tests, in their order, give it one after the other."""
    conf = {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
    driver = worker.driver("regions", INTERPRETER, conf, initial_executors=0)
    driver.send(PROGRAM)
    driver.answer(settle=False)
    return driver


def bring(worker: Worker, key: str, region: str | None, **changes: Any) -> None:
    """Start executor ``key`` for ``region`` and wait until it has joined."""
    if region is not None:
        worker.regions[key] = region
    worker.launch(key, **changes)
    worker.tell()
    worker.wait(lambda: key in worker.report.registered, f"executor {key}")


def run(driver: Driver, code: str) -> Any:
    driver.send(code)
    return driver.answer(settle=False)


def waiting(worker: Worker, region: str) -> bool:
    """Whether a stage of ``region`` has tasks and none of them runs or has run."""
    stages = [stage for stage in worker.report.stages if stage.region == region]
    return any(stage.tasks and not stage.done for stage in stages) and not any(stage.running for stage in stages)


def test_two_regions_run_at_once_each_on_executors_of_its_own_size(worker: Worker, driver: Driver) -> None:
    bring(worker, "1", "small", size=SMALL)
    bring(worker, "2", "large", size=LARGE)
    run(driver, "start('s', 'small', 3000); start('l', 'large', 6000)")
    assert run(driver, "result = [outcome('s'), outcome('l')]") == [expected(3000), expected(6000)]
    assert run(driver, "result = [ran_on('s'), ran_on('l')]") == [["1"], ["2"]]
    cores = "{e.id(): e.totalCores() for e in map(executors.apply, range(executors.size()))}"
    seen = run(driver, f"executors = sc._jsc.sc().statusStore().executorList(True)\nresult = {cores}")
    assert (seen["1"], seen["2"]) == (1, 2)


def test_a_region_without_an_executor_waits_until_one_comes(worker: Worker, driver: Driver) -> None:
    run(driver, "start('late', 'late', 900)")
    worker.wait(lambda: waiting(worker, "late"), "the stage of the region that has nothing")
    # Others go on meanwhile, and their free executors are not taken.
    run(driver, "start('s2', 'small', 600)")
    assert run(driver, "result = outcome('s2')") == expected(600)
    assert waiting(worker, "late")
    bring(worker, "3", "late", size=SMALL)
    assert run(driver, "result = outcome('late')") == expected(900)
    assert run(driver, "result = [ran_on('s2'), ran_on('late')]") == [["1"], ["3"]]


def test_a_07_an_executor_that_is_given_to_another_region_works_for_that_one(worker: Worker, driver: Driver) -> None:
    run(driver, "start('next', 'next', 1200)")
    worker.wait(lambda: waiting(worker, "next"), "the stage of the next region")
    worker.regions["3"] = "next"
    worker.tell()
    assert run(driver, "result = outcome('next')") == expected(1200)
    assert run(driver, "result = ran_on('next')") == ["3"]


def test_what_has_no_region_runs_on_any_executor_while_all_have_one(worker: Worker, driver: Driver) -> None:
    run(driver, "start('none', '', 1500)")
    assert run(driver, "result = outcome('none')") == expected(1500)
    assert set(run(driver, "result = ran_on('none')")) <= {"1", "2", "3"}


def test_an_executor_may_run_fewer_tasks_than_it_has_cores(worker: Worker, driver: Driver) -> None:
    bring(worker, "4", None, size=msgspec.structs.replace(LARGE, cores=2), task_slots=1)
    seen = run(
        driver,
        "executors = sc._jsc.sc().statusStore().executorList(True)\n"
        "result = {e.id(): e.totalCores() for e in map(executors.apply, range(executors.size()))}['4']",
    )
    assert seen == 1


def test_what_has_no_region_runs_on_executors_without_one(worker: Worker, driver: Driver) -> None:
    run(driver, "start('own', '', 2100)")
    assert run(driver, "result = outcome('own')") == expected(2100)
    assert run(driver, "result = ran_on('own')") == ["4"]
    # And a region's tasks do not run on them.
    run(driver, "start('s3', 'small', 300)")
    assert run(driver, "result = [outcome('s3'), ran_on('s3')]") == [expected(300), ["1"]]


def test_the_driver_ends_in_order(driver: Driver) -> None:
    assert driver.finish() == 0
