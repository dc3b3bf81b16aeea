"""What a worker has waiting for drivers and executors to come."""

from __future__ import annotations

import msgspec


class WarmUnits(msgspec.Struct, frozen=True):
    """What waits on a worker, and what came of it since the worker's start.

    ``drivers`` and ``executors``: how many are ready; ``warming``: getting ready now. ``memory_bytes``: what all of
    them hold in memory; ``oldest_s``: the age of the oldest. ``hits`` and ``misses``: processes of slots that one could
    become, or none. ``failed``: those that never got ready.
    """

    drivers: int = 0
    executors: int = 0
    warming: int = 0
    memory_bytes: int = 0
    oldest_s: float = 0.0
    hits: int = 0
    misses: int = 0
    failed: int = 0
