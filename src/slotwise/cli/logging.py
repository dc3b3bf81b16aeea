"""How processes log: structured, to standard error."""

from __future__ import annotations

import contextlib
import logging
import sys

import structlog


class _QuietlyFailing(structlog.PrintLogger):
    """A log that cannot be written must not take down what it reports on."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = log = exception = msg


def configure_logging(level: str) -> None:
    """``level``: debug, info, warning or error. Lines are key=value with an ISO time."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: _QuietlyFailing(sys.stderr),
        cache_logger_on_first_use=True,
    )
