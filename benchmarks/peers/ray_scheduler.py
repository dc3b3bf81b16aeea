"""Ray's autoscaler (v2), asked how many nodes it would start for a multiset of slots, where Ray is installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Sequence
from unittest.mock import MagicMock

MIB = 1024 * 1024


def available() -> bool:
    """Whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def schedule(sizes: Sequence[tuple[int, int]], each: int, worker: tuple[int, int]) -> tuple[float, int] | None:
    """(seconds, nodes) for ``each`` slots of every size from an empty cluster; sizes in (milli-cores, MiB)."""
    if not available():
        return None
    config = importlib.import_module("ray.autoscaler.v2.instance_manager.config")
    scheduler = importlib.import_module("ray.autoscaler.v2.scheduler")
    messages = importlib.import_module("ray.core.generated.autoscaler_pb2")

    def amounts(size: tuple[int, int]) -> dict[str, float]:
        return {"CPU": size[0] / 1000, "memory": size[1] * MIB}

    node = config.NodeTypeConfig(name="worker", resources=amounts(worker), min_worker_nodes=0, max_worker_nodes=10**6)
    asked = [
        messages.ResourceRequestByCount(
            request=messages.ResourceRequest(resources_bundle=amounts(size)),
            count=each,
        )
        for size in sizes
    ]
    request = scheduler.SchedulingRequest(
        node_type_configs={"worker": node},
        resource_requests=asked,
        max_num_nodes=10**6,
        disable_launch_config_check=True,
    )
    began = time.perf_counter()
    reply = scheduler.ResourceDemandScheduler(MagicMock()).schedule(request)
    return time.perf_counter() - began, sum(launch.count for launch in reply.to_launch)
