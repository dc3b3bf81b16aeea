"""An HTTP server in this process's event loop, on a port that is bound before anything is served there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn

from slotwise.model.errors import EnvironmentProblem

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def listen(host: str, port: int, previous_url: str | None = None) -> socket.socket:
    """Listen on ``port`` of ``host``; 0: on that of ``previous_url``, where clients may look still, else on any free
    one.

    Raises :class:`EnvironmentProblem` when it cannot be had.
    """
    with contextlib.suppress(OSError, ValueError):
        before = urlsplit(previous_url or "").port
        if port == 0 and before:
            return _bind(host, before)
    try:
        return _bind(host, port)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port (0: any free one)"
        ) from error


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts: an answer's body would wait 40 ms for
    # the acknowledgement of its head.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(256)
    except OSError:
        bound.close()
        raise
    return bound


class HttpServer:
    """Serves ``app`` on ``bound``, by TLS where there is a context for it."""

    def __init__(self, app: ASGIApp, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=16 * 1024 * 1024,
            timeout_graceful_shutdown=1,
            proxy_headers=False,
            server_header=False,
        )
        if tls is not None:
            config.load()
            config.ssl = tls
        self._server = uvicorn.Server(config)
        # Signals are the caller's business, not the HTTP server's.
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[bound]))

    async def started(self) -> None:
        """Wait until it serves. Raises :class:`EnvironmentProblem` if it ends before."""
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise EnvironmentProblem("the HTTP server ended while it was starting")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """End it; requests that are under way have a second."""
        self._server.should_exit = True
        await self._serving
