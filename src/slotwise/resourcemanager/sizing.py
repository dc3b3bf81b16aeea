"""How large the cluster may be: pure sums (FLIP-362, FLIP-6; B: SZ-04, SZ-07)."""

from __future__ import annotations

import msgspec

from slotwise.model.resources import ResourceProfile


class WorkerShape(msgspec.Struct, frozen=True):
    """The workers that the provisioner starts: their total and the slot that an unknown profile gets on them."""

    total: ResourceProfile
    default_profile: ResourceProfile


class Sizing(msgspec.Struct, frozen=True):
    """The limits of a cluster. ``worker`` is None when workers come by themselves (standalone): none is ever asked for.

    ``max_total``: the sum of CPU and memory over all workers, pending ones included, is never above it (None: no
    bound); ``max_workers`` likewise for their number. ``idle_timeout_s`` > 0: how long a worker without slots is
    kept."""

    worker: WorkerShape | None = None
    max_total: ResourceProfile | None = None
    max_workers: int | None = None
    idle_timeout_s: float = 30.0

    def more_workers(self, there: ResourceProfile, count: int) -> int:
        """How many more workers may be asked for when ``count`` workers with ``there`` in all are there or coming."""
        if self.worker is None:
            return 0
        more = 1_000_000
        if self.max_workers is not None:
            more = min(more, self.max_workers - count)
        if self.max_total is not None:
            shape = self.worker.total
            if shape.cpu_milli:
                more = min(more, (self.max_total.cpu_milli - there.cpu_milli) // shape.cpu_milli)
            if shape.memory_bytes:
                more = min(more, (self.max_total.memory_bytes - there.memory_bytes) // shape.memory_bytes)
        return max(0, more)
