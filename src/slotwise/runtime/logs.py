"""Output of jobs' processes: followed on the worker, kept by the master under the job.

The worker sends chunks with their byte offset; the master appends what it lacks and answers with its size when
something is missing or doubled, so that a broken connection neither loses nor repeats a line."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
import structlog

from slotwise.model.ids import JobId, WorkerId
from slotwise.protocol.codec import LogData, LogPosition
from slotwise.runtime.clock import monotonic
from slotwise.runtime.cut_log import CutLog

log = structlog.get_logger(__name__)

_CHUNK_BYTES = 256 * 1024
_POLL_S = 0.1
_BEYOND = 2**62
"""An offset that no log reaches: the master answers with what it has."""
_TAIL_LINES = 25
# Of a Java stack, in these: its first frames say where, what comes above them says what.
_FRAMES = 3
_REMOVED = "logs-removed"
_MOST_SHARES = 4096
_WORKER_LOG_BYTES = 1024 * 1024
_MOST_WORKERS = 200
SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")


@dataclass
class _Followed:
    job: JobId
    path: Path
    sent: int = 0
    known: bool = True


class LogShipper:
    """Follows files and passes what is new to ``send``. ``send`` returns false while there is no connection."""

    def __init__(self, send: Callable[[LogData], bool]) -> None:
        self._send = send
        self._files: dict[Path, _Followed] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Send what is left and end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.flush(list(self._files))

    def follow(self, job: JobId, path: Path, *, resumed: bool = False) -> None:
        """Add a file. ``resumed``: an earlier process has sent some of it; the master is asked how much it has."""
        self._files.setdefault(path, _Followed(job, path, known=not resumed))

    async def flush(self, paths: Iterable[Path]) -> None:
        """Send all that these files hold now (unless there is no connection)."""
        for path in paths:
            followed = self._files.get(path)
            while followed is not None and self._advance(followed):
                await asyncio.sleep(0)

    async def catch_up(self, paths: Iterable[Path], limit_s: float) -> None:
        """Wait until the master has all that these files hold, or ``limit_s`` seconds are over."""
        files = [self._files[path] for path in paths if path in self._files]
        deadline = monotonic() + limit_s
        while monotonic() < deadline:
            while any(self._advance(followed) for followed in files):
                await asyncio.sleep(0)
            if all(followed.known and followed.sent >= _size(followed.path) for followed in files):
                return
            await asyncio.sleep(_POLL_S / 2)

    async def forget(self, directory: Path) -> None:
        """Send what is left of the files below ``directory`` and follow them no more."""
        paths = [path for path in self._files if path.parent == directory]
        await self.flush(paths)
        for path in paths:
            self._files.pop(path, None)

    def resync(self) -> None:
        """After a new connection: say how far each file was sent, so that the master can ask for what was lost."""
        for followed in self._files.values():
            offset = followed.sent if followed.known else _BEYOND
            self._send(LogData(followed.job, followed.path.name, offset, b""))

    def position(self, answer: LogPosition) -> None:
        """The master has this much: go on from there."""
        for followed in self._files.values():
            if followed.job == answer.job and followed.path.name == answer.name:
                followed.sent = answer.size
                followed.known = True

    async def _follow(self) -> None:
        while True:
            for followed in list(self._files.values()):
                self._advance(followed)
            await asyncio.sleep(_POLL_S)

    def _advance(self, followed: _Followed) -> bool:
        """Send the next chunk; false when there is none or it cannot be sent."""
        if not followed.known:
            return False
        try:
            if followed.path.stat().st_size <= followed.sent:
                return False
            with followed.path.open("rb") as file:
                file.seek(followed.sent)
                data = file.read(_CHUNK_BYTES)
        except OSError:
            return False
        if not data or not self._send(LogData(followed.job, followed.path.name, followed.sent, data)):
            return False
        followed.sent += len(data)
        return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class LogLimits(msgspec.Struct, frozen=True):
    """How much of jobs' output is kept. ``file_bytes``: of each log; ``job_bytes``: of all logs of a job together.
    ``ended_jobs``: of so many jobs that have ended, the ones that ended last; ``ended_s``: for so many seconds after
    their end (−1: for ever).
    """

    file_bytes: int = 64 * 1024 * 1024
    job_bytes: int = 512 * 1024 * 1024
    ended_jobs: int = 1000
    ended_s: float = 30 * 86400.0


class LogStore:
    """The master's side: ``<directory>/<job>/logs/<name>``, each a :class:`~slotwise.runtime.cut_log.CutLog`."""

    def __init__(self, directory: Path, limits: LogLimits | None = None) -> None:
        self._directory = directory
        self.limits = limits or LogLimits()
        # Now or never: see write(). Where it cannot be made, whoever keeps the jobs' records says so.
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._failed: set[Path] = set()
        self._stored: dict[str, int] = {}
        self.write_errors = 0
        """Pieces of output that could not be kept."""
        self.cut_bytes = 0
        """Output that was cut out, because a log or a job was over its limit."""

    def path(self, job: JobId, name: str) -> Path | None:
        """Where a log of a job begins, or None for a name that no log can have."""
        if not SAFE_NAME.match(name) or not SAFE_NAME.match(job):
            return None
        return self._directory / job / "logs" / name

    def folder(self, job: JobId) -> Path:
        """What is kept of a job; its logs are below."""
        return self._directory / job

    def names(self, job: JobId) -> list[str]:
        """The logs there are of a job."""
        if not SAFE_NAME.match(job):
            return []
        folder = self._directory / job / "logs"
        return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []

    def read(self, job: JobId, name: str, position: int, count: int = _CHUNK_BYTES) -> tuple[bytes, int]:
        """See :meth:`~slotwise.runtime.cut_log.CutLog.read`; nothing for a log that is not there."""
        path = self.path(job, name)
        return (b"", position) if path is None else CutLog(path).read(position, count)

    def write(self, chunk: LogData) -> LogPosition | None:
        """Take a chunk; the answer is there when the sender must correct its position."""
        path = self.path(JobId(chunk.job), chunk.name)
        if path is None:
            return None
        try:
            log_file = CutLog(path)
            size = log_file.size
            if chunk.offset > size:
                return LogPosition(chunk.job, chunk.name, size)
            fresh = chunk.data[size - chunk.offset :]
            if fresh:
                # Never more than these two: where the jobs' directory has gone, nothing must be made in its place.
                path.parent.parent.mkdir(mode=0o700, exist_ok=True)
                path.parent.mkdir(exist_ok=True)
                self._append(chunk.job, log_file, fresh)
        except OSError as error:
            self.write_errors += 1
            # The sender asks again with its next chunk; a worker's stream must not break for it.
            if path not in self._failed:
                self._failed.add(path)
                log.error("cannot keep a job's output", job=chunk.job, file=chunk.name, error=str(error))
        return None

    def _append(self, job: str, log_file: CutLog, data: bytes) -> None:
        if job not in self._stored:
            self._stored[job] = sum(other.stored for other in self._logs_of(job))
        self._change(job, log_file, lambda: log_file.append(data, self.limits.file_bytes))
        while self._stored[job] > self.limits.job_bytes:
            largest = max(self._logs_of(job), key=lambda other: other.stored)
            stored = largest.stored
            # Many small ones: nothing more is kept of the one that has grown.
            few = self.limits.job_bytes // _MOST_SHARES
            target, victim = (stored // 2, largest) if stored > few else (0, log_file)
            self._change(job, victim, lambda victim=victim, target=target: victim.trim(target))  # type: ignore[misc]
            if victim is log_file and not target:
                break

    def _change(self, job: str, log_file: CutLog, change: Callable[[], None]) -> None:
        stored, cut = log_file.stored, log_file.cut
        try:
            change()
        finally:
            self._stored[job] += log_file.stored - stored
            self.cut_bytes += log_file.cut - cut

    def _logs_of(self, job: str) -> list[CutLog]:
        folder = self._directory / job / "logs"
        return [CutLog(folder / name) for name in self.names(JobId(job))]

    def remove(self, job: JobId, reason: str) -> None:
        """Remove the logs of a job that has ended, and note why they are not there."""
        folder = self._directory / job / "logs"
        if SAFE_NAME.match(job) and folder.is_dir():
            (folder.parent / _REMOVED).write_text(reason, encoding="utf-8")
            shutil.rmtree(folder)
            self._stored.pop(job, None)

    def removed(self, job: JobId) -> str:
        """Why a job's logs are not there any more; empty where they were not removed."""
        try:
            return (self._directory / job / _REMOVED).read_text(encoding="utf-8") if SAFE_NAME.match(job) else ""
        except OSError:
            return ""

    def has_logs(self, job: JobId) -> bool:
        """Whether anything is kept of a job."""
        return bool(SAFE_NAME.match(job)) and (self._directory / job / "logs").is_dir()


class WorkerLogStore:
    """What workers have said of themselves lately: ``<directory>/<worker>/<name>``, also after they are gone."""

    def __init__(self, directory: Path, file_bytes: int = _WORKER_LOG_BYTES, most_workers: int = _MOST_WORKERS) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._most_workers = most_workers

    def paths(self, worker: WorkerId) -> list[Path]:
        """The logs of a worker."""
        folder = self._directory / worker
        if not SAFE_NAME.match(worker) or not folder.is_dir():
            return []
        return sorted(path for path in folder.iterdir() if path.is_file())

    def write(self, worker: WorkerId, chunk: LogData) -> None:
        """Take a piece of a worker's own log. What is not there any more when the connection is back is cut out."""
        if not SAFE_NAME.match(worker) or not SAFE_NAME.match(chunk.name):
            return
        path = self._directory / worker / chunk.name
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(mode=0o700, parents=True)
                self._prune()
            log_file = CutLog(path)
            size = log_file.size
            if chunk.offset > size:
                log_file.skip_to(chunk.offset)
                path.touch()
            fresh = chunk.data[max(0, size - chunk.offset) :]
            log_file.append(fresh, self._file_bytes)
        except OSError as error:
            log.warning("cannot keep a worker's log", worker=worker, error=str(error))

    def _prune(self) -> None:
        folders = [folder for folder in self._directory.iterdir() if folder.is_dir()]
        newest = sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in newest[self._most_workers :]:
            shutil.rmtree(folder, ignore_errors=True)


def tail_lines(paths: Iterable[Path], limit: int = _TAIL_LINES) -> tuple[str, ...]:
    """The last lines that matter of a process's output: of the last of the files that has any. Of a Java stack, which
    may be longer than all there is room for, these are its first frames.
    """
    for path in reversed(list(paths)):
        try:
            with path.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - 64 * 1024))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            continue
        lines = deque(_without_deep_frames(line for line in text.splitlines() if line.strip()), maxlen=limit)
        if lines:
            return tuple(lines)
    return ()


def _without_deep_frames(lines: Iterable[str]) -> Iterator[str]:
    for is_stack, group in groupby(lines, lambda line: line.startswith("\tat ")):
        frames = list(group)
        if not is_stack or len(frames) <= _FRAMES + 1:
            yield from frames
            continue
        yield from frames[:_FRAMES]
        yield f"\t... {len(frames) - _FRAMES} frames more"
