"""How large the cluster must be and may be: pure sums (FLIP-362, FLIP-6; B: SZ-04 … SZ-09).

All figures are of CPU and memory; other resources follow the workers. Nothing here changes anything.
"""

from __future__ import annotations

import msgspec

from slotwise.model.errors import ConfigError
from slotwise.model.resources import ResourceProfile, format_bytes, format_cpu, times_fitting

_UNBOUNDED = 1_000_000


class WorkerShape(msgspec.Struct, frozen=True):
    """The workers that the provisioner starts: their total and the slot that an unknown profile gets on them."""

    total: ResourceProfile
    default_profile: ResourceProfile

    @property
    def slots(self) -> int:
        """How many default slots fit into one such worker."""
        return times_fitting(self.default_profile, self.total, _UNBOUNDED)


class Sizing(msgspec.Struct, frozen=True):
    """The limits of a cluster. ``worker`` is None when workers come by themselves (standalone): none is ever asked
    for, and no limit has an effect.

    ``max_total``: the sum of CPU and memory over all workers, pending ones included, is never above it (None: no
    bound); ``max_workers`` likewise for their number. ``min_total``: the sum that is reached without any job, as well
    as it can be. ``redundant_workers`` ≥ 0: so many workers' worth of default slots is kept free.
    ``idle_timeout_s`` > 0: how long a worker without slots is kept beyond that.
    """

    worker: WorkerShape | None = None
    max_total: ResourceProfile | None = None
    max_workers: int | None = None
    min_total: ResourceProfile | None = None
    redundant_workers: int = 0
    idle_timeout_s: float = 30.0

    def more_workers(self, there: ResourceProfile, count: int) -> int:
        """How many more workers may be asked for when ``count`` workers with ``there`` in all are there or coming."""
        if self.worker is None:
            return 0
        more = _UNBOUNDED
        if self.max_workers is not None:
            more = min(more, self.max_workers - count)
        if self.max_total is not None:
            shape = self.worker.total
            if shape.cpu_milli:
                more = min(more, (self.max_total.cpu_milli - there.cpu_milli) // shape.cpu_milli)
            if shape.memory_bytes:
                more = min(more, (self.max_total.memory_bytes - there.memory_bytes) // shape.memory_bytes)
        return max(0, more)

    def admits(self, there: ResourceProfile, count: int, total: ResourceProfile) -> bool:
        """Whether a worker of ``total`` may join ``count`` others with ``there`` in all (B: SZ-04)."""
        if self.worker is None:
            return True
        if self.max_workers is not None and count + 1 > self.max_workers:
            return False
        after = there + total
        return self.max_total is None or (
            after.cpu_milli <= self.max_total.cpu_milli and after.memory_bytes <= self.max_total.memory_bytes
        )

    def workers_for_minimum(self, there: ResourceProfile) -> int:
        """How many workers are missing from the minimum when ``there`` is there or coming (B: SZ-05)."""
        if self.worker is None or self.min_total is None:
            return 0
        shape = self.worker.total
        return max(
            _ceil(self.min_total.cpu_milli - there.cpu_milli, shape.cpu_milli),
            _ceil(self.min_total.memory_bytes - there.memory_bytes, shape.memory_bytes),
        )

    def workers_for_redundancy(self, free_default_slots: int) -> int:
        """How many workers are missing from the redundancy when so many whole default slots are free (B: SZ-09)."""
        if self.worker is None or not self.redundant_workers or not self.worker.slots:
            return 0
        return _ceil(self.redundant_workers * self.worker.slots - free_default_slots, self.worker.slots)

    def slots_of(self, total: ResourceProfile) -> int:
        """How many default slots an empty worker of ``total`` has."""
        return 0 if self.worker is None else times_fitting(self.worker.default_profile, total, _UNBOUNDED)

    def can_spare(self, there: ResourceProfile, total: ResourceProfile, free_default_slots: int) -> bool:
        """Whether an idle worker of ``total`` may go without the minimum or the redundancy asking for it again.

        ``there`` and ``free_default_slots`` count it still. (B: SZ-07)
        """
        if self.worker is None:
            return False
        left = free_default_slots - self.slots_of(total)
        return self.workers_for_minimum(there - total) == 0 and self.workers_for_redundancy(left) == 0


def check_stability(sizing: Sizing) -> None:
    """Refuse limits between which no whole number of workers lies: the cluster would start and release workers for
    ever (FLIP-362; B: SZ-06). Raises :class:`ConfigError` with both figures and the worker counts they lead to.
    Without a minimum and without redundancy there is nothing to check.
    """
    shape, low = sizing.worker, sizing.min_total
    if shape is None or ((low is None or low.is_zero) and not sizing.redundant_workers):
        return
    nothing = ResourceProfile(0, 0)
    least = sizing.workers_for_minimum(nothing) + sizing.redundant_workers
    most = sizing.more_workers(nothing, 0)
    if least <= most:
        return
    wanted = (
        "no minimum" if low is None else f"a minimum of {format_cpu(low.cpu_milli)}, {format_bytes(low.memory_bytes)}"
    )
    if sizing.redundant_workers:
        wanted += f" and {sizing.redundant_workers} redundant worker(s)"
    bounds = []
    if sizing.max_total is not None:
        bounds.append(str(sizing.max_total))
    if sizing.max_workers is not None:
        bounds.append(f"{sizing.max_workers} worker(s)")
    raise ConfigError(
        f"{wanted} needs {least} worker(s) of {shape.total}, but the maximum ({', '.join(bounds)}) allows {most}; "
        "raise the maximum, lower the minimum, or change the size of workers"
    )


def _ceil(amount: int, part: int) -> int:
    """How many ``part`` cover ``amount``; none when there is nothing to cover or nothing to cover it with."""
    return 0 if amount <= 0 or part <= 0 else -(-amount // part)
