"""Child processes: started in groups of their own, recorded on disk, ended whole, and swept up after their parent's
death.

A worker's file of records names the groups that it has started (each led by a keeper, see
:mod:`slotwise.runtime.keeper`), so that whoever cleans up after a killed worker finds what may be left (B: F-01; 'no
orphan')."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from slotwise.runtime.clock import monotonic

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process the signal ``number`` when its parent dies (Linux; elsewhere it does
    nothing).
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, number)


def start_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    stdin: int = subprocess.DEVNULL,
    bound_to_parent: bool = True,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``argv`` as the leader of its own session; it inherits ``pass_fds``. Raises OSError when it cannot be
    started.
    """
    return subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
        # The function only makes one system call, and no other thread of this process holds locks that it needs.
        preexec_fn=die_with_parent if bound_to_parent else None,  # noqa: PLW1509
    )


def birth(pid: int) -> float | None:
    """When the process ``pid`` was started, in a measure that only serves to tell two processes of one id apart.

    None when there is none; a zombie has ended. It does not change when the clock is set (B: F-09).
    """
    if _LINUX:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return None
        # The name, in brackets, may have blanks. Field 3 is the state, 22 the start in ticks since the machine's.
        fields = stat.rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else float(fields[19])
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


async def wait_exit(process: subprocess.Popen[bytes]) -> int:
    """The exit code of ``process`` (minus the signal's number when a signal ended it), without blocking the loop."""
    if process.returncode is None and not await _pidfd_ready(process.pid):
        while process.poll() is None:
            await asyncio.sleep(_POLL_S)
    return process.wait()


async def wait_gone(pid: int, born: float) -> None:
    """Wait for the end of a process that need not be a child: the one that was started at ``born`` (:func:`birth`)."""
    if birth(pid) == born and not await _pidfd_ready(pid, born):
        while birth(pid) == born:
            await asyncio.sleep(_POLL_S)


async def _pidfd_ready(pid: int, born: float | None = None) -> bool:
    """Wait for the end of ``pid`` by a descriptor of it; false where that cannot be had."""
    if not _LINUX or not hasattr(os, "pidfd_open"):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        # From here on the descriptor is of one process; is it the right one?
        if born is None or birth(pid) == born:
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return True


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the whole group that ``pid`` leads, if there is anybody left in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def wait_group_gone(pid: int, limit_s: float = 10.0) -> bool:
    """Wait until nobody runs in the group that ``pid`` led, which has been killed and whose leader has ended: a killed
    process goes on until it has given its memory back, and may write until then. False when somebody is left after
    ``limit_s``.
    """
    deadline, pause_s = monotonic() + limit_s, 0.002
    # A leader that lives is of another group, to which the id was given since.
    while birth(pid) is None and _group_has_members(pid):
        if monotonic() >= deadline:
            return False
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S)
    return True


def _group_has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    # There a zombie counts, which stays one where the machine's first process reaps none.
    return _anybody_lives_in(group, os.getpgid)


def _anybody_lives_in(leader: int, membership: Callable[[int], int]) -> bool:
    """Whether there is a process in the group or session of ``leader``, by ``os.getpgid`` or ``os.getsid``."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if membership(pid) == leader and birth(pid) is not None:
                return True
    return False


def kill_marked(variable: str, values: Collection[str]) -> int:
    """Kill every process of this user whose environment has ``variable`` set to one of ``values``; returns how many
    there were.

    For what a program has detached from its group: it has inherited the mark all the same.
    """
    killed = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) in values:
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
        born = birth(pid)
        if born is not None:
            self._entries[pid] = born
            self._write()

    def remove(self, pid: int) -> None:
        """The group has ended."""
        if self._entries.pop(pid, None) is not None:
            self._write()

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps([[pid, created] for pid, created in self._entries.items()]))
        partial.replace(self._file)


def sweep(file: Path, spared: Collection[int] = ()) -> int:
    """Kill what is left of the groups recorded in ``file``, but for the ``spared`` leaders' groups; returns how many
    had somebody in them.

    A group is only touched when its leader is the recorded process, or when the leader is gone and members are left
    in the session it led (a process id is not given to another while its group lives)."""
    try:
        entries = json.loads(file.read_text())
    except (OSError, ValueError):
        return 0
    killed = 0
    for pid, born in entries:
        if pid in spared:
            continue
        now = birth(pid)
        if now != born and (now is not None or not _anybody_lives_in(pid, os.getsid)):
            continue
        killed += 1
        signal_group(pid, signal.SIGKILL)
    return killed
