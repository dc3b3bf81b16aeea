"""The master's one HTTP port: REST under ``/v1``, from the route table, and the workers' stream (design decision 8).

Errors are ``application/problem+json`` with what is wrong in ``detail``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute

from slotwise.dispatcher.http.auth import ANONYMOUS
from slotwise.dispatcher.http.calls import Ask, Call
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import Problem
from slotwise.dispatcher.http.proxy import SparkUi
from slotwise.dispatcher.http.routes import table
from slotwise.dispatcher.http.worker_stream import WorkerStream

log = structlog.get_logger(__name__)

STREAM = "/v1/workers/stream"
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(master: MasterPort) -> Starlette:
    """The ASGI application."""
    spark_ui = SparkUi(master)
    app = Starlette(
        routes=[
            *rest_routes(master, table(master, spark_ui)),
            WebSocketRoute(STREAM, WorkerStream(master).serve),
        ],
        exception_handlers={HTTPException: _not_routed},
    )
    app.router.redirect_slashes = False
    app.state.close = spark_ui.close
    return app


def rest_routes(master: MasterPort, calls: Sequence[Call]) -> list[BaseRoute]:
    """A route a path, with all of its methods."""
    by_path: dict[str, dict[str, Call]] = {}
    for call in calls:
        methods = by_path.setdefault(call.path, {})
        assert call.method not in methods, f"{call.method} {call.path} is there twice"
        methods[call.method] = call
        if call.method == "GET":
            methods["HEAD"] = call
    # Fixed words go before parameters: /v1/jobs/overview is no job's id.
    ordered = sorted(by_path, key=lambda path: ("{" in path, -path.count("/"), ":path}" in path))
    return [_Everything(path, _endpoint(master, by_path[path])) for path in ordered]


class _Everything(Route):
    """A path for whatever method: the endpoint itself says which there are, for all of them at once."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        super().__init__(path, endpoint, include_in_schema=False)
        self.methods = None


def _endpoint(master: MasterPort, methods: dict[str, Call]) -> Endpoint:
    async def answer(request: Request) -> Response:
        call = methods.get(request.method)
        if call is None:
            allowed = ", ".join(methods)
            return Problem(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.url.path[:200]} knows {allowed}, not {request.method[:20]}",
                {"Allow": allowed},
            ).response()
        return await _answer(master, call, request)

    return answer


async def _answer(master: MasterPort, call: Call, request: Request) -> Response:
    ask, detail = Ask(request, ANONYMOUS), ""
    try:
        # An open call needs no token, and a wrong one does it no harm.
        if not call.is_open:
            ask.principal = master.auth.identify(request)
            master.auth.authorize(ask.principal, call.access, request, changes=call.changes)
        ask.values = call.read_parameters(request)
        ask.body = await call.read_body(request)
        response = _response(await call.handle(ask), call)
    except Problem as problem:
        detail = problem.detail
        response = problem.response()
    except Exception as error:
        log.exception("a call failed", call=f"{call.method} {call.template}")
        detail = repr(error)
        response = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of the master; its log has more").response()
    if call.changes or response.status_code in _REFUSALS:
        _audit(master, call, ask, response.status_code, detail)
    if request.method == "HEAD" and isinstance(response, StreamingResponse):
        response = await _without_body(response)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _response(value: Any, call: Call) -> Response:
    if isinstance(value, Response):
        return value
    return Response(msgspec.json.encode(value), call.status.value, media_type=call.media)


def _audit(master: MasterPort, call: Call, ask: Ask, status: int, detail: str) -> None:
    principal, client = ask.principal, ask.request.client
    master.audit.add(
        who=principal.name,
        role=principal.role,
        via="session" if principal.session is not None else "token",
        peer=client.host if client is not None else "unknown",
        call=f"{call.method} {call.template}",
        path=ask.request.url.path,
        status=status,
        detail=detail,
    )


async def _without_body(response: StreamingResponse) -> Response:
    """What HEAD gets: the headers alone, and nothing is begun that would go on for ever."""
    close = getattr(response.body_iterator, "aclose", None)
    if close is not None:
        await close()
    bare = Response(status_code=response.status_code)
    bare.raw_headers = response.raw_headers
    return bare


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"there is nothing at {request.url.path[:200]}; GET /v1/docs lists the calls"
        return Problem(HTTPStatus.NOT_FOUND, detail).response()
    return Problem(HTTPStatus(error.status_code), error.detail).response()
