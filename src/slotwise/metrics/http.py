"""Times every HTTP request by its route, around the whole application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotwise.runtime.clock import monotonic

_OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class TimedApp:
    """``app`` with ``answered(method, route, status, seconds)`` called once for each request: the time counts until the
    answer begins, because some answers go on for hours. ``routes`` are those of ``app``.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[BaseRoute],
        answered: Callable[[str, str, int, float], None],
        time: Callable[[], float] = monotonic,
    ) -> None:
        self._app = app
        self._answered = answered
        self._time = time
        self._patterns = dict(_patterns(routes, ""))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._time()
        status = 0

        def note(code: int) -> None:
            nonlocal status
            if not status:
                status = code
                method = scope["method"] if scope["method"] in _METHODS else _OTHER
                route = self._patterns.get(id(scope.get("endpoint")), _OTHER)
                self._answered(method, route, code, self._time() - began)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                note(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except BaseException:
            note(500)
            raise


def _patterns(routes: Iterable[BaseRoute], prefix: str) -> Iterable[tuple[int, Any]]:
    """From a route's endpoint, which it leaves in the scope, to its path; one endpoint object belongs to one route."""
    for route in routes:
        if isinstance(route, Mount):
            if route.routes:
                yield from _patterns(route.routes, prefix + route.path)
            else:
                yield id(route.app), prefix + route.path
        elif isinstance(route, Route):
            yield id(route.endpoint), prefix + route.path
