"""Uploaded files by their content: the name of a blob is the SHA-256 of its bytes, so the same file is kept once."""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import BinaryIO, Protocol

import structlog

from slotwise.dispatcher.files import Files
from slotwise.model.errors import StoreError

log = structlog.get_logger(__name__)

_NAME = re.compile(r"^[0-9a-f]{64}$")
_PIECE_BYTES = 1024 * 1024


class BlobStore(Protocol):
    """What a master needs of the place where uploaded files are kept. Calls block; run large ones in a thread."""

    def put_blob(self, stream: BinaryIO) -> str:
        """Keep the bytes of ``stream`` and return their name; durable on return, whole or not there at all. Putting
        the same again changes nothing. Raises :class:`StoreError` with the cause.
        """
        ...

    def open_blob(self, name: str) -> BinaryIO:
        """The bytes, after they were compared with their name. Raises :class:`StoreError` when there is no such blob
        or it is damaged (it is set aside then, so that it can be put again).
        """
        ...


class FileBlobStore:
    """A :class:`BlobStore` on :class:`~slotwise.dispatcher.files.Files`, below ``blobs/``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # Uploads that a crash has cut off.
        files.remove_partial()

    def put_blob(self, stream: BinaryIO) -> str:
        """See the port."""
        incoming = self._files.add(stream)
        digest, size = hashlib.sha256(), 0
        try:
            for piece in incoming:
                digest.update(piece)
                size += len(piece)
            name = digest.hexdigest()
            if self._files.size(_path(name)) != size:
                incoming.keep(_path(name))
            return name
        finally:
            incoming.drop()

    def open_blob(self, name: str) -> BinaryIO:
        """See the port. The content is read twice: what is handed out must have been compared to its last byte."""
        if not _NAME.match(name):
            raise StoreError(f"{name!r} is not the name of an uploaded file (64 hexadecimal digits)")
        file = self._files.open(_path(name))
        if file is None:
            raise StoreError(f"there is no uploaded file {name}")
        digest = hashlib.sha256()
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        if digest.hexdigest() != name:
            file.close()
            with contextlib.suppress(StoreError):
                self._files.move(_path(name), f"damaged/{name}")
            log.error("a damaged file was moved aside", path=self._files.where(_path(name)))
            raise StoreError(f"the uploaded file {name} is damaged; upload it again")
        file.seek(0)
        return file


def _path(name: str) -> str:
    return f"blobs/{name[:2]}/{name}"
