"""Uploaded files by their content: the name of a blob is the SHA-256 of its bytes, so the same file is kept once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import structlog

from slotwise.dispatcher.files import Files
from slotwise.model.errors import StoreError
from slotwise.model.uploads import is_sha256

log = structlog.get_logger(__name__)

_PIECE_BYTES = 1024 * 1024


class WrongContent(StoreError):
    """The bytes that came are not those that were announced. Nothing was kept."""


class IncomingBlob(Protocol):
    """A blob on its way into a store, piece by piece; :meth:`drop` it in any case."""

    def write(self, piece: bytes) -> None:
        """Take the next bytes. Raises :class:`StoreError`, as all others do."""
        ...

    def finish(self) -> str:
        """All has come: keep it, and return its name; durable on return. Raises :class:`WrongContent` when it has
        another name than the announced one.
        """
        ...

    def drop(self) -> None:
        """Forget what was not finished."""
        ...


class BlobStore(Protocol):
    """What a master needs of the place where uploaded files are kept. Calls block; run them in a thread."""

    def begin(self, name: str | None = None) -> IncomingBlob:
        """Begin to take a blob, which must turn out to be called ``name``, if that is given."""
        ...

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

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes, read once and compared while they are handed out: a damaged blob lacks its last piece, and raises
        as :meth:`open_blob` does.
        """
        ...

    def sizes(self) -> dict[str, int]:
        """Bytes of every blob, by its name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a blob; no error where there is none."""
        ...


class FileBlobStore:
    """A :class:`BlobStore` on :class:`~slotwise.dispatcher.files.Files`, below ``blobs/``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # Uploads that a crash has cut off.
        files.remove_partial()

    def begin(self, name: str | None = None) -> IncomingBlob:
        """See the port."""
        if name is not None:
            _check(name)
        return _Incoming(self._files, name)

    def put_blob(self, stream: BinaryIO) -> str:
        """See the port."""
        incoming = self.begin()
        try:
            while piece := stream.read(_PIECE_BYTES):
                incoming.write(piece)
            return incoming.finish()
        finally:
            incoming.drop()

    def open_blob(self, name: str) -> BinaryIO:
        """See the port. The content is read twice: what is handed out must have been compared to its last byte."""
        file = self._open(name)
        digest = hashlib.sha256()
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        if digest.hexdigest() != name:
            file.close()
            raise self._damaged(name)
        file.seek(0)
        return file

    def pieces(self, name: str) -> Iterator[bytes]:
        """See the port."""
        with contextlib.closing(self._open(name)) as file:
            digest = hashlib.sha256()
            held = b""
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                if held:
                    yield held
                held = piece
            if digest.hexdigest() != name:
                raise self._damaged(name)
            if held:
                yield held

    def sizes(self) -> dict[str, int]:
        """See the port."""
        return {
            name: size
            for folder in self._files.names("blobs")
            for name, size in self._files.sizes(f"blobs/{folder}").items()
            if is_sha256(name)
        }

    def remove(self, name: str) -> None:
        """See the port."""
        _check(name)
        self._files.remove(_path(name))

    def _open(self, name: str) -> BinaryIO:
        _check(name)
        file = self._files.open(_path(name))
        if file is None:
            raise StoreError(f"there is no uploaded file {name}")
        return file

    def _damaged(self, name: str) -> StoreError:
        with contextlib.suppress(StoreError):
            self._files.move(_path(name), f"damaged/{name}")
        log.error("a damaged file was moved aside", path=self._files.where(_path(name)))
        return StoreError(f"the uploaded file {name} is damaged; upload it again")


class _Incoming:
    def __init__(self, files: Files, name: str | None) -> None:
        self._files = files
        self._name = name
        self._digest = hashlib.sha256()
        self._size = 0
        self._incoming = files.add()

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._size += len(piece)
        self._incoming.write(piece)

    def finish(self) -> str:
        name = self._digest.hexdigest()
        if self._name not in (None, name):
            raise WrongContent(f"the {self._size} bytes that came have the SHA-256 {name}, not {self._name}")
        # In place of one that is there already: that may be damaged.
        self._incoming.keep(_path(name))
        return name

    def drop(self) -> None:
        self._incoming.drop()


def _check(name: str) -> None:
    if not is_sha256(name):
        raise StoreError(f"{name!r} is not the name of an uploaded file (64 hexadecimal digits)")


def _path(name: str) -> str:
    return f"blobs/{name[:2]}/{name}"
