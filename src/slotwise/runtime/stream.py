"""The worker's end of the one stream to its master: dials, says hello, passes frames both ways, and dials again when
it breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from slotwise.model.errors import ProtocolError
from slotwise.protocol.codec import CLOSE_REFUSED, MAX_FRAME_BYTES, Frame, Hello, decode, encode, encode_split

log = structlog.get_logger(__name__)

STREAM_PATH = "/v1/workers/stream"
_RETRY_S = 0.2
_RETRY_MAX_S = 5.0
_QUEUE_FRAMES = 10_000


def stream_url(master_url: str) -> str:
    """The WebSocket address for a master's HTTP address."""
    base = master_url.rstrip("/")
    return base.replace("http", "ws", 1) + STREAM_PATH


class MasterStream:
    """One connection at a time to ``master_url``, by ``tls`` where that is https. ``refused`` is set with the reason
    when the master does not accept this worker and never did: one that has served a master before may hold running
    work, so it tries on until its own time-outs, and a master that was replaced by a wrong one can be put right
    meanwhile.
    """

    def __init__(
        self,
        master_url: str,
        token: str,
        hello: Hello,
        on_frame: Callable[[Frame], None],
        on_open: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = stream_url(master_url)
        self._token = token
        self._hello = hello
        self._on_frame = on_frame
        self._on_open = on_open
        self._tls = tls
        self._queue: asyncio.Queue[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._served = False
        self._refusal = ""
        self.refused: asyncio.Future[str] | None = None

    def start(self) -> None:
        """Begin to dial."""
        loop = asyncio.get_running_loop()
        self.refused = loop.create_future()
        self._task = loop.create_task(self._run())

    @property
    def connected(self) -> bool:
        """Whether frames can be sent now."""
        return self._queue is not None

    def send(self, frame: Frame) -> bool:
        """Queue a frame; false (and nothing sent) while there is no connection. Lost frames are the protocol's
        business.
        """
        if self._queue is None or self._queue.qsize() >= _QUEUE_FRAMES:
            return False
        frames, left_out = encode_split(frame)
        for data in frames:
            self._queue.put_nowait(data)
        for what in left_out:
            log.error("message not sent", what=what)
        return True

    async def close(self, drain_s: float = 1.0) -> None:
        """Send what is queued, then hang up."""
        if self._queue is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), drain_s)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        delay = _RETRY_S
        told = False
        headers = {"Authorization": f"Bearer {self._token}"}
        while True:
            try:
                async with connect(
                    self._url,
                    additional_headers=headers,
                    max_size=MAX_FRAME_BYTES,
                    compression=None,
                    open_timeout=10,
                    ping_interval=20,
                    proxy=None,
                    ssl=self._tls,
                ) as connection:
                    if not self._refusal:
                        delay = _RETRY_S
                    told = False
                    await self._serve(connection)
            except InvalidStatus as error:
                if error.response.status_code in (401, 403):
                    if self._refuse("the master does not know this token; give the one from its token file"):
                        return
                else:
                    log.warning("stream refused", url=self._url, status=error.response.status_code)
            except ConnectionClosed as error:
                refused = error.rcvd is not None and error.rcvd.code == CLOSE_REFUSED
                if refused and error.rcvd is not None and self._refuse(error.rcvd.reason):
                    return
                reason = error.rcvd.reason if error.rcvd is not None else ""
                log.info("stream closed", url=self._url, reason=reason)
            except (OSError, TimeoutError, InvalidHandshake) as error:
                if not told:
                    log.warning("cannot reach the master; trying on", url=self._url, error=str(error))
                told = True
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RETRY_MAX_S)

    def _refuse(self, reason: str) -> bool:
        """The master says no; true when that is final."""
        if self._served:
            if reason != self._refusal:
                log.error("the master refuses this worker now; trying on", url=self._url, reason=reason)
            self._refusal = reason
            return False
        if self.refused is not None and not self.refused.done():
            self.refused.set_result(reason)
        return True

    async def _serve(self, connection: ClientConnection) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        await connection.send(encode(self._hello))
        self._queue = queue
        sender = asyncio.get_running_loop().create_task(self._send_all(connection, queue))
        try:
            self._on_open()
            async for data in connection:
                if isinstance(data, bytes):
                    self._served = True
                    self._refusal = ""
                    try:
                        self._on_frame(decode(data))
                    except ProtocolError as error:
                        log.error("frame dropped", error=str(error))
        finally:
            self._queue = None
            sender.cancel()

    async def _send_all(self, connection: ClientConnection, queue: asyncio.Queue[bytes]) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                data = await queue.get()
                await connection.send(data)
                queue.task_done()
