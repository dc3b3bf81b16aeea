"""Which worker processes of this machine are a master's: a file that the next master reads.

A worker is noted before its process is started and again with its process id, so that one whose master dies between
the two is found by its command line. An id is trusted only together with the process's birth."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec
import psutil

from slotwise.model.ids import WorkerId
from slotwise.protocol.effects import StartWorker
from slotwise.runtime.children import birth

_POLL_S = 0.05


class WorkerProcess(msgspec.Struct, frozen=True):
    """A process; ``born`` as of :func:`~slotwise.runtime.children.birth`, -1 when it had ended before that."""

    pid: int
    born: float

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return birth(self.pid) == self.born

    def send_signal(self, number: int) -> None:
        """Send it a signal if it lives."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def process_of(pid: int) -> WorkerProcess:
    """The process that has this id now."""
    born = birth(pid)
    return WorkerProcess(pid, -1.0 if born is None else born)


class WorkerRecord(msgspec.Struct, frozen=True):
    """What was asked for, and the ``master_url`` that it dials. ``started`` is None while it was only about to be."""

    wish: StartWorker
    master_url: str
    started: WorkerProcess | None = None

    def process(self) -> WorkerProcess | None:
        """Its process, if that lives."""
        found = self.started or _by_command_line(self.wish.worker)
        return found if found is not None and found.lives else None


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
        self._records = {record.wish.worker: record for record in found}
        return found

    def put(self, record: WorkerRecord) -> None:
        """Note a worker, in place of what was noted of it."""
        self._records[record.wish.worker] = record
        self._write()

    def remove(self, worker: WorkerId) -> None:
        """The worker has ended."""
        if self._records.pop(worker, None) is not None:
            self._write()

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(list(self._records.values())))
        partial.replace(self._file)


def _by_command_line(worker: WorkerId) -> WorkerProcess | None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if worker in words and "slotwise" in words and process.uids().real == os.getuid():
                return process_of(process.pid)
    return None


def end_all(file: Path, grace_s: float) -> int:
    """End the workers noted in ``file``, by force after ``grace_s`` seconds, for want of a master that could; returns
    how many there were. Blocks.
    """
    found = [process for record in WorkerRecords(file).load() if (process := record.process()) is not None]
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for process in found:
            process.send_signal(number)
        deadline = time.monotonic() + limit_s
        while any(process.lives for process in found) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    return len(found)
