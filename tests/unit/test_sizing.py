"""The sums behind minimum, maximum and redundancy (B: SZ-04 … SZ-09)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.model.errors import ConfigError
from slotwise.model.resources import GIB, ZERO, ResourceProfile
from slotwise.resourcemanager.sizing import Sizing, WorkerShape, check_stability

TOTAL = ResourceProfile(4000, 8 * GIB)
SHAPE = WorkerShape(TOTAL, ResourceProfile(1000, 2 * GIB))


def test_sz_04_the_smaller_of_both_maxima_wins() -> None:
    sizing = Sizing(SHAPE, max_total=ResourceProfile(16000, 17 * GIB), max_workers=9)
    assert sizing.more_workers(ZERO, 0) == 2
    assert sizing.more_workers(TOTAL, 1) == 1
    assert sizing.more_workers(TOTAL * 2, 2) == 0
    assert Sizing(SHAPE, max_workers=1).more_workers(ZERO, 0) == 1


def test_sz_04_a_worker_above_the_maximum_is_not_admitted() -> None:
    sizing = Sizing(SHAPE, max_total=ResourceProfile(8000, 100 * GIB))
    assert sizing.admits(TOTAL, 1, TOTAL)
    assert not sizing.admits(TOTAL * 2, 2, TOTAL)
    assert not Sizing(SHAPE, max_workers=2).admits(TOTAL * 2, 2, TOTAL)
    assert Sizing().admits(TOTAL * 1000, 1000, TOTAL)


def test_sz_05_the_minimum_is_counted_in_whole_workers_over_both_dimensions() -> None:
    sizing = Sizing(SHAPE, min_total=ResourceProfile(5000, 30 * GIB))
    assert sizing.workers_for_minimum(ZERO) == 4
    assert sizing.workers_for_minimum(TOTAL * 3) == 1
    assert sizing.workers_for_minimum(TOTAL * 4) == 0
    assert Sizing(None, min_total=TOTAL).workers_for_minimum(ZERO) == 0


def test_sz_09_redundancy_is_measured_in_whole_default_slots() -> None:
    sizing = Sizing(SHAPE, redundant_workers=2)
    assert sizing.workers_for_redundancy(0) == 2
    assert sizing.workers_for_redundancy(4) == 1
    assert sizing.workers_for_redundancy(7) == 1
    assert sizing.workers_for_redundancy(8) == 0


def test_sz_07_a_worker_that_the_minimum_or_the_redundancy_needs_is_not_spared() -> None:
    assert Sizing(SHAPE).can_spare(TOTAL, TOTAL, 4)
    assert not Sizing(SHAPE, min_total=TOTAL).can_spare(TOTAL, TOTAL, 4)
    assert Sizing(SHAPE, min_total=TOTAL).can_spare(TOTAL * 2, TOTAL, 8)
    assert not Sizing(SHAPE, redundant_workers=1).can_spare(TOTAL * 2, TOTAL, 7)
    assert Sizing(SHAPE, redundant_workers=1).can_spare(TOTAL * 2, TOTAL, 8)
    assert not Sizing().can_spare(TOTAL, TOTAL, 4)


def test_sz_06_the_proposals_example_is_refused_with_both_figures_and_counts() -> None:
    """FLIP-362: five slots a worker, at least 11 and at most 14 slots: three workers would be 15."""
    slot = ResourceProfile(1000, GIB)
    sizing = Sizing(WorkerShape(slot * 5, slot), min_total=slot * 11, max_total=slot * 14)
    with pytest.raises(ConfigError) as refused:
        check_stability(sizing)
    for part in ("11 CPU", "11 GiB", "14 CPU", "14 GiB", "needs 3 worker(s)", "allows 2"):
        assert part in str(refused.value)


def test_sz_06_the_dimensions_are_checked_together() -> None:
    sizing = Sizing(SHAPE, min_total=ResourceProfile(1000, 20 * GIB), max_total=ResourceProfile(8000, 100 * GIB))
    with pytest.raises(ConfigError, match=r"needs 3 worker.*allows 2"):
        check_stability(sizing)


def test_sz_06_redundancy_is_included() -> None:
    with pytest.raises(ConfigError, match="2 redundant"):
        check_stability(Sizing(SHAPE, min_total=TOTAL, redundant_workers=2, max_workers=2))
    check_stability(Sizing(SHAPE, min_total=TOTAL, redundant_workers=1, max_workers=2))


def test_sz_06_no_minimum_switches_the_check_off() -> None:
    check_stability(Sizing(SHAPE, max_total=ResourceProfile(1, 1)))
    check_stability(Sizing(SHAPE, min_total=ZERO, max_total=ResourceProfile(1, 1)))
    check_stability(Sizing(None, min_total=TOTAL * 5, max_workers=1))


@given(st.integers(0, 100_000), st.integers(0, 100 * GIB), st.integers(0, 100_000), st.integers(0, 100 * GIB))
def test_sz_06_limits_that_pass_never_swing(low_cpu: int, low_memory: int, high_cpu: int, high_memory: int) -> None:
    sizing = Sizing(
        SHAPE, min_total=ResourceProfile(low_cpu, low_memory), max_total=ResourceProfile(high_cpu, high_memory)
    )
    try:
        check_stability(sizing)
    except ConfigError:
        return
    count = sizing.workers_for_minimum(ZERO)
    there = TOTAL * count
    assert sizing.min_total is not None
    if not sizing.min_total.is_zero:
        assert count <= sizing.more_workers(ZERO, 0)
    if count:
        # What the minimum has asked for is not let go again.
        assert not sizing.can_spare(there, TOTAL, 4 * count)
