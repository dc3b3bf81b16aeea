"""A worker's copies of uploaded files, by their content: fetched once, for all workers of a user on a machine.

::

    <root>/blobs/<sha256>       whole and compared with its name, or not there
    <root>/locks/<sha256>       held while it is fetched, copied or removed
    <root>/incoming/…           what is being fetched; a dead process's goes with the next look

What a slot gets is a copy, compared with its name while it is made: whatever a job does to its files, no other job sees
it, and a damaged file is fetched again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
from pathlib import Path
from typing import Protocol

import psutil
import structlog

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.resources import format_bytes
from slotwise.model.uploads import UploadedFile
from slotwise.runtime.file_lock import locked, remove_locked, try_lock

log = structlog.get_logger(__name__)

_PIECE_BYTES = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


class BlobSource(Protocol):
    """Where the files come from."""

    async def fetch(self, name: str, target: Path, what: str) -> None:
        """Write the bytes called ``name`` to the new file ``target``, which need not be checked. Raises
        :class:`EnvironmentProblem`, naming ``what``, when they cannot be had, OSError when they cannot be written.
        """
        ...


class BlobCache:
    """See the module's head. It holds ``max_bytes`` at most; those used longest ago go first. A larger file is
    fetched for each slot anew.
    """

    def __init__(self, root: Path, max_bytes: int, source: BlobSource) -> None:
        self.max_bytes = max_bytes
        self._blobs, self._locks, self._incoming = root / "blobs", root / "locks", root / "incoming"
        self._source = source

    async def read(self, name: str, what: str) -> bytes:
        """The bytes of a small file. Raises as :meth:`place` does."""
        await asyncio.to_thread(self._prepare)
        target = self._incoming / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            await self.place(UploadedFile(what, name, 0), target)
            return await asyncio.to_thread(target.read_bytes)
        finally:
            target.unlink(missing_ok=True)

    async def place(self, file: UploadedFile, target: Path) -> bool:
        """Put a copy at ``target``, which must not be there; whether it had to be fetched. Raises
        :class:`EnvironmentProblem` with what to do when it cannot be had, or this machine's disk is full.
        """
        try:
            try:
                return await self._place(file, target)
            except OSError as error:
                if error.errno not in _FULL or not await asyncio.to_thread(self.trim, 0):
                    raise
                # What nobody uses has gone: perhaps it was that.
                return await self._place(file, target)
        except OSError as error:
            where = error.filename or target
            hint = f" ({format_bytes(file.size_bytes)} are needed); make room there" if error.errno in _FULL else ""
            raise EnvironmentProblem(
                f"this worker cannot keep the uploaded file {file.name!r}: {where}: {error.strerror}{hint}"
            ) from error

    async def _place(self, file: UploadedFile, target: Path) -> bool:
        name = file.sha256
        await asyncio.to_thread(self._prepare)
        if file.size_bytes > self.max_bytes:
            await self._fetch(file, target)
            return True
        kept, lock = self._blobs / name, self._locks / name
        async with locked(lock, shared=True):
            if await asyncio.to_thread(_copied, kept, target, name):
                return False
        async with locked(lock):
            if await asyncio.to_thread(_copied, kept, target, name):
                return False
            kept.unlink(missing_ok=True)
            await asyncio.to_thread(self.trim, self.max_bytes - file.size_bytes)
            incoming = self._incoming / f"{os.getpid()}-{secrets.token_hex(8)}"
            try:
                await self._fetch(file, incoming)
                await asyncio.to_thread(_copied, incoming, target, name)
                incoming.replace(kept)
            finally:
                incoming.unlink(missing_ok=True)
        return True

    async def _fetch(self, file: UploadedFile, target: Path) -> None:
        """Fetch and compare; once more if it is not what it should be."""
        for _ in range(2):
            try:
                await self._source.fetch(file.sha256, target, file.name)
                if await asyncio.to_thread(_sha256, target) == file.sha256:
                    return
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            target.unlink(missing_ok=True)
            log.warning("an uploaded file came damaged", blob=file.sha256, name=file.name)
        raise EnvironmentProblem(f"the uploaded file {file.name!r} came damaged twice; submit the job again")

    def trim(self, most: int) -> int:
        """Remove files, those used longest ago first, until ``most`` bytes are left, or only such that are being used;
        returns how many went. Blocks.
        """
        entries = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._blobs):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    entries.append((status.st_mtime, status.st_size, entry.name))
        total, removed = sum(size for _, size, _ in entries), 0
        for _, size, name in sorted(entries):
            if total <= most:
                break
            lock = self._locks / name
            held = try_lock(lock)
            if held is not None:
                (self._blobs / name).unlink(missing_ok=True)
                remove_locked(lock, held)
                total -= size
                removed += 1
        return removed

    def _prepare(self) -> None:
        for folder in (self._blobs, self._locks, self._incoming):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._incoming.iterdir():
            owner = path.name.partition("-")[0]
            if owner.isdecimal() and not psutil.pid_exists(int(owner)):
                path.unlink(missing_ok=True)


def _copied(kept: Path, target: Path, name: str) -> bool:
    """Copy ``kept`` to the new file ``target``; false, and nothing made, if it is not there or damaged."""
    try:
        source = kept.open("rb")
    except FileNotFoundError:
        return False
    digest = hashlib.sha256()
    try:
        with source, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                copy.write(piece)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    if digest.hexdigest() != name:
        log.warning("a kept copy of an uploaded file is damaged; it is fetched again", path=str(kept))
        target.unlink()
        return False
    os.utime(kept)
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
