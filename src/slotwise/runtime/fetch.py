"""Fetches uploaded files from the master: streamed, with the worker's own token, and again while the master is away."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path

import httpx
import structlog

from slotwise.model.errors import EnvironmentProblem
from slotwise.runtime.clock import monotonic
from slotwise.tls import ClientTls

log = structlog.get_logger(__name__)

_PATIENCE_S = 120.0
_RETRY_S = 0.5
_TIMEOUT = httpx.Timeout(30.0, read=60.0)
_PIECE_BYTES = 1024 * 1024


class MasterBlobs:
    """A :class:`~slotwise.runtime.blob_cache.BlobSource`: the master at ``url``, called with ``token``. One that does
    not answer is asked again for ``patience_s`` seconds: it may be on its way back.
    """

    def __init__(self, url: str, token: str, tls: ClientTls, patience_s: float = _PATIENCE_S) -> None:
        self._url = url.rstrip("/")
        self._patience_s = patience_s
        context = tls.context(self._url)
        self._http = httpx.AsyncClient(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT,
            trust_env=False,
            verify=context if context is not None else True,
        )

    async def fetch(self, name: str, target: Path, what: str) -> None:
        """See the port."""
        began = monotonic()
        while True:
            try:
                await self._fetch(name, target, what)
            except httpx.HTTPError as error:
                # Also a master that goes in the middle, and one that finds the file damaged.
                if monotonic() - began > self._patience_s:
                    reason = str(error) or type(error).__name__
                    raise EnvironmentProblem(
                        f"cannot fetch the uploaded file {what!r} from the master at {self._url}: {reason}"
                    ) from error
                log.info("cannot fetch an uploaded file; trying again", name=what, reason=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _fetch(self, name: str, target: Path, what: str) -> None:
        async with self._http.stream("GET", f"/v1/blobs/{name}") as answer:
            if answer.status_code == HTTPStatus.NOT_FOUND:
                raise EnvironmentProblem(f"the master has no uploaded file {what!r} any more; submit the job again")
            if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise EnvironmentProblem(f"the master does not give uploaded files to this worker's token ({what!r})")
            if answer.is_error:
                raise httpx.HTTPStatusError(
                    f"it answered {answer.status_code}", request=answer.request, response=answer
                )
            # Truncated where an attempt before has left something.
            with await asyncio.to_thread(target.open, "wb") as file:
                async for piece in answer.aiter_bytes(_PIECE_BYTES):
                    await asyncio.to_thread(file.write, piece)

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()
