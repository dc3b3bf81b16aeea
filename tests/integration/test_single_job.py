"""A cluster for one job, which takes all that there is and ends with it (B: A-05)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.integration.clusters import PROGRAMS, SMALL, Cluster, sandbox_at, wait_for
from tests.integration.pipelines import project, table_rows

pytestmark = pytest.mark.spark


def test_a_05_the_cluster_serves_its_job_with_every_slot_and_ends_with_it(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        notes = tmp_path / "notes"
        notes.mkdir()
        address = tmp_path / "address.json"
        master = sandbox.start(
            *("master", "--port", "0", "--address-file", str(address), *SMALL),
            *("--job", str(PROGRAMS / "rescales.py"), str(notes)),
        )
        wait_for(address.exists, 30, "the master's address")
        sandbox.env["SLOTWISE_MASTER"] = json.loads(address.read_text())["url"]
        first = cluster.start_worker("--cpus", "2", "--memory", "2g")
        job = cluster.json("jobs")[0]["jid"]

        def registered() -> int:
            return int(cluster.json("job", job).get("executors", {}).get("registered", 0))

        wait_for(lambda: registered() == 1, 90, "the first executor")
        second = cluster.start_worker("--cpus", "3", "--memory", "4g")
        wait_for(lambda: registered() == 4, 60, "executors in every slot")
        assert cluster.json("job", job)["missing"] == []
        assert "takes every one" in cluster.json("explain", job)["summary"]
        refused = sandbox.run("submit", *SMALL, str(PROGRAMS / "plain.py"))
        assert refused.returncode == 1
        assert f"one job, {job}" in refused.stderr
        (notes / "stop").touch()
        out, err = master.communicate(timeout=90)
        assert master.returncode == 0, err
        assert "rounds=" in out
        assert [first.wait(30), second.wait(30)] == [0, 0]


def test_a_05_the_job_may_be_a_pipeline(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        text = {"a.sql": "CREATE MATERIALIZED VIEW a AS SELECT id FROM range(10)"}
        spec = project(tmp_path / "p", text, "{spark.executor.memory: 512m}")
        address = tmp_path / "address.json"
        warehouse = f"spark.sql.warehouse.dir={(tmp_path / 'warehouse').as_uri()}"
        master = sandbox.start(
            *("master", "--port", "0", "--address-file", str(address), "--driver-memory", "600m", "--conf", warehouse),
            *("--job", str(spec.parent)),
        )
        wait_for(address.exists, 30, "the master's address")
        sandbox.env["SLOTWISE_MASTER"] = json.loads(address.read_text())["url"]
        worker = cluster.start_worker("--cpus", "4", "--memory", "4g")
        _, err = master.communicate(timeout=120)
        assert master.returncode == 0, err
        # Every slot beside the driver's.
        assert "spark_catalog.default.a runs with 3 executor(s)" in err
        assert table_rows(tmp_path / "warehouse" / "a") == {(n,) for n in range(10)}
        assert worker.wait(30) == 0


def test_ctrl_c_cancels_the_job_and_ends_the_workers(tmp_path: Path) -> None:
    with sandbox_at(tmp_path) as sandbox:
        cluster = Cluster(sandbox)
        address = tmp_path / "address.json"
        program = ("--job", str(PROGRAMS / "slow_sum.py"), "0", "60")
        master = sandbox.start("master", "--port", "0", "--address-file", str(address), *SMALL, *program)
        wait_for(address.exists, 30, "the master's address")
        sandbox.env["SLOTWISE_MASTER"] = json.loads(address.read_text())["url"]
        worker = cluster.start_worker("--cpus", "2", "--memory", "2g")
        wait_for(lambda: cluster.json("jobs")[0]["phase"] == "RUNNING", 60, "the job")
        master.send_signal(signal.SIGINT)
        _, err = master.communicate(timeout=60)
        assert master.returncode == 130, err
        assert worker.wait(30) == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--job", "missing.py"), "there is no file missing.py"),
        (("--name", "x"), "says nothing without --job"),
        (("stray",), "arguments belong to the program of --job"),
        (("--job", str(PROGRAMS / "plain.py"), "--max-executors", "3"), "takes every slot"),
        (("--job", str(PROGRAMS / "plain.py"), "--num-executors", "3"), "takes every slot"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    with sandbox_at(tmp_path) as sandbox:
        done = sandbox.run("master", "--port", "0", *argv)
    assert done.returncode == 2
    assert words in done.stderr
