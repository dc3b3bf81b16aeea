"""A pipeline job's driver for tests: what the control plane says to the program, and what it answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slotwise.model.executor_conf import executor_size
from slotwise.model.job_graph import JobGraph, decode_graph
from slotwise.model.pipeline import (
    PipelineDirectives,
    PipelineOptions,
    PipelineReport,
    RegionRun,
    RegionState,
    RegionStatus,
)
from tests.integration.spark_worker import Driver, Worker

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_pipeline"
CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "1",
    # Spark itself would try a failed flow again, after longer and longer waits.
    "spark.sql.pipelines.maxFlowRetryAttempts": "0",
}
SMALL = executor_size({"spark.executor.memory": "512m"})

FLIGHTS = [
    ("UA", "EWR", 2.0),
    ("UA", "JFK", 40.0),
    ("AA", "JFK", -4.0),
    ("AA", "JFK", None),
    ("B6", "LGA", 30.0),
    ("B6", "LGA", 10.0),
]
AIRPORTS = [("EWR", "Newark"), ("JFK", "Kennedy"), ("LGA", "La Guardia")]
CARRIERS = {("AA", 1, -4.0), ("B6", 2, 30.0), ("UA", 2, 40.0)}
DELAYS = {
    ("EWR", "Newark", 2.0, "in time"),
    ("JFK", "Kennedy", 18.0, "late"),
    ("LGA", "La Guardia", 20.0, "late"),
}


def flights_project(folder: Path) -> Path:
    """A copy of the example with small input in ``folder``; returns its specification."""
    shutil.copytree(EXAMPLE, folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/slotwise-flights-pipeline", str(folder / "storage")))
    add_flights(folder, "first", FLIGHTS)
    (folder / "data" / "airports").mkdir(parents=True)
    rows = "".join(f"{faa},{name}\n" for faa, name in AIRPORTS)
    (folder / "data" / "airports" / "airports.csv").write_text("faa,name\n" + rows)
    return spec


def add_flights(folder: Path, name: str, flights: list[tuple[str, str, float | None]]) -> None:
    """One more file of flights, which appears whole."""
    target = folder / "data" / "flights"
    target.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"2013,1,1,{who},{origin},{'' if delay is None else delay}\n" for who, origin, delay in flights)
    partial = folder / "data" / f"{name}.partial"
    partial.write_text("year,month,day,carrier,origin,dep_delay\n" + rows)
    partial.rename(target / f"{name}.csv")


def project(folder: Path, files: dict[str, str], configuration: str = "{}") -> Path:
    """A project of these files in ``folder``; returns its specification."""
    for name, text in files.items():
        path = folder / "definitions" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(
        f"name: test\nstorage: file://{folder}/storage\nlibraries: [{{glob: {{include: definitions/**}}}}]\n"
        f"configuration: {configuration}\n"
    )
    return spec


def table_rows(table: Path) -> set[tuple[Any, ...]]:
    """What lies in the Parquet files of a table."""
    import pyarrow.parquet as parquet

    columns = parquet.read_table(table).to_pydict()
    return set(zip(*columns.values(), strict=True))


class Pipeline:
    """A driver with the program in it, and executors by hand."""

    def __init__(self, worker: Worker, spec: Path, warehouse: Path, more: dict[str, str] | None = None) -> None:
        self.worker = worker
        self.warehouse = warehouse
        self.runs: dict[str, RegionRun] = {}
        self.attempts = 0
        conf = {**CONF, "spark.sql.warehouse.dir": warehouse.as_uri(), **(more or {})}
        self.driver: Driver = worker.driver("pipeline", spec, conf, pipeline=PipelineOptions())

    @property
    def said(self) -> PipelineReport:
        """What the program says."""
        found = self.worker.report.pipeline if self.worker.reports else None
        return found or PipelineReport()

    def instruct(self, **more: bool) -> None:
        self.worker.instructions = PipelineDirectives(True, tuple(self.runs.values()), **more)
        self.worker.tell()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        def done() -> bool:
            return bool(condition()) or self.driver.python.poll() is not None

        self.worker.wait(done, what)
        assert condition(), f"{what}: the program ended: {self.said}\n{self.worker.logs()}"

    def graph(self) -> JobGraph:
        self.wait(lambda: self.said.graph is not None, "the graph")
        return decode_graph((self.said.graph or "").encode())

    def bring(self, key: str, region: str | None, **changes: Any) -> None:
        """Start executor ``key`` for ``region`` and wait until it has joined."""
        if region is not None:
            self.worker.regions[key] = region
        self.worker.launch(key, **{"size": SMALL, **changes})
        self.worker.tell()
        self.worker.wait(lambda: key in self.worker.report.registered, f"executor {key}")

    def give(self, key: str, region: str) -> None:
        self.worker.regions[key] = region
        self.worker.tell()

    def start(self, region: str, *, full_refresh: bool = False, conf: dict[str, str] | None = None) -> None:
        """Have a region run, again if it has run before."""
        self.attempts += 1
        self.runs[region] = RegionRun(region, self.attempts, full_refresh, conf or {})
        self.instruct()

    def cancel(self, region: str) -> None:
        del self.runs[region]
        self.instruct()

    def status(self, region: str, state: RegionState) -> RegionStatus:
        """Wait until the latest run of ``region`` is in ``state``; what is said of it then."""

        def found() -> RegionStatus | None:
            statuses = [status for status in self.said.regions if status.region == region]
            current = self.runs.get(region)
            if not statuses or (current is not None and statuses[0].attempt != current.attempt):
                return None
            return statuses[0]

        def ended() -> bool:
            status = found()
            return status is not None and (status.state is state or status.state.is_final)

        self.wait(ended, f"{region} {state}; there is {self.said}")
        status = found()
        assert status is not None
        assert status.state is state, f"{status}\n{self.worker.logs()}"
        return status

    def run(self, region: str, *, full_refresh: bool = False, conf: dict[str, str] | None = None) -> RegionStatus:
        """Run a region to its end, which must be a good one."""
        self.start(region, full_refresh=full_refresh, conf=conf)
        return self.status(region, RegionState.FINISHED)

    def rows(self, table: str) -> set[tuple[Any, ...]]:
        """What lies in a table's files."""
        return table_rows(self.warehouse / table)

    def stop(self) -> None:
        """End it in order."""
        self.instruct(stop=True)
        assert self.driver.finish() == 0
