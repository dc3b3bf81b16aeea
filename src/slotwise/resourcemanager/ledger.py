"""Who declared what, in which order, and what each job holds (FLIP-138; B: D-01, D-02, D-04, D-06, D-07).

The ledger knows jobs and counts only. Which worker a slot is on is the slot manager's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.model.ids import JobId
from slotwise.model.requirements import Counts, match_slots
from slotwise.model.resources import ResourceProfile


@dataclass
class JobEntry:
    """One job's account. ``order`` is its place in the queue: the time of its first declaration, never moved back.
    ``over``: the job has ended; the account goes with its last slot."""

    job: JobId
    order: int
    version: int = -1
    required: Counts = field(default_factory=dict)
    held: dict[ResourceProfile, int] = field(default_factory=dict)
    over: bool = False

    def missing(self) -> Counts:
        """What is declared and neither held nor pending."""
        return match_slots(self.required, self.held)[0]


class Ledger:
    """The accounts of all jobs. Slots count as held from the moment they are given, before the worker has agreed."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobEntry] = {}
        self._next_order = 0

    def declare(self, job: JobId, version: int, required: Counts) -> bool:
        """Take the absolute requirements of ``job``; false when nothing changed or the version is an old one."""
        entry = self._jobs.get(job)
        if entry is None:
            entry = self._entry(job)
        elif version < entry.version:
            return False
        entry.version = version
        wanted = {profile: count for profile, count in required.items() if count}
        if list(entry.required.items()) == list(wanted.items()):
            return False
        entry.required = wanted
        return True

    def suspend(self, job: JobId) -> None:
        """The job is not heard of: nothing is required until it declares again. It keeps its place (B: D-06)."""
        entry = self._jobs.get(job)
        if entry is not None:
            entry.required = {}
            entry.version = -1

    def forget(self, job: JobId) -> None:
        """The job is over. Its account stays while it holds slots, with no requirements."""
        entry = self._jobs.get(job)
        if entry is None:
            return
        entry.required = {}
        entry.over = True
        if not entry.held:
            del self._jobs[job]

    def gain(self, job: JobId, profile: ResourceProfile) -> None:
        """A slot was given to ``job``, or found to be its on a worker."""
        entry = self._entry(job)
        entry.held[profile] = entry.held.get(profile, 0) + 1

    def lose(self, job: JobId, profile: ResourceProfile) -> None:
        """A slot of ``job`` is gone."""
        entry = self._jobs[job]
        entry.held[profile] -= 1
        if not entry.held[profile]:
            del entry.held[profile]
        if entry.over and not entry.held:
            del self._jobs[job]

    def in_order(self) -> list[JobEntry]:
        """All accounts, first come first."""
        return sorted(self._jobs.values(), key=lambda entry: entry.order)

    def get(self, job: JobId) -> JobEntry | None:
        """The account of ``job``, if it has one."""
        return self._jobs.get(job)

    def _entry(self, job: JobId) -> JobEntry:
        entry = self._jobs.get(job)
        if entry is None:
            entry = self._jobs[job] = JobEntry(job, self._next_order)
            self._next_order += 1
        return entry
