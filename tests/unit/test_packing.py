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
