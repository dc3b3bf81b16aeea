"""How processes log: structured, to standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import structlog

from slotwise.runtime.log_context import add_context, hidden, recent_lines

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class _Output(structlog.PrintLogger):
    """Standard error, and the newest lines in memory. A log that cannot be written must not take down what it reports
    on.
    """

    def msg(self, message: str) -> None:
        recent_lines.add(message)
        with contextlib.suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = log = exception = msg


def _hide(_logger: object, _method: str, line: Any) -> str:
    return hidden(line)


def output_file() -> Path | None:
    """The file that standard error is written to, if it is one (as by a shell's ``2>``, or systemd's ``append:``)."""
    try:
        descriptor = sys.stderr.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        same = stat.S_ISREG(os.fstat(descriptor).st_mode) and os.path.samestat(path.stat(), os.fstat(descriptor))
    except (OSError, ValueError):
        return None
    return path if same else None


def configure_logging(level: str, log_format: str = "text", **bound: str) -> None:
    """``level``: debug, info, warning or error. ``log_format``: text (key=value) or json, a line each, with an ISO
    time. ``bound`` is in every line.
    """
    key_order = ["timestamp", "level", "event"]
    render: Any = structlog.processors.LogfmtRenderer(key_order=key_order, bool_as_flag=False)
    if log_format == "json":
        render = structlog.processors.JSONRenderer(serializer=json.dumps, ensure_ascii=False)
    structlog.contextvars.bind_contextvars(**bound)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_context,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
            _hide,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: _Output(sys.stderr),
        cache_logger_on_first_use=True,
    )
