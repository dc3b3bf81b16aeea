"""Fixtures with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.clusters import JVM_CACHE_THAT_IS_THERE, NO_WARM_UNITS, Cluster, Sandbox, sandbox_at, wait_for


@pytest.fixture(scope="package", autouse=True)
def nothing_in_the_background() -> Iterator[None]:
    """Workers that tests start do not begin to make a cache of loaded classes, nor have processes wait, unless the test
    says so.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in JVM_CACHE_THAT_IS_THERE.items():
            patch.setenv(name, value)
        patch.setenv(NO_WARM_UNITS, "off")
        yield


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of the test's own; afterwards nothing may be left in it."""
    with sandbox_at(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers of 3 CPU and 6 GiB, started by hand, for all tests of a module."""
    with sandbox_at(tmp_path_factory.mktemp("cluster")) as sandbox:
        made = Cluster(sandbox)
        made.start_master("-D", "slot.idle.timeout=1 s")
        for _ in range(2):
            made.start_worker("--cpus", "3", "--memory", "6g")
        wait_for(lambda: len(made.json("workers")["taskmanagers"]) == 2, 30, "both workers")
        yield made
        made.stop()
