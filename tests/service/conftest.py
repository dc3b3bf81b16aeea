"""Masters behind their REST interface: one that shows jobs in every state, for tests that only read, and empty ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.model.ids import JobId
from tests.service.served import Served, busy_world, served


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, JobId]]]:
    """Not to be changed by any test."""
    directory = tmp_path_factory.mktemp("busy")
    log = directory / "master.log"
    log.write_text("the master's own words\n")
    logs = directory / "workers"
    logs.mkdir()
    with served(directory / "store", log_file=log, worker_logs=logs, settings={"heartbeat.interval": "10 s"}) as made:
        world, jobs = busy_world()
        made.show(world)
        (worker, *_) = world.workers()
        (logs / f"{worker}.log").write_text("the worker's words\n")
        yield made, jobs


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    """One of the test's own."""
    with served(tmp_path / "store") as made:
        yield made


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that can be submitted."""
    path = tmp_path / "job.py"
    path.write_text("print('never')\n")
    return path
