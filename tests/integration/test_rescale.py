"""Real Spark jobs that grow and shrink while they run (B: A-02, A-03, A-04, F-05)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clusters import PROGRAMS, SMALL, Cluster, sandbox_at, wait_for

pytestmark = pytest.mark.spark

QUICK = (
    *("-D", "slot.idle.timeout=1 s", "-D", "jobmanager.adaptive-scheduler.resource-stabilization-timeout=1 s"),
    *("-D", "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling=2 s"),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master without workers."""
    with sandbox_at(tmp_path) as sandbox:
        made = Cluster(sandbox)
        made.start_master(*QUICK)
        yield made
        made.stop()


class Job:
    """The program that notes its tasks, under way."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self.cluster = cluster
        self.notes = cluster.sandbox.directory / "notes"
        self.notes.mkdir()
        done = cluster.sandbox.run(
            "submit", "--quiet", *SMALL, *options, str(PROGRAMS / "rescales.py"), str(self.notes)
        )
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()

    def lines(self, name: str) -> list[str]:
        """What was noted so far."""
        path = self.notes / name
        return path.read_text().split() if path.exists() else []

    def used(self, count: int) -> None:
        """Wait until rounds that begin from now on run on ``count`` executors."""

        def seen() -> bool:
            before = len(self.lines("reduce"))
            wait_for(lambda: len(self.lines("reduce")) >= before + 36, 60, "three rounds")
            return len(set(self.lines("reduce")[before:])) == count

        wait_for(seen, 120, f"rounds on {count} executors")

    def scale(self, *options: str) -> None:
        """``slotwise scale``."""
        done = self.cluster.sandbox.run("scale", self.id, *options)
        assert done.returncode == 0, done.stderr

    def history(self) -> list[tuple[Any, Any, Any, Any]]:
        """(cause, from, to, how it ended) of each rescale."""
        found = self.cluster.json("scale", self.id)["rescales"]
        vertices = [rescale["vertices"]["application"] for rescale in found]
        return [
            (
                rescale["triggerCause"],
                vertex["preRescaleParallelism"],
                vertex["desiredParallelism"],
                rescale.get("terminalState"),
            )
            for rescale, vertex in zip(found, vertices, strict=True)
        ]

    def end(self) -> dict[str, Any]:
        """Let it end; its details."""
        (self.notes / "stop").touch()
        details: dict[str, Any] = wait_for(
            lambda: (found := self.cluster.json("job", self.id)) and found["released"] and found, 60, "the end"
        )
        return details


def drivers(details: dict[str, Any]) -> list[str]:
    """The drivers that the job has had."""
    deployed = [event["fields"]["process"] for event in details["events"] if event["name"] == "deployed"]
    return [process for process in deployed if process.startswith("driver-")]


def test_a_02_a_04_a_running_job_grows_and_shrinks_without_a_restart_or_a_task_run_again(cluster: Cluster) -> None:
    cluster.start_worker("--cpus", "5", "--memory", "5g")
    job = Job(cluster, "--num-executors", "1")
    job.used(1)
    job.scale("--max", "3")
    job.used(3)
    job.scale("--max", "1")
    job.used(1)
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"][0]["allocatedSlots"]) == 2, 90, "the slots' return")
    details = job.end()
    assert (details["state"], drivers(details)) == ("FINISHED", ["driver-1"])
    assert sorted(job.lines("map"), key=int) == [str(number) for number in range(12)]
    assert job.history() == [
        ("INITIAL_SCHEDULE", 0, 1, "COMPLETED"),
        ("UPDATE_REQUIREMENT", 1, 3, "COMPLETED"),
        ("UPDATE_REQUIREMENT", 3, 1, "COMPLETED"),
    ]


def test_a_02_f_05_a_job_uses_workers_that_join_and_goes_on_when_one_leaves(cluster: Cluster) -> None:
    cluster.start_worker("--cpus", "3", "--memory", "4g")
    job = Job(cluster, "--num-executors", "4", "--min-executors", "1")
    job.used(2)
    second = cluster.start_worker("--cpus", "2", "--memory", "3g")
    job.used(4)
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0
    job.used(2)
    details = job.end()
    assert (details["state"], drivers(details)) == ("FINISHED", ["driver-1"])
    causes = [cause for cause, _, _, _ in job.history()]
    assert causes[0] == "INITIAL_SCHEDULE"
    assert "NEW_RESOURCE_AVAILABLE" in causes
    assert causes[-1] == "RECOVERABLE_FAILOVER"


def test_f_05_a_worker_that_gets_sigterm_hands_its_shuffle_blocks_on(cluster: Cluster) -> None:
    # The first has room for the driver alone, so that all executors are on the one that leaves.
    cluster.start_worker("--cpus", "1", "--memory", "1g")
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 1, 30, "the first worker")
    job = Job(cluster, "--num-executors", "2")
    wait_for(lambda: cluster.json("job", job.id)["held"], 30, "the driver's slot")
    second = cluster.start_worker("--cpus", "2", "--memory", "3g")
    job.used(2)
    cluster.start_worker("--cpus", "2", "--memory", "3g")
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 3, 30, "the third worker")
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0
    job.used(2)
    details = job.end()
    assert (details["state"], drivers(details)) == ("FINISHED", ["driver-1"])
    assert sorted(job.lines("map"), key=int) == [str(number) for number in range(12)]


def test_bounds_that_cannot_be_are_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.start_worker("--cpus", "3", "--memory", "4g")
    job = Job(cluster, "--num-executors", "1")
    job.used(1)
    refused = cluster.sandbox.run("scale", job.id, "--min", "5", "--max", "2")
    assert refused.returncode == 1
    assert "below the least number, 5" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert cluster.sandbox.run("scale", "job-none", "--max", "2").returncode == 1
    assert cluster.sandbox.run("scale", job.id, "--max", "0").returncode == 2
    assert job.end()["state"] == "FINISHED"
    over = cluster.sandbox.run("scale", job.id, "--max", "3")
    assert over.returncode == 1
    assert "does not run any more" in over.stderr
    assert json.loads(cluster.sandbox.run("scale", job.id, "--json").stdout)["max-executors"] == 1
