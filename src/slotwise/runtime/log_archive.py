"""All logs of a job as one zip, made while it is sent."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from slotwise.model.ids import JobId
from slotwise.runtime.cut_log import CutLog
from slotwise.runtime.logs import LogStore

_PIECE_BYTES = 256 * 1024
# 1980-01-02: a zip knows no earlier time.
_FIRST_S = 315619200.0


class _Sink:
    """Where the archive is written to: bytes that wait to be sent."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes, /) -> int:
        self._data += data
        return len(data)

    def close(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


def job_archive(logs: LogStore, job: JobId, others: Iterable[Path] = ()) -> Iterator[bytes]:
    """The bytes of a zip with every log of ``job`` (as a reader sees it, with a word for what was cut out) and the
    files ``others`` beside them, below a folder of the job's name. Each has at most the bytes that it had when its turn
    began.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        entries = [(f"logs/{name}", logs.path(job, name)) for name in logs.names(job)]
        entries += [(path.name, path) for path in others if path.is_file()]
        for name, path in entries:
            if path is None:
                continue
            try:
                modified = time.localtime(max(_FIRST_S, path.stat().st_mtime))[:6]
            except OSError:
                # Removed since it was listed.
                continue
            source, position = CutLog(path), 0
            end = source.size
            info = zipfile.ZipInfo(f"{job}/{name}", modified)
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as entry:
                while position < end:
                    data, position = source.read(position, min(_PIECE_BYTES, end - position))
                    if not data:
                        break
                    entry.write(data)
                    yield sink.take()
            yield sink.take()
    yield sink.take()
