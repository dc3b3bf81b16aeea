"""Drivers and executors that begin in processes which waited for them. Real Spark."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.clusters import NO_WARM_UNITS, PROGRAMS, SMALL, Cluster, sandbox_at, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

OPTIONS = ("-D", "taskmanager.warm.quiet-time=0 s", "--cpus", "3", "--memory", "5g")


class Warm:
    """A cluster of one worker with one driver and one executor that wait."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sandbox = cluster.sandbox

    def counts(self) -> dict[str, int]:
        (worker,) = self.cluster.json("workers")["taskmanagers"]
        found: dict[str, int] = worker["warm"] or {}
        return found

    def until_ready(self) -> None:
        """Both wait, and are of the size of the jobs here."""

        def waiting() -> list[psutil.Process]:
            found = []
            for process in self.sandbox.processes("WarmJvm"):
                folder = Path(process.cmdline()[-1])
                heap = "-Xmx512m" in (folder.parent / "warm.args").read_text() if folder.exists() else False
                if heap and (folder / "ready").exists() and not (folder / "taken").exists():
                    found.append(process)
            return found

        wait_for(lambda: len(waiting()) == 2, 300, "what waits")
        wait_for(lambda: list((self.sandbox.temporary).glob("**/waiting-program/ready")), 60, "a Python that waits")

    def look(self, word: str, *options: str) -> dict[str, Any]:
        """Run the program that looks around, in a folder of its own."""
        folder = self.sandbox.directory / word
        folder.mkdir()
        argv = ("submit", "--wait", "--quiet", *SMALL, "--num-executors", "1", *options)
        done = self.sandbox.run(*argv, str(PROGRAMS / "looks_around.py"), word, str(folder), cwd=folder)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        found["folder"] = folder
        found["said"] = done.stderr
        return found


@contextlib.contextmanager
def warm_cluster(directory: Path, rounds: int) -> Iterator[Warm]:
    """One that has had a job, with so much practice of what waits."""
    with sandbox_at(directory) as sandbox:
        sandbox.env[NO_WARM_UNITS] = "minimal"
        made = Cluster(sandbox)
        made.start_master("-D", "slot.idle.timeout=1 s")
        made.start_worker(*OPTIONS, "-D", f"taskmanager.warm.rounds={rounds}")
        wait_for(lambda: len(made.json("workers")["taskmanagers"]) == 1, 30, "the worker")
        found = Warm(made)
        # Teaches the worker the sizes.
        found.first = found.look("first")  # type: ignore[attr-defined]
        yield found
        made.stop()


def test_a_job_begins_in_processes_that_waited_and_sees_nothing_of_the_one_before(tmp_path: Path) -> None:
    with warm_cluster(tmp_path, rounds=0) as warm:
        warm.until_ready()
        waiting = {process.pid for process in warm.sandbox.processes("WarmJvm")}
        assert_nothing_was_said(warm)
        look = warm.look("alpha")
        assert look["pid"] in waiting
        assert look["rows"] == 2
        first: dict[str, Any] = warm.first  # type: ignore[attr-defined]
        seen = json.dumps({**look, "folder": "", "said": ""}, default=str)
        assert first["properties"]["spark.authenticate.secret"] not in seen
        for what in ("conf", "env", "jvm_env", "properties", "modules"):
            assert set(look[what]) == set(first[what])
        wait_for(lambda: warm.counts().get("hits", 0) == 2, 30, "the counts of its driver and its executor")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """The tests with it run in the order of this file."""
    with warm_cluster(tmp_path_factory.mktemp("warm"), rounds=1) as made:
        yield made


def assert_nothing_was_said(warm: Warm) -> None:
    """What waits has practised without an error."""
    for said in warm.sandbox.temporary.glob("**/.warm-*/*"):
        assert said.name not in ("jvm.log", "program.err") or said.read_text() == ""


@pytest.fixture(scope="module")
def looks(warm: Warm) -> list[dict[str, Any]]:
    """What a job sees in processes that waited."""
    warm.until_ready()
    waiting = {process.pid for process in warm.sandbox.processes("WarmJvm")}
    # They have practised with others, which are gone.
    assert warm.sandbox.processes("PracticeDriver") == warm.sandbox.processes("CoarseGrainedExecutor") == []
    assert_nothing_was_said(warm)
    found = warm.look("alpha")
    assert found["pid"] in waiting
    return [found]


@pytest.mark.long
def test_a_job_finds_its_own_world_in_processes_that_waited(warm: Warm, looks: list[dict[str, Any]]) -> None:
    cold = warm.first  # type: ignore[attr-defined]
    for look in looks:
        folder = look["folder"]
        assert look["rows"] == 2
        assert look["relative"] == str(folder / "by-file")
        assert list((folder / "written").glob("*.csv"))
        assert list((folder / "spark-warehouse" / "kept").glob("*.parquet"))
        assert look["properties"]["user.dir"] == str(folder)
        # Java can change it for streams too, from this version on.
        assert (folder / "by-stream").exists() == (look["java"] >= 22 or look is cold)
        assert look["executor"]["cwd"] == look["executor_properties"]["user.dir"]
        assert set(look["conf"]) == set(cold["conf"])
        assert set(look["env"]) == set(cold["env"])
        assert set(look["jvm_env"]) == set(cold["jvm_env"])
        assert set(look["executor"]["env"]) == set(cold["executor"]["env"])
        assert set(look["modules"]) == set(cold["modules"])


@pytest.mark.long
def test_a_warm_jvm_has_forgotten_its_own_work(warm: Warm, looks: list[dict[str, Any]]) -> None:
    cold = warm.first  # type: ignore[attr-defined]
    for look in looks:
        assert set(look["properties"]) == set(cold["properties"])
        assert look["properties"]["spark.master"] == cold["properties"]["spark.master"]
        assert look["properties"]["spark.authenticate.secret"] != cold["properties"]["spark.authenticate.secret"]
        assert look["views"] == []
        assert look["executor_properties"]["spark.app.name"] in (None, "null")
        folder = Path(look["executor"]["cwd"])
        assert not list(folder.glob("warm-up*"))
        assert "warm-up" not in json.dumps({**look, "executor": {}}, default=str)


@pytest.mark.long
def test_nothing_of_a_job_is_seen_by_the_next(warm: Warm, looks: list[dict[str, Any]]) -> None:
    (one,) = looks
    warm.until_ready()
    other = warm.look("beta")
    assert not {one["pid"], one["python"]} & {other["pid"], other["python"]}
    secrets = ["alpha", one["properties"]["spark.authenticate.secret"], one["jvm_env"]["SLOTWISE_BRIDGE_TOKEN"]]
    seen = json.dumps({**other, "folder": "", "said": ""}, default=str)
    assert [secret for secret in secrets if secret in seen] == []
    assert other["executor_properties"]["looks.around"] in (None, "null")


@pytest.mark.long
def test_hits_and_misses_are_counted(warm: Warm, looks: list[dict[str, Any]]) -> None:
    # The first job's two processes found nothing of their size.
    wait_for(lambda: warm.counts().get("misses") == 2 and warm.counts().get("hits", 0) >= 2, 30, "the counts")


@pytest.mark.long
def test_a_job_that_changes_the_jvm_itself_gets_one_of_its_own(warm: Warm) -> None:
    warm.until_ready()
    waiting = {process.pid for process in warm.sandbox.processes("WarmJvm")}
    look = warm.look("gamma", "--conf", "spark.driver.extraJavaOptions=-Dmy.own=1 -XX:+UseParallelGC")
    assert look["pid"] not in waiting
    assert look["properties"]["my.own"] == "1"


@pytest.mark.long
def test_one_that_was_killed_while_it_waited_costs_no_job(warm: Warm) -> None:
    warm.until_ready()
    for process in warm.sandbox.processes("WarmJvm"):
        process.kill()
    assert warm.look("delta")["rows"] == 2


@pytest.mark.long
def test_a_practice_that_breaks_off_costs_no_job(warm: Warm) -> None:
    warm.until_ready()
    warm.look("epsilon")
    # First a driver gets ready, whose executor this is, then an executor.
    for part in ("CoarseGrainedExecutorBackend", "PracticeDriver"):
        wait_for(lambda part=part: warm.sandbox.processes(part), 180, "the other side of a practice")  # type: ignore[misc]
        for process in warm.sandbox.processes(part):
            process.kill()
    warm.until_ready()
    assert warm.look("zeta")["rows"] == 2
    assert warm.counts()["failed"] == 0


@pytest.mark.long
def test_a_worker_that_is_told_to_go_takes_what_waits_with_it(warm: Warm) -> None:
    warm.until_ready()
    began = time.monotonic()
    warm.sandbox.workers()[0].terminate()
    wait_for(lambda: not warm.sandbox.processes("WarmJvm"), 30, "their end")
    wait_for(lambda: not warm.sandbox.processes("runner.py"), 30, "their end")
    assert time.monotonic() - began < 30
