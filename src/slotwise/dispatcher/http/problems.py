"""Answers other than success: RFC 9457 ``application/problem+json``."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

PROBLEM_JSON = "application/problem+json"


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. ``type`` is always about:blank: ``status`` and ``title`` are HTTP's own, ``detail`` is for
    people and says what to do.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Problem(Exception):
    """Raised by whoever answers a call, to answer it with ``status`` and ``detail`` instead."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def response(self) -> Response:
        """The answer."""
        body = ProblemDetails(title=self.status.phrase, status=self.status.value, detail=self.detail)
        headers = {"X-Content-Type-Options": "nosniff", **(self.headers or {})}
        return Response(msgspec.json.encode(body), self.status.value, headers, PROBLEM_JSON)


def bad_request(detail: str) -> Problem:
    """400."""
    return Problem(HTTPStatus.BAD_REQUEST, detail)


def not_found(detail: str) -> Problem:
    """404."""
    return Problem(HTTPStatus.NOT_FOUND, detail)
