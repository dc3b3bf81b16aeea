"""Whose a directory is: a note that names the process, and for workers a lock that it holds for life.

The lock is what counts while the process lives (one that is merely stopped keeps it, and two that start at once cannot
both have it); the note says on which host it means anything."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from slotwise.runtime.children import birth

LOCK_FILE = "lock"
_OWNER_FILE = "owner.json"
_RETRY_S = 0.02


def claim(directory: Path) -> None:
    """Note in ``directory`` that it belongs to this process, for :func:`is_abandoned`."""
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "born": birth(os.getpid())}
    partial = directory / f"{_OWNER_FILE}.partial"
    partial.write_text(json.dumps(owner))
    partial.replace(directory / _OWNER_FILE)


class Hold:
    """The lock of a directory, held until :meth:`release` or the process's end. Children do not inherit it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others have the directory; nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def hold(directory: Path, wait_s: float = 2.0) -> Hold | None:
    """Take the lock of ``directory``, which is made if it is not there; None if another process keeps it.

    Keepers look at the lock about every second and hold it for that moment, hence the patience of ``wait_s``.
    """
    deadline = time.monotonic() + wait_s
    while True:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            # Somebody is removing the directory.
            descriptor = -1
        if descriptor >= 0:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(descriptor, directory / LOCK_FILE):
                    return Hold(descriptor)
            os.close(descriptor)
        if time.monotonic() > deadline:
            return None
        time.sleep(_RETRY_S)


def is_abandoned(directory: Path) -> bool:
    """Whether the process that claimed ``directory`` ran on this host, as this user, and is gone. False when that
    cannot be told.
    """
    try:
        owner = json.loads((directory / _OWNER_FILE).read_text())
        if owner["host"] != socket.gethostname() or directory.stat().st_uid != os.getuid():
            return False
        return birth(int(owner["pid"])) != float(owner["born"]) and not _is_locked(directory)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_locked(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether the locked file is the one that is found by its name: it may have been removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
