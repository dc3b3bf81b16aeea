"""Slots that were asked for and that no report of their worker has shown yet (B: SM-06, ML-03)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from slotwise.model.ids import AllocationId, JobId, WorkerId


class UnconfirmedSlots:
    """In the order in which they were asked for, so that only those that are late are ever looked at."""

    def __init__(self) -> None:
        self._where: OrderedDict[AllocationId, WorkerId] = OrderedDict()
        self._of_job: dict[JobId, int] = {}

    def add(self, allocation: AllocationId, worker: WorkerId, job: JobId) -> None:
        """The slot was asked for just now, after all others here."""
        self._where[allocation] = worker
        self._of_job[job] = self._of_job.get(job, 0) + 1

    def remove(self, allocation: AllocationId, job: JobId) -> None:
        """The slot is confirmed, refused or gone; nothing happens when it is not here."""
        if self._where.pop(allocation, None) is not None:
            self._of_job[job] -= 1
            if not self._of_job[job]:
                del self._of_job[job]

    def of_job(self, job: JobId) -> int:
        """How many slots of ``job`` are not confirmed."""
        return self._of_job.get(job, 0)

    def oldest_first(self) -> Iterator[tuple[AllocationId, WorkerId]]:
        """All of them, with their workers; nothing may change meanwhile."""
        return iter(self._where.items())

    def check_invariants(self, expected: Mapping[AllocationId, tuple[WorkerId, JobId, float]]) -> None:
        """Raise AssertionError unless these are unconfirmed: each with its worker, its job and since when."""
        assert self._where == {allocation: worker for allocation, (worker, _, _) in expected.items()}, (
            "the unconfirmed slots are not those that the workers show"
        )
        counts: dict[JobId, int] = {}
        for _, job, _ in expected.values():
            counts[job] = counts.get(job, 0) + 1
        assert self._of_job == counts, "the jobs' unconfirmed slots are miscounted"
        since = [expected[allocation][2] for allocation in self._where]
        assert since == sorted(since), "the unconfirmed slots are not in the order of their ages"
