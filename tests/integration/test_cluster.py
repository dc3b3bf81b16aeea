"""A master and two workers started by hand, and jobs submitted from other processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clusters import PROGRAMS, SLOT_BYTES, SMALL, Cluster, wait_for

pytestmark = pytest.mark.spark

RIGHT = f"sum={sum(range(1600))}"


def submit(cluster: Cluster, *argv: str) -> str:
    """Submit and return the job's id."""
    done = cluster.sandbox.run("submit", "--quiet", *SMALL, *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_end(cluster: Cluster, job: str) -> dict[str, Any]:
    """The details of a job once it has ended and its slots are back."""
    found: dict[str, Any] = wait_for(
        lambda: (details := cluster.json("job", job)) and details["released"] and details, 120, f"the end of {job}"
    )
    return found


def test_a_program_that_raises_fails_the_job_and_its_last_lines_are_shown(cluster: Cluster) -> None:
    done = cluster.sandbox.run("submit", "--wait", *SMALL, str(PROGRAMS / "raises.py"))
    assert done.returncode == 1
    assert "ValueError: the number of teapots is wrong" in done.stderr
    assert "runner.py" not in done.stderr
    job = cluster.json("jobs")[-1]
    assert job["phase"] == "FAILED"
    assert "ValueError: the number of teapots is wrong" in job["log-tail"]


def test_a_program_with_a_syntax_error_shows_the_line(cluster: Cluster, tmp_path: Path) -> None:
    # Kept under another name in the repository, so that linters do not stumble over it.
    program = tmp_path / "syntax_error.py"
    program.write_text((PROGRAMS / "syntax_error.txt").read_text())
    done = cluster.sandbox.run("submit", "--wait", *SMALL, str(program))
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert 'print("never"' in done.stderr


def test_a_program_without_spark_runs_with_its_arguments_in_the_callers_directory(cluster: Cluster) -> None:
    done = cluster.sandbox.run("submit", "--wait", *SMALL, str(PROGRAMS / "plain.py"), "a b", "--flag")
    assert done.returncode == 0, done.stderr
    assert f"hello from plain ['a b', '--flag'] {cluster.sandbox.directory}" in done.stdout
    assert "a word on standard error" in done.stderr


def test_py_files_files_and_properties_reach_driver_and_executors(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "teapots.py").write_text("NUMBER = 418\n")
    (tmp_path / "words.txt").write_text("short and stout\n")
    (tmp_path / "job.conf").write_text("# settings\nspark.sql.shuffle.partitions 7\nspark.some.thing=from a file\n")
    done = cluster.sandbox.run(
        *("submit", "--wait", *SMALL, "--num-executors", "1", "--py-files", str(tmp_path / "teapots.py")),
        *("--files", str(tmp_path / "words.txt"), "--properties-file", str(tmp_path / "job.conf")),
        *("--conf", "spark.some.thing=from the command line", str(PROGRAMS / "uses_module.py")),
    )
    assert done.returncode == 0, done.stderr
    assert "418 [(418, 'short and stout')]" in done.stdout
    assert "7 from the command line" in done.stdout


def test_executors_get_units_of_an_extended_resource_that_nobody_else_has(cluster: Cluster) -> None:
    extra = cluster.start_worker("--cpus", "3", "--memory", "6g", "--resource", "gpu=2")
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 3, 30, "the third worker")
    resource = ("--conf", "spark.executor.resource.gpu.amount=1", "--conf", "spark.task.resource.gpu.amount=1")
    job = submit(cluster, *resource, "--num-executors", "2", str(PROGRAMS / "resources.py"))
    wait_for(lambda: cluster.json("job", job).get("executors", {}).get("registered") == 2, 60, "both executors")
    holders = [w for w in cluster.json("workers")["taskmanagers"] if w["totalResource"]["extendedResources"]]
    gpus = [slot["resource"]["extendedResources"].get("gpu", 0) for slot in holders[0]["allocatedSlots"]]
    assert sum(gpus) == 2
    assert holders[0]["freeResource"]["extendedResources"] == {}
    assert wait_end(cluster, job)["phase"] == "FINISHED"
    text = cluster.sandbox.run("logs", job).stdout
    assert "addresses ['0', '1']" in text
    assert "each {1}" in text
    extra.send_signal(signal.SIGTERM)
    assert extra.wait(30) == 0
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 2, 10, "its leaving")


def test_three_jobs_at_once_with_different_sizes_get_slots_of_exactly_those_sizes(cluster: Cluster) -> None:
    mib = 1024 * 1024
    sizes = {"512m": 512 + 256, "640m": 640 + 256, "777m": 777 + 256}
    jobs = {
        submit(
            cluster, "--executor-memory", heap, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "4"
        ): total
        for heap, total in sizes.items()
    }
    seen: dict[str, list[int]] = {}

    def all_seen() -> bool:
        for worker in cluster.json("workers")["taskmanagers"]:
            used_cpu = sum(slot["resource"]["cpu_milli"] for slot in worker["allocatedSlots"])
            used_memory = sum(slot["resource"]["memory_bytes"] for slot in worker["allocatedSlots"])
            assert used_cpu + worker["freeResource"]["cpu_milli"] == worker["totalResource"]["cpu_milli"]
            assert used_memory + worker["freeResource"]["memory_bytes"] == worker["totalResource"]["memory_bytes"]
        slots = [slot for w in cluster.json("workers")["taskmanagers"] for slot in w["allocatedSlots"]]
        for job in jobs:
            mine = sorted(slot["resource"]["memory_bytes"] for slot in slots if slot["jobId"] == job)
            if len(mine) == 2:
                seen[job] = mine
        return len(seen) == 3

    wait_for(all_seen, 60, "the slots of all three jobs")
    for job, total in jobs.items():
        assert seen[job] == sorted([SLOT_BYTES, total * mib])
    for job in jobs:
        assert wait_end(cluster, job)["phase"] == "FINISHED"
    wait_for(
        lambda: not any(w["allocatedSlots"] for w in cluster.json("workers")["taskmanagers"]), 30, "the slots' return"
    )


def test_dynamic_allocation_raises_executors_with_the_work_and_lowers_them_after_it(cluster: Cluster) -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.sustainedSchedulerBacklogTimeout": "1s",
    }
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    job = submit(cluster, *options, "--max-executors", "3", str(PROGRAMS / "dynamic.py"))
    details = wait_end(cluster, job)
    assert details["phase"] == "FINISHED", details
    logs = cluster.sandbox.run("logs", job)
    assert f"sum={sum(range(1000))}" in logs.stdout
    assert "executors left=1" in logs.stdout
    wanted = [e["fields"]["count"] for e in details["events"] if e["name"] == "executors-wanted"]
    # Spark names no number before its allocation manager has started.
    wanted = wanted[1:] if wanted[0] == 0 else wanted
    assert wanted[0] == 1
    assert max(wanted) == 3
    assert 1 in wanted[wanted.index(3) :]
    ended = [e for e in details["events"] if e["name"] == "executor-ended" and e["fields"]["asked"]]
    joined = [e for e in details["events"] if e["name"] == "executor-registered"]
    assert len(joined) >= 2
    assert len(ended) >= len(joined) - 1


def test_a_stage_of_another_resource_profile_runs_in_slots_of_that_size(cluster: Cluster) -> None:
    job = submit(cluster, "--num-executors", "1", str(PROGRAMS / "profiles.py"))
    details = wait_end(cluster, job)
    logs = cluster.sandbox.run("logs", job)
    assert details["phase"] == "FINISHED", logs.stderr
    assert f"default={sum(range(100))}" in logs.stdout
    assert f"profile={sum(range(100))}" in logs.stdout
    acquired = [e["fields"]["profile"] for e in details["events"] if e["name"] == "acquired"]
    assert "2 CPU, 1000 MiB" in acquired


def test_a_job_that_is_cancelled_ends_as_canceled_and_gives_its_slots_back(cluster: Cluster) -> None:
    job = submit(cluster, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "120")
    wait_for(lambda: cluster.json("job", job).get("executors", {}).get("registered"), 60, "an executor")
    done = cluster.sandbox.run("cancel", job)
    assert done.returncode == 0
    assert "canceled" in done.stdout
    assert wait_end(cluster, job)["phase"] == "CANCELED"
    again = cluster.sandbox.run("cancel", job)
    assert "had ended before" in again.stdout


def test_ctrl_c_while_waiting_cancels_the_job(cluster: Cluster) -> None:
    process = cluster.sandbox.start("submit", "--wait", *SMALL, str(PROGRAMS / "slow_sum.py"), "0", "120")
    wait_for(lambda: [job["phase"] for job in cluster.json("jobs")][-1:] == ["RUNNING"], 60, "a running job")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert cluster.json("jobs")[-1]["phase"] == "CANCELED"


def test_an_executor_larger_than_any_worker_is_named_as_the_reason(cluster: Cluster) -> None:
    job = submit(cluster, "--executor-memory", "100g", str(PROGRAMS / "plain.py"))
    missing = wait_for(lambda: cluster.json("job", job).get("missing"), 20, "the reason")
    assert missing[0]["reason"] == "TOO_LARGE"
    assert "larger than any worker" in missing[0]["detail"]
    text = cluster.sandbox.run("resources")
    assert "larger than any worker" in text.stdout
    cluster.sandbox.run("cancel", job)


def test_logs_follow_a_job_to_its_end(cluster: Cluster) -> None:
    job = submit(cluster, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "2")
    done = cluster.sandbox.run("logs", "-f", job)
    assert done.returncode == 0
    assert RIGHT in done.stdout
    names = cluster.json("logs", job)
    assert "driver-1.out" in names


def test_no_secret_is_on_a_command_line_or_in_a_log(cluster: Cluster) -> None:
    job = submit(cluster, "--num-executors", "1", str(PROGRAMS / "slow_sum.py"), "0", "6")
    wait_for(lambda: cluster.json("job", job).get("executors", {}).get("registered"), 60, "an executor")
    sandbox = cluster.sandbox
    token = (sandbox.directory / "state" / "token").read_text()
    arguments = [" ".join(process.cmdline()) for process in sandbox.processes()]
    secrets = {process.environ()["_SPARK_AUTH_SECRET"] for process in sandbox.executors() if process.environ()} | {
        token
    }
    assert len(secrets) == 2
    wait_end(cluster, job)
    texts = [path.read_text(errors="replace") for path in (sandbox.directory / "state").rglob("*.log")]
    texts += [path.read_text(errors="replace") for path in sandbox.directory.glob("*.log")]
    for secret in secrets:
        assert not any(secret in text for text in [*arguments, *texts])


def test_listings_are_tables_for_people_and_json_for_programs(cluster: Cluster) -> None:
    for name in ("jobs", "workers", "resources"):
        done = cluster.sandbox.run(name)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert cluster.json(name) is not None
    assert "FREE" in cluster.sandbox.run("workers").stdout


def test_an_unknown_job_and_an_unknown_log_are_one_clear_line(cluster: Cluster) -> None:
    for argv in (("job", "job-none"), ("logs", "job-none"), ("cancel", "job-none")):
        done = cluster.sandbox.run(*argv)
        assert done.returncode == 1
        assert done.stderr == "slotwise: there is no job job-none; `slotwise jobs` lists them\n"
    job = submit(cluster, str(PROGRAMS / "plain.py"))
    wait_end(cluster, job)
    done = cluster.sandbox.run("logs", job, "--file", "../../../token")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_the_port_needs_the_token(cluster: Cluster) -> None:
    wrong = cluster.sandbox.directory / "wrong-token"
    wrong.write_text("f" * 64)
    done = cluster.sandbox.run("jobs", "--token-file", str(wrong))
    assert done.returncode == 1
    assert "token" in done.stderr
    worker = cluster.sandbox.run("worker", "--token-file", str(wrong), "--cpus", "1", "--memory", "1g")
    assert worker.returncode == 1
    assert "token" in worker.stderr


def test_a_worker_that_gets_sigterm_leaves_at_once_and_its_job_goes_on(cluster: Cluster) -> None:
    folder = cluster.sandbox.directory / "mine"
    folder.mkdir()
    (folder / "data.txt").write_text("precious")
    extra = cluster.start_worker("--cpus", "2", "--memory", "2g", "--directory", str(folder))
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 3, 30, "the third worker")
    extra.send_signal(signal.SIGTERM)
    assert extra.wait(30) == 0
    assert [path.name for path in folder.iterdir()] == ["data.txt"]
    wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 2, 10, "its leaving")


def test_cluster_start_status_stop(tmp_path: Path) -> None:
    from tests.integration.clusters import sandbox_at

    with sandbox_at(tmp_path) as sandbox:
        assert sandbox.run("cluster", "status").returncode == 1
        started = sandbox.run("cluster", "start", "--worker-memory", "3g")
        assert started.returncode == 0, started.stderr
        again = sandbox.run("cluster", "start")
        assert "running already" in again.stdout
        done = sandbox.run("submit", "--wait", *SMALL, str(PROGRAMS / "plain.py"))
        assert done.returncode == 0, done.stderr
        status = json.loads(sandbox.run("cluster", "status", "--json").stdout)
        assert status["jobs-finished"] == 1
        stopped = sandbox.run("cluster", "stop")
        assert stopped.stdout == "cluster stopped\n"
        assert sandbox.run("cluster", "stop").stdout == "no cluster is running\n"


def test_two_masters_cannot_share_a_port(cluster: Cluster) -> None:
    port = cluster.sandbox.env["SLOTWISE_MASTER"].rsplit(":", 1)[1]
    done = cluster.sandbox.run("master", "--port", port, "--directory", "another")
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    assert "--port" in done.stderr
