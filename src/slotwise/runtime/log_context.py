"""What a log line is about: the message that is being handled, and whom it concerns.

An actor notes its stimulus here; only a line that is really written looks at it."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

from slotwise.protocol.messages import Envelope

_stimulus: ContextVar[object] = ContextVar("stimulus", default=None)
# Every secret that is drawn here has 64 hexadecimal digits, or is a token that says so itself.
_LOOKS_SECRET = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-f]{48,}(?![0-9A-Za-z])|slw_[0-9A-Za-z_-]{20,})")
_HIDDEN = "[hidden]"
_KEPT_BYTES = 256 * 1024


def handling(stimulus: object) -> None:
    """What is logged from now on in this task, and in those that it starts, comes of ``stimulus``."""
    _stimulus.set(stimulus)


def add_context(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: adds the message's id, kind and sender, and the job, worker and allocation that it is
    about, where the line does not say them itself.
    """
    stimulus = _stimulus.get()
    if stimulus is None:
        return line
    payload: object = stimulus
    if isinstance(stimulus, Envelope):
        payload = stimulus.payload
        line.setdefault("message", stimulus.id)
        line.setdefault("message_kind", type(payload).__name__)
        line.setdefault("message_from", stimulus.sender)
    for name in ("job", "worker", "allocation"):
        found = getattr(payload, name, None)
        if isinstance(found, str):
            line.setdefault(name, found)
    return line


class Redactor:
    """Takes secrets out of lines: those that it is told, and whatever looks like one. No caller means to log any; this
    is for what slips in with an error's text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = [secret for secret in secrets if secret]

    def add(self, secret: str) -> None:
        """Hide this from now on."""
        if secret and secret not in self._secrets:
            self._secrets.append(secret)

    def __call__(self, text: str) -> str:
        """``text`` without secrets."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, _HIDDEN)
        return _LOOKS_SECRET.sub(_HIDDEN, text)


class RecentLines:
    """The newest lines of this process's log, at most ``limit`` bytes, at their offsets in all that was logged."""

    def __init__(self, limit: int = _KEPT_BYTES) -> None:
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._lock = threading.Lock()
        self.end = 0

    def add(self, line: str) -> None:
        """One more line. From any thread."""
        data = line.encode("utf-8", "replace") + b"\n"
        with self._lock:
            self._lines.append(data)
            self._held += len(data)
            self.end += len(data)
            while self._held > self._limit and len(self._lines) > 1:
                self._held -= len(self._lines.popleft())

    def since(self, offset: int) -> tuple[int, bytes]:
        """What was logged from ``offset`` on, as far as it is held: the offset of its first byte, and the bytes."""
        with self._lock:
            first = self.end - self._held
            start = max(first, offset)
            return start, b"".join(self._lines)[start - first :] if start < self.end else b""


recent_lines = RecentLines()
"""Of this process."""
hidden = Redactor()
"""Of this process."""
