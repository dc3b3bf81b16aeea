"""The slot table, the ground truth (B: ST-01, ST-02, ST-03)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotwise.model.ids import Address, AllocationId, JobId
from slotwise.model.resources import GIB, ResourceProfile, fits
from slotwise.taskexecutor.slot_table import Refusal, SlotTable

TOTAL = ResourceProfile(4000, 8 * GIB)
SIZE = ResourceProfile(1000, 2 * GIB)
A, B = AllocationId("a"), AllocationId("b")
JOB, OTHER = JobId("job"), JobId("other")
JM = Address("jm:job")


def test_st_01_the_same_allocation_twice_is_one_slot() -> None:
    table = SlotTable(TOTAL)
    assert table.allocate(A, JOB, SIZE, JM, 0.0)
    assert not table.allocate(A, JOB, SIZE, JM, 1.0)
    assert table.available == TOTAL - SIZE


@pytest.mark.parametrize(("job", "profile"), [(OTHER, SIZE), (JOB, ResourceProfile(1, 1))])
def test_st_01_the_same_id_for_something_else_is_refused(job: JobId, profile: ResourceProfile) -> None:
    table = SlotTable(TOTAL)
    table.allocate(A, JOB, SIZE, JM, 0.0)
    with pytest.raises(Refusal):
        table.allocate(A, job, profile, JM, 1.0)
    assert table.available == TOTAL - SIZE


def test_st_02_over_budget_is_refused_and_changes_nothing() -> None:
    table = SlotTable(TOTAL)
    with pytest.raises(Refusal, match="available"):
        table.allocate(A, JOB, ResourceProfile(1000, 9 * GIB), JM, 0.0)
    assert table.available == TOTAL
    assert table.slots == {}


def test_st_03_resources_are_back_the_moment_a_slot_is_destroyed() -> None:
    table = SlotTable(TOTAL)
    table.allocate(A, JOB, TOTAL, JM, 0.0)
    table.free(A)
    assert table.available == TOTAL
    assert table.allocate(B, OTHER, TOTAL, JM, 0.0)


class AgainstACounter(RuleBasedStateMachine):
    """Any order of calls agrees with a plain dictionary of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(TOTAL)
        self.model: dict[AllocationId, ResourceProfile] = {}

    @rule(name=st.sampled_from("abcdef"), cpu=st.integers(0, 2500), gib=st.integers(0, 5))
    def allocate(self, name: str, cpu: int, gib: int) -> None:
        allocation, size = AllocationId(name), ResourceProfile(cpu, gib * GIB)
        known = self.model.get(allocation)
        if known is not None:
            if known == size:
                assert not self.table.allocate(allocation, JOB, size, JM, 0.0)
            else:
                with pytest.raises(Refusal):
                    self.table.allocate(allocation, JOB, size, JM, 0.0)
        elif fits(size, self.table.available):
            assert self.table.allocate(allocation, JOB, size, JM, 0.0)
            self.model[allocation] = size
        else:
            with pytest.raises(Refusal):
                self.table.allocate(allocation, JOB, size, JM, 0.0)

    @rule(name=st.sampled_from("abcdef"))
    def free(self, name: str) -> None:
        if AllocationId(name) in self.model:
            self.table.free(AllocationId(name))
            del self.model[AllocationId(name)]

    @invariant()
    def sums(self) -> None:
        self.table.check_invariants()
        assert {s.allocation: s.profile for s in self.table.statuses()} == self.model


TestAgainstACounter = AgainstACounter.TestCase
TestAgainstACounter.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
