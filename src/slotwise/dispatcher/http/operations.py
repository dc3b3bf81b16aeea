"""What those who run a cluster ask for: whether the master is ready, and its metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotwise.dispatcher.http.problems import Problem
from slotwise.metrics.master import MasterMetrics

Endpoint = Callable[[Request], Awaitable[Response]]


class OperationsPort(Protocol):
    """What these calls need of the master."""

    metrics: MasterMetrics

    def not_ready(self) -> str:
        """Why this master does not serve, in words; empty when it does."""
        ...


class Operations:
    """The calls. ``open`` and ``guarded`` wrap endpoints for everybody, and for those who may look."""

    def __init__(
        self, master: OperationsPort, open: Callable[[Endpoint], Endpoint], guarded: Callable[[Endpoint], Endpoint]
    ) -> None:
        self._master = master
        self._open = open
        self._guarded = guarded

    def routes(self) -> list[Route]:
        """Their routes."""
        return [
            Route("/readyz", self._open(self.ready)),
            Route("/metrics", self._guarded(self.metrics)),
        ]

    async def ready(self, _: Request) -> Response:
        """GET /readyz: 200 while this master leads and serves."""
        if reason := self._master.not_ready():
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return Response(msgspec.json.encode({"status": "ready"}), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, in the format that the scraper accepts."""
        body, media_type = self._master.metrics.exposition(request.headers.get("accept"))
        return Response(body, headers={"content-type": media_type})
