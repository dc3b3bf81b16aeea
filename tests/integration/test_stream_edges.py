"""What may come in on the workers' stream: wrong tokens, other versions, garbage. No Spark."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from slotwise import __version__
from slotwise.client import Client
from slotwise.dispatcher.http import worker_stream
from slotwise.master import Master, MasterOptions
from slotwise.model.errors import ClusterError
from slotwise.model.ids import RESOURCE_MANAGER, UNKNOWN_TOKEN, LeaderToken, WorkerId, worker_address
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.codec import (
    CLOSE_BAD_FRAME,
    CLOSE_REFUSED,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Hello,
    LogData,
    LogPosition,
    Mail,
    decode,
    encode,
    encode_split,
)
from slotwise.protocol.messages import Envelope, JobDone, RegisterWorker, SlotReport, WorkerRegistered
from slotwise.runtime import stream as stream_module
from slotwise.runtime.stream import MasterStream, stream_url
from tests.unit.said import capture
from tests.unit.worlds import spec

TOKEN = "t" * 64
WORKER = WorkerId("worker-raw")
HELLO = Hello(WORKER, PROTOCOL_VERSION, __version__)
TOTAL = ResourceProfile(2000, 4 * GIB)
Said = list[Any]


def with_master(directory: Path, act: Callable[[Master], Awaitable[None]]) -> None:
    """Run ``act`` against a master, which must be as good as new afterwards."""

    async def run() -> None:
        master = Master(MasterOptions(directory=directory, token=TOKEN))
        await master.start()
        try:
            job = await master.submit(spec(name="before"))
            await act(master)
            assert master.crashed is not None
            assert not master.crashed.done()
            # Nothing is lost, and a worker that keeps to the rules is served as before.
            assert job in master.dispatcher.jobs
            async with dial(master) as good:
                await good.send(encode(HELLO))
                await good.send(encode(register()))
                answer = decode(bytes(await asyncio.wait_for(good.recv(), 10)))
                assert isinstance(answer, Mail)
                assert isinstance(answer.envelopes[0].payload, WorkerRegistered)
            await master.submit(spec(name="after"))
        finally:
            await master.close()

    asyncio.run(run())


def dial(master: Master, token: str = TOKEN) -> Any:
    return connect(
        stream_url(master.url),
        additional_headers={"Authorization": f"Bearer {token}"},
        max_size=None,
        compression=None,
        proxy=None,
    )


def register() -> Mail:
    message = RegisterWorker(WORKER, "127.0.0.1", 1, __version__, TOTAL, TOTAL, SlotReport(1, (), TOTAL))
    return Mail((Envelope(1, RESOURCE_MANAGER, UNKNOWN_TOKEN, worker_address(WORKER), UNKNOWN_TOKEN, message),))


def none(_: object) -> None:
    """For callbacks whose result nobody wants."""


async def closed(connection: ClientConnection) -> tuple[int, str]:
    """How the master closes the connection."""
    await asyncio.wait_for(connection.wait_closed(), 10)
    assert connection.close_code is not None
    return connection.close_code, connection.close_reason or ""


def test_a_worker_with_a_wrong_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = capture(monkeypatch, worker_stream)

    async def act(master: Master) -> None:
        for token in ("f" * 64, "", "ü"):
            with pytest.raises((InvalidStatus, UnicodeEncodeError)):
                async with dial(master, token):
                    pass

    with_master(tmp_path, act)
    assert "token" in said[0]["event"]
    assert said[0]["peer"].startswith("127.0.0.1:")
    assert TOKEN not in str(said)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (Hello(WORKER, PROTOCOL_VERSION, "0.0.9"), ("0.0.9", __version__)),
        (Hello(WORKER, 99, __version__), ("protocol 99", f"protocol {PROTOCOL_VERSION}")),
        (Hello(WORKER, PROTOCOL_VERSION, "9" * 5000), ("9999", __version__)),
    ],
)
def test_another_version_is_refused_and_both_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hello: Hello, words: tuple[str, ...]
) -> None:
    said = capture(monkeypatch, worker_stream)
    reasons = []

    async def act(master: Master) -> None:
        async with dial(master) as raw:
            await raw.send(encode(hello))
            code, reason = await closed(raw)
            assert code == CLOSE_REFUSED
            reasons.append(reason)
        # A real worker says the same to whoever started it.
        worker = MasterStream(master.url, TOKEN, hello, lambda _: None, lambda: None)
        worker.start()
        assert worker.refused is not None
        reasons.append(await asyncio.wait_for(worker.refused, 10))
        await worker.close()

    with_master(tmp_path, act)
    for text in (*reasons, said[0]["reason"]):
        assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"", "not a frame"),
        (os.urandom(3000), "not a frame"),
        (b"\x81\xa4type\xa7Unknown", "not a frame"),
        (encode(LogData("job-1", "driver-1.out", 0, b"x")), "must be a hello"),
        ("text", "text on a stream of binary frames"),
    ],
)
def test_garbage_instead_of_a_hello_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes | str, words: str
) -> None:
    said = capture(monkeypatch, worker_stream)

    async def act(master: Master) -> None:
        async with dial(master) as raw:
            await raw.send(first)
            code, reason = await closed(raw)
            assert (code, words in reason) == (CLOSE_REFUSED, True)

    with_master(tmp_path, act)
    assert words in said[0]["reason"]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (os.urandom(3000), "not a frame"),
        (encode(HELLO), "does not send Hello"),
        (encode(LogPosition("job-1", "x", 1)), "does not send LogPosition"),
        ("text", "text on a stream"),
    ],
)
def test_garbage_from_a_worker_closes_its_connection_and_it_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: bytes | str, words: str
) -> None:
    said = capture(monkeypatch, worker_stream)

    async def act(master: Master) -> None:
        async with dial(master) as raw:
            await raw.send(encode(HELLO))
            await raw.send(encode(register()))
            await raw.recv()
            await raw.send(frame)
            code, _ = await closed(raw)
            assert code == CLOSE_BAD_FRAME

    with_master(tmp_path, act)
    assert (said[0]["worker"], words in said[0]["reason"]) == (WORKER, True)


def test_a_frame_that_is_too_large_closes_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = capture(monkeypatch, worker_stream)

    async def act(master: Master) -> None:
        async with dial(master) as raw:
            await raw.send(encode(HELLO))
            with contextlib.suppress(ConnectionClosed):
                await raw.send(b"x" * (MAX_FRAME_BYTES + 1))
            code, _ = await closed(raw)
            # The connection may break before the master's close frame is read.
            assert code in (1006, 1009)

    with_master(tmp_path, act)
    assert str(MAX_FRAME_BYTES) in said[0]["reason"]


def test_mail_for_others_and_in_the_name_of_others_is_not_delivered(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        other = worker_address(WorkerId("worker-other"))
        me = worker_address(WORKER)
        forged = Envelope(1, RESOURCE_MANAGER, UNKNOWN_TOKEN, other, UNKNOWN_TOKEN, register().envelopes[0].payload)
        crossing = Envelope(2, other, UNKNOWN_TOKEN, me, UNKNOWN_TOKEN, register().envelopes[0].payload)
        async with dial(master) as raw:
            await raw.send(encode(HELLO))
            await raw.send(encode(Mail((forged, crossing, *register().envelopes))))
            await raw.recv()
            assert list(master.resource_manager.slots.workers) == [WORKER]

    with_master(tmp_path, act)


def test_a_message_that_is_too_large_does_not_hold_up_those_beside_it() -> None:
    def letter(number: int, size: int) -> Envelope:
        message = JobDone("j" * size)  # type: ignore[arg-type]
        return Envelope(number, RESOURCE_MANAGER, LeaderToken(1), worker_address(WORKER), UNKNOWN_TOKEN, message)

    many = Mail(tuple(letter(number, MAX_FRAME_BYTES // 3) for number in range(5)))
    frames, left_out = encode_split(many)
    assert left_out == []
    sent = [envelope.id for frame in frames for envelope in decode(frame).envelopes]  # type: ignore[union-attr]
    assert sent == [0, 1, 2, 3, 4]
    frames, left_out = encode_split(Mail((letter(0, 5), letter(1, MAX_FRAME_BYTES), letter(2, 5))))
    assert [envelope.id for frame in frames for envelope in decode(frame).envelopes] == [0, 2]  # type: ignore[union-attr]
    assert left_out[0].startswith("JobDone to rm: a frame of ")


def test_a_worker_that_was_served_outlives_a_wrong_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it runs must not end because somebody starts another master there by mistake."""
    said = capture(monkeypatch, stream_module)

    async def run() -> None:
        right = Master(MasterOptions(directory=tmp_path / "right", token=TOKEN))
        await right.start()
        frames: asyncio.Queue[object] = asyncio.Queue()
        worker = MasterStream(right.url, TOKEN, HELLO, frames.put_nowait, lambda: none(worker.send(register())))
        worker.start()
        assert worker.refused is not None
        await asyncio.wait_for(frames.get(), 10)
        port = right.port
        await right.close()
        wrong = Master(MasterOptions(directory=tmp_path / "wrong", token="w" * 64, port=port))
        await wrong.start()
        while not any("refuses this worker" in line["event"] for line in said):
            assert not worker.refused.done()
            await asyncio.sleep(0.01)
        await wrong.close()
        again = Master(MasterOptions(directory=tmp_path / "right", token=TOKEN, port=port))
        await again.start()
        while not frames.empty():
            frames.get_nowait()
        await asyncio.wait_for(frames.get(), 30)
        assert list(again.resource_manager.slots.workers) == [WORKER]
        await worker.close()
        await again.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_rest_calls_with_a_wrong_token_or_garbage_change_nothing(tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        def calls() -> None:
            with Client(master.url, "f" * 64) as client, pytest.raises(ClusterError, match="token"):
                client.call("GET", "/v1/jobs/overview")
            with Client(master.url, TOKEN) as client:
                for content in (b"", b"\xff\xfe", b"{}", b"x" * (4 * 1024 * 1024 + 1)):
                    with pytest.raises(ClusterError):
                        client.call("POST", "/v1/jobs", content=content)
                assert len(client.call("GET", "/v1/jobs/overview")["jobs"]) == 1

        await asyncio.to_thread(calls)

    with_master(tmp_path, act)
