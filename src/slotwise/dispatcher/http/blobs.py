"""REST calls about uploaded files: clients ask what is missing and send it, workers fetch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Annotated

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import Problem, bad_request, not_found
from slotwise.model.errors import ClusterError

BYTES = "application/octet-stream"
SHA256 = r"^[0-9a-f]{64}$"
MOST_ASKED = 20_000

_Sha256 = Annotated[str, msgspec.Meta(pattern=SHA256)]


class BlobNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SHA-256 of files that a client has."""

    hashes: Annotated[list[_Sha256], msgspec.Meta(max_length=MOST_ASKED)]


class MissingBlobs(msgspec.Struct, frozen=True, rename="kebab"):
    """Which of them are not here; and the bytes that a file may have."""

    missing: list[str]
    max_file_size: int


class KeptBlob(msgspec.Struct, frozen=True):
    """What was uploaded is here, whole and for good."""

    sha256: str
    size: int


class Blobs:
    """See the module's head."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master

    async def missing(self, ask: Ask) -> MissingBlobs:
        """POST /v1/blobs/missing."""
        uploads = self._master.uploads
        return MissingBlobs(uploads.missing(ask.body.hashes), uploads.limits.file_bytes)

    async def upload(self, ask: Ask) -> KeptBlob:
        """PUT /v1/blobs/:sha256: the bytes themselves, written and hashed as they come."""
        announced = ask.request.headers.get("content-length", "")
        size = int(announced) if announced.isdecimal() and len(announced) < 19 else None
        try:
            kept = await self._master.uploads.take(ask["sha256"], ask.request.stream(), size)
        except ClientDisconnect as error:
            raise bad_request("the upload broke off; nothing of it was kept") from error
        except ClusterError as error:
            raise Problem(HTTPStatus(error.status or HTTPStatus.CONFLICT), str(error)) from error
        return KeptBlob(ask["sha256"], kept)

    async def blob(self, ask: Ask) -> StreamingResponse:
        """GET /v1/blobs/:sha256: for workers."""
        name = ask["sha256"]
        size = self._master.uploads.size(name)
        if size is None:
            raise not_found(f"there is no uploaded file {name}")
        # Content-Length tells the reader when the bytes broke off.
        headers = {"Content-Length": str(size)}
        return StreamingResponse(_streamed(self._master.uploads.pieces(name)), headers=headers, media_type=BYTES)


async def _streamed(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
