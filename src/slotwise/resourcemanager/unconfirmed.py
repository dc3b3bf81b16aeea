"""Slots that were asked for and that no report of their worker has shown yet (B: SM-06, ML-03)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from slotwise.model.ids import AllocationId, JobId, WorkerId


class UnconfirmedSlots:
    """In the order in which they were asked for, so that only those that are late are ever looked at.

    A slot is named by its worker and its allocation: what another worker reports under the same id is another slot.
    """

    def __init__(self) -> None:
        self._slots: OrderedDict[tuple[WorkerId, AllocationId], JobId] = OrderedDict()
        self._of_job: dict[JobId, int] = {}

    def add(self, worker: WorkerId, allocation: AllocationId, job: JobId) -> None:
        """The slot was asked for just now, after all others here."""
        self._slots[(worker, allocation)] = job
        self._of_job[job] = self._of_job.get(job, 0) + 1

    def remove(self, worker: WorkerId, allocation: AllocationId) -> None:
        """The slot is confirmed, refused or gone; nothing happens when it is not here."""
        job = self._slots.pop((worker, allocation), None)
        if job is not None:
            self._of_job[job] -= 1
            if not self._of_job[job]:
                del self._of_job[job]

    def of_job(self, job: JobId) -> int:
        """How many slots of ``job`` are not confirmed."""
        return self._of_job.get(job, 0)

    def oldest_first(self) -> Iterator[tuple[WorkerId, AllocationId]]:
        """All of them; nothing may change meanwhile."""
        return iter(self._slots)

    def check_invariants(self, expected: Mapping[tuple[WorkerId, AllocationId], tuple[JobId, float]]) -> None:
        """Raise AssertionError unless these are unconfirmed: each with its job and since when."""
        assert self._slots == {slot: job for slot, (job, _) in expected.items()}, (
            "the unconfirmed slots are not those that the workers show"
        )
        counts: dict[JobId, int] = {}
        for job, _ in expected.values():
            counts[job] = counts.get(job, 0) + 1
        assert self._of_job == counts, "the jobs' unconfirmed slots are miscounted"
        since = [expected[slot][1] for slot in self._slots]
        assert since == sorted(since), "the unconfirmed slots are not in the order of their ages"
