"""kill -9 of a worker whose driver and executors live on: it is started again, or it is not (B: ST-09, F-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.clusters import PROGRAMS, Cluster, sandbox_at, wait_for
from tests.integration.test_cluster import RIGHT, submit, wait_end

pytestmark = pytest.mark.spark


DRIVER = ("runner.py", "PythonGatewayServer")
EXECUTOR = "CoarseGrainedExecutorBackend"


def work(cluster: Cluster, *parts: str) -> dict[int, float]:
    """The processes of slots with one of ``parts`` in their command lines, and the times of their start."""
    return {process.pid: process.create_time() for part in parts for process in cluster.sandbox.processes(part)}


def start(cluster: Cluster, directory: Path, orphan_timeout: str, *options: str) -> Any:
    """A worker of 3 CPU and 3 GiB."""
    size = ("--cpus", "3", "--memory", "3g")
    return cluster.start_worker(*size, "--directory", str(directory), "--orphan-timeout", orphan_timeout, *options)


def run_slowly(cluster: Cluster, seconds: float) -> str:
    """A job with a driver and two executors that has begun its work."""
    job = submit(cluster, "--num-executors", "2", str(PROGRAMS / "slow_sum.py"), "0", str(seconds))
    wait_for(lambda: cluster.json("job", job).get("executors", {}).get("registered") == 2, 60, "both executors")
    wait_for(lambda: "started" in cluster.sandbox.run("logs", job).stdout, 60, "the program's first line")
    return job


@pytest.mark.parametrize(
    "named",
    [pytest.param(True, id="by its id", marks=pytest.mark.long), pytest.param(False, id="by what it left")],
)
def test_st_09_a_worker_that_is_killed_and_started_again_goes_on_with_the_job(tmp_path: Path, named: bool) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        cluster.start_master()
        directory = tmp_path / "workers"
        name = ("--worker-id", "worker-of-this-test") if named else ()
        first = start(cluster, directory, "60 s", *name)
        job = run_slowly(cluster, 24)
        before = work(cluster, *DRIVER)
        assert len(before) == 2
        assert len(work(cluster, *DRIVER, EXECUTOR)) == 4
        worker = cluster.json("workers")["taskmanagers"][0]
        first.kill()
        first.wait()
        wait_for(lambda: cluster.json("workers")["taskmanagers"] == [], 20, "the loss of the worker")
        second = start(cluster, directory, "60 s", *name)
        again = wait_for(lambda: cluster.json("workers")["taskmanagers"], 30, "the worker's return")[0]
        assert again["id"] == worker["id"]
        assert work(cluster, *DRIVER) == before
        assert "slots=3" in (tmp_path / "worker-2.log").read_text()
        # Executors that were reported lost with their worker are replaced, but the driver is found again.
        wait_for(lambda: cluster.json("job", job)["phase"] == "RUNNING", 20, "the driver's return")
        assert work(cluster, *DRIVER) == before
        details = wait_end(cluster, job)
        assert details["phase"] == "FINISHED", details
        out = sandbox.run("logs", job).stdout.splitlines()
        assert out == ["started", RIGHT]
        assert cluster.json("logs", job).count("driver-1.out") == 1
        assert "driver-2.out" not in cluster.json("logs", job)
        second.terminate()
        assert second.wait(30) == 0
        assert list(directory.iterdir()) == []
        cluster.stop()


def test_f_01_what_a_killed_worker_leaves_ends_by_itself_when_it_does_not_come_back(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        cluster.start_master()
        directory = tmp_path / "workers"
        first = start(cluster, directory, "2 s")
        job = run_slowly(cluster, 120)
        master = cluster.processes[0].pid
        assert len(work(cluster, *DRIVER, EXECUTOR)) == 4
        first.kill()
        first.wait()
        # Whatever comes of the slots, their keepers and Python's own helpers among it.
        wait_for(
            lambda: [process.pid for process in sandbox.processes()] == [master], 30, "the end of all that it left"
        )
        assert list(directory.iterdir()) == []
        assert cluster.json("job", job)["phase"] == "RECONCILING"
        cluster.processes[0].kill()
        cluster.processes[0].wait()
