"""Structured Streaming: the job grows and shrinks between micro-batches, and goes on from its checkpoint later."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.integration.clusters import PROGRAMS, SMALL, Cluster, sandbox_at, wait_for
from tests.integration.test_rescale import QUICK

pytestmark = pytest.mark.spark

STATE = ("--conf", "spark.sql.shuffle.partitions=4")


class Stream:
    """A program that counts what comes, on a cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.files = itertools.count(1)
        (folder / "in").mkdir()
        self.id = ""

    def start(self, executors: int) -> None:
        (self.folder / "stop").unlink(missing_ok=True)
        options = (*SMALL, *STATE, "--num-executors", str(executors))
        done = self.cluster.sandbox.run("submit", "--quiet", *options, str(PROGRAMS / "streams.py"), str(self.folder))
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()

    def feed(self) -> int:
        """One more file of 100 numbers, and wait for its micro-batch; how many executors ran its tasks."""
        number = next(self.files)
        partial = self.folder / f"{number}.partial"
        partial.write_text("".join(f"{n}\n" for n in range(100)))
        partial.rename(self.folder / "in" / f"{number}.csv")
        line = wait_for(lambda: self.batches()[number - 1 :], 120, f"micro-batch {number}")[0]
        assert line[:2] == [str(number - 1), str(100 * number)], self.batches()
        return len(line[2].split(","))

    def batches(self) -> list[list[str]]:
        path = self.folder / "batches"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def stop(self) -> None:
        (self.folder / "stop").touch()
        wait_for(lambda: self.cluster.json("job", self.id)["state"] == "FINISHED", 60, "the end of the job")


@pytest.mark.long
def test_a_streaming_job_rescales_between_micro_batches_and_continues_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        cluster.start_master(*QUICK)
        cluster.start_worker("--cpus", "4", "--memory", "4g")
        rescale_and_continue(cluster, tmp_path)
        cluster.stop()


def rescale_and_continue(cluster: Cluster, folder: Path) -> None:
    stream = Stream(cluster, folder)
    stream.start(1)
    assert stream.feed() == 1
    assert cluster.sandbox.run("scale", stream.id, "--max", "3").returncode == 0
    wait_for(lambda: stream.feed() == 3, 90, "a micro-batch on three executors")
    wait_for(lambda: cluster.sandbox.run("scale", stream.id, "--max", "1").returncode == 0, 10, "the change")
    wait_for(lambda: stream.feed() == 1, 120, "a micro-batch on one executor again")
    # Each file was counted exactly once, and by one driver: feed() has looked at the totals.
    assert cluster.json("job", stream.id)["driver-starts"] == 1
    stream.stop()
    before = len(stream.batches())
    stream.start(2)
    stream.feed()
    assert len(stream.batches()) == before + 1
    stream.stop()
