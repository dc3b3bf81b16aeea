"""The worker's end of the link to the JVMs of Spark drivers: loopback TCP, one JSON value a line, a token a driver.

The JVM's end is the Scala plug-in in ``jvm/``. It says ``{"hello": {...}}`` first and ``{"report": DriverReport}``
whenever something changed; it is told ``{"directives": DriverDirectives}``. Both are absolute, so a broken connection
loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Callable

import msgspec
import structlog

from slotwise.model.ids import AllocationId
from slotwise.model.process import DriverDirectives, DriverReport

log = structlog.get_logger(__name__)

BRIDGE_PROTOCOL = 1
_LINE_LIMIT = 8 * 1024 * 1024


class _Hello(msgspec.Struct):
    token: str
    protocol: int
    app_id: str = ""


class _FromJvm(msgspec.Struct):
    hello: _Hello | None = None
    report: DriverReport | None = None


class _ToJvm(msgspec.Struct):
    directives: DriverDirectives


class BridgeServer:
    """Listens on a free loopback port; ``on_report`` gets each driver's reports."""

    def __init__(self, on_report: Callable[[AllocationId, DriverReport], None]) -> None:
        self.port = 0
        self._on_report = on_report
        self._tokens: dict[str, AllocationId] = {}
        self._writers: dict[AllocationId, asyncio.StreamWriter] = {}
        self._directives: dict[AllocationId, DriverDirectives] = {}
        self._server: asyncio.Server | None = None

    async def start(self, wanted_port: int = 0) -> None:
        """Bind and listen: on ``wanted_port`` if it is free, else on any."""
        try:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", wanted_port, limit=_LINE_LIMIT)
        except OSError as error:
            if not wanted_port:
                raise
            log.warning("bridge: cannot listen on the port of before", port=wanted_port, error=str(error))
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LINE_LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers.values()):
            writer.close()

    def admit(self, allocation: AllocationId) -> str:
        """A fresh token for the driver in this slot."""
        token = secrets.token_hex(32)
        self._tokens[token] = allocation
        return token

    def token(self, allocation: AllocationId) -> str:
        """The token of the driver in this slot; empty when none was admitted."""
        return next((token for token, slot in self._tokens.items() if slot == allocation), "")

    def readmit(self, allocation: AllocationId, token: str) -> None:
        """The driver in this slot was given ``token`` by an earlier process of this worker."""
        self._tokens[token] = allocation

    def dismiss(self, allocation: AllocationId) -> None:
        """The driver in this slot has ended."""
        self._tokens = {token: slot for token, slot in self._tokens.items() if slot != allocation}
        self._directives.pop(allocation, None)
        writer = self._writers.pop(allocation, None)
        if writer is not None:
            writer.close()

    def tell(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        """Pass directives on, now and again on every new connection of that driver."""
        self._directives[allocation] = directives
        writer = self._writers.get(allocation)
        if writer is not None:
            self._write(writer, directives)

    def _write(self, writer: asyncio.StreamWriter, directives: DriverDirectives) -> None:
        writer.write(msgspec.json.encode(_ToJvm(directives)) + b"\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        allocation: AllocationId | None = None
        decoder = msgspec.json.Decoder(_FromJvm)
        try:
            while line := await reader.readline():
                said = decoder.decode(line)
                if said.hello is not None:
                    allocation = self._find(said.hello)
                    if allocation is None:
                        log.warning("bridge: a connection with a wrong token or version was refused")
                        return
                    self._writers[allocation] = writer
                    directives = self._directives.get(allocation)
                    if directives is not None:
                        self._write(writer, directives)
                if said.report is not None:
                    if allocation is None:
                        return
                    self._on_report(allocation, said.report)
        except (OSError, ValueError, asyncio.LimitOverrunError, msgspec.DecodeError) as error:
            log.warning("bridge: connection dropped", allocation=allocation, error=str(error))
        finally:
            if allocation is not None and self._writers.get(allocation) is writer:
                del self._writers[allocation]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _find(self, hello: _Hello) -> AllocationId | None:
        if hello.protocol != BRIDGE_PROTOCOL:
            return None
        for token, allocation in self._tokens.items():
            if hmac.compare_digest(token, hello.token):
                return allocation
        return None
