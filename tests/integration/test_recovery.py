"""The master dies while jobs run, and the next one goes on from there (B: F-02, F-03, F-06, F-07). Real processes."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from slotwise.client import Client
from slotwise.model.job import DriverSize, ExecutorSize, JobSpec
from slotwise.model.resources import MIB
from tests.integration.clusters import PROGRAMS, SMALL, Cluster, Sandbox, sandbox_at, wait_for

pytestmark = pytest.mark.spark

RIGHT = f"sum={sum(range(1600))}"
FAST = ("-D", "slot.idle.timeout=1 s")


class Restartable(Cluster):
    """A cluster whose master comes back under one address and one directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        sandbox.env["SLOTWISE_MASTER"] = f"http://127.0.0.1:{self.port}"
        self.address = sandbox.directory / "address.json"

    def start(self, *options: str) -> None:
        """Start the master and wait until it serves."""
        self.address.unlink(missing_ok=True)
        self.master = self._background("master", "--port", str(self.port), "--address-file", str(self.address), *FAST)
        wait_for(self.address.exists, 30, "the master's address")

    def kill(self) -> None:
        """kill -9 of the master."""
        self.master.kill()
        self.master.wait(10)

    def client(self) -> Client:
        """Calls to the master, with the sandbox's token."""
        token = (self.sandbox.directory / "state" / "token").read_text().strip()
        return Client(f"http://127.0.0.1:{self.port}", token)

    def start_workers(self) -> None:
        for _ in range(2):
            self.start_worker("--cpus", "2", "--memory", "3g")
        wait_for(lambda: len(self.json("workers")["taskmanagers"]) == 2, 30, "both workers")

    def drivers(self) -> list[int]:
        """The process ids of the living drivers' JVMs."""
        return [process.pid for process in self.sandbox.processes("PythonGatewayServer")]

    def events(self, job: str) -> list[dict[str, Any]]:
        with self.client() as client:
            return list(client.call("GET", f"/v1/jobs/{job}/events")["events"])


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Restartable]:
    with sandbox_at(tmp_path) as sandbox:
        made = Restartable(sandbox)
        made.start()
        yield made
        made.stop()


def small_job(*args: str) -> JobSpec:
    return JobSpec(
        name="small",
        program=str(PROGRAMS / "slow_sum.py"),
        args=args,
        driver=DriverSize(1, 512 * MIB, 256 * MIB),
        executor=ExecutorSize(1, 512 * MIB, 256 * MIB),
        initial_executors=1,
    )


def driver_starts(cluster: Restartable, job: str) -> list[dict[str, Any]]:
    return [e for e in cluster.events(job) if e["name"] == "deployed" and e["fields"]["process"].startswith("driver")]


def test_f_02_f_03_f_07_a_killed_masters_job_goes_on_under_the_next(restartable: Restartable) -> None:
    cluster = restartable
    cluster.start_workers()
    done = cluster.sandbox.run("submit", "-q", *SMALL, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "15")
    job = done.stdout.strip()
    wait_for(lambda: cluster.json("job", job).get("executors", {}).get("registered"), 90, "an executor")
    wait_for(lambda: "started" in cluster.sandbox.run("logs", job).stdout, 60, "the program's first line")
    before = cluster.drivers()
    assert len(before) == 1
    seen = cluster.events(job)
    started_at = cluster.json("job", job)["start-time"]
    cluster.kill()
    assert cluster.drivers() == before
    cluster.start()
    # The same driver, adopted: nothing was started again, and the answer is right.
    wait_for(lambda: cluster.json("job", job)["phase"] == "RUNNING", 30, "the job's adoption")
    assert cluster.drivers() == before
    details = wait_for(lambda: (found := cluster.json("job", job)) and found["released"] and found, 120, "the end")
    assert details["state"] == "FINISHED", details
    assert len(driver_starts(cluster, job)) == 1
    assert RIGHT in cluster.sandbox.run("logs", job).stdout
    # One timeline over both masters, with rising numbers and right times.
    events = cluster.events(job)
    assert events[: len(seen)] == seen
    assert [e["seq"] for e in events] == sorted({e["seq"] for e in events})
    assert details["start-time"] == started_at
    assert details["end-time"] > started_at + 10_000
    # … and all of that is there for a third master, too.
    cluster.master.send_signal(signal.SIGTERM)
    assert cluster.master.wait(30) == 0
    cluster.start()
    third = cluster.json("job", job)
    assert {key: third[key] for key in ("state", "start-time", "end-time", "exit-code", "released")} == {
        key: details[key] for key in ("state", "start-time", "end-time", "exit-code", "released")
    }
    assert cluster.events(job) == events
    assert RIGHT in cluster.sandbox.run("logs", job, "-f").stdout
    assert "had ended before: finished" in cluster.sandbox.run("cancel", job).stdout
    assert "the job has ended" in cluster.sandbox.run("explain", job).stdout
    assert [found["jid"] for found in cluster.json("jobs")] == [job]


def test_f_06_an_acknowledged_job_survives_a_kill_and_runs_once(restartable: Restartable) -> None:
    cluster = restartable
    spec = small_job("0", "1")
    body = msgspec.json.encode(spec)
    with cluster.client() as client:
        job = client.call("POST", "/v1/jobs", content=body, headers={"Idempotency-Key": "one"})["jid"]
    cluster.kill()
    cluster.start()
    with cluster.client() as client:
        again = client.call("POST", "/v1/jobs", content=body, headers={"Idempotency-Key": "one"})["jid"]
    assert again == job
    cluster.start_workers()
    details = wait_for(lambda: (found := cluster.json("job", job)) and found["released"] and found, 120, "the end")
    assert details["state"] == "FINISHED", details
    assert len(driver_starts(cluster, job)) == 1
    assert [found["jid"] for found in cluster.json("jobs")] == [job]


def test_two_masters_on_one_store_and_one_that_stands_by(restartable: Restartable) -> None:
    cluster = restartable
    second = cluster.sandbox.run("master", "--port", "0")
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    assert f"pid {cluster.master.pid} on" in second.stderr
    assert f"http://127.0.0.1:{cluster.port}" in second.stderr
    first = cluster.master
    address = cluster.sandbox.directory / "standby.json"
    standby = cluster._background("master", "--standby", "--port", "0", "--address-file", str(address))
    log = cluster.sandbox.directory / f"master-{len(cluster.processes) - 1}.log"
    wait_for(lambda: f"standing by: the master with pid {first.pid}" in log.read_text(), 30, "the standby")
    assert not address.exists()
    first.kill()
    first.wait(10)
    wait_for(address.exists, 30, "the take-over")
    # It comes up where the other was, so that workers and users find it.
    assert json.loads(address.read_text()) == {"url": f"http://127.0.0.1:{cluster.port}", "pid": standby.pid}


def test_a_standby_that_is_told_to_end_ends(restartable: Restartable) -> None:
    standby = restartable._background("master", "--standby", "--port", "0")
    log = restartable.sandbox.directory / f"master-{len(restartable.processes) - 1}.log"
    wait_for(lambda: "standing by" in log.read_text(), 30, "the standby")
    standby.send_signal(signal.SIGTERM)
    assert standby.wait(10) == 0


@pytest.mark.long
def test_f_03_a_local_cluster_goes_on_after_its_master_was_killed_and_stop_leaves_nothing(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        started = sandbox.run("cluster", "start", "--worker-memory", "3g")
        assert started.returncode == 0, started.stderr
        address = json.loads((tmp_path / "state" / "cluster.json").read_text())
        done = sandbox.run("submit", "-q", *SMALL, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "15")
        job = done.stdout.strip()

        def details() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(sandbox.run("job", job, "--json").stdout)
            return found

        wait_for(lambda: details().get("executors", {}).get("registered"), 90, "an executor")
        workers = {process.pid for process in sandbox.workers()}
        psutil.Process(address["pid"]).kill()
        again = sandbox.run("cluster", "start", "--worker-memory", "3g")
        assert again.returncode == 0, again.stderr
        now = json.loads((tmp_path / "state" / "cluster.json").read_text())
        assert now["url"] == address["url"]
        assert now["pid"] != address["pid"]
        ended = wait_for(lambda: (found := details())["released"] and found, 120, "the end")
        assert ended["state"] == "FINISHED", ended
        assert RIGHT in sandbox.run("logs", job).stdout
        # No worker was started in place of those that lived.
        assert {process.pid for process in sandbox.workers()} <= workers
        second = sandbox.run("submit", "-q", *SMALL, str(PROGRAMS / "slow_sum.py"), "0", "100").stdout.strip()
        wait_for(sandbox.workers, 60, "a worker")
        psutil.Process(now["pid"]).kill()
        stopped = sandbox.run("cluster", "stop")
        assert "had died" in stopped.stdout, stopped
        assert "cancelled 1 job(s)" in stopped.stdout
        assert sandbox.workers() == []
        # The cancel was recorded: the next cluster does not run it again.
        assert sandbox.run("cluster", "start").returncode == 0
        job = second
        wait_for(lambda: details()["state"] == "CANCELED", 90, "the recorded cancel")
        assert sandbox.run("cluster", "stop").stdout == "cluster stopped\n"
