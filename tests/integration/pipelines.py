"""A pipeline job's driver for tests: what the control plane says to the program, and what it answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from slotwise.model.executor_conf import executor_size
from slotwise.model.job_graph import JobGraph, decode_graph
from slotwise.spark import bridge_jar
from tests.integration.spark_worker import Driver, Worker

PROGRAM = Path(bridge_jar.__file__).with_name("pipeline_program.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_pipeline"
CONF = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.task.maxFailures": "1"}
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


class Pipeline:
    """A driver with the program in it, and executors by hand."""

    def __init__(self, worker: Worker, spec: Path, warehouse: Path) -> None:
        self.worker = worker
        self.warehouse = warehouse
        conf = {**CONF, "spark.sql.warehouse.dir": warehouse.as_uri()}
        self.driver: Driver = worker.driver("pipeline", PROGRAM, conf, args=(str(spec),), initial_executors=0)

    @property
    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.driver.output)]

    def say(self, **command: Any) -> None:
        pipe = self.driver.python.stdin
        assert pipe is not None
        pipe.write(json.dumps(command).encode() + b"\n")
        pipe.flush()

    def wait_for(self, **parts: Any) -> dict[str, Any]:
        """The last answer that has these parts; None stands for any value."""

        def found() -> list[dict[str, Any]]:
            return [
                answer
                for answer in self.answers
                if all(key in answer and value in (None, answer[key]) for key, value in parts.items())
            ]

        def done() -> bool:
            return bool(found()) or self.driver.python.poll() is not None

        self.worker.wait(done, f"an answer with {parts}; there are {self.answers[-8:]}")
        assert found(), f"the program ended: {self.answers}\n{self.worker.logs()}"
        return found()[-1]

    def graph(self) -> JobGraph:
        return decode_graph(msgspec.json.encode(self.wait_for(graph=None)["graph"]))

    def bring(self, key: str, region: str | None, **changes: Any) -> None:
        """Start executor ``key`` for ``region`` and wait until it has joined."""
        if region is not None:
            self.worker.regions[key] = region
        self.worker.launch(key, **changes)
        self.worker.tell()
        self.worker.wait(lambda: key in self.worker.report.registered, f"executor {key}")

    def give(self, key: str, region: str) -> None:
        self.worker.regions[key] = region
        self.worker.tell()

    def run(self, region: str, **more: Any) -> None:
        """Run a region to its end, which must be a good one."""
        before = sum(answer.get("state") in ("finished", "failed") for answer in self.answers)
        self.say(run=region, datasets=[region], **more)

        def ended() -> bool:
            states = [answer for answer in self.answers if answer.get("state") in ("finished", "failed")]
            return len(states) > before

        self.worker.wait(ended, f"the end of {region}; there are {self.answers[-8:]}")
        last = [answer for answer in self.answers if answer.get("region") == region][-1]
        assert last["state"] == "finished", last

    def rows(self, table: str) -> set[tuple[Any, ...]]:
        """What lies in a table's files."""
        import pyarrow.parquet as parquet

        columns = parquet.read_table(self.warehouse / table).to_pydict()
        return set(zip(*columns.values(), strict=True))

    def stop(self) -> None:
        """End it in order."""
        self.say(stop=True)
        self.wait_for(stopped=True)
        assert self.driver.finish() == 0
