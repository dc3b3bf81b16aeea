"""Pipeline projects from the command line to their tables: sizes, failures, selections. Real Spark, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from slotwise.client import Client
from slotwise.spark.home import find_spark
from slotwise.spark.java import find_java
from tests.integration.clusters import Cluster, Sandbox, wait_for
from tests.integration.pipelines import (
    AIRPORTS,
    CARRIERS,
    DELAYS,
    FLIGHTS,
    add_flights,
    flights_project,
    project,
    table_rows,
)
from tests.integration.test_run import running, worker_of_driver

pytestmark = pytest.mark.spark

DB = "spark_catalog.default."
DRIVER = ("--driver-memory", "600m", "--conf", "spark.driver.memoryOverhead=256m")
TWO_WORKERS = ("--workers", "2", "--worker-cpus", "3", "--worker-memory", "3g")

# Three steps that wait until somebody lets them go on: each writes how often its rows were computed.
STEPS = """
import os, time, uuid
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

HERE = Path.cwd()

def gate(name):
    @F.udf(LongType())
    def held(n):
        (HERE / ("at-" + name + "-" + uuid.uuid4().hex)).touch()
        while not (HERE / ("go-" + name)).exists():
            time.sleep(0.05)
        return n
    return held

@dp.materialized_view
def first():
    return spark.range(0, 100, 1, 2).select(gate("first")("id").alias("n"))

@dp.materialized_view
def second():
    return spark.read.table("first").groupBy((F.col("n") % 10).alias("k")).agg(F.sum(gate("second")("n")).alias("s"))

@dp.materialized_view
def third():
    return spark.read.table("second").select(F.sum(gate("third")("s")).alias("total"))
"""
TOTAL = {(sum(range(100)),)}


def conf(folder: Path) -> tuple[str, ...]:
    return (*DRIVER, "--conf", f"spark.sql.warehouse.dir={(folder / 'warehouse').as_uri()}")


def warehouse_rows(warehouse: Path) -> dict[str, set[tuple[Any, ...]]]:
    """What lies in each table."""
    return {path.name: table_rows(path) for path in warehouse.iterdir() if path.is_dir()}


def attempts(err: list[str], dataset: str) -> int:
    """How often a region was begun, going by what the command said."""
    return sum(f"{DB}{dataset} runs with" in line for line in err)


def test_the_example_has_its_rows_and_runs_again_with_what_is_new(cluster: Cluster) -> None:
    sandbox = cluster.sandbox
    folder = sandbox.directory
    spec = flights_project(folder / "flights")
    done = sandbox.run("submit", "--wait", *conf(folder), str(spec.parent))
    assert done.returncode == 0, done.stderr
    assert warehouse_rows(folder / "warehouse") == {
        "flights": {(2013, 1, 1, *flight) for flight in FLIGHTS},
        "airports": set(AIRPORTS),
        "carriers": CARRIERS,
        "delays_by_airport": DELAYS,
    }
    assert_graph_is_shown(cluster)
    # Another job on the same tables, though Spark's catalog has forgotten them.
    add_flights(spec.parent, "second", [("DL", "EWR", 1.0)])
    selection = ("--refresh", "flights", "--full-refresh", "carriers")
    again = sandbox.run("run", *TWO_WORKERS, *conf(folder), *selection, str(spec))
    assert again.returncode == 0, again.stderr
    assert table_rows(folder / "warehouse" / "carriers") == {*CARRIERS, ("DL", 1, 1.0)}
    assert table_rows(folder / "warehouse" / "delays_by_airport") == DELAYS
    assert attempts(again.stderr.splitlines(), "delays_by_airport") == 0


def assert_graph_is_shown(cluster: Cluster) -> None:
    """Also after the job's end."""
    (job,) = (job["jid"] for job in cluster.json("jobs"))
    vertices = cluster.json("job", job)["vertices"]
    assert {vertex["status"] for vertex in vertices} == {"FINISHED"}
    assert all(vertex["duration"] > 0 for vertex in vertices)
    assert f"departed → {DB}carriers" in cluster.sandbox.run("job", job).stdout
    token = (cluster.sandbox.directory / "state" / "token").read_text().strip()
    with Client(cluster.sandbox.env["SLOTWISE_MASTER"], token) as client:
        plan = client.call("GET", f"/v1/jobs/{job}/plan")["plan"]
    inputs = {node["id"]: {one["id"] for one in node["inputs"]} for node in plan["nodes"]}
    assert inputs[f"{DB}carriers"] == {f"{DB}flights"}
    assert inputs[f"{DB}delays_by_airport"] == {f"{DB}flights", f"{DB}airports"}
    assert plan["jid"] == job


def theirs(folder: Path) -> dict[str, set[tuple[Any, ...]]]:
    """The tables that spark-pipelines makes of the project, without the sizes, which it refuses."""
    other = flights_project(folder / "theirs")
    for path in [other, *other.parent.rglob("*.py"), *other.parent.rglob("*.sql")]:
        text = path.read_text()
        for stated in ('"spark.executor.cores": "1"', '"spark.executor.cores": "2"', '"slotwise.parallelism.max": "1"'):
            text = text.replace(f"{stated}, ", "").replace(stated, "")
        text = text.replace('"spark.executor.memory": "700m"', "").replace("  spark.executor.memory: 512m\n", "")
        path.write_text(text.replace("SET spark.executor.cores = 1;", ""))
    warehouse = folder / "their-warehouse"
    spark = find_spark()
    java = find_java(spark_version=spark.version)
    env = {**os.environ, "SPARK_HOME": str(spark.path), "JAVA_HOME": str(java.path.parent.parent)}
    env["PYSPARK_PYTHON"] = sys.executable
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(other)]
    command += ["--conf", f"spark.sql.warehouse.dir={warehouse}", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return warehouse_rows(warehouse)


@pytest.mark.long
def test_the_example_has_the_rows_of_sparks_own_command(sandbox: Sandbox) -> None:
    folder = sandbox.directory
    done = sandbox.run("run", *TWO_WORKERS, *conf(folder), str(flights_project(folder / "flights")))
    assert done.returncode == 0, done.stderr
    assert warehouse_rows(folder / "warehouse") == theirs(folder)


def kill_executor(sandbox: Sandbox) -> None:
    sandbox.executors()[0].kill()


def kill_driver(sandbox: Sandbox) -> None:
    sandbox.processes("PythonGatewayServer")[0].kill()


def kill_worker(sandbox: Sandbox) -> None:
    """One that has not got the driver, or the one that there is."""
    own = worker_of_driver(sandbox)
    others: list[psutil.Process] = [worker for worker in sandbox.workers() if worker.pid != own.pid]
    (others or [own])[0].kill()


def kill_drivers_worker(sandbox: Sandbox) -> None:
    worker_of_driver(sandbox).kill()


def run_with_kills(sandbox: Sandbox, kills: dict[str, list[Callable[[Sandbox], None]]]) -> list[str]:
    """Run the three steps, with these kills while each of them computes; returns what the command said."""
    folder = sandbox.directory
    spec = project(folder / "steps", {"steps.py": STEPS}, "{spark.executor.memory: 512m}")
    restarts = ("--restart-strategy", "fixed-delay", "--restart-attempts", "5")
    with running(sandbox, *TWO_WORKERS, *conf(folder), *restarts, str(spec.parent)) as started:
        for step in ("first", "second", "third"):
            for kill in kills.get(step, []):
                wait_for(lambda step=step: list(spec.parent.glob(f"at-{step}-*")), 120, f"tasks of {step}")  # type: ignore[misc]
                for mark in spec.parent.glob(f"at-{step}-*"):
                    mark.unlink()
                kill(sandbox)
            (spec.parent / f"go-{step}").touch()
        assert started.end() == 0, "".join(started.err)
        assert table_rows(folder / "warehouse" / "third") == TOTAL, "".join(started.err)
        return started.err


@pytest.mark.long
def test_after_kill_9_of_executor_driver_and_worker_finished_regions_are_not_repeated(sandbox: Sandbox) -> None:
    said = run_with_kills(sandbox, {"first": [kill_executor], "second": [kill_driver], "third": [kill_drivers_worker]})
    # What ran when its driver was lost ran twice, and nothing else.
    assert [attempts(said, step) for step in ("first", "second", "third")] == [1, 2, 2]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", ["first", "second", "third"])
def test_each_region_survives_each_kill(sandbox: Sandbox, step: str) -> None:
    said = run_with_kills(sandbox, {step: [kill_executor, kill_driver, kill_worker, kill_drivers_worker]})
    others = [attempts(said, other) for other in ("first", "second", "third") if other != step]
    assert others == [1, 1]


PARTS = """
from pyspark import pipelines as dp

@dp.materialized_view
def good():
    return spark.range(10)

@dp.materialized_view(spark_conf={"spark.executor.memory": "900g"})
def huge():
    return spark.range(3)

@dp.materialized_view
def after_huge():
    return spark.read.table("huge")

@dp.materialized_view
def after_good():
    return spark.read.table("good").selectExpr("count(*) as n")
"""


def test_a_region_that_fits_no_worker_fails_the_job_with_its_reason_after_the_others(sandbox: Sandbox) -> None:
    folder = sandbox.directory
    spec = project(folder / "parts", {"parts.py": PARTS}, "{spark.executor.memory: 512m}")
    done = sandbox.run("run", *TWO_WORKERS, *conf(folder), str(spec.parent))
    assert done.returncode == 1, done.stderr
    assert table_rows(folder / "warehouse" / "after_good") == {(10,)}
    lines = done.stderr.splitlines()
    assert any(f"{DB}huge failed" in line and "larger than any worker" in line for line in lines), done.stderr
    assert any(f"{DB}after_huge canceled" in line for line in lines)
    assert f"{DB}huge: " in lines[-2]


def test_mistakes_in_a_project_are_one_clear_line(sandbox: Sandbox) -> None:
    folder = sandbox.directory
    (folder / "empty").mkdir()
    assert "without a spark-pipeline.yml" in sandbox.run("run", "empty").stderr
    spec = project(folder / "p", {"a.py": "from pyspark import pipelines as dp\nnonsense"})
    done = sandbox.run("run", *TWO_WORKERS, *conf(folder), str(spec.parent))
    assert done.returncode == 1
    assert "definitions/a.py:2: NameError: name 'nonsense' is not defined" in done.stderr
    assert "Traceback" not in done.stderr
    spec.write_text("- not a specification")
    assert "is not a pipeline's specification" in sandbox.run("run", "p").stderr


def test_a_dry_run_checks_the_whole_graph_and_stores_nothing(sandbox: Sandbox) -> None:
    folder = sandbox.directory
    good = flights_project(folder / "good")
    done = sandbox.run("run", "--dry-run", *TWO_WORKERS, *conf(folder), str(good.parent))
    assert done.returncode == 0, done.stderr
    assert not list((folder / "warehouse").glob("*/*.parquet"))
    text = "CREATE MATERIALIZED VIEW a AS SELECT * FROM nowhere"
    bad = project(folder / "bad", {"a.sql": text})
    done = sandbox.run("run", "--dry-run", *TWO_WORKERS, *conf(folder), str(bad.parent))
    assert done.returncode == 1
    assert "TABLE_OR_VIEW_NOT_FOUND" in done.stderr
