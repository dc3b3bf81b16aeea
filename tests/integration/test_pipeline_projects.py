"""Projects with what is not in the example: sinks, failures, SQL of all kinds, definitions that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.model.job_graph import DatasetKind
from slotwise.model.pipeline import RegionState
from slotwise.model.regions import regions_of
from tests.integration.pipelines import Pipeline, project
from tests.integration.spark_worker import Worker

pytestmark = pytest.mark.spark

DB = "spark_catalog.default."

PYTHON = """
import time
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

RELEASE = Path.cwd() / "release"

@F.udf(LongType())
def broken(n):
    raise ValueError("this number is no good: " + str(n))

@F.udf(LongType())
def slow(n):
    while not RELEASE.exists():
        time.sleep(0.05)
    return n

@dp.materialized_view(spark_conf={"slotwise.parallelism.min": "2"})
def good():
    print("the project prints what it likes")
    return spark.range(10)

@dp.materialized_view
def bad():
    return spark.range(3).select(broken("id").alias("n"))

@dp.materialized_view
def waits():
    return spark.range(3).select(slow("id").alias("n"))

@dp.temporary_view
def even():
    return spark.read.table("good").where("id % 2 = 0 and id in (select id from spark_catalog.default.good)")

@dp.materialized_view
def picked():
    return spark.sql("WITH e AS (SELECT * FROM even) SELECT a.id FROM e a JOIN raw.numbers b ON a.id = b.id")

@dp.table
def arrivals():
    return spark.readStream.table("good")

@dp.temporary_view
def small():
    return spark.readStream.table("arrivals").where("id < 3")

dp.create_sink("out", "json", {"path": (Path.cwd() / "out").as_uri()})

@dp.append_flow(target="out")
def write_out():
    return spark.readStream.table("small").union(spark.readStream.table("large"))
"""
SQL = """
-- Names in all places where SQL has them.
SET spark.sql.ansi.enabled = true; SET slotwise.parallelism.max = 3;
CREATE TEMPORARY VIEW large AS SELECT * FROM STREAM arrivals WHERE id > 7;
CREATE MATERIALIZED VIEW nested AS
WITH good AS (SELECT * FROM good), other AS (SELECT (SELECT max(id) FROM picked) AS top FROM good)
SELECT * FROM other WHERE EXISTS (SELECT 1 FROM `even`);
CREATE STREAMING TABLE copies;
CREATE FLOW copy AS INSERT INTO copies BY NAME SELECT * FROM STREAM(arrivals);
USE SCHEMA elsewhere;
CREATE MATERIALIZED VIEW far AS SELECT * FROM near JOIN default.good USING (id);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("projects")


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Iterator[Pipeline]:
    worker = Worker(folder)
    spec = project(folder / "project", {"all.py": PYTHON, "more/all.sql": SQL})
    yield Pipeline(worker, spec, folder / "warehouse")
    worker.close()


def test_names_are_found_wherever_they_stand(pipeline: Pipeline) -> None:
    graph = pipeline.graph()
    flows = {flow.name: flow for flow in graph.flows}
    assert flows["even"].inputs == (f"{DB}good",)
    assert flows[f"{DB}picked"].inputs == ("even", "spark_catalog.raw.numbers")
    assert flows[f"{DB}write_out"].target == "out"
    assert flows[f"{DB}write_out"].inputs == ("small", "large")
    assert set(flows[f"{DB}nested"].inputs) == {f"{DB}good", f"{DB}picked", "even"}
    assert flows[f"{DB}copy"].target == f"{DB}copies"
    assert flows[f"{DB}copy"].inputs == (f"{DB}arrivals",)
    assert flows["spark_catalog.elsewhere.far"].inputs == ("spark_catalog.elsewhere.near", f"{DB}good")
    assert flows["large"].conf == {"spark.sql.ansi.enabled": "true", "slotwise.parallelism.max": "3"}
    regions = {region.name: region for region in regions_of(graph)}
    assert regions["out"].kind is DatasetKind.SINK
    assert set(regions["out"].views) == {"small", "large"}
    assert regions["out"].needs == (f"{DB}arrivals",)
    assert regions["out"].parallelism.most == 3
    assert graph.external_inputs == ("spark_catalog.elsewhere.near", "spark_catalog.raw.numbers")


def narrow(folder: Path) -> None:
    """Take out what reads tables that are not there: Spark checks the whole graph in each run."""
    python = PYTHON.replace("JOIN raw.numbers b ON a.id = b.id", "")
    project(folder / "project", {"all.py": python, "more/all.sql": SQL.partition("USE SCHEMA elsewhere")[0]})


def test_what_spark_finds_wrong_with_the_graph_is_told_for_each_region(pipeline: Pipeline) -> None:
    pipeline.bring("1", None)
    for name in ("good", "waits"):
        pipeline.start(f"{DB}{name}")
    for name in ("good", "waits"):
        reason = pipeline.status(f"{DB}{name}", RegionState.FAILED).reason
        assert f"{DB}picked: [TABLE_OR_VIEW_NOT_FOUND]" in reason
        assert "UnresolvedRelation" not in reason


def test_definitions_that_change_are_noticed(pipeline: Pipeline, folder: Path) -> None:
    narrow(folder)
    pipeline.start(f"{DB}good")
    assert "have changed since" in pipeline.status(f"{DB}good", RegionState.FAILED).reason
    pipeline.stop()


@pytest.fixture(scope="module")
def second(folder: Path) -> Iterator[Pipeline]:
    """The same project without what is not there."""
    narrow(folder)
    worker = Worker(folder / "second")
    yield Pipeline(worker, folder / "project" / "spark-pipeline.yml", folder / "warehouse")
    worker.close()


@pytest.mark.long
def test_a_region_that_fails_says_why_and_harms_no_other(second: Pipeline) -> None:
    second.graph()
    second.start(f"{DB}bad")
    second.start(f"{DB}good")
    second.bring("1", f"{DB}bad")
    second.bring("2", f"{DB}good")
    reason = second.status(f"{DB}bad", RegionState.FAILED).reason
    assert "this number is no good" in reason
    assert "org.apache.spark" not in reason
    second.status(f"{DB}good", RegionState.FINISHED)
    assert second.rows("good") == {(n,) for n in range(10)}
    assert any("prints what it likes" in line for line in second.driver.output)


@pytest.mark.long
def test_a_sink_is_run_by_itself(second: Pipeline, folder: Path) -> None:
    second.give("2", f"{DB}arrivals")
    second.run(f"{DB}arrivals")
    second.give("2", "out")
    second.run("out")
    lines = [line for path in (folder / "project" / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == [0, 1, 2, 8, 9]


@pytest.mark.long
def test_a_region_can_be_cancelled(second: Pipeline, folder: Path) -> None:
    second.give("1", f"{DB}waits")
    second.start(f"{DB}waits")
    second.worker.wait(
        lambda: any(stage.region == f"{DB}waits" and stage.running for stage in second.worker.report.stages),
        "tasks of the region",
    )
    second.cancel(f"{DB}waits")
    second.status(f"{DB}waits", RegionState.CANCELED)
    (folder / "project" / "release").touch()
    second.worker.wait(lambda: not second.worker.report.stages, "the end of its stages")
    second.run(f"{DB}waits")
    assert second.rows("waits") == {(0,), (1,), (2,)}


@pytest.mark.long
def test_sparks_own_refresh_of_a_materialized_view_is_not_atomic(second: Pipeline, folder: Path) -> None:
    # Fails when a version of Spark does better: then docs/decisions/0015-pipelines.md has to say so.
    (folder / "project" / "release").unlink()
    second.start(f"{DB}waits")
    second.worker.wait(
        lambda: any(stage.region == f"{DB}waits" and stage.running for stage in second.worker.report.stages),
        "tasks of the region",
    )
    assert not list((folder / "warehouse" / "waits").glob("*.parquet"))
    (folder / "project" / "release").touch()
    second.worker.wait(lambda: list((folder / "warehouse" / "waits").glob("*.parquet")), "the new rows")


@pytest.mark.long
def test_it_stops_in_order(second: Pipeline) -> None:
    second.stop()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.py": "from pyspark import pipelines as dp\nnonsense"}, "definitions/a.py:2: NameError: name 'nonsense'"),
        ({"a.py": "import sys\nsys.exit(0)"}, "definitions/a.py:2: SystemExit: 0"),
        ({"a.sql": "CREATE MATERIALIZED VIEW a AS SELEC 1"}, "PARSE_SYNTAX_ERROR"),
    ],
)
def test_definitions_that_cannot_be_read_end_the_program(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    worker = Worker(tmp_path)
    try:
        broken = Pipeline(worker, project(tmp_path / "project", files), tmp_path / "warehouse")
        assert broken.driver.finish() == 1
        assert reason in broken.said.failed
    finally:
        worker.close()
