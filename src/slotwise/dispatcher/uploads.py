"""A master's uploaded files: what may come in, what a submission needs, and what may go.

A blob is needed while a job that has not been released names it (:class:`~slotwise.model.uploads.Manifest`), or a
submission that is being looked at. Others are kept for a while after they were last asked for, so that who uploads now
can submit in a moment and the same file need not come again tomorrow. When that was is kept in memory: a new master
counts from its start, which never removes anything too early.

All methods but :meth:`load` belong to the event loop; files are read and written in threads."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path

import msgspec
import structlog

from slotwise.dispatcher.blob_store import BlobStore, WrongContent
from slotwise.model.errors import ClusterError, StoreError, UsageError
from slotwise.model.ids import JobId
from slotwise.model.job import JobSpec
from slotwise.model.resources import GIB, format_bytes
from slotwise.model.uploads import Manifest, Uploads, is_sha256, read_manifest

log = structlog.get_logger(__name__)

MOST_MANIFEST_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
# What was asked for so recently may be about to be submitted: it does not go even when there is no room.
_FRESH_S = 600.0
_SILENCE_S = 60.0
_INTERVAL_S = 60.0


class BlobLimits(msgspec.Struct, frozen=True):
    """``file_bytes``: of one uploaded file; ``total_bytes``: of all. ``unused_s``: how long one that no job needs is
    kept (-1: until there is no room).
    """

    file_bytes: int = 4 * GIB
    total_bytes: int = 50 * GIB
    unused_s: float = 86400.0


class UploadedFiles:
    """The blobs of ``store``. ``living`` gives the jobs that have not been released, with what they have uploaded;
    ``clock`` seconds that only rise.
    """

    def __init__(
        self,
        store: BlobStore,
        limits: BlobLimits,
        living: Callable[[], Mapping[JobId, Uploads]],
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.received = 0
        """Bytes of uploads that were kept, under this master."""
        self._store = store
        self._living = living
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._used: dict[str, float] = {}
        self._needed: dict[JobId, frozenset[str]] = {}
        self._held: dict[int, frozenset[str]] = {}
        self._holds = itertools.count()
        self._coming: dict[int, int] = {}

    def load(self) -> None:
        """Look at what is there; before anything else. Blocks. Raises :class:`StoreError`."""
        self._sizes = self._store.sizes()
        self._used = dict.fromkeys(self._sizes, self._clock())

    @property
    def count(self) -> int:
        """How many blobs there are."""
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """Their bytes together."""
        return sum(self._sizes.values())

    # ------------------------------------------------------------------------------------------- coming in

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that are not there. The others stay for a while, whatever the limits say."""
        now, lacking = self._clock(), []
        for name in dict.fromkeys(names):
            if name in self._sizes:
                self._used[name] = now
            else:
                lacking.append(name)
        return lacking

    async def take(self, name: str, pieces: AsyncIterator[bytes], announced: int | None) -> int:
        """Keep the bytes that ``pieces`` gives under ``name``, their SHA-256; returns how many there were.

        Raises :class:`ClusterError` with a status when they are too many, not those that were announced, broke off, or
        cannot be kept. Nothing is left of them then.
        """
        if announced is not None and announced > self.limits.file_bytes:
            raise self._too_large()
        number = next(self._holds)
        self._coming[number] = announced or 0
        incoming = None
        try:
            await self._make_room(number)
            incoming = await asyncio.to_thread(self._store.begin, name)
            size = 0
            async for piece in _in_pieces(pieces):
                size += len(piece)
                if size > self.limits.file_bytes:
                    raise self._too_large()
                if size > self._coming[number]:
                    self._coming[number] = size
                    await self._make_room(number)
                await asyncio.to_thread(incoming.write, piece)
            await asyncio.to_thread(incoming.finish)
        except WrongContent as error:
            raise ClusterError(
                f"{error}: the file has changed or was damaged on its way; upload it again", HTTPStatus.BAD_REQUEST
            ) from error
        except StoreError as error:
            raise ClusterError(
                f"the master cannot keep the file: {error}", HTTPStatus.INSUFFICIENT_STORAGE.value
            ) from error
        except TimeoutError as error:
            raise ClusterError(
                f"nothing came for {_SILENCE_S:g} s; upload the file again", HTTPStatus.REQUEST_TIMEOUT
            ) from error
        finally:
            del self._coming[number]
            if incoming is not None:
                incoming.drop()
        self._sizes[name] = size
        self._used[name] = self._clock()
        self.received += size
        return size

    async def add(self, name: str, source: Path | bytes) -> None:
        """Keep a file of this machine, or bytes, as :meth:`take` does."""
        if not self.missing((name,)):
            return
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:

            async def pieces() -> AsyncIterator[bytes]:
                while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    yield piece

            await self.take(name, pieces(), None)

    def _too_large(self) -> ClusterError:
        limit = format_bytes(self.limits.file_bytes)
        return ClusterError(
            f"an uploaded file has {limit} at most here (blob.max-file-size); put it where workers can read it, and "
            "name that path",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )

    async def _make_room(self, number: int) -> None:
        """Room for all that is coming, by removing what nobody needs, that unused for the longest time first."""
        over = self.size_bytes + sum(self._coming.values()) - self.limits.total_bytes
        if over <= 0:
            return
        now = self._clock()
        unneeded = await self._unneeded()
        for name in sorted(unneeded, key=lambda one: (self._used.get(one, 0.0), one)):
            if over <= 0:
                return
            if now - self._used.get(name, 0.0) >= _FRESH_S:
                over -= self._sizes.get(name, 0)
                await self._remove(name)
        if over > 0:
            total = format_bytes(self.limits.total_bytes)
            raise ClusterError(
                f"there is no room for {format_bytes(self._coming[number])} more: uploaded files have {total} at most "
                "here (blob.max-total-size), and jobs need what is there",
                HTTPStatus.INSUFFICIENT_STORAGE,
            )

    # ------------------------------------------------------------------------------------------- being used

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a blob, compared while they are read. Blocks. Raises :class:`StoreError`."""
        try:
            yield from self._store.pieces(name)
        except StoreError:
            # Gone or set aside: it can be uploaded again.
            self._sizes.pop(name, None)
            raise

    def size(self, name: str) -> int | None:
        """Bytes of a blob, None where there is none. It counts as used."""
        if name in self._sizes:
            self._used[name] = self._clock()
        return self._sizes.get(name)

    @contextlib.asynccontextmanager
    async def admitted(self, spec: JobSpec) -> AsyncIterator[None]:
        """While a job is being submitted: all that it needs is there, and stays. Raises :class:`ClusterError` with
        what is missing.
        """
        if spec.uploads is None:
            yield
            return
        number, name = next(self._holds), spec.uploads.manifest
        self._held[number] = frozenset((name,))
        try:
            if not is_sha256(name) or self.missing((name,)):
                raise ClusterError(f"the list of uploaded files, {name[:64]}, is not here; upload it first")
            manifest = await self._manifest(name)
            needed = manifest.hashes
            self._held[number] = needed | {name}
            lacking = self.missing(needed)
            if lacking:
                files = [f.name for f in (*manifest.files, *manifest.environment) if f.sha256 in set(lacking)]
                more = f" and {len(files) - 1} more" if len(files) > 1 else ""
                raise ClusterError(f"the uploaded file {files[0]!r}{more} is not here; upload what is missing first")
            for file in (*manifest.files, *manifest.environment):
                if self._sizes.get(file.sha256) != file.size_bytes:
                    raise ClusterError(f"the uploaded file {file.name!r} does not have {file.size_bytes} bytes")
            known = {file.name for file in manifest.files}
            for wanted in spec.uploaded_names:
                if wanted not in known:
                    raise ClusterError(f"{wanted!r} is not among the job's uploaded files")
            yield
        finally:
            del self._held[number]

    async def _manifest(self, name: str) -> Manifest:
        if self._sizes.get(name, 0) > MOST_MANIFEST_BYTES:
            raise ClusterError(f"the list of uploaded files has over {MOST_MANIFEST_BYTES} bytes")
        try:
            data = await asyncio.to_thread(lambda: b"".join(self._store.pieces(name)))
            return read_manifest(data)
        except StoreError as error:
            self._sizes.pop(name, None)
            raise ClusterError(f"the list of uploaded files cannot be read: {error}") from error
        except UsageError as error:
            raise ClusterError(str(error)) from error

    # ------------------------------------------------------------------------------------------- going

    async def sweep(self) -> None:
        """Remove what nobody has needed for long enough."""
        if self.limits.unused_s < 0:
            return
        now = self._clock()
        for name in await self._unneeded():
            if now - self._used.get(name, now) > self.limits.unused_s:
                log.info("removed an uploaded file that no job needs", blob=name, size_bytes=self._sizes.get(name))
                await self._remove(name)

    async def keep_swept(self) -> None:
        """Sweep now and every minute."""
        while True:
            await self.sweep()
            await asyncio.sleep(_INTERVAL_S)

    async def _unneeded(self) -> list[str]:
        """What no job needs. Nothing as long as it is not known what one needs: its list may be readable again."""
        living = dict(self._living())
        for job in self._needed.keys() - living.keys():
            del self._needed[job]
        for job, uploads in living.items():
            if job not in self._needed:
                try:
                    manifest = await self._manifest(uploads.manifest)
                except ClusterError as error:
                    log.warning("it is not known which uploaded files a job needs", job=job, error=str(error))
                    return []
                self._needed[job] = manifest.hashes | {uploads.manifest}
        # What has begun meanwhile holds what it needs, or has it asked for just now.
        needed = frozenset().union(*self._needed.values(), *self._held.values())
        if self._living().keys() - self._needed.keys():
            return []
        return [name for name in self._sizes if name not in needed]

    async def _remove(self, name: str) -> None:
        size = self._sizes.pop(name, None)
        try:
            # Not in a thread: nobody may ask for it between the decision and the deed.
            self._store.remove(name)
        except StoreError as error:
            log.warning("cannot remove an uploaded file", blob=name, error=str(error))
            if size is not None:
                self._sizes[name] = size
        else:
            self._used.pop(name, None)


async def _in_pieces(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in fewer pieces: each costs a turn of a thread. Raises TimeoutError when none come."""
    held = bytearray()
    while True:
        try:
            held += await asyncio.wait_for(anext(stream), _SILENCE_S)
        except StopAsyncIteration:
            break
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
