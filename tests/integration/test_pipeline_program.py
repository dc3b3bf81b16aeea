"""The program of a pipeline job against real Spark: its graph, and its regions on executors of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.model.executor_conf import executor_size
from slotwise.model.pipeline import RegionState
from slotwise.model.regions import regions_of
from slotwise.model.resources import MIB
from tests.integration.pipelines import CARRIERS, DELAYS, FLIGHTS, Pipeline, add_flights, flights_project
from tests.integration.spark_worker import Worker

pytestmark = pytest.mark.spark

DB = "spark_catalog.default."
LARGE = executor_size({"spark.executor.memory": "700m", "spark.executor.cores": "2"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Iterator[Pipeline]:
    """The example project; the tests run its regions in the order of this file."""
    worker = Worker(folder)
    yield Pipeline(worker, flights_project(folder / "flights"), folder / "warehouse")
    worker.close()


def test_the_graph_is_known_before_there_is_any_executor(pipeline: Pipeline) -> None:
    graph = pipeline.graph()
    regions = {region.name: region for region in regions_of(graph)}
    assert set(regions) == {f"{DB}{name}" for name in ("flights", "airports", "carriers", "delays_by_airport")}
    assert regions[f"{DB}carriers"].needs == (f"{DB}flights",)
    assert regions[f"{DB}carriers"].views == ("departed",)
    assert set(regions[f"{DB}delays_by_airport"].needs) == {f"{DB}flights", f"{DB}airports"}
    sizes = {name: region.size.executor for name, region in regions.items() if region.size is not None}
    assert {(size.cores, size.heap_bytes // MIB) for size in sizes.values()} == {(1, 512), (2, 700)}
    assert regions[f"{DB}airports"].parallelism.most == 1
    assert {dataset.name: dataset.origin for dataset in graph.datasets}[f"{DB}carriers"].endswith("carriers.sql:3")
    assert not pipeline.worker.report.registered


def test_independent_regions_run_side_by_side(pipeline: Pipeline) -> None:
    for name in ("flights", "airports"):
        pipeline.start(f"{DB}{name}")
    pipeline.worker.wait(
        lambda: {stage.region for stage in pipeline.worker.report.stages} >= {f"{DB}flights"}, "a stage that waits"
    )
    pipeline.bring("1", f"{DB}flights")
    pipeline.bring("2", f"{DB}airports", size=LARGE)
    pipeline.status(f"{DB}flights", RegionState.FINISHED)
    pipeline.status(f"{DB}airports", RegionState.FINISHED)
    assert {row[3:] for row in pipeline.rows("flights")} == set(FLIGHTS)


def test_a_07_the_next_regions_run_on_the_same_executors(pipeline: Pipeline) -> None:
    pipeline.give("1", f"{DB}carriers")
    pipeline.give("2", f"{DB}delays_by_airport")
    carriers = pipeline.run(f"{DB}carriers")
    pipeline.run(f"{DB}delays_by_airport", conf={"spark.sql.shuffle.partitions": "3"})
    assert pipeline.rows("carriers") == CARRIERS
    assert pipeline.rows("delays_by_airport") == DELAYS
    assert carriers.flows == {f"{DB}carriers": "COMPLETED"}
    assert pipeline.worker.report.registered == ("1", "2")


def test_a_streaming_table_takes_what_is_new(pipeline: Pipeline, folder: Path) -> None:
    add_flights(folder / "flights", "second", [("DL", "EWR", 1.0)])
    pipeline.give("1", f"{DB}flights")
    pipeline.run(f"{DB}flights")
    assert {row[3:] for row in pipeline.rows("flights")} == {*FLIGHTS, ("DL", "EWR", 1.0)}
    pipeline.give("1", f"{DB}carriers")
    pipeline.run(f"{DB}carriers", full_refresh=True)
    assert pipeline.rows("carriers") == {*CARRIERS, ("DL", 1, 1.0)}


def test_a_dry_run_finds_nothing_wrong(pipeline: Pipeline) -> None:
    pipeline.instruct(check=True)
    pipeline.wait(lambda: pipeline.said.checked is not None, "the outcome")
    assert pipeline.said.checked == ""


def test_a_dataset_that_is_not_there_cannot_be_run(pipeline: Pipeline) -> None:
    pipeline.start("nothing")
    assert "the pipeline has no dataset nothing" in pipeline.status("nothing", RegionState.FAILED).reason


def test_it_ends_in_order(pipeline: Pipeline) -> None:
    pipeline.stop()
