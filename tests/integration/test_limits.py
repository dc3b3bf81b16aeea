"""Minimum, maximum and `explain` on a master that starts real workers (B: SZ-04, SZ-05, SZ-07, D-10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.clusters import PROGRAMS, SMALL, Cluster, sandbox_at, wait_for

pytestmark = pytest.mark.spark


def test_minimum_maximum_and_explain_with_real_workers(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        cluster.start_master(
            *("--local-workers", "--workers", "2", "--worker-cpus", "2", "--worker-memory", "1536m"),
            *("-D", "slotmanager.number-of-slots.min=2", "-D", "resourcemanager.taskmanager-timeout=3 s"),
        )
        # The minimum of one worker (two default slots) is there without any job.
        wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 1, 30, "the minimum")
        jobs = []
        for _ in range(3):
            done = sandbox.run("submit", "-q", *SMALL, "--num-executors", "8", str(PROGRAMS / "sleeps.py"), "8")
            jobs.append(done.stdout.strip())
        seen = set()

        def all_over() -> bool:
            answer = cluster.json("workers")
            seen.add(len(answer["taskmanagers"]) + len(answer["pending"]))
            return all(job["state"] == "FINISHED" for job in cluster.json("jobs"))

        wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 2, 30, "the maximum")
        waiting = cluster.json("explain", jobs[2])
        assert {missing["reason"] for missing in waiting["missing"]} == {"CLUSTER_FULL"}
        assert waiting["jobs-ahead"] >= 1
        text = sandbox.run("explain", jobs[2]).stdout
        assert "are all that is allowed" in text
        assert "→ " in text
        wait_for(all_over, 150, "the end of all jobs")
        assert max(seen) == 2
        # The second worker goes when it is idle, the first is the minimum's.
        wait_for(lambda: len(cluster.json("workers")["taskmanagers"]) == 1, 30, "the idle worker's end")
        assert "has ended" in sandbox.run("explain", jobs[0]).stdout
        cluster.stop()


def test_limits_that_contradict_each_other_are_refused_at_start_with_the_sums(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        done = sandbox.run(
            *("master", "--port", "0", "--local-workers", "--worker-cpus", "5", "--worker-memory", "5g"),
            *("-D", "taskmanager.numberOfTaskSlots=5", "-D", "slotmanager.number-of-slots.min=11"),
            *("-D", "slotmanager.number-of-slots.max=14"),
        )
        assert done.returncode == 2
        assert "needs 3 worker(s)" in done.stderr
        assert "allows 2" in done.stderr
        assert len(done.stderr.splitlines()) == 1
