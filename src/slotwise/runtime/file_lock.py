"""Locks on files, between processes and within one, awaited without blocking the event loop. Whoever dies lets go."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_POLL_S = 0.05


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Lock ``path``, which is made; the descriptor that holds the lock until it is closed (in every process that has
    inherited it), or None when somebody else has it. The caller of :func:`remove_locked` removes the file.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            # It may have been removed since it was opened: then others lock another file of this name.
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def remove_locked(path: Path, descriptor: int) -> None:
    """Remove a lock file that is held exclusively, and let go."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


@contextlib.asynccontextmanager
async def locked(path: Path, *, shared: bool = False, on_wait: Callable[[], None] | None = None) -> AsyncIterator[int]:
    """Hold the lock on ``path``; ``on_wait`` is called once if it must be waited for."""
    while (descriptor := try_lock(path, shared=shared)) is None:
        if on_wait is not None:
            on_wait()
            on_wait = None
        await asyncio.sleep(_POLL_S)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
