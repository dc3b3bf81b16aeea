"""A TCP relay in front of the master that can be cut: a worker is taken off the network without root's rights."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any


class Relay:
    """Listens on a free loopback port and passes all on to ``port``, until :meth:`cut`; :meth:`heal` lets traffic pass
    again. Runs on a thread of its own; ``silent`` cuts leave connections open and swallow what comes.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self._target = port
        self._cut = False
        self._silent = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def cut(self, *, silent: bool) -> None:
        """No byte passes any more. Unless ``silent`` both ends see their connections break."""
        self._cut, self._silent = True, silent
        if not silent:
            self._loop.call_soon_threadsafe(self._break_all)

    def heal(self) -> None:
        """Traffic passes again. Connections of a silent time are broken now: bytes are missing in them."""
        was_silent = self._silent
        self._cut = self._silent = False
        if was_silent:
            self._loop.call_soon_threadsafe(self._break_all)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    def _break_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut and not self._silent:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(outer)
        pumps: list[asyncio.Task[Any]] = [
            self._loop.create_task(self._pump(reader, outer)),
            self._loop.create_task(self._pump(inner, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, outer):
                self._writers.discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self._cut:
                    writer.write(data)
                    await writer.drain()
