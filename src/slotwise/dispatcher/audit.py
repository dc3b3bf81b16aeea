"""The audit log: one JSON object a line for every call that may change something, and for every refusal.

It is for people and their tools. Where it cannot be written the service goes on, and its own log says so. The newest
``audit.jsonl`` and nine older files are kept, 10 MiB each."""

from __future__ import annotations

import datetime
import os
from collections import OrderedDict
from pathlib import Path

import msgspec
import structlog

from slotwise.runtime.clock import monotonic, unix_time

log = structlog.get_logger(__name__)

FILE = "audit.jsonl"
_MAX_BYTES = 10 * 1024 * 1024
_OLDER = 9
_STRANGER_PAUSE_S = 1.0
_STRANGERS = 1000
_TEXT = 500


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call. ``who`` is the token's name; ``result`` is ok, refused or failed; ``repeated``: so many more of the same
    peer's refusals came since the last line about it.
    """

    time: str
    who: str
    role: str
    via: str
    peer: str
    call: str
    object: str
    result: str
    status: int
    detail: str = ""
    repeated: int = 0


class AuditLog:
    """Appends to ``<directory>/audit.jsonl``, readable by its owner only."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._failed = False
        self._strangers: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(
        self,
        *,
        who: str,
        role: str,
        via: str,
        peer: str,
        call: str,
        path: str,
        status: int,
        detail: str = "",
    ) -> None:
        """Note a call. Those whom nobody knows cannot fill the disk: a line a second each, with how many came."""
        repeated = 0
        if role == "none":
            now = monotonic()
            last, repeated = self._strangers.pop(peer, (-_STRANGER_PAUSE_S, 0))
            if last + _STRANGER_PAUSE_S > now:
                self._strangers[peer] = (last, repeated + 1)
                return
            self._strangers[peer] = (now, 0)
            if len(self._strangers) > _STRANGERS:
                self._strangers.popitem(last=False)
        result = "ok" if status < 400 else "refused" if status in (401, 403) else "failed"
        line = AuditLine(
            time=datetime.datetime.fromtimestamp(unix_time(), datetime.UTC).isoformat(timespec="milliseconds"),
            who=who,
            role=role,
            via=via,
            peer=peer,
            call=call,
            object=path[:_TEXT],
            result=result,
            status=status,
            detail=detail[:_TEXT],
            repeated=repeated,
        )
        try:
            self._append(msgspec.json.encode(line) + b"\n")
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.error("cannot write the audit log", path=str(self._path), error=str(error))
            self._failed = True

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line)
            full = file.tell() >= _MAX_BYTES
        if full:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(_OLDER, 0, -1):
            older = self._path.with_name(f"{FILE}.{number}")
            newer = self._path.with_name(f"{FILE}.{number - 1}") if number > 1 else self._path
            if newer.exists():
                newer.replace(older)
