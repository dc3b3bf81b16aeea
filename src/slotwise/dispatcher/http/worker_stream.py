"""The workers' side of the master's port: binary frames over a WebSocket.

Whatever comes in, the master goes on: a connection that sends what cannot be understood is closed with the reason, and
one line in the log says who it was. A worker that was in the middle of something dials again and reports; nothing of
what it runs is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Protocol

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from slotwise import __version__
from slotwise.dispatcher.audit import AuditLog
from slotwise.dispatcher.http.auth import ANONYMOUS, Access, Authenticator
from slotwise.dispatcher.http.problems import Problem
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.errors import ProtocolError
from slotwise.model.ids import WorkerId
from slotwise.protocol.codec import (
    CLOSE_BAD_FRAME,
    CLOSE_REFUSED,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Frame,
    Hello,
    LogData,
    LogPosition,
    Mail,
    decode,
    encode_split,
)
from slotwise.protocol.messages import Envelope
from slotwise.runtime.logs import LogStore, WorkerLogStore

log = structlog.get_logger(__name__)

_HELLO_LIMIT_S = 10.0
_TOO_BIG = 1009
_POLICY_VIOLATION = 1008
# RFC 6455: a close frame has room for so many bytes of reason.
_REASON_BYTES = 123


class _Options(Protocol):
    @property
    def settings(self) -> Mapping[str, str]: ...

    @property
    def job_master(self) -> JobMasterConfig: ...


class StreamPort(Protocol):
    """What the stream needs of the master."""

    logs: LogStore
    worker_log_store: WorkerLogStore
    auth: Authenticator
    audit: AuditLog

    @property
    def options(self) -> _Options:
        """Has the cluster's configuration as text, and the settings of JobMasters."""
        ...

    def post(self, envelope: Envelope) -> None:
        """Deliver a message."""
        ...

    def take_log(self, chunk: LogData) -> LogPosition | None:
        """Keep a piece of a job's output; the answer is there when the worker must correct its position."""
        ...

    def connection(self, worker: WorkerId) -> contextlib.AbstractContextManager[asyncio.Queue[Mail]]:
        """A worker's stream is open."""
        ...


class WorkerStream:
    """See the module's head."""

    def __init__(self, master: StreamPort) -> None:
        self._master = master

    async def serve(self, socket: WebSocket) -> None:
        """One worker's connection, from its hello to its end."""
        peer = f"{socket.client.host}:{socket.client.port}" if socket.client is not None else "unknown"
        principal = ANONYMOUS
        try:
            principal = self._master.auth.identify(socket)
            self._master.auth.authorize(principal, Access.JOIN, socket, changes=False)
            if principal.session is not None:
                raise Problem(HTTPStatus.FORBIDDEN, "a browser's session is no worker's token")
        except Problem as problem:
            log.warning("a worker without a join token was refused", peer=peer)
            self._master.audit.add(
                who=principal.name,
                role=principal.role,
                via="token",
                peer=socket.client.host if socket.client is not None else "unknown",
                call=f"WEBSOCKET {socket.url.path}",
                path=socket.url.path,
                status=problem.status,
                detail=problem.detail,
            )
            await socket.close(_POLICY_VIOLATION)
            return
        await socket.accept()
        revoked = self._master.auth.end_of(principal)
        serving = asyncio.ensure_future(self._serve(socket, peer))
        try:
            await asyncio.wait([serving, revoked], return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                log.warning("closing a worker's stream: its join token was revoked", peer=peer, token=principal.name)
                with contextlib.suppress(RuntimeError):
                    await socket.close(_POLICY_VIOLATION, "the join token was revoked")
        finally:
            revoked.cancel()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    async def _serve(self, socket: WebSocket, peer: str) -> None:
        worker: WorkerId | None = None
        try:
            worker = await self._greet(socket)
            with self._master.connection(worker) as queue:
                sender = asyncio.get_running_loop().create_task(self._send(socket, queue))
                try:
                    await self._receive(socket, worker)
                finally:
                    sender.cancel()
        except ProtocolError as error:
            code = CLOSE_REFUSED if worker is None else CLOSE_BAD_FRAME
            log.error("closing a worker's stream", peer=peer, worker=worker, reason=str(error))
            with contextlib.suppress(RuntimeError):
                await socket.close(code, str(error).encode()[:_REASON_BYTES].decode("utf-8", "ignore"))
        except WebSocketDisconnect as gone:
            if gone.code == _TOO_BIG:
                reason = f"a frame is over the limit of {MAX_FRAME_BYTES} bytes"
                log.error("closing a worker's stream", peer=peer, worker=worker, reason=reason)

    async def _greet(self, socket: WebSocket) -> WorkerId:
        try:
            hello = await asyncio.wait_for(_receive_frame(socket), _HELLO_LIMIT_S)
        except TimeoutError:
            raise ProtocolError(f"no hello within {_HELLO_LIMIT_S:g} s") from None
        if not isinstance(hello, Hello):
            raise ProtocolError("the first frame must be a hello")
        if hello.protocol != PROTOCOL_VERSION or hello.version != __version__:
            raise ProtocolError(
                f"worker runs slotwise {hello.version[:20]} (protocol {hello.protocol}), master {__version__} "
                f"(protocol {PROTOCOL_VERSION}): install the same version on both"
            )
        return hello.worker

    async def _send(self, socket: WebSocket, queue: asyncio.Queue[Mail]) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            while True:
                await _send_frame(socket, await queue.get())

    async def _receive(self, socket: WebSocket, worker: WorkerId) -> None:
        sender = f"te:{worker}"
        while True:
            frame = await _receive_frame(socket)
            match frame:
                case Mail(envelopes):
                    for envelope in envelopes:
                        # A worker speaks for itself alone.
                        if envelope.sender == sender and not envelope.to.startswith("te:"):
                            self._master.post(envelope)
                case LogData(job=""):
                    # The worker's own log: it speaks for itself alone.
                    self._master.worker_log_store.write(worker, frame)
                case LogData():
                    answer = self._master.take_log(frame)
                    if answer is not None:
                        await _send_frame(socket, answer)
                case _:
                    raise ProtocolError(f"a worker does not send {type(frame).__name__}")


async def _receive_frame(socket: WebSocket) -> Frame:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
    data = message.get("bytes")
    if data is None:
        raise ProtocolError("text on a stream of binary frames")
    return decode(data)


async def _send_frame(socket: WebSocket, frame: Frame) -> None:
    frames, left_out = encode_split(frame)
    for data in frames:
        await socket.send_bytes(data)
    for what in left_out:
        log.error("message not sent", what=what)
