"""Jobs whose files come over the wire, in environments that workers build: real Spark, real installers, no index."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clusters import PROGRAMS, SMALL, Cluster, wait_for
from tests.integration.wheels import requirements, wheel

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A submitter's folder; it is gone before the job runs."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(PROGRAMS / "uploaded.py", folder)
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
