"""Who was last heard of when, so that heartbeat time-outs cost nothing while nobody is silent (B: D-06, F-01)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")


class LastHeard(Generic[K]):
    """Times of the last sign of life, the longest silence first. Because time never goes back, whoever is heard of
    goes to the end, and nothing is ever sorted.
    """

    def __init__(self) -> None:
        self._at: OrderedDict[K, float] = OrderedDict()

    def hear(self, who: K, now: float) -> None:
        """``who`` was heard of at ``now`` (monotonic seconds, never less than in an earlier call)."""
        self._at[who] = now
        self._at.move_to_end(who)

    def forget(self, who: K) -> None:
        """``who`` is not waited for any more; nothing happens when it never was."""
        self._at.pop(who, None)

    def last(self, who: K) -> float:
        """When ``who``, who must be known, was last heard of."""
        return self._at[who]

    def silent(self, timeout_s: float, now: float) -> list[K]:
        """Those that have been silent for more than ``timeout_s``, the longest silence first."""
        found = []
        for who, at in self._at.items():
            if at + timeout_s >= now:
                break
            found.append(who)
        return found

    def check_invariants(self, expected: Mapping[K, float]) -> None:
        """Raise AssertionError unless these are the times, in their order."""
        assert self._at == expected, "the times of the last signs of life differ"
        times = list(self._at.values())
        assert times == sorted(times), "the last signs of life are not in the order of their times"
