"""What tests of the machines share: sizes, job specifications, worlds."""

from __future__ import annotations

from typing import Any

from slotwise.model.job import DriverSize, ExecutorSize, JobSpec
from slotwise.model.resources import GIB, MIB, ResourceProfile
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.simulation.world import VERSION, World

WORKER = ResourceProfile(4000, 8 * GIB)
DRIVER = DriverSize(1, 1 * GIB, 384 * MIB)
EXECUTOR = ExecutorSize(1, 2 * GIB, 384 * MIB)


def spec(**changes: Any) -> JobSpec:
    """A job of one driver and two executors."""
    given: dict[str, Any] = {"name": "job", "program": "/job.py", "driver": DRIVER, "executor": EXECUTOR}
    return JobSpec(**(given | changes))


def provisioned(max_workers: int = 2, **config: Any) -> World:
    """A world whose ResourceManager starts workers itself."""
    sizing = Sizing(WorkerShape(WORKER, ResourceProfile(2000, 4 * GIB)), max_workers=max_workers)
    return World(rm_config=ResourceManagerConfig(sizing=sizing, version=VERSION, **config))
