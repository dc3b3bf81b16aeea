"""Jobs whose files come over the wire, in environments that workers build: real Spark, real installers, no index."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table

from slotwise import Client
from slotwise.job_options import describe
from slotwise.uploading import plan_upload
from tests.integration.clusters import PROGRAMS, SMALL, Cluster, Sandbox, wait_for
from tests.integration.wheels import requirements, wheel

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A submitter's folder; it is gone before the job runs."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(PROGRAMS / "uploaded.py", folder)
    (folder / "job.py").write_text("print('without Spark')\n")
    (folder / "beside.py").write_text("WORD = 'a word'\n")
    (folder / "data.txt").write_text("some data\n")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("inside.txt", "from the archive")
    wheel(folder / "wheels", "onlyhere", "ANSWER = 40\n")
    requirements(folder, "onlyhere")
    return folder


def submit_all(cluster: Cluster, home: Path, *more: str) -> Any:
    """Submit everything that there is in ``home``."""
    files = ("--py-files", "beside.py", "--files", "data.txt", "--archives", "archive.zip#box")
    return cluster.sandbox.run(
        *("submit", "--upload", "always", "--requirements", "requirements.txt", *SMALL, *files, *more, "uploaded.py"),
        cwd=home,
    )


def wait_end(cluster: Cluster, job: str) -> Any:
    return wait_for(lambda: (found := cluster.json("job", job)) and found["released"] and found, 150)


def environments(cluster: Cluster) -> list[Path]:
    return list((cluster.sandbox.directory / "uploads" / "environments").glob("*/ready.json"))


def test_what_was_uploaded_is_there_on_driver_and_executors_in_an_environment_of_its_own(
    cluster: Cluster, home: Path
) -> None:
    first = submit_all(cluster, home)
    assert first.returncode == 0, first.stderr
    assert "6 uploaded file(s)" in first.stderr
    second = submit_all(cluster, home, "--quiet")
    assert second.returncode == 0, second.stderr
    # The jobs run without any of this.
    shutil.rmtree(home)
    jobs = [job["jid"] for job in cluster.json("jobs")[-2:]]
    folders = set()
    for job in jobs:
        details = wait_end(cluster, job)
        output = cluster.sandbox.run("logs", job, "--file", "driver-1.out").stdout
        assert details["state"] == "FINISHED", cluster.sandbox.run("logs", job, "--file", "driver-1.err").stdout
        rows = [(number + 40, "a word", "from the archive") for number in range(4)]
        assert f"rows {rows}" in output
        assert "prefixes ['.environment']" in output
        # The second job has a copy of its own, whatever the first has written into that.
        assert "data some data" in output
        assert "driver 40 a word .environment" in output
        folders.add(next(line for line in output.splitlines() if line.startswith("folder ")))
    assert len(folders) == 2
    # Both jobs, on two workers of this machine, began at the same time.
    assert len(environments(cluster)) == 1
    logs = [cluster.sandbox.run("logs", job, "--file", "driver-1.setup.log").stdout for job in jobs]
    assert sum(log.count("built the Python environment in") for log in logs) == 1
    assert "fetched 4 of 4 uploaded files" in "".join(logs)
    assert not list((cluster.sandbox.directory / "uploads" / "environments").glob("*/venv/lib/*/site-packages/pyspark"))


def test_an_environment_that_cannot_be_built_fails_the_job_with_the_last_words_and_can_be_tried_again(
    cluster: Cluster, home: Path
) -> None:
    (home / "requirements.txt").write_text("--no-index\n--find-links wheels\nmissing-package==1.0\n")
    failed = submit_all(cluster, home, "--wait")
    assert failed.returncode == 1
    assert "the Python environment could not be built" in failed.stderr
    assert "No matching distribution found for missing-package==1.0" in failed.stderr
    details = cluster.json("jobs")[-1]
    reason = json.dumps(cluster.json("job", details["jid"])["reason"])
    assert "missing-package==1.0" in reason
    before = len(environments(cluster))
    wheel(home / "wheels", "missing_package", "ANSWER = 1\n")
    (home / "uploaded.py").write_text("import missing_package; print('now', missing_package.ANSWER)\n")
    fine = submit_all(cluster, home, "--wait")
    assert fine.returncode == 0, fine.stderr
    assert "now 1" in fine.stdout
    assert len(environments(cluster)) == before + 1


@pytest.mark.long
def test_a_project_is_uploaded_whole_and_its_modules_are_there_on_executors(cluster: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "transformations").mkdir(parents=True)
    (project / "spark-pipeline.yml").write_text(
        f"name: made\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    (project / "helper_of_project.py").write_text("STEP = 100\n")
    (project / "transformations" / "made.py").write_text(
        "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\n"
        "from pyspark.sql.functions import udf\n\n\n"
        '@udf("long")\ndef stepped(number):\n    import helper_of_project\n\n'
        "    return number + helper_of_project.STEP\n\n\n"
        "@dp.materialized_view\ndef made():\n"
        '    return SparkSession.active().range(3).select(stepped("id").alias("x"))\n'
    )
    always = (
        "submit",
        "--upload",
        "always",
        "--wait",
        *SMALL,
        "--conf",
        f"spark.sql.warehouse.dir={tmp_path}/warehouse",
    )
    first = cluster.sandbox.run(*always, "project", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "3 uploaded file(s)" in first.stderr
    rows = [row["x"] for file in (tmp_path / "warehouse").rglob("*.parquet") for row in read_table(file).to_pylist()]
    assert sorted(rows) == [100, 101, 102]
    # One file has changed: that alone is sent, with the list.
    (project / "helper_of_project.py").write_text("STEP = 200\n")
    (tmp_path / "elsewhere").mkdir()
    project.rename(tmp_path / "elsewhere" / "project")
    second = cluster.sandbox.run(*always, "elsewhere/project", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "2 had to be sent" in second.stderr
    rows = [row["x"] for file in (tmp_path / "warehouse").rglob("*.parquet") for row in read_table(file).to_pylist()]
    assert sorted(rows) == [200, 201, 202]


@pytest.mark.long
def test_a_worker_that_is_killed_during_a_build_leaves_nothing_that_anybody_uses(sandbox: Sandbox, home: Path) -> None:
    cluster = Cluster(sandbox)
    cluster.start_master()
    # A source package whose build takes its time, once.
    slow = home / "wheels" / "onlyhere-1.0"
    (slow / "backend").mkdir(parents=True)
    (slow / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["backend"]\n'
    )
    built = next((home / "wheels").glob("*.whl"))
    (slow / "backend" / "slow.py").write_text(
        "import pathlib, shutil, time\n\n\ndef build_wheel(folder, settings=None, metadata=None):\n"
        f"    begun = pathlib.Path({str(home / 'begun')!r})\n"
        "    if not begun.exists():\n        begun.touch()\n        time.sleep(60)\n"
        f"    shutil.copy({str(home / built.name)!r}, folder)\n    return {built.name!r}\n"
    )
    built.rename(home / built.name)
    with tarfile.open(home / "wheels" / "onlyhere-1.0.tar.gz", "w:gz") as archive:
        (slow / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: onlyhere\nVersion: 1.0\n")
        archive.add(slow, "onlyhere-1.0")
    shutil.rmtree(slow)
    worker = cluster.start_worker("--cpus", "3", "--memory", "6g", "--orphan-timeout", "0")
    submitted = submit_all(cluster, home, "--quiet", "--restart-strategy", "fixed-delay")
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    wait_for((home / "begun").exists, 60, "the build")
    worker.kill()
    worker.wait()
    assert environments(cluster) == []
    cluster.start_worker("--cpus", "3", "--memory", "6g")
    details = wait_end(cluster, job)
    assert details["state"] == "FINISHED", details["reason"]
    assert len(environments(cluster)) == 1
    cluster.stop()


@pytest.mark.long
def test_the_master_may_be_killed_between_upload_and_submission(sandbox: Sandbox, home: Path) -> None:
    cluster = Cluster(sandbox)
    cluster.start_master()
    plan = plan_upload(describe(str(home / "job.py"), (), {}))
    token = (sandbox.directory / "state" / "token").read_text().strip()
    with Client(sandbox.env["SLOTWISE_MASTER"], token) as client:
        client.upload(plan)
    cluster.processes[0].kill()
    cluster.processes[0].wait()
    (sandbox.directory / "address.json").unlink()
    cluster.start_master()
    with Client(sandbox.env["SLOTWISE_MASTER"], token) as client:
        job = client.submit(plan.spec)
        assert client.upload(plan) == 0
    cluster.start_worker("--cpus", "3", "--memory", "6g")
    assert wait_end(cluster, job)["state"] == "FINISHED"
    cluster.stop()
