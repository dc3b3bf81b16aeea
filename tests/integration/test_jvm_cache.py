"""The cache of loaded classes with real JVMs: made, used, damaged, and its builder killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.spark.java import find_java
from tests.integration.clusters import PROGRAMS, SMALL, Cluster, Sandbox, sandbox_at, wait_for

# Making a cache takes a minute or two.
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]
BUILD_LIMIT_S = 600.0


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the cache of this machine's Java and Spark."""
    with sandbox_at(tmp_path_factory.mktemp("build")) as sandbox:
        folder = sandbox.directory / "caches"
        done = sandbox.run("cache", "build", "--json", *using(folder), timeout=BUILD_LIMIT_S)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == "ready"
        key = Path(json.loads(done.stdout)["folder"]).name
        assert {path.name for path in folder.iterdir()} == {key, "lock"}
        yield folder


def using(folder: Path) -> tuple[str, ...]:
    return ("-D", "taskmanager.jvm-cache.mode=auto", "-D", f"taskmanager.jvm-cache.directory={folder}")


def run_with(sandbox: Sandbox, folder: Path, *options: str) -> dict[str, object]:
    """What the program says of its JVMs; nothing of the cache may be in its output."""
    done = sandbox.run("run", *SMALL, "--num-executors", "1", *using(folder), *options, str(PROGRAMS / "cache_used.py"))
    assert done.returncode == 0, done.stderr
    logs = [path.read_text() for path in (sandbox.directory / "state").rglob("*.log")]
    assert [line for text in (done.stderr, *logs) for line in text.splitlines() if "[warning]" in line] == []
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found.pop("sum") == 45
    return dict(found)


def test_driver_and_executor_start_from_the_cache(sandbox: Sandbox, caches: Path) -> None:
    assert run_with(sandbox, caches) == {"driver": True, "executor": True}


def test_a_job_with_other_options_runs_without(sandbox: Sandbox, caches: Path) -> None:
    found = run_with(sandbox, caches, "--conf", "spark.driver.extraJavaOptions=-Xshare:off")
    assert found == {"driver": False, "executor": True}


def test_a_truncated_cache_is_in_nobodys_way(sandbox: Sandbox, caches: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(caches, damaged)
    for path in damaged.glob("*/spark.*"):
        # JVMs that start from one like this crash, some of them.
        os.truncate(path, path.stat().st_size // 2)
    assert run_with(sandbox, damaged) == {"driver": False, "executor": False}


def test_doctor_starts_a_jvm_from_it(sandbox: Sandbox, caches: Path) -> None:
    sandbox.env["SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY"] = str(caches)
    findings = {entry["check"]: entry for entry in json.loads(sandbox.run("doctor", "--json").stdout)}
    assert findings["JVM cache"]["status"] == "ok"
    assert findings["JVM cache"]["found"].startswith("works: ")


def test_a_java_that_makes_none_is_said_in_one_line_and_not_tried_again(sandbox: Sandbox, tmp_path: Path) -> None:
    real = find_java().path.resolve().parent.parent
    fake = tmp_path / "jdk"
    (fake / "bin").mkdir(parents=True)
    (fake / "lib").symlink_to(real / "lib")
    shutil.copyfile(real / "release", fake / "release")
    (fake / "bin" / "java").write_text("#!/bin/sh\necho this is no java\nexit 3\n")
    (fake / "bin" / "java").chmod(0o755)
    sandbox.env["JAVA_HOME"] = str(fake)
    folder = tmp_path / "caches"
    done = sandbox.run("cache", "build", *using(folder))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "this is no java" in done.stderr.splitlines()[-1]
    assert {path.suffix for path in folder.iterdir() if path.name != "lock"} == {".failed"}
    shown = json.loads(sandbox.run("cache", "--json", *using(folder)).stdout)
    assert shown["state"] == "failed"


@pytest.mark.long
def test_a_worker_makes_it_in_the_background_and_the_next_job_starts_from_it(sandbox: Sandbox) -> None:
    folder = sandbox.directory / "caches"
    cluster = Cluster(sandbox)
    cluster.start_master()
    cluster.start_worker(
        *("--cpus", "3", "--memory", "6g", "--jvm-cache", "auto", "-D", "taskmanager.jvm-cache.quiet-time=0 s"),
        *("-D", f"taskmanager.jvm-cache.directory={folder}"),
    )
    submit = ("submit", "--wait", *SMALL, "--num-executors", "1", str(PROGRAMS / "cache_used.py"))
    first = sandbox.run(*submit)
    assert json.loads(first.stdout.strip().splitlines()[-1])["driver"] is False
    wait_for(lambda: list(folder.glob("*/manifest.json")), BUILD_LIMIT_S, "the cache")
    second = sandbox.run(*submit)
    assert json.loads(second.stdout.strip().splitlines()[-1]) == {"driver": True, "executor": True, "sum": 45}
    wait_for(lambda: not sandbox.processes("jvm_cache_builder"), 30, "the builder's end")
    assert len(list(folder.iterdir())) == 2
    cluster.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_builder_ends_with_its_worker_and_leaves_nothing(sandbox: Sandbox, how: signal.Signals) -> None:
    folder = sandbox.directory / "caches"
    cluster = Cluster(sandbox)
    cluster.start_master()
    worker = cluster.start_worker(
        # The slots' folder of a killed worker is the next one's to remove, there or here.
        *("--directory", str(sandbox.directory / "worker"), "--orphan-timeout", "0"),
        *("--cpus", "3", "--memory", "6g", "--jvm-cache", "auto"),
        *("-D", "taskmanager.jvm-cache.quiet-time=0 s", "-D", f"taskmanager.jvm-cache.directory={folder}"),
    )
    done = sandbox.run("submit", "--wait", *SMALL, "--num-executors", "1", str(PROGRAMS / "plain.py"))
    assert done.returncode == 0, done.stderr
    # A training run is on its way: its driver's JVM at least.
    wait_for(lambda: list(folder.glob(".building-*/driver.log")), 60, "a builder")
    wait_for(lambda: sandbox.processes("jvm_cache_builder"), 10, "the builder's process")
    worker.send_signal(how)
    worker.wait(60)
    wait_for(lambda: not sandbox.processes("jvm_cache_builder"), 30, "the builder's end")
    wait_for(lambda: not list(folder.glob(".building-*")), 10, "the removal of what it had begun")
    assert {path.name for path in folder.iterdir()} == {"lock"}
    cluster.stop()
