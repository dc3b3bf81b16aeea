"""Plants a bug: changes the source of one module while it is imported, and no file on disk (``planted`` tests)."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import NamedTuple


class PlantedBug(NamedTuple):
    """One change: the ``old`` text, which occurs once in ``module``, becomes ``new``. ``means``: what is wrong then.
    ``unseen``: why 500 seeds do not show it, if they do not.
    """

    name: str
    module: str
    old: str
    new: str
    means: str
    unseen: str = ""


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads the changed source."""

    bug: PlantedBug

    def get_code(self, fullname: str) -> CodeType | None:
        """Never from a cache."""
        return self.source_to_code(self.get_data(self.path), self.path)

    def source_to_code(self, data: object, path: object, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        """Compile the source with the change in it."""
        assert isinstance(data, bytes)
        return compile(changed(data.decode(), self.bug), str(path), "exec", dont_inherit=True, optimize=_optimize)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, bug: PlantedBug) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The changed module; everything else is left to the other finders."""
        if fullname != self._bug.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(fullname, spec.origin)
        loader.bug = self._bug
        spec.loader = loader
        return spec


def changed(source: str, bug: PlantedBug) -> str:
    """The source with the bug in it. Raises ValueError unless the old text is there exactly once."""
    count = source.count(bug.old)
    if count != 1:
        raise ValueError(f"planted bug {bug.name}: its text occurs {count} times in {bug.module}, not once")
    return source.replace(bug.old, bug.new)


def plant(bug: PlantedBug) -> None:
    """From now on the module is imported with the bug. It must not have been imported yet."""
    if bug.module in sys.modules:
        raise RuntimeError(f"{bug.module} is imported already")
    sys.meta_path.insert(0, _Finder(bug))
