"""Leadership by a directory: whoever holds the lock on its file ``lock`` leads; the number in ``epoch`` rises with
every grant.

The kernel gives a lock back when its holder dies, however it dies, so there are no time-outs and no half-dead leaders
on one machine. On a shared file system this is as good as the locks of that file system. The epoch is on the disk
before a grant is given: two leaders can never have the same one. What the lock's file says about its holder is for
people only."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from slotwise.ha.base import Grant, NotLeader
from slotwise.model.errors import EnvironmentProblem

_POLL_S = 0.2
_WATCH_S = 1.0
_EPOCH = re.compile(r"^[1-9][0-9]{0,11}\n?$")


class EmbeddedLeaderElection:
    """A :class:`~slotwise.ha.base.LeaderElection` in ``directory``. ``in_use`` says whether there is anything in the
    directory that an earlier leader has left: then a missing epoch is an error, because a new beginning at 1 would be
    below what workers and records know.
    """

    def __init__(self, directory: Path, in_use: Callable[[], bool] = lambda: False) -> None:
        self._lock = directory / "lock"
        self._epoch = directory / "epoch"
        self._in_use = in_use
        self._descriptor: int | None = None
        self._watch: asyncio.Task[None] | None = None

    async def acquire(self, *, wait: bool = False, on_wait: Callable[[str], None] | None = None) -> Grant:
        """See the port."""
        told = False
        while (descriptor := self._try_lock()) is None:
            holder = self._holder_in_words()
            if not wait:
                raise NotLeader(
                    f"{holder} leads here already ({self._lock}); stop it first, take over from it when it ends with "
                    "--standby, or name another --directory"
                )
            if not told and on_wait is not None:
                on_wait(holder)
            told = True
            await asyncio.sleep(_POLL_S)
        self._descriptor = descriptor
        try:
            previous = self._read_holder().get("url")
            epoch = self._next_epoch()
            self._write_holder(None)
        except BaseException:
            await self.release()
            raise
        grant = Grant(epoch, str(previous) if previous else None)
        self._watch = asyncio.get_running_loop().create_task(self._look_after(grant))
        return grant

    def announce(self, url: str) -> None:
        """See the port."""
        self._write_holder(url)

    async def release(self) -> None:
        """See the port. Where it listened stays in the file, so that the next one can come up there."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # ------------------------------------------------------------------------------------------- the lock

    def _try_lock(self) -> int | None:
        """The descriptor that holds the lock, or None while somebody else has it."""
        try:
            self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentProblem(f"cannot use {self._lock}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise EnvironmentProblem(f"cannot lock {self._lock}: {error.strerror or error}") from error
        if not self._is_in_place(descriptor):
            # Somebody has put another file there between the two calls.
            os.close(descriptor)
            return None
        return descriptor

    def _is_in_place(self, descriptor: int) -> bool:
        """Whether the locked file is the one that others would try to lock. True while there is none: nobody can have
        locked it then, and a file system that is away for a moment comes back with the same file.
        """
        mine = os.fstat(descriptor)
        try:
            there = self._lock.stat()
        except OSError:
            return True
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    async def _look_after(self, grant: Grant) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._descriptor is not None and not self._is_in_place(self._descriptor):
                grant.lost.set_result(f"{self._lock} was replaced by another file, so another master may lead")
                return

    def _read_holder(self) -> dict[str, object]:
        try:
            holder = json.loads(self._lock.read_text())
        except (OSError, ValueError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _write_holder(self, url: str | None) -> None:
        """In place: the file itself must stay, it is what is locked. Readers take a half-written one for none."""
        assert self._descriptor is not None
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "url": url or self._read_holder().get("url")}
        data = json.dumps(holder).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def _holder_in_words(self) -> str:
        holder = self._read_holder()
        if "pid" not in holder:
            return "another master"
        where = f" at {holder['url']}" if holder.get("url") else ""
        return f"the master with pid {holder['pid']} on {holder.get('host')}{where}"

    # ------------------------------------------------------------------------------------------- the epoch

    def _next_epoch(self) -> int:
        """One above the stored one, and stored."""
        remedy = f"write a number above every epoch used so far into it (echo 1000 > {self._epoch}) and start again"
        try:
            text = self._epoch.read_text()
        except FileNotFoundError:
            if self._in_use():
                raise EnvironmentProblem(f"{self._epoch} is missing, but there are jobs beside it; {remedy}") from None
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentProblem(f"cannot read {self._epoch}: {error}") from error
        else:
            if not _EPOCH.match(text):
                raise EnvironmentProblem(f"{self._epoch} is damaged ({text[:40]!r} is no epoch); {remedy}")
        epoch = int(text) + 1 if text else 1
        partial = self._epoch.with_name("epoch.partial")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(f"{epoch}\n")
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._epoch)
            directory = os.open(self._epoch.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise EnvironmentProblem(f"cannot write {self._epoch}: {error.strerror or error}") from error
        return epoch
