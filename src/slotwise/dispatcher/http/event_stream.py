"""GET /v1/events: server-sent events that say what to fetch again.

A watcher that reads slowly is waited for at its own connection alone; meanwhile its topics merge (see
:mod:`slotwise.runtime.changes`)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import StreamingResponse

from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import not_found
from slotwise.model.ids import JobId
from slotwise.runtime.changes import JOBS, RESOURCES, WORKERS, Changes, job_topic
from slotwise.runtime.clock import monotonic

MEDIA = "text/event-stream"
_KEEP_ALIVE_S = 15.0
_RETRY_MS = 1000
_ID = re.compile(r"^(\d{1,15})-(\d{1,15})$")
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream:
    """See the module's head."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master
        self._encoded: tuple[tuple[str, ...], int, bytes] | None = None

    async def watch(self, ask: Ask) -> StreamingResponse:
        """Answer with the stream."""
        job = ask["job"]
        if job is not None and JobId(job) not in self._master.dispatcher.jobs:
            raise not_found(f"there is no job {job[:200]}")
        return StreamingResponse(self._messages(ask, job), headers=_HEADERS, media_type=MEDIA)

    async def _messages(self, ask: Ask, job: str | None) -> AsyncIterator[bytes]:
        changes = self._master.changes
        changes.watchers += 1
        try:
            async for message in self._until_over(ask, job):
                yield message
        finally:
            changes.watchers -= 1

    async def _until_over(self, ask: Ask, job: str | None) -> AsyncIterator[bytes]:
        changes, auth = self._master.changes, self._master.auth
        seen = self._resumed(ask["Last-Event-ID"])
        if seen is None:
            seen = changes.position
            yield _encode(self._everything(job), changes)
        # Also where nothing is new: from here on a reader that breaks off can resume.
        yield f"retry: {_RETRY_MS}\nid: {changes.epoch}-{seen}\n\n".encode()
        said = monotonic()
        while not changes.closed and auth.is_valid(ask.principal):
            topics = changes.since(seen)
            message = b""
            if topics is None:
                message = _encode(self._everything(job), changes)
            elif topics and job is None:
                message = self._shared(topics)
            elif job is not None and job_topic(job) in topics:
                message = _encode((job_topic(job),), changes)
            seen = changes.position
            if not message and said + _KEEP_ALIVE_S <= monotonic():
                message = b":\n\n"
            if message:
                said = monotonic()
                yield message
            elif changes.position == seen:
                await changes.wait(max(0.0, said + _KEEP_ALIVE_S - monotonic()))

    def _resumed(self, last: str | None) -> int | None:
        """The position that a reader was at, the present one for a new reader; None for one that is not known here."""
        changes = self._master.changes
        if not last:
            return changes.position
        found = _ID.match(last)
        if found is None or int(found[1]) != changes.epoch or changes.since(int(found[2])) is None:
            return None
        return int(found[2])

    def _everything(self, job: str | None) -> tuple[str, ...]:
        if job is not None:
            return (job_topic(job),)
        return (JOBS, WORKERS, RESOURCES, *(job_topic(known) for known in self._master.dispatcher.jobs))

    def _shared(self, topics: tuple[str, ...]) -> bytes:
        """All watchers that are up to date get the same bytes."""
        changes = self._master.changes
        kept = self._encoded
        if kept is None or kept[0] is not topics or kept[1] != changes.position:
            kept = self._encoded = (topics, changes.position, _encode(topics, changes))
        return kept[2]


def _encode(topics: tuple[str, ...], changes: Changes) -> bytes:
    data = msgspec.json.encode({"topics": topics})
    return b"id: %d-%d\nevent: changed\ndata: %b\n\n" % (changes.epoch, changes.position, data)
