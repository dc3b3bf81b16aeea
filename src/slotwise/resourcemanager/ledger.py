"""Who declared what, in which order, and what each job holds (FLIP-138; B: D-01, D-02, D-04, D-06, D-07).

The ledger knows jobs and counts only. Which worker a slot is on is the slot manager's business. Which jobs lack
something is kept up to date: only an account that changed is looked at again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from slotwise.model.ids import JobId
from slotwise.model.requirements import Counts
from slotwise.model.resources import ResourceProfile


@dataclass(slots=True)
class JobEntry:
    """One job's account. ``order`` is its place in the queue: the time of its first declaration, never moved back.
    ``declared``: the job has declared here; one that is known from workers alone is over, or will declare. ``over``:
    it has ended; then, as while it has not declared, the account goes with its last slot. ``yields``: it takes what
    nobody else wants."""

    job: JobId
    order: int
    version: int = -1
    required: Counts = field(default_factory=dict)
    held: dict[ResourceProfile, int] = field(default_factory=dict)
    declared: bool = False
    over: bool = False
    yields: bool = False

    def missing(self) -> Counts:
        """What is declared and neither held nor pending: what :func:`~slotwise.model.requirements.match_slots` finds
        missing, in time that grows with the number of profiles.
        """
        held = self.held
        missing = {
            profile: count - (0 if profile is None else held.get(profile, 0))
            for profile, count in self.required.items()
            if profile is None or count > held.get(profile, 0)
        }
        if None in missing:
            # Unknown profiles take whatever is held beyond the exact ones (B: SP-03).
            surplus = sum(max(0, count - self.required.get(profile, 0)) for profile, count in held.items())
            missing[None] -= surplus
            if missing[None] <= 0:
                del missing[None]
        return missing


class Ledger:
    """The accounts of all jobs. Slots count as held from the moment they are given, before the worker has agreed."""

    def __init__(self) -> None:
        self.yielding: set[JobId] = set()
        """The jobs that take what nobody else wants. Not to be changed by the caller."""
        self._jobs: dict[JobId, JobEntry] = {}
        self._next_order = 0
        self._changed: dict[JobId, None] = {}
        self._short: list[int] = []
        self._lacks: dict[int, tuple[JobId, Counts]] = {}

    def declare(self, job: JobId, version: int, required: Counts, *, yields: bool = False) -> bool:
        """Take the absolute requirements of ``job``; false when nothing changed or the version is an old one."""
        entry = self._jobs.get(job)
        if entry is None:
            entry = self._entry(job)
        elif version < entry.version:
            return False
        entry.version = version
        entry.declared, entry.over = True, False
        changed = entry.yields != yields
        entry.yields = yields
        (self.yielding.add if yields else self.yielding.discard)(job)
        wanted = {profile: count for profile, count in required.items() if count}
        if list(entry.required.items()) == list(wanted.items()):
            return changed
        entry.required = wanted
        self._changed[job] = None
        return True

    def suspend(self, job: JobId) -> None:
        """The job is not heard of: nothing is required until it declares again. It keeps its place (B: D-06), and what
        it had declared before its last declaration stays overtaken.
        """
        entry = self._jobs.get(job)
        if entry is not None:
            entry.required = {}
            self._changed[job] = None

    def renew(self, job: JobId) -> None:
        """The job has a new leader, which counts its versions afresh."""
        self.suspend(job)
        entry = self._jobs.get(job)
        if entry is not None:
            entry.version = -1

    def forget(self, job: JobId) -> None:
        """The job is over. Its account stays while it holds slots, with no requirements."""
        entry = self._jobs.get(job)
        if entry is None:
            return
        entry.required = {}
        entry.over = True
        self._changed[job] = None
        if not entry.held:
            self._delete(entry)

    def gain(self, job: JobId, profile: ResourceProfile, count: int = 1) -> None:
        """``count`` slots were given to ``job``, or found to be its on a worker."""
        entry = self._entry(job)
        entry.held[profile] = entry.held.get(profile, 0) + count
        self._changed[job] = None

    def lose(self, job: JobId, profile: ResourceProfile) -> None:
        """A slot of ``job`` is gone."""
        entry = self._jobs[job]
        entry.held[profile] -= 1
        if not entry.held[profile]:
            del entry.held[profile]
        self._changed[job] = None
        if (entry.over or not entry.declared) and not entry.held:
            self._delete(entry)

    def lacking(self) -> list[tuple[JobId, Counts]]:
        """The jobs that lack something, first come first, with what each lacks. Not to be changed by the caller.

        What a job lacks is the same object as before unless its account has changed."""
        self._look_again()
        return [self._lacks[order] for order in self._short]

    def ahead_of(self, entry: JobEntry) -> int:
        """How many jobs that lack something are served before this one."""
        self._look_again()
        return bisect_left(self._short, entry.order)

    def in_order(self) -> list[JobEntry]:
        """All accounts, first come first."""
        return sorted(self._jobs.values(), key=lambda entry: entry.order)

    def get(self, job: JobId) -> JobEntry | None:
        """The account of ``job``, if it has one."""
        return self._jobs.get(job)

    def check_invariants(self) -> None:
        """Raise AssertionError unless what is kept about missing slots is what the accounts say."""
        expected = [(entry.job, missing) for entry in self.in_order() if (missing := entry.missing())]
        assert self.lacking() == expected, "the jobs that lack something are not those that the accounts show"
        assert self.yielding == {entry.job for entry in self.in_order() if entry.yields}

    def _look_again(self) -> None:
        for job in self._changed:
            entry = self._jobs.get(job)
            if entry is not None:
                self._note(entry.order, job, entry.missing())
        self._changed.clear()

    def _note(self, order: int, job: JobId, missing: Counts) -> None:
        if missing:
            if order not in self._lacks:
                insort(self._short, order)
            self._lacks[order] = (job, missing)
        elif self._lacks.pop(order, None) is not None:
            del self._short[bisect_left(self._short, order)]

    def _delete(self, entry: JobEntry) -> None:
        del self._jobs[entry.job]
        self.yielding.discard(entry.job)
        self._note(entry.order, entry.job, {})

    def _entry(self, job: JobId) -> JobEntry:
        entry = self._jobs.get(job)
        if entry is None:
            entry = self._jobs[job] = JobEntry(job, self._next_order)
            self._next_order += 1
        return entry
