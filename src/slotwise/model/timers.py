"""Named deadlines of a machine. Machines never read a clock: `now` is always an argument (design decision 1)."""

from __future__ import annotations

from collections.abc import Hashable


class Timers:
    """A set of deadlines by key. Setting a key again moves its deadline."""

    def __init__(self) -> None:
        self._deadlines: dict[Hashable, float] = {}

    def set(self, key: Hashable, at: float) -> None:
        """(Re)arm ``key`` to fire at monotonic time ``at`` (seconds)."""
        self._deadlines[key] = at

    def set_once(self, key: Hashable, at: float) -> None:
        """Arm ``key`` unless it is armed already."""
        self._deadlines.setdefault(key, at)

    def clear(self, key: Hashable) -> None:
        """Disarm ``key`` if it is armed."""
        self._deadlines.pop(key, None)

    def is_set(self, key: Hashable) -> bool:
        """Whether ``key`` is armed."""
        return key in self._deadlines

    def next(self) -> float | None:
        """The earliest deadline, or None when nothing is armed."""
        return min(self._deadlines.values(), default=None)

    def pop_due(self, now: float) -> list[Hashable]:
        """Disarm and return the keys that are due at ``now``, earliest first, in the order they were armed."""
        due = sorted(
            ((at, position, key) for position, (key, at) in enumerate(self._deadlines.items()) if at <= now),
            key=lambda entry: entry[:2],
        )
        for _, _, key in due:
            del self._deadlines[key]
        return [key for _, _, key in due]
