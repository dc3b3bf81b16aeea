"""The record of jobs on disk: one directory a job, written before a submission is acknowledged.

``job.json`` holds the specification, ``progress.json`` how far it is, ``result.json`` how it ended. Each is written
whole: to a file beside it, synced, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slotwise.protocol.effects import PersistCancel, PersistJob, PersistProgress, PersistRecord, PersistResult

_FILES = {
    PersistJob: "job.json",
    PersistResult: "result.json",
    PersistProgress: "progress.json",
    PersistCancel: "cancel.json",
}


class JobStore:
    """Jobs below ``directory``. Raises OSError when the disk will not take a record."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def persist(self, record: PersistRecord) -> None:
        """Write a record durably."""
        name = _FILES[type(record)]
        folder = self._directory / record.job
        folder.mkdir(mode=0o700, exist_ok=True)
        partial = folder / f"{name}.partial"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)
