"""What others see of a materialized view while it is made: all of the old, or all of the new. Real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.model.pipeline import RegionState
from tests.integration.clusters import wait_for
from tests.integration.pipelines import Pipeline, project, table_rows
from tests.integration.spark_worker import Worker

pytestmark = pytest.mark.spark

DB = "spark_catalog.default."

# Of each version there are as many rows; the second half of them waits, or fails, when told to.
VIEWS = """
import time
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

HERE = Path.cwd()

@F.udf(LongType())
def late(n):
    while n >= 50 and (HERE / "hold").exists():
        (HERE / "holding").touch()
        time.sleep(0.05)
    if n >= 50 and (HERE / "fail").exists():
        raise ValueError("as told")
    return n

def rows():
    version = int((HERE / "version").read_text())
    return spark.range(0, 100, 1, 2).select(late("id").alias("n"), F.lit(version).alias("version"))

@dp.materialized_view
def plain():
    return rows()

@dp.materialized_view(partition_cols=["k"], format="orc")
def parted():
    return rows().withColumn("k", F.col("version") + F.col("n") % 2)
"""


def version(number: int) -> set[tuple[int, int]]:
    return {(n, number) for n in range(100)}


class Outputs:
    """The project in a driver, with one executor, and what lies in its tables."""

    def __init__(self, folder: Path, catalog: str) -> None:
        self.folder = folder
        self.spec = project(folder / "project", {"views.py": VIEWS})
        self.home = self.spec.parent
        self.write(1)
        derby = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        conf = {
            "spark.sql.catalogImplementation": catalog,
            "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
        }
        self.worker = Worker(folder)
        self.pipeline = Pipeline(self.worker, self.spec, folder / "warehouse", conf)
        self.pipeline.graph()
        self.pipeline.bring("1", None)

    def write(self, number: int) -> None:
        (self.home / "version").write_text(str(number))

    def seen(self, table: str) -> set[tuple[int, int]]:
        """What a reader of the files sees."""
        folder = self.folder / "warehouse" / table
        if not list(folder.rglob(f"*.{'orc' if table == 'parted' else 'parquet'}")):
            return set()
        if table == "plain":
            return {(row[0], row[1]) for row in table_rows(folder)}
        import pyarrow.dataset as dataset

        columns = dataset.dataset(folder, format="orc", partitioning="hive").to_table().to_pydict()
        return set(zip(columns["n"], columns["version"], strict=True))

    def give(self, table: str) -> None:
        self.pipeline.give("1", DB + table)

    def in_the_middle(self, table: str) -> set[tuple[int, int]]:
        """Start a run; what a reader sees when a part of the rows is written."""
        (self.home / "holding").unlink(missing_ok=True)
        (self.home / "hold").touch()
        self.pipeline.start(DB + table)
        self.worker.wait((self.home / "holding").exists, "rows that wait")
        return self.seen(table)

    def go_on(self) -> None:
        (self.home / "hold").unlink()

    def files(self) -> set[str]:
        return {path.name for path in (self.folder / "warehouse").iterdir()}


@pytest.fixture(scope="module", params=["in-memory", pytest.param("hive", marks=pytest.mark.long)])
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outputs]:
    """The tests run in the order of this file."""
    found = Outputs(tmp_path_factory.mktemp("outputs"), request.param)
    yield found
    found.worker.close()


@pytest.mark.parametrize("table", ["plain", "parted"])
def test_a_view_appears_whole_and_is_replaced_as_a_whole(outputs: Outputs, table: str) -> None:
    outputs.give(table)
    for number in (1, 2):
        outputs.write(number)
        assert outputs.in_the_middle(table) == (version(number - 1) if number > 1 else set())
        outputs.go_on()
        outputs.pipeline.status(DB + table, RegionState.FINISHED)
        assert outputs.seen(table) == version(number)
    assert not [name for name in outputs.files() if name.startswith(".")]


@pytest.mark.parametrize("table", ["plain", "parted"])
def test_a_run_that_fails_or_is_cancelled_leaves_what_was_there(outputs: Outputs, table: str) -> None:
    outputs.give(table)
    outputs.write(3)
    (outputs.home / "fail").touch()
    outputs.pipeline.start(DB + table)
    outputs.pipeline.status(DB + table, RegionState.FAILED)
    (outputs.home / "fail").unlink()
    assert outputs.seen(table) == version(2)
    outputs.in_the_middle(table)
    outputs.pipeline.cancel(DB + table)
    outputs.pipeline.status(DB + table, RegionState.CANCELED)
    outputs.go_on()
    assert outputs.seen(table) == version(2)
    outputs.pipeline.run(DB + table)
    assert outputs.seen(table) == version(3)
    wait_for(lambda: not [name for name in outputs.files() if name.startswith(".")], 30, "an end of what is not needed")


def test_what_a_driver_left_that_died_between_two_names_is_put_right(outputs: Outputs) -> None:
    table = outputs.folder / "warehouse" / "plain"
    before = outputs.seen("plain")
    table.rename(table.with_name(".plain.slotwise-old"))
    table.with_name(".plain.slotwise-new-7").mkdir()
    outputs.give("plain")
    outputs.write(4)
    assert outputs.in_the_middle("plain") == before
    outputs.go_on()
    outputs.pipeline.status(DB + "plain", RegionState.FINISHED)
    assert outputs.seen("plain") == version(4)
    assert not [name for name in outputs.files() if name.startswith(".")]
    outputs.pipeline.stop()
