"""After a change of master: the workers of the one before are given a moment to come back before new ones are started
(Flink's recovery of workers from a previous attempt).

The ResourceManager stores nothing and knows a worker only once it has registered. Without the moment it would start
workers in place of those that are about to dial in; with it, they register, the check finds that they suffice, and
takes its wish back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from slotwise.model.ids import WorkerId
from slotwise.protocol.effects import StartWorker

log = structlog.get_logger(__name__)

# A worker dials at least every 5 s.
_LIMIT_S = 10.0
# Registration and the check that follows it take less.
_SETTLE_S = 1.0


class Rejoining:
    """Holds wishes for workers back until ``expected`` are connected, for ten seconds at most. ``start`` starts one."""

    def __init__(self, expected: Iterable[WorkerId], start: Callable[[StartWorker], None]) -> None:
        self._expected = set(expected)
        self._start = start
        self._held: dict[WorkerId, StartWorker] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._open = not self._expected
        if self._expected:
            log.info("waiting for the workers of the master before", workers=len(self._expected))
            self._timer = asyncio.get_running_loop().call_later(_LIMIT_S, self._release)

    def start_worker(self, wish: StartWorker) -> None:
        """Start a worker, now or when the wait is over."""
        if self._open:
            self._start(wish)
        else:
            self._held[wish.worker] = wish

    def take_back(self, worker: WorkerId) -> bool:
        """The worker is not wanted any more; true when it was not started yet."""
        return self._held.pop(worker, None) is not None

    def is_there(self, worker: WorkerId) -> None:
        """The worker has connected, or has ended."""
        if worker in self._expected:
            self._expected.discard(worker)
            if not self._expected and not self._open:
                self.close()
                self._timer = asyncio.get_running_loop().call_later(_SETTLE_S, self._release)

    def close(self) -> None:
        """Start nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _release(self) -> None:
        self._open = True
        if self._expected:
            log.warning("some workers of the master before did not come back", workers=sorted(self._expected))
        for wish in self._held.values():
            self._start(wish)
        self._held.clear()
