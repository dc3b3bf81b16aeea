"""How long jobs wait for slots: from the moment when a slot began to be missing until the job holds one of its size.

Kept as runs of (time, count), so that it does not grow with the number of slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from slotwise.model.requirements import Counts
from slotwise.model.resources import ResourceProfile


class AllocationLatency:
    """``observe`` is given the seconds that each acquired slot was waited for."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._open: dict[str, dict[ResourceProfile | None, deque[list[float]]]] = {}

    def acquired(self, job: str, profile: ResourceProfile | None, now: float) -> None:
        """``job`` holds one more slot of ``profile``: what was missing for the longest time has come. A job that has
        not stated its sizes waits for slots of the profile None.
        """
        wishes = self._open.get(job, {})
        runs = wishes.get(profile) or wishes.get(None)
        if runs:
            self._observe(max(0.0, now - runs[0][0]))
            runs[0][1] -= 1
            if not runs[0][1]:
                runs.popleft()

    def missing(self, job: str, counts: Counts, now: float) -> None:
        """``job`` lacks these slots now. What is new among them is waited for from now on; of what is not lacking any
        more, the newest wishes were withdrawn.
        """
        wishes = self._open.setdefault(job, {})
        for profile in {**wishes, **counts}:
            runs = wishes.setdefault(profile, deque())
            more = counts.get(profile, 0) - sum(int(run[1]) for run in runs)
            if more > 0:
                runs.append([now, more])
            while more < 0:
                withdrawn = min(-more, int(runs[-1][1]))
                runs[-1][1] -= withdrawn
                more += withdrawn
                if not runs[-1][1]:
                    runs.pop()
            if not runs:
                del wishes[profile]
        if not wishes:
            del self._open[job]

    def forget(self, job: str) -> None:
        """The job is over."""
        self._open.pop(job, None)
