"""Packing by patterns, and the index of workers by classes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.model.ids import WorkerId
from slotwise.model.resources import ZERO, ResourceProfile
from slotwise.resourcemanager.packing import Vector, fill, lower_bound, within
from slotwise.resourcemanager.worker_index import WorkerIndex
from tests.unit.test_matching import BIG, SLOT

vectors = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)).filter(any)


@given(
    st.lists(st.tuples(vectors, st.integers(0, 60)), min_size=1, max_size=6),
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 4)),
    st.integers(1, 40),
)
def test_sm_03_a_fill_fits_and_leaves_no_room_that_something_could_use(
    wanted: list[tuple[Vector, int]], free: Vector, at_most: int
) -> None:
    sizes = [size for size, _ in wanted]
    demand = [count for _, count in wanted]
    fills, left = fill(sizes, demand, free, at_most)
    assert sum(repeat for repeat, _ in fills) <= at_most
    placed = [0] * len(sizes)
    for repeat, pattern in fills:
        room = free
        for p, count in pattern.items():
            placed[p] += repeat * count
            room = tuple(have - count * need for have, need in zip(room, sizes[p], strict=True))
        assert min(room) >= 0
        assert not any(within(size, room) for size, count in zip(sizes, left, strict=True) if count)
    assert [a + b for a, b in zip(placed, left, strict=True)] == demand
    if sum(repeat for repeat, _ in fills) < at_most:
        assert not any(within(size, free) for size, count in zip(sizes, left, strict=True) if count)


@pytest.mark.parametrize("seed", range(12))
def test_packing_stays_within_two_per_cent_of_the_bound_on_mixed_small_profiles(seed: int) -> None:
    drawn = random.Random(seed)
    sizes = [(drawn.choice((250, 500, 1000, 2000)), drawn.choice((1, 2, 3, 4, 6, 8)) * 1024) for _ in range(12)]
    demand = [drawn.randint(50, 800) for _ in sizes]
    total = (16_000, 65_536)
    fills, left = fill(sizes, demand, total, 10**6)
    assert not any(left)
    assert sum(repeat for repeat, _ in fills) <= 1.02 * lower_bound(sizes, demand, total) + 1


def test_packing_reaches_the_bound_where_both_resources_are_equally_scarce() -> None:
    """64 sizes whose sums are in the proportion of the worker's: whatever a pattern wastes of either is lost."""
    amounts = (250, 500, 750, 1000, 1500, 2000, 3000, 4000), (1, 2, 3, 4, 6, 8, 12, 16)
    sizes = [(cpu, memory * 1024) for cpu in amounts[0] for memory in amounts[1]]
    total = (16_000, 65_536)
    fills, left = fill(sizes, [1600] * 64, total, 10**6)
    assert not any(left)
    assert lower_bound(sizes, [1600] * 64, total) == 10_400
    assert sum(repeat for repeat, _ in fills) <= 10_400 * 1.005


def test_packing_is_half_a_per_cent_over_the_bound_on_the_average_of_many_mixes() -> None:
    """Large profiles among few leave no other choice now and then: two in hundred may be up to 3 % over it."""
    choices = (250, 500, 1000, 2000, 3000, 4000), (1, 2, 3, 4, 6, 8, 12, 16)
    total = (16_000, 65_536)
    over = []
    for seed in range(60):
        drawn = random.Random(seed)
        sizes = [(drawn.choice(choices[0]), drawn.choice(choices[1]) * 1024) for _ in range(drawn.choice((12, 24, 40)))]
        demand = [drawn.randint(50, 800) for _ in sizes]
        fills, left = fill(sizes, demand, total, 10**6)
        assert not any(left)
        over.append(sum(repeat for repeat, _ in fills) / lower_bound(sizes, demand, total))
    assert sum(over) / len(over) <= 1.005
    assert sorted(over)[-2] <= 1.02
    assert max(over) <= 1.03


def test_an_index_of_many_classes_stays_sorted_and_whole() -> None:
    drawn = random.Random(5)
    index = WorkerIndex()
    free: dict[WorkerId, ResourceProfile] = {}
    for step in range(6000):
        if drawn.random() < 0.4 or not free:
            worker = WorkerId(f"w{step}")
            free[worker] = ResourceProfile(drawn.randrange(200), drawn.randrange(200))
            index.add(worker, step, BIG, free[worker], SLOT)
        elif drawn.random() < 0.7:
            worker = drawn.choice(list(free))
            free[worker] = ResourceProfile(drawn.randrange(200), drawn.randrange(200))
            index.update_free(worker, free[worker])
        else:
            worker = drawn.choice(list(free))
            del free[worker]
            index.remove(worker)
    found = {worker: key[1] for key, workers in index.snapshot().items() for worker in workers}
    assert found == free
    classes = list(index.classes())
    assert [entry.key for entry in classes] == sorted(entry.key for entry in classes)
    passing = [entry for entry in classes if entry.cpu_milli >= 150 and entry.memory_bytes >= 120]
    assert list(index.classes((150, 120))) == passing
    summed = sum(free.values(), ZERO)
    assert index.free() == (summed.cpu_milli, summed.memory_bytes)
