"""Child processes: started in groups of their own, recorded on disk, ended whole, and swept up after their parent's
death.

Every process that a worker starts leads a session of its own, dies with the worker (Linux: parent-death signal), and
is recorded in a file beside it, so that whoever cleans up after a killed worker finds what may be left (B: F-01; 'no
orphan')."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

_PR_SET_PDEATHSIG = 1
_OWNER_FILE = "owner.json"
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere it does nothing)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    stdin: int = subprocess.DEVNULL,
    bound_to_parent: bool = True,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` as the leader of its own session. Raises OSError when it cannot be started."""
    return subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # The function only makes one system call, and no other thread of this process holds locks that it needs.
        preexec_fn=die_with_parent if bound_to_parent else None,  # noqa: PLW1509
    )


async def wait_exit(process: subprocess.Popen[bytes]) -> int:
    """The exit code of ``process`` (minus the signal's number when a signal ended it), without blocking the loop."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open") and process.returncode is None:
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return process.wait()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return process.wait()
    while process.poll() is None:
        await asyncio.sleep(0.05)
    return process.returncode


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the whole group that ``pid`` leads, if there is anybody left in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_marked(variable: str, value: str) -> int:
    """Kill every process of this user whose environment has ``variable`` = ``value``; returns how many there were.

    For what a program has detached from its group: it has inherited the mark all the same.
    """
    killed = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                process.kill()
                killed += 1
    return killed


class ChildRecords:
    """The list of started groups in ``file``, for :func:`sweep`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries: dict[int, float] = {}

    def add(self, pid: int) -> None:
        """Note a group leader."""
        with contextlib.suppress(psutil.Error):
            self._entries[pid] = psutil.Process(pid).create_time()
            self._write()

    def remove(self, pid: int) -> None:
        """The group has ended."""
        if self._entries.pop(pid, None) is not None:
            self._write()

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps([[pid, created] for pid, created in self._entries.items()]))
        partial.replace(self._file)


def sweep(file: Path, on_kill: Callable[[int], None] | None = None) -> int:
    """Kill what is left of the groups recorded in ``file``; returns how many groups had somebody in them.

    A group is only touched when its leader is the recorded process, or when the leader is gone and members are left
    in the session it led (a process id is not given to another while its group lives)."""
    try:
        entries = json.loads(file.read_text())
    except (OSError, ValueError):
        return 0
    killed = 0
    for pid, created in entries:
        try:
            if abs(psutil.Process(pid).create_time() - created) > 1.0:
                continue
        except psutil.NoSuchProcess:
            if not _session_has_members(pid):
                continue
        killed += 1
        signal_group(pid, signal.SIGKILL)
        if on_kill is not None:
            on_kill(pid)
    return killed


def claim(directory: Path) -> None:
    """Note in ``directory`` which process it belongs to, for :func:`is_abandoned`."""
    process = psutil.Process()
    owner = {"host": socket.gethostname(), "pid": process.pid, "created": process.create_time()}
    (directory / _OWNER_FILE).write_text(json.dumps(owner))


def is_abandoned(directory: Path) -> bool:
    """Whether the process that claimed ``directory`` ran on this host and is gone. False when that cannot be told."""
    try:
        owner = json.loads((directory / _OWNER_FILE).read_text())
        if owner["host"] != socket.gethostname() or directory.stat().st_uid != os.getuid():
            return False
        return abs(psutil.Process(int(owner["pid"])).create_time() - float(owner["created"])) > 1.0
    except psutil.NoSuchProcess:
        return True
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return False


def sweep_stale(base: Path) -> None:
    """End and remove what dead workers left below ``base``: their processes, then their directories."""
    if not base.is_dir():
        return
    for directory in base.iterdir():
        if is_abandoned(directory):
            sweep(directory / "children.json")
            shutil.rmtree(directory, ignore_errors=True)


def _session_has_members(session: int) -> bool:
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                return True
    return False
