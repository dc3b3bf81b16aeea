"""Jobs that begin in an application which waited for them. Real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slotwise.client import Client, read_token
from tests.integration.clusters import PROGRAMS, SMALL, Cluster, sandbox_at, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KEPT = (
    *("-D", "jobmanager.warm-applications.max=1"),
    *("-D", "jobmanager.warm-applications.quiet-time=500 ms"),
    *("-D", "slot.idle.timeout=1 s"),
)
PROGRAM = str(PROGRAMS / "looks_at_context.py")


class Apps:
    """A cluster of one worker with room for one application of two executors, or a little more."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sandbox = cluster.sandbox

    def until_waiting(self) -> set[int]:
        """An application waits; the processes of its driver."""
        wait_for(lambda: self.overview()["warm-applications-waiting"], 240, "a warm application")
        return {process.pid for process in [*self.drivers(), *self.sandbox.processes("--warm")]}

    @property
    def client(self) -> Client:
        return Client(self.sandbox.env["SLOTWISE_MASTER"], read_token(self.sandbox.directory / "state" / "token"))

    def overview(self) -> dict[str, Any]:
        with self.client as client:
            found: dict[str, Any] = client.call("GET", "/v1/overview")
        return found

    def drivers(self) -> list[Any]:
        return self.sandbox.processes("PythonGatewayServer")

    def practised(self) -> bytes:
        """What the drivers that are there have said, also before they had a program."""
        files = list(self.sandbox.directory.rglob("slots/*/driver-*"))
        assert files
        return b"".join(file.read_bytes() for file in files)

    def run(self, *args: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
        argv = ("submit", "--wait", "--quiet", *SMALL, "--num-executors", "2", *options)
        done = self.sandbox.run(*argv, PROGRAM, *args)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apps]:
    """The tests run in the order of this file."""
    with sandbox_at(tmp_path_factory.mktemp("apps")) as sandbox:
        made = Cluster(sandbox)
        made.start_master(*KEPT)
        made.start_worker("--cpus", "4", "--memory", "4g", "-D", "taskmanager.warm.rounds=0")
        wait_for(lambda: len(made.json("workers")["taskmanagers"]) == 1, 30, "the worker")
        found = Apps(made)
        found.first = found.run("one")  # type: ignore[attr-defined]
        yield found
        made.stop()


def test_a_job_of_the_kind_gets_the_application_that_waits(apps: Apps) -> None:
    cold = apps.first  # type: ignore[attr-defined]
    waiting = apps.until_waiting()
    # Every query of its practice went well.
    assert b"practi" not in apps.practised()
    with apps.client as client:
        before = {job["jid"] for job in client.jobs()}
    found = apps.run("two", options=("--name", "the second"))
    assert {found["python"], found["jvm"]} == waiting
    assert found["argv"] == ["two"]
    assert found["rows"] == cold["rows"] == [[key, 200] for key in range(5)]
    assert found["cwd"] == cold["cwd"]
    assert found["names"] == ["the second"] * 3
    assert found["views"] == []
    assert found["threads"] == cold["threads"]
    assert found["executors"] == 2
    assert cold["absent"] == [0, 0]
    assert min(found["absent"]) > 0
    # Spark's pages begin with this program.
    assert found["told"] == cold["told"]
    assert min(found["told"]) > 0
    # It was no job before.
    with apps.client as client:
        (job,) = [job for job in client.jobs() if job["jid"] not in before]
        assert (job["name"], job["state"]) == ("the second", "FINISHED")
        events = [event["name"] for event in client.events(job["jid"])]
        assert b'"argv": ["two"]' in b"".join(client.log(job["jid"], "driver-1.out"))
        said = b"".join(part for name in client.logs(job["jid"]) for part in client.log(job["jid"], name))
    assert b"practi" not in said
    assert events[:2] == ["submitted", "handed-over"]
    assert "deployed" not in events


@pytest.mark.long
def test_none_is_used_twice(apps: Apps) -> None:
    one = apps.until_waiting()
    apps.run("three")
    other = apps.until_waiting()
    assert not one & other


@pytest.mark.long
def test_settings_that_a_session_may_change_are_changed(apps: Apps) -> None:
    waiting = apps.until_waiting()
    found = apps.run("spark.sql.shuffle.partitions=3")
    assert found["jvm"] in waiting
    assert found["partitions"] == ["3", "3"]
    assert apps.first["partitions"] != ["3", "3"]  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_program_that_asks_for_other_settings_gets_a_context_with_them(apps: Apps) -> None:
    waiting = apps.until_waiting()
    found = apps.run("spark.ui.enabled=false")
    assert found["jvm"] in waiting
    assert found["ui"] is None
    assert found["app_id"].endswith("-2")
    assert found["rows"] == apps.first["rows"]  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_job_of_another_kind_finds_room(apps: Apps) -> None:
    waiting = apps.until_waiting()
    # There is not so much beside the one that waits.
    found = apps.run("big", options=("--conf", "spark.executor.memory=1g"))
    assert not {found["jvm"], found["python"]} & waiting
    assert found["rows"] == apps.first["rows"]  # type: ignore[attr-defined]


@pytest.mark.long
def test_what_the_settings_of_a_kind_forbid_is_left_out_of_its_practice(apps: Apps) -> None:
    other = apps.until_waiting()
    # No join of the practice can send a table to its executors.
    kind = ("--conf", "spark.sql.maxBroadcastTableSize=1b")
    apps.run("small tables", options=kind)
    wait_for(lambda: not other & apps.until_waiting(), 240, "an application of this kind")
    waiting = apps.until_waiting()
    # By the driver's JVM, and by the program's Python.
    assert b'cannot practise "select' in apps.practised()
    assert b"cannot practise: " in apps.practised()
    found = apps.run("small tables again", options=kind)
    assert {found["python"], found["jvm"]} == waiting
    assert found["rows"] == apps.first["rows"]  # type: ignore[attr-defined]


@pytest.mark.long
def test_why_one_has_failed_is_in_the_masters_log(apps: Apps) -> None:
    argv = ("submit", "--wait", "--quiet", *SMALL, "--num-executors", "2", "--conf", "spark.serializer=no.such.Class")
    assert apps.sandbox.run(*argv, PROGRAM, "never").returncode != 0

    def told() -> bool:
        _, _, after = (apps.sandbox.directory / "master-0.log").read_text().partition("a warm application failed")
        return "no.such.Class" in after

    wait_for(told, 120, "the master's word on it")


@pytest.mark.long
def test_a_master_that_ends_leaves_none(apps: Apps) -> None:
    apps.until_waiting()
    apps.cluster.stop()
    wait_for(lambda: not apps.drivers() and not apps.sandbox.processes("--warm"), 30, "their end")
