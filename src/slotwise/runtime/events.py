"""What happened, for people: kept per job and for the cluster, followed by any number of watchers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec

from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.protocol.effects import Event
from slotwise.runtime.clock import unix_time

_KEPT_CLUSTER = 2000
_KEPT_JOB = 5000
_WATCHER_LIMIT = 1000


class Happened(msgspec.Struct, frozen=True):
    """An event with its number (rises by one) and wall-clock time in seconds."""

    seq: int
    unix_s: float
    name: str
    job: JobId | None
    worker: WorkerId | None
    allocation: AllocationId | None
    fields: dict[str, str | int | float | None]


class EventLog:
    """Newest events in memory; each job's own also in ``<directory>/<job>/events.jsonl``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seq = 0
        self._cluster: deque[Happened] = deque(maxlen=_KEPT_CLUSTER)
        self._jobs: dict[JobId, deque[Happened]] = {}
        self._watchers: set[asyncio.Queue[Happened]] = set()

    def add(self, events: Iterable[Event]) -> None:
        """Record events that happened now."""
        for event in events:
            self._seq += 1
            happened = Happened(
                self._seq, unix_time(), event.name, event.job, event.worker, event.allocation, event.fields
            )
            self._cluster.append(happened)
            if event.job is not None:
                self._jobs.setdefault(event.job, deque(maxlen=_KEPT_JOB)).append(happened)
                path = self._directory / event.job / "events.jsonl"
                # People's reading matter: a full disk must not stop the cluster.
                with contextlib.suppress(OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("ab") as file:
                        file.write(msgspec.json.encode(happened) + b"\n")
            for watcher in self._watchers:
                if watcher.qsize() < _WATCHER_LIMIT:
                    watcher.put_nowait(happened)

    def of_job(self, job: JobId, after: int = 0) -> list[Happened]:
        """The events of a job with a number above ``after``."""
        return [event for event in self._jobs.get(job, ()) if event.seq > after]

    def of_cluster(self, after: int = 0) -> list[Happened]:
        """The newest events with a number above ``after``."""
        return [event for event in self._cluster if event.seq > after]

    async def watch(self) -> AsyncIterator[Happened]:
        """Events as they happen. A watcher that falls 1,000 behind misses what happens meanwhile."""
        queue: asyncio.Queue[Happened] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
