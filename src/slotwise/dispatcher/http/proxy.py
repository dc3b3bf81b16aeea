"""``/v1/jobs/:id/spark-ui/``: Spark's own pages of a running job, through the master's port.

Only reading: GET and HEAD. Neither cookies nor tokens are passed on in either direction. Spark writes its links below
``X-Forwarded-Context``; redirects are brought back below it here. What is dialled is the port of the job's UI on the
host of the *slot* that its driver runs in: a program cannot make the master fetch from elsewhere.

The pages come from a user's process and would share the dashboard's origin, so a Content-Security-Policy confines them
to their own paths: their scripts can neither call the API nor open a window that could."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import Problem, not_found
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.ids import JobId

if TYPE_CHECKING:
    import httpx

_CONNECT_S, _READ_S = 5.0, 60.0
_REQUEST_HEADERS = (
    *("accept", "accept-encoding", "accept-language", "if-none-match", "if-modified-since", "range", "user-agent"),
)
_RESPONSE_HEADERS = (
    *("content-type", "content-length", "content-encoding", "content-disposition", "content-range", "accept-ranges"),
    *("cache-control", "etag", "last-modified", "expires", "vary"),
)
_REDIRECTS = (301, 302, 303, 307, 308)


class SparkUi:
    """See the module's head."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def root(self, ask: Ask) -> Response:
        """Without its last slash, relative links would go elsewhere."""
        self._address(ask["job"])
        return RedirectResponse(_base(ask["job"]) + "/", HTTPStatus.TEMPORARY_REDIRECT)

    async def page(self, ask: Ask) -> Response:
        """One page, script or picture."""
        import httpx

        job, request = ask["job"], ask.request
        netloc = self._address(job)
        base = _base(job)
        try:
            url = httpx.URL(f"http://{netloc}", raw_path=_raw_path(request, base))
        except httpx.InvalidURL as error:
            raise not_found("Spark's UI has no such page") from error
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers["x-forwarded-context"] = base
        timeout = httpx.Timeout(_READ_S, connect=_CONNECT_S).as_dict()
        asked = httpx.Request(request.method, url, headers=headers, extensions={"timeout": timeout})
        try:
            answer = await self._dial(asked)
        except httpx.HTTPError as error:
            raise Problem(
                HTTPStatus.BAD_GATEWAY,
                f"the Spark UI of {job} at {netloc} does not answer ({error or type(error).__name__}); its driver may "
                "be ending",
            ) from error
        passed = {name: answer.headers[name] for name in _RESPONSE_HEADERS if name in answer.headers}
        passed |= _confined(request, base)
        if answer.status_code in _REDIRECTS:
            await answer.aclose()
            passed.pop("content-length", None)
            passed["location"] = self._redirected(answer.headers.get("location", ""), netloc, base, job)
            return Response(b"", answer.status_code, passed)
        return StreamingResponse(_body(answer), answer.status_code, passed)

    async def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            await self._transport.aclose()

    async def _dial(self, asked: httpx.Request) -> httpx.Response:
        """By the bare transport: it keeps no cookies, follows nothing, and adds nothing."""
        import httpx

        if self._transport is None:
            self._transport = httpx.AsyncHTTPTransport(trust_env=False)
        return await self._transport.handle_async_request(asked)

    def _address(self, job: str) -> str:
        """Host and port of the job's UI. Raises :class:`Problem` (404) where there is none."""
        if JobId(job) not in self._master.dispatcher.jobs:
            raise not_found(f"there is no job {job[:200]}")
        job_master = self._master.job_masters.get(JobId(job))
        report = job_master.executors.report if job_master is not None else None
        if job_master is None or report is None or not report.ui_url or report.ended:
            raise not_found(f"job {job} has no Spark UI now: it has ended, has not started one, or runs without")
        host = _driver_host(job_master)
        port = None
        with contextlib.suppress(ValueError):
            port = urlsplit(report.ui_url).port
        if host is None or not port:
            raise not_found(f"job {job} has no Spark UI now: where its driver runs is not known")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _redirected(self, location: str, netloc: str, base: str, job: str) -> str:
        """Where a redirect of the UI leads, below ``base``; Spark names itself by the host it was dialled at."""
        elsewhere = Problem(HTTPStatus.BAD_GATEWAY, f"the Spark UI of {job} leads elsewhere, to {location[:200]!r}")
        try:
            target = urlsplit(location)
        except ValueError as error:
            raise elsewhere from error
        if target.scheme not in ("", "http", "https") or (target.netloc and target.netloc != netloc):
            raise elsewhere
        # Browsers take %2e for a dot and a backslash for a slash.
        plain = unquote(target.path)
        if "\\" in plain or "//" in plain or any(part in ("..", ".") for part in plain.split("/")):
            raise elsewhere
        path = target.path
        if path.startswith("/") and path != base and not path.startswith(base + "/"):
            path = base + path
        # One that is relative to its page stays below the base, as the page is.
        return target._replace(scheme="", netloc="", path=path).geturl()


def _driver_host(job_master: JobMaster) -> str | None:
    """The host of the slot that the job's driver runs in."""
    slot = job_master.driver.slot
    held = job_master.pool.slots.get(slot) if slot is not None else None
    return held.host if held is not None else None


def _base(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}/spark-ui"


def _raw_path(request: Request, base: str) -> bytes:
    """The rest of the path as the caller wrote it, with the query."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    _, _, rest = raw.partition(b"/spark-ui")
    query: bytes = request.scope["query_string"]
    return (rest or b"/") + (b"?" + query if query else b"")


def _confined(request: Request, base: str) -> dict[str, str]:
    """Headers that keep the pages to themselves. A source that ends in a slash covers all below it."""
    own = f"{request.url.scheme}://{request.url.netloc}{base}/"
    policy = (
        "sandbox allow-scripts allow-same-origin allow-forms allow-downloads; "
        f"default-src {own} 'unsafe-inline' 'unsafe-eval' data:; connect-src {own}; form-action {own}; "
        "frame-src 'none'; child-src 'none'; worker-src 'none'; object-src 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
    }


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The bytes as they are, compressed or not. One that breaks off ends the connection: the reader must notice."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
