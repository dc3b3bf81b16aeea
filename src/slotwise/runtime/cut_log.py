"""A log on disk that keeps its beginning and its end within a limit.

The beginning is a plain file, ``<name>``. What no longer fits goes into segments, ``.<name>/<offset>``, each named
after the offset of its first byte in the whole log; the oldest ones go. So the length of the whole log, and what was
cut out of its middle, are in the names alone, and whoever comes next goes on where the last one was. Offsets are always
those of the whole log. Readers are told in the text what is missing."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

LEAST_LIMIT_BYTES = 1024
_READ_ATTEMPTS = 3


@dataclass(frozen=True)
class _Segment:
    start: int
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size


class CutLog:
    """The log whose beginning is (or will be) at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tails = path.parent / f".{path.name}"

    @property
    def size(self) -> int:
        """Bytes of the whole log, with those that were cut out."""
        segments = self._segments()
        return segments[-1].end if segments else self._head()

    @property
    def stored(self) -> int:
        """Bytes on the disk."""
        return self._head() + sum(segment.size for segment in self._segments())

    @property
    def cut(self) -> int:
        """Bytes that were cut out."""
        segments = self._segments()
        return max(0, segments[0].start - self._head()) if segments else 0

    def _head(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _segments(self) -> list[_Segment]:
        found = []
        with contextlib.suppress(OSError):
            for path in self._tails.iterdir():
                with contextlib.suppress(OSError, ValueError):
                    found.append(_Segment(int(path.name), path.stat().st_size, path))
        return sorted(found, key=lambda segment: segment.start)

    # ------------------------------------------------------------------------------------------- writing

    def append(self, data: bytes, limit: int) -> None:
        """Add ``data``; at most ``limit`` bytes stay: half of them of the beginning, the rest of the end. The folder
        must be there. Raises :class:`OSError`.
        """
        if not self._tails.is_dir():
            room = max(0, limit // 2 - self._head())
            if data[:room]:
                with self.path.open("ab") as file:
                    file.write(data[:room])
            data = data[room:]
        if not data:
            return
        self._tails.mkdir(exist_ok=True)
        each = max(1, limit // 4)
        segments = self._segments()
        last = segments[-1] if segments else _Segment(self._head(), 0, self._at(self._head()))
        while data:
            if last.size >= each:
                last = _Segment(last.end, 0, self._at(last.end))
            piece, data = data[: each - last.size], data[each - last.size :]
            with last.path.open("ab") as file:
                file.write(piece)
            last = _Segment(last.start, last.size + len(piece), last.path)
        segments = self._segments()
        # One that `trim` left may be larger than two others.
        while len(segments) > 2 or (len(segments) > 1 and self._head() + sum(one.size for one in segments) > limit):
            segments.pop(0).path.unlink(missing_ok=True)

    def skip_to(self, offset: int) -> None:
        """What comes next belongs at ``offset``, beyond what is there: the bytes between are cut out."""
        self._tails.mkdir(exist_ok=True)
        self._at(offset).touch()

    def trim(self, target: int) -> None:
        """Cut until about ``target`` bytes are left, the beginning and the end alike. A crash in between leaves bytes
        twice on the disk and none missing.
        """
        size, half = self.size, target // 2
        head = min(self._head(), half)
        tail = self._last(min(half, size - head))
        self._tails.mkdir(exist_ok=True)
        old = self._segments()
        kept = self._at(size - len(tail))
        partial = self._tails / "partial"
        partial.write_bytes(tail)
        partial.replace(kept)
        for segment in old:
            if segment.path != kept:
                segment.path.unlink(missing_ok=True)
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(head)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self._tails, ignore_errors=True)
        self.path.unlink(missing_ok=True)

    def _at(self, offset: int) -> Path:
        return self._tails / f"{offset:020d}"

    def _last(self, count: int) -> bytes:
        """The last bytes, at most ``count`` of them and none from before a cut."""
        segments = self._segments()
        start = self.size - count
        if segments and segments[0].start > self._head():
            start = max(start, segments[0].start)
        data = b""
        while start < self.size:
            piece, start = self._read(start, count)
            data += piece
        return data

    # ------------------------------------------------------------------------------------------- reading

    def read(self, position: int, count: int) -> tuple[bytes, int]:
        """At most ``count`` bytes from ``position`` on, and the position behind them: nothing and the same position at
        the end. Where something was cut out, a line that says so stands for it.
        """
        for _ in range(_READ_ATTEMPTS - 1):
            # A segment may go while it is looked for; then its place is a cut.
            with contextlib.suppress(FileNotFoundError):
                return self._read(position, count)
        try:
            return self._read(position, count)
        except OSError:
            return b"", position

    def _read(self, position: int, count: int) -> tuple[bytes, int]:
        head = self._head()
        if position < head:
            return _bytes(self.path, position, min(count, head - position)), min(head, position + count)
        for segment in self._segments():
            if position < segment.start:
                return _notice(head, segment.start), segment.start
            if position < segment.end:
                data = _bytes(segment.path, position - segment.start, count)
                return data, position + len(data)
        return b"", position


def _bytes(path: Path, position: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(count)


def _notice(start: int, end: int) -> bytes:
    return (
        f"\n[slotwise: {end - start:,} bytes are cut out here (from byte {start:,} to byte {end:,}): "
        "the log, or all logs of its job together, were over their limit]\n"
    ).encode()
