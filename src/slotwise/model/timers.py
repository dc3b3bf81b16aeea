"""Named deadlines of a machine. Machines never read a clock: `now` is always an argument (design decision 1)."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush

_SLACK = 64


class Timers:
    """A set of deadlines by key. Setting a key again moves its deadline and keeps its place among equal ones.

    The earliest is at the head of a heap, in which deadlines that were moved or cleared stay until they come up or are
    more than those that count: with one deadline a worker, a change costs the logarithm of their number.
    """

    def __init__(self) -> None:
        self._armed: dict[Hashable, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._next_place = 0

    def set(self, key: Hashable, at: float) -> None:
        """(Re)arm ``key`` to fire at monotonic time ``at`` (seconds)."""
        known = self._armed.get(key)
        if known is not None and known[0] == at:
            return
        if known is None:
            place = self._next_place
            self._next_place += 1
        else:
            place = known[1]
        self._armed[key] = (at, place)
        heappush(self._heap, (at, place, key))
        self._tidy()

    def set_once(self, key: Hashable, at: float) -> None:
        """Arm ``key`` unless it is armed already."""
        if key not in self._armed:
            self.set(key, at)

    def set_earlier(self, key: Hashable, at: float) -> None:
        """Arm ``key``, or move its deadline forward to ``at``; it is never put off."""
        known = self._armed.get(key)
        if known is None or at < known[0]:
            self.set(key, at)

    def clear(self, key: Hashable) -> None:
        """Disarm ``key`` if it is armed."""
        if self._armed.pop(key, None) is not None:
            self._tidy()

    def is_set(self, key: Hashable) -> bool:
        """Whether ``key`` is armed."""
        return key in self._armed

    def next(self) -> float | None:
        """The earliest deadline, or None when nothing is armed."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[Hashable]:
        """Disarm and return the keys that are due at ``now``, earliest first, in the order they were armed."""
        due: list[Hashable] = []
        while self._heap and self._heap[0][0] <= now:
            key = heappop(self._heap)[2]
            del self._armed[key]
            due.append(key)
            self._tidy()
        return due

    def _tidy(self) -> None:
        """Keep the head of the heap one that counts, and the heap no larger than it needs to be."""
        heap, armed = self._heap, self._armed
        while heap and armed.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        if len(heap) > 2 * len(armed) + _SLACK:
            self._heap = [(at, place, key) for key, (at, place) in armed.items()]
            heapify(self._heap)
