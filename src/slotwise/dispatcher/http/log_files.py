"""Logs as they are served: bytes of a file from an offset, and on while it grows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from starlette.responses import StreamingResponse

from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.problems import not_found
from slotwise.dispatcher.http.shapes import LogFile, LogFiles
from slotwise.runtime.cut_log import CutLog

PLAIN = "text/plain; charset=utf-8"
_PIECE_BYTES = 256 * 1024
_POLL_S = 0.2
_PLAIN_NAME = re.compile(r"^[A-Za-z0-9._-]+$")


def listing(paths: Iterable[Path]) -> LogFiles:
    """The files that are there."""
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append(LogFile(path.name, CutLog(path).stored, int(status.st_mtime * 1000)))
    return LogFiles(found)


def one_of(paths: Iterable[Path], name: str, whose: str) -> Path:
    """The file of this name among ``paths``: never another, whatever the name looks like."""
    for path in paths:
        if path.name == name and path.is_file():
            return path
    raise not_found(f"{whose} has no log {name[:200]!r}")


def serve(ask: Ask, path: Path, go_on: Callable[[], bool] | None = None) -> StreamingResponse:
    """The bytes of ``path`` from ``offset``, or the last ``tail`` of them. With ``go_on`` it is followed until that
    says no: what was written before it did is served.
    """
    offset = ask["offset"]
    if ask["tail"] is not None:
        size = path.stat().st_size if path.is_file() else 0
        offset = max(0, size - ask["tail"])
    headers = {"Cache-Control": "no-store", "X-Log-Offset": str(offset)}
    if ask["download"]:
        headers["Content-Disposition"] = _attachment(path.name)
    return StreamingResponse(_pieces(path, offset, go_on), headers=headers, media_type=PLAIN)


async def _pieces(path: Path, offset: int, go_on: Callable[[], bool] | None) -> AsyncIterator[bytes]:
    position = offset
    while True:
        more = go_on is not None and go_on()
        data, position = await asyncio.to_thread(CutLog(path).read, position, _PIECE_BYTES)
        while data:
            yield data
            data, position = await asyncio.to_thread(CutLog(path).read, position, _PIECE_BYTES)
        if not more:
            return
        await asyncio.sleep(_POLL_S)


def _attachment(name: str) -> str:
    plain = name if _PLAIN_NAME.match(name) else "log.txt"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
