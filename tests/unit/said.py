"""What a module has logged, whatever logging is set to by whoever ran before."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import structlog


def capture(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[Any]:
    """The lines that ``module`` logs from now on, as dictionaries with ``event`` and ``log_level``."""
    captured = structlog.testing.LogCapture()
    monkeypatch.setattr(module, "log", structlog.wrap_logger(None, processors=[captured]))
    return captured.entries
