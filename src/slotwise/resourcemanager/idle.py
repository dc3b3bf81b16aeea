"""Idle workers in the order in which they may go (B: SZ-07)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heapreplace

from slotwise.model.ids import WorkerId
from slotwise.model.resources import ResourceProfile

Kind = tuple[ResourceProfile, bool]
"""What decides whether a worker can be spared: (its total, whether it is blocked)."""

_Idle = tuple[float, int, WorkerId]
"""(idle since, the worker's age, the worker): sorted, the longest idle one is first."""


class IdleWorkers:
    """Workers without a slot that were not told to go, by kind and then by how long they have been idle.

    A change costs the logarithm of their number; so does finding the next one that is due. Since none of a kind can be
    spared once one cannot, looking for those to release costs what is released and the number of kinds.
    """

    def __init__(self) -> None:
        self._kinds: dict[Kind, list[_Idle]] = {}
        self._known: dict[WorkerId, tuple[Kind, _Idle]] = {}

    def put(self, worker: WorkerId, since: float, position: int, kind: Kind) -> None:
        """The worker is of ``kind`` and has been idle ``since`` then (monotonic seconds)."""
        entry = (kind, (since, position, worker))
        if self._known.get(worker) != entry:
            self.discard(worker)
            self._known[worker] = entry
            insort(self._kinds.setdefault(kind, []), entry[1])

    def discard(self, worker: WorkerId) -> None:
        """The worker is in use, or gone."""
        entry = self._known.pop(worker, None)
        if entry is not None:
            kind, idle = entry
            queue = self._kinds[kind]
            del queue[bisect_left(queue, idle)]
            if not queue:
                del self._kinds[kind]

    def next_due(self, timeout_s: float, now: float) -> tuple[float | None, bool]:
        """When the next worker will have been idle for ``timeout_s``, and whether any has been already."""
        later = None
        overdue = False
        for queue in self._kinds.values():
            place = bisect_right(queue, now, key=lambda idle: idle[0] + timeout_s)
            overdue = overdue or place > 0
            if place < len(queue) and (later is None or queue[place][0] + timeout_s < later):
                later = queue[place][0] + timeout_s
        return later, overdue

    def release(self, timeout_s: float, now: float, may_go: Callable[[Kind], bool]) -> list[WorkerId]:
        """Those that have been idle for ``timeout_s`` and may go, the longest idle first. They stay until they are
        discarded. ``may_go`` is asked for one after the other and counts those that it has let go.
        """
        queues = list(self._kinds.items())
        heads = [(queue[0], number, 0) for number, (_, queue) in enumerate(queues) if queue[0][0] + timeout_s <= now]
        heapify(heads)
        found = []
        while heads:
            idle, number, place = heads[0]
            kind, queue = queues[number]
            if may_go(kind):
                found.append(idle[2])
                if place + 1 < len(queue) and queue[place + 1][0] + timeout_s <= now:
                    heapreplace(heads, (queue[place + 1], number, place + 1))
                    continue
            heappop(heads)
        return found

    def check_invariants(self, expected: Mapping[WorkerId, tuple[Kind, float]]) -> None:
        """Raise AssertionError unless these are idle, of this kind and since then."""
        known = {worker: (kind, idle[0]) for worker, (kind, idle) in self._known.items()}
        assert known == expected, "the idle workers are not those that the workers show"
        queued = {worker: (kind, since) for kind, queue in self._kinds.items() for since, _, worker in queue}
        assert queued == expected, "the queues of idle workers differ from the idle workers"
        assert all(queue == sorted(queue) for queue in self._kinds.values()), "idle workers are out of order"
