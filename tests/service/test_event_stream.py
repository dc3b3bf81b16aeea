"""GET /v1/events: what is told, to whom, and what a reader costs that does not read."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest

from slotwise.dispatcher.http import event_stream
from slotwise.dispatcher.tokens import Role
from slotwise.model.ids import JobId
from slotwise.protocol.effects import Event
from slotwise.runtime import changes as changes_module
from slotwise.runtime.changes import Changes, job_topic
from tests.service.served import TOKEN, Served, served, wait_for

Message = dict[str, Any]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


class Reader:
    """Reads a stream in a thread. ``ended``: the master has ended it."""

    def __init__(self, answer: httpx.Response) -> None:
        self.messages: Queue[Message] = Queue()
        self.comments = 0
        self.ended = threading.Event()
        self.last = ""
        self._answer = answer
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        message: Message = {}
        try:
            for line in self._answer.iter_lines():
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    key, _, value = line.partition(": ")
                    message[key] = json.loads(value) if key == "data" else value
                    self.last = value if key == "id" else self.last
                else:
                    if "data" in message:
                        self.messages.put(message)
                    message = {}
        except httpx.HTTPError:
            pass
        self.ended.set()

    def topics(self) -> set[str]:
        found = self.messages.get(timeout=20)
        assert found["event"] == "changed"
        return set(found["data"]["topics"])

    def until(self, *wanted: str) -> set[str]:
        seen: set[str] = set()
        while not seen >= set(wanted):
            seen |= self.topics()
        return seen


@contextmanager
def watching(service: Served, token: str = TOKEN, last: str = "", **params: str) -> Iterator[Reader]:
    headers = {"Last-Event-ID": last} if last else {}
    with service.client(token) as client, client.stream("GET", "/v1/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        reader = Reader(answer)
        wait_for(lambda: reader.last or not reader.messages.empty())
        yield reader


def happen(service: Served, *events: Event) -> None:
    def act() -> None:
        service.master.events.add(events)
        service.master.changes.note([job_topic(event.job) for event in events if event.job])

    service.call(act)


def test_a_change_is_told_with_what_to_fetch_again(service: Served) -> None:
    with watching(service) as reader:
        job = service.submit()
        reader.until("jobs", f"job:{job}")
        service.run(service.master.cancel(job))
        reader.until("jobs", f"job:{job}")


def test_only_one_jobs_changes_are_told_if_asked_for(service: Served) -> None:
    job, other = service.submit(), service.submit()
    with watching(service, job=job) as reader:
        happen(service, Event("x", other), Event("x", job))
        assert reader.topics() == {f"job:{job}"}
    with service.client() as client:
        assert client.get("/v1/events", params={"job": "job-none"}).status_code == 404


def test_changes_that_come_together_are_one_message(service: Served) -> None:
    with watching(service) as reader:
        happen(service, *(Event("x", JobId(f"job-{number % 7}")) for number in range(100)))
        assert reader.topics() == {f"job:job-{number}" for number in range(7)}


def test_a_reader_that_comes_back_gets_what_it_has_missed(service: Served) -> None:
    with watching(service) as reader:
        happen(service, Event("x", JobId("before")))
        assert reader.topics() == {"job:before"}
        seen = reader.last
    happen(service, Event("x", JobId("missed")))
    wait_for(lambda: service.call(lambda: service.master.changes.position) > int(seen.partition("-")[2]))
    with watching(service, last=seen) as reader:
        assert reader.topics() == {"job:missed"}


@pytest.mark.parametrize("last", ["99-1", "0-0", "nonsense", "1-999999999", "-", "1-1-1"])
def test_a_reader_from_who_knows_when_gets_everything_at_once(service: Served, last: str) -> None:
    job = service.submit()
    with watching(service, last=last) as reader:
        assert reader.topics() == {"jobs", "workers", "resources", f"job:{job}"}
    with watching(service, last=last, job=job) as reader:
        assert reader.topics() == {f"job:{job}"}


def test_a_position_that_was_forgotten_gets_everything(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "_TOPICS", 10)
    with watching(service) as reader:
        seen = reader.last
    happen(service, *(Event("x", JobId(f"job-{number}")) for number in range(50)))
    wait_for(lambda: service.call(lambda: service.master.changes.since(int(seen.partition("-")[2])) is None))
    with watching(service, last=seen) as reader:
        assert {"jobs", "workers", "resources"} <= reader.topics()


def test_a_comment_keeps_a_quiet_connection(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_KEEP_ALIVE_S", 0.05)
    with watching(service) as reader:
        wait_for(lambda: reader.comments >= 3)
        assert reader.messages.empty()


def test_a_reader_that_does_not_read_costs_nothing_and_holds_nobody_up(service: Served) -> None:
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(("127.0.0.1", service.master.port))
    stuck.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    assert b"200 OK" in stuck.recv(100)

    def memory() -> int:
        return sum(len(topic) for topic in service.master.changes._last)

    with watching(service) as reader:
        for turn in range(200):
            # Long names: what the stuck reader does not take fills the socket at once.
            happen(service, *(Event("x", JobId(f"job-{turn}-{number}-{'x' * 400}")) for number in range(20)))
            if turn % 50 == 49:
                reader.until(f"job:job-{turn}-19-{'x' * 400}")
    assert service.call(memory) < 10_000 * 500
    happen(service, Event("x", JobId("the-last")))
    stuck.settimeout(20)
    tail = b""
    while b"the-last" not in tail:
        data = stuck.recv(1 << 20)
        assert data
        tail = tail[-100:] + data
    stuck.close()


def test_a_revoked_token_ends_the_stream_at_once(service: Served) -> None:
    token, other = service.token("ann", Role.VIEWER), service.token("bob", Role.VIEWER)
    with watching(service, token) as mine, watching(service, other) as others, service.client() as admin:
        assert admin.delete("/v1/tokens/ann").status_code == 200
        assert mine.ended.wait(20)
        happen(service, Event("x", JobId("job-1")))
        assert others.topics() == {"job:job-1"}
        assert not others.ended.is_set()


def test_a_session_that_ends_takes_its_stream_with_it(service: Served) -> None:
    with service.client(None) as browser:
        browser.post("/v1/session", json={"token": TOKEN})
        with browser.stream("GET", "/v1/events") as answer:
            reader = Reader(answer)
            wait_for(lambda: reader.last)
            browser.delete("/v1/session", headers={"X-Slotwise": "dashboard"})
            assert reader.ended.wait(20)


def test_streams_end_with_the_master(tmp_path: Path) -> None:
    with served(tmp_path) as service, service.client() as client, client.stream("GET", "/v1/events") as answer:
        reader = Reader(answer)
        wait_for(lambda: reader.last)
        service.run(service.master.close(leave=True))
        assert reader.ended.wait(20)


def test_five_hundred_watchers_share_one_encoding_and_all_are_told(service: Served) -> None:
    async def watch() -> None:
        writers = []

        async def one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.master.port)
            writers.append(writer)
            writer.write(f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            await reader.readuntil(b"id: ")
            return reader, writer

        readers = [(await one())[0] for _ in range(500)]
        happen(service, Event("x", JobId("for-all")))
        await asyncio.gather(*(reader.readuntil(b"job:for-all") for reader in readers))
        for writer in writers:
            writer.close()

    asyncio.run(asyncio.wait_for(watch(), 120))


def test_changes_are_numbered_merged_and_kept_in_the_order_of_the_last() -> None:
    async def act() -> None:
        changes = Changes(epoch=3)
        assert changes.since(0) == ()
        changes.note(["a", "b", "a"])
        await asyncio.wait_for(changes.wait(20), 20)
        assert changes.since(0) == ("b", "a")
        position = changes.position
        changes.note(["c"])
        await changes.wait(20)
        assert changes.since(position) == ("c",)
        assert changes.since(0) == ("b", "a", "c")
        assert changes.since(99) is None
        # Not yet published: it is told with the others that come within the pause.
        position = changes.position
        changes.note(["d", "c"])
        assert changes.since(position) == ()
        await changes.wait(20)
        assert changes.since(position) == ("d", "c")
        changes.close()
        await asyncio.wait_for(changes.wait(1000), 20)

    asyncio.run(act())
