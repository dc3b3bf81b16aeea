"""Which worker processes of this machine are a master's: a file that the next master reads.

A worker is noted before its process is started and again with its process id, so that one whose master dies between
the two is found by its command line. An id is trusted only together with the process's time of creation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import msgspec
import psutil

from slotwise.model.ids import WorkerId

_POLL_S = 0.1
_SAME_S = 1.0


class WorkerRecord(msgspec.Struct, frozen=True):
    """A worker that was started to dial ``master_url``. ``pid`` and ``created`` (Unix seconds) are None while it was
    only about to be.
    """

    worker: WorkerId
    master_url: str
    pid: int | None = None
    created: float | None = None

    def process(self) -> psutil.Process | None:
        """Its process, if that lives."""
        with contextlib.suppress(psutil.Error):
            if self.pid is None:
                return _by_command_line(self.worker)
            process = psutil.Process(self.pid)
            same = self.created is not None and abs(process.create_time() - self.created) < _SAME_S
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


class WorkerRecords:
    """The list in ``file``. Raises OSError when it cannot be written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._records: dict[WorkerId, WorkerRecord] = {}

    def load(self) -> list[WorkerRecord]:
        """What an earlier master has noted; none where there is no file or nobody can read it."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=list[WorkerRecord])
        except (OSError, msgspec.DecodeError):
            found = []
        self._records = {record.worker: record for record in found}
        return found

    def put(self, record: WorkerRecord) -> None:
        """Note a worker, in place of what was noted of it."""
        self._records[record.worker] = record
        self._write()

    def remove(self, worker: WorkerId) -> None:
        """The worker has ended."""
        if self._records.pop(worker, None) is not None:
            self._write()

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(list(self._records.values())))
        partial.replace(self._file)


def _by_command_line(worker: WorkerId) -> psutil.Process | None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if worker in words and "slotwise" in words and process.uids().real == os.getuid():
                return process
    return None


async def wait_gone(process: psutil.Process) -> None:
    """Wait for the end of a process that is not a child."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, ended.set)
            try:
                if process.is_running():
                    await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        await asyncio.sleep(_POLL_S)


def end_all(file: Path, grace_s: float) -> int:
    """End the workers noted in ``file``, by force after ``grace_s`` seconds, for want of a master that could; returns
    how many there were. Blocks.
    """
    records = WorkerRecords(file)
    living = [process for record in records.load() if (process := record.process()) is not None]
    for process in living:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(living, timeout=grace_s)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(living, timeout=5)
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    return len(living)
