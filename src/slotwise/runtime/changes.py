"""What has changed, as topics, for any number of watchers.

A change is noted once, whoever watches: topics are kept in the order of their last change, and a watcher is a position
in that order. What a watcher has not seen yet are the topics behind its position, so one that reads slowly sees the
same topic once, and holds neither memory nor anybody else. Changes within :data:`PAUSE_S` share a wake-up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from slotwise.protocol.effects import Event

PAUSE_S = 0.2
_TOPICS = 10_000
JOBS, WORKERS, RESOURCES = "jobs", "workers", "resources"


def job_topic(job: str) -> str:
    """The topic of one job."""
    return f"job:{job}"


def topics(events: Iterable[Event]) -> Iterator[str]:
    """What has changed with these events."""
    for event in events:
        if event.job is not None:
            yield from (JOBS, job_topic(event.job))
        if event.worker is not None or event.name == "declared":
            yield from (WORKERS, RESOURCES)


class Changes:
    """Numbers each change. ``epoch`` tells one master's numbers from another's."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.closed = False
        self.watchers = 0
        """How many streams read along now."""
        self._number = 0
        self._published = 0
        self._floor = 0
        self._last: OrderedDict[str, int] = OrderedDict()
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._found: dict[int, tuple[str, ...]] = {}

    def note(self, topics: Iterable[str]) -> None:
        """These have changed now. To be called in the event loop's thread."""
        for topic in topics:
            self._number += 1
            self._last[topic] = self._number
            self._last.move_to_end(topic)
            if len(self._last) > _TOPICS:
                _, self._floor = self._last.popitem(last=False)
        if self._timer is None and self._number > self._published and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._publish)

    def _publish(self) -> None:
        self._timer = None
        self._published = self._number
        self._found = {}
        self.wake()

    def wake(self) -> None:
        """Have every watcher look again, whether anything has changed or not."""
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def close(self) -> None:
        """There will be no more changes: every watcher ends."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake()

    @property
    def position(self) -> int:
        """Where a watcher that has seen everything is."""
        return self._published

    def since(self, position: int) -> tuple[str, ...] | None:
        """The topics that have changed after ``position``, in the order of their last change; None when it is too old
        to know. What is not published yet comes with the next wake-up, also where an earlier change of it was.
        """
        if position < min(self._floor, self._published) or position > self._published:
            return None
        found = self._found.get(position)
        if found is None:
            newer = []
            for topic, number in reversed(self._last.items()):
                if number <= position:
                    break
                if number <= self._published:
                    newer.append(topic)
            found = self._found[position] = tuple(reversed(newer))
        return found

    async def wait(self, limit_s: float) -> None:
        """Until something changes, :meth:`wake` or :meth:`close` is called, or ``limit_s`` seconds are over."""
        if self.closed:
            return
        if self._wake is None:
            self._wake = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._wake], timeout=limit_s)
