"""Slotwise: a resource manager and job service for PySpark.

:class:`Client` and :class:`AsyncClient` call a master from Python; both are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotwise.async_client import AsyncClient
    from slotwise.client import Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.1.0"

_LAZY = {"AsyncClient": "slotwise.async_client", "Client": "slotwise.client"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return found
