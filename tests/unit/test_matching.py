"""Matching: tables, and properties against a model that is slow and obviously right."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.model.ids import JobId, WorkerId
from slotwise.model.requirements import Counts, match_slots
from slotwise.model.resources import GIB, MIB, ZERO, ResourceProfile, fits, times_fitting
from slotwise.resourcemanager.ledger import JobEntry
from slotwise.resourcemanager.matching import Need, Plan, Template, plan
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerIndex

BIG = ResourceProfile(16_000, 64 * GIB)
SLOT = ResourceProfile(1000, 4 * GIB)
SIX = [
    ResourceProfile(cpu, memory * MIB)
    for cpu, memory in ((1000, 4096), (500, 2048), (2000, 8192), (4000, 8192), (1000, 16384), (250, 1024))
]


@dataclass(frozen=True)
class Host:
    """A worker of a test."""

    worker: str
    total: ResourceProfile
    free: ResourceProfile
    default: ResourceProfile = SLOT


def hosts(count: int, total: ResourceProfile, default: ResourceProfile = SLOT, name: str = "w") -> list[Host]:
    return [Host(f"{name}{i:04d}", total, total, default) for i in range(count)]


def index_of(workers: Iterable[Host], mode: PlacementMode = PlacementMode.PACK) -> WorkerIndex:
    index = WorkerIndex(mode)
    for position, host in enumerate(workers):
        index.add(WorkerId(host.worker), position, host.total, host.free, host.default)
    return index


def needs_of(*jobs: Counts) -> list[Need]:
    return [Need(JobId(f"job{i}"), missing) for i, missing in enumerate(jobs)]


def counts_of_six(each: int) -> Counts:
    return dict.fromkeys(SIX, each)


def on_workers(made: Plan) -> dict[str, list[tuple[str, ResourceProfile, int]]]:
    found: dict[str, list[tuple[str, ResourceProfile, int]]] = {}
    for a in sorted(made.assignments, key=lambda a: (a.worker, a.job, a.profile)):
        found.setdefault(a.worker, []).append((a.job, a.profile, a.count))
    return found


def served(made: Plan, need: Need) -> Counts:
    """What of a need the plan serves from registered workers."""
    later, never = made.waiting.get(need.job, {}), made.unserved.get(need.job, {})
    return {profile: count - later.get(profile, 0) - never.get(profile, 0) for profile, count in need.missing.items()}


def free_after(made: Plan, workers: Sequence[Host]) -> dict[str, ResourceProfile]:
    """What the plan leaves free; raises when more is given than there was."""
    free = {host.worker: host.free for host in workers}
    for a in made.assignments:
        free[a.worker] -= a.profile * a.count
    return free


# ------------------------------------------------------------------------------------------------- tables


def test_sm_03_slots_of_different_sizes_share_a_worker_exactly() -> None:
    workers = hosts(1, BIG)
    made = plan(needs_of({ResourceProfile(12_000, 16 * GIB): 1, SLOT: 4}), index_of(workers), WorkerIndex(), None)
    assert free_after(made, workers) == {"w0000": ResourceProfile(0, 32 * GIB)}
    assert made.unserved == {}


def test_sm_04_an_unknown_profile_takes_the_default_of_the_worker_it_lands_on() -> None:
    small, large = ResourceProfile(1000, 4 * GIB), ResourceProfile(8000, 32 * GIB)
    workers = [Host("a", BIG, BIG, small), Host("b", BIG, BIG, large)]
    made = plan(needs_of({None: 18}), index_of(workers), WorkerIndex(), None)
    assert on_workers(made) == {"a": [("job0", small, 16)], "b": [("job0", large, 2)]}


def test_sm_05_what_is_too_large_is_named_and_the_rest_is_served() -> None:
    huge = ResourceProfile(1000, 65 * GIB)
    made = plan(needs_of({huge: 1, SLOT: 1}), WorkerIndex(), WorkerIndex(), Template(BIG, SLOT, 10))
    assert made.too_large == {huge}
    assert made.unserved == {"job0": {huge: 1}}
    assert made.waiting == {"job0": {SLOT: 1}}
    assert made.new_workers == 1


def test_sm_13_a_slot_has_the_size_that_was_asked_for() -> None:
    workers = hosts(2, BIG)
    made = plan(needs_of({SIX[1]: 3}, {SIX[4]: 2}), index_of(workers), WorkerIndex(), None)
    assert {(a.job, a.profile) for a in made.assignments} == {("job0", SIX[1]), ("job1", SIX[4])}


def test_sm_15_a_worker_that_is_not_in_the_index_gets_nothing_and_counts_for_nothing() -> None:
    index = index_of(hosts(2, BIG))
    index.remove(WorkerId("w0000"))
    made = plan(needs_of({SLOT: 20}), index, WorkerIndex(), Template(BIG, SLOT, 5))
    assert set(on_workers(made)) == {"w0001"}
    assert made.new_workers == 1


def test_sm_16_pack_uses_few_workers_and_the_fuller_ones_first() -> None:
    half = ResourceProfile(8000, 32 * GIB)
    workers = [*hosts(3, BIG), Host("used", BIG, half)]
    made = plan(needs_of({SLOT: 10}), index_of(workers), WorkerIndex(), None)
    assert on_workers(made) == {"used": [("job0", SLOT, 8)], "w0000": [("job0", SLOT, 2)]}


def test_sm_16_spread_uses_all_workers_evenly() -> None:
    half = ResourceProfile(8000, 32 * GIB)
    workers = [*hosts(3, BIG), Host("used", BIG, half)]
    index = index_of(workers, PlacementMode.SPREAD)
    made = plan(needs_of({SLOT: 30}), index, WorkerIndex(), None)
    counts = {worker: sum(count for _, _, count in slots) for worker, slots in on_workers(made).items()}
    assert sorted(counts.values()) == [2, 9, 9, 10]
    assert counts["used"] == 2


def test_sm_16_spread_gives_up_evenness_rather_than_a_slot() -> None:
    narrow = ResourceProfile(16_000, 32 * GIB)
    workers = hosts(2, narrow)
    tall, wide = ResourceProfile(1000, 16 * GIB), ResourceProfile(15_000, 1 * GIB)
    made = plan(needs_of({tall: 3, wide: 1}), index_of(workers, PlacementMode.SPREAD), WorkerIndex(), None)
    assert made.unserved == {}


def test_d_07_the_first_job_is_served_first() -> None:
    made = plan(needs_of({SLOT: 12}, {SLOT: 12}), index_of(hosts(1, BIG)), WorkerIndex(), None)
    assert on_workers(made) == {"w0000": [("job0", SLOT, 12), ("job1", SLOT, 4)]}
    assert made.unserved == {"job1": {SLOT: 8}}


def test_d_07_a_later_job_takes_only_what_an_earlier_one_cannot_use() -> None:
    tall = ResourceProfile(1000, 40 * GIB)
    made = plan(needs_of({tall: 2}, {SLOT: 9}), index_of(hosts(1, BIG)), WorkerIndex(), None)
    assert made.unserved == {"job0": {tall: 1}, "job1": {SLOT: 3}}


def test_d_07_a_job_gets_its_profiles_in_the_order_in_which_it_names_them() -> None:
    driver, executor = ResourceProfile(1000, 1 * GIB), ResourceProfile(1000, 16 * GIB)
    worker = ResourceProfile(4000, 33 * GIB)
    made = plan(needs_of({driver: 1, executor: 9}), index_of(hosts(1, worker)), WorkerIndex(), None)
    assert made.unserved == {"job0": {executor: 7}}
    made = plan(needs_of({executor: 9, driver: 3}), index_of(hosts(1, worker)), WorkerIndex(), None)
    assert made.unserved == {"job0": {executor: 7, driver: 2}}


def test_d_07_the_order_decides_about_new_workers_too() -> None:
    made = plan(needs_of({SLOT: 20}, {SLOT: 20}), WorkerIndex(), WorkerIndex(), Template(BIG, SLOT, 2))
    assert made.waiting == {"job0": {SLOT: 20}, "job1": {SLOT: 12}}
    assert made.unserved == {"job1": {SLOT: 8}}


@pytest.mark.parametrize(("slots", "pending", "new"), [(16, 0, 1), (17, 0, 2), (17, 1, 1), (32, 2, 0), (33, 2, 1)])
def test_sz_01_a_worker_is_asked_for_once_every_pending_one_is_fully_planned(
    slots: int, pending: int, new: int
) -> None:
    made = plan(needs_of({SLOT: slots}), WorkerIndex(), index_of(hosts(pending, BIG)), Template(BIG, SLOT, 100))
    assert made.new_workers == new
    assert len(made.on_pending) == pending


def test_sz_10_pending_workers_that_nothing_is_planned_on_are_not_named() -> None:
    made = plan(needs_of({SLOT: 17}), WorkerIndex(), index_of(hosts(4, BIG)), Template(BIG, SLOT, 100))
    assert made.on_pending == {"w0000", "w0001"}


def test_a_slot_of_nothing_is_never_made() -> None:
    made = plan(needs_of({ZERO: 3, None: 1}), index_of(hosts(1, BIG, ZERO)), WorkerIndex(), None)
    assert made.assignments == []
    assert made.unserved == {"job0": {ZERO: 3, None: 1}}


def test_a_profile_without_cpu_and_one_of_2_to_the_53_bytes() -> None:
    huge = ResourceProfile(0, 2**53 + 1)
    worker = ResourceProfile(1000, 2 * 2**53 + 1)
    made = plan(needs_of({huge: 3}), index_of(hosts(1, worker)), WorkerIndex(), None)
    assert on_workers(made) == {"w0000": [("job0", huge, 1)]}


def test_profiles_that_differ_in_a_named_resource_alone_are_different() -> None:
    with_gpu = ResourceProfile.of(1000, 4 * GIB, {"gpu": 1})
    workers = [Host("gpu", BIG + ResourceProfile.of(0, 0, {"gpu": 2}), BIG + ResourceProfile.of(0, 0, {"gpu": 2}))]
    workers += hosts(1, BIG)
    made = plan(needs_of({SLOT: 16, with_gpu: 3}), index_of(workers), WorkerIndex(), None)
    assert on_workers(made) == {"gpu": [("job0", with_gpu, 2)], "w0000": [("job0", SLOT, 16)]}
    assert made.unserved == {"job0": {with_gpu: 1}}


def test_the_reference_case_needs_the_fewest_workers() -> None:
    needs = needs_of(*[counts_of_six(20)] * 100)
    made = plan(needs, index_of(hosts(1000, BIG)), WorkerIndex(), Template(BIG, SLOT, 10**6))
    assert made.unserved == {}
    assert 1000 + made.new_workers <= 1243
    made = plan(needs, WorkerIndex(), WorkerIndex(), Template(BIG, SLOT, 10**6))
    assert made.new_workers <= 1243


def test_sz_01_asking_again_while_all_are_pending_changes_nothing() -> None:
    needs = needs_of(*[counts_of_six(20)] * 100)
    first = plan(needs, WorkerIndex(), WorkerIndex(), Template(BIG, SLOT, 10**6))
    again = plan(needs, WorkerIndex(), index_of(hosts(first.new_workers, BIG)), Template(BIG, SLOT, 10**6))
    assert again.new_workers == 0
    assert len(again.on_pending) == first.new_workers


# ------------------------------------------------------------------------------------------------- properties

GPU = {"gpu": 1}
SIZES = [
    *(ResourceProfile(cpu, memory) for cpu, memory in ((1, 1), (1, 2), (2, 1), (3, 3), (1, 5), (4, 2), (7, 7))),
    ResourceProfile.of(1, 1, GPU),
    ResourceProfile.of(2, 3, GPU),
]
sizes_or_unknown = st.sampled_from([None, *SIZES])
jobs_wanting = st.lists(
    st.dictionaries(sizes_or_unknown, st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5
)
totals = st.builds(
    lambda cpu, memory, gpus: ResourceProfile.of(cpu, memory, {"gpu": gpus}),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([0, 0, 0, 2]),
)


@st.composite
def host_lists(draw: st.DrawFn, *, used: bool = True) -> list[Host]:
    found = []
    for i in range(draw(st.integers(0, 7))):
        total = draw(totals)
        free = total
        for size in draw(st.lists(st.sampled_from(SIZES), max_size=3)) if used else ():
            free = free - size if fits(size, free) else free
        found.append(Host(f"w{i}", total, free, draw(st.sampled_from(SIZES[:4]))))
    return found


modes = st.sampled_from(PlacementMode)
templates = st.none() | st.builds(Template, totals, st.sampled_from(SIZES[:4]), st.integers(0, 5))


@settings(max_examples=300)
@given(jobs_wanting, host_lists(), host_lists(used=False), templates, modes)
def test_sm_03_sm_13_nothing_is_lost_and_nothing_is_placed_that_does_not_fit(
    jobs: list[Counts], workers: list[Host], coming: list[Host], template: Template | None, mode: PlacementMode
) -> None:
    needs = needs_of(*jobs)
    made = plan(needs, index_of(workers, mode), index_of(coming), template)
    free_after(made, workers)
    defaults = {host.worker: host.default for host in workers}
    for need in needs:
        got = served(made, need)
        assert all(0 <= got[profile] <= count for profile, count in need.missing.items())
        given_slots = [a for a in made.assignments if a.job == need.job]
        assert sum(a.count for a in given_slots) == sum(got.values())
        for profile in SIZES:
            exact = sum(a.count for a in given_slots if a.profile == profile)
            assert exact >= got.get(profile, 0)
            if None not in need.missing:
                assert exact == got.get(profile, 0)
        assert all(a.profile in need.missing or a.profile == defaults[a.worker] for a in given_slots)
    assert made.new_workers <= (template.at_most if template else 0)
    assert made.on_pending <= {host.worker for host in coming}
    if template is not None:
        lacked = {profile for counts in made.unserved.values() for profile in counts if profile is not None}
        assert made.too_large == {profile for profile in lacked if not fits(profile, template.total)}


@settings(max_examples=300)
@given(jobs_wanting, host_lists(), modes)
def test_d_07_no_job_gets_less_because_of_those_behind_it(
    jobs: list[Counts], workers: list[Host], mode: PlacementMode
) -> None:
    """The sequential model: each job sees the cluster as if those behind it did not exist, and takes all it can use."""
    needs = needs_of(*jobs)
    made = plan(needs, index_of(workers, mode), WorkerIndex(), None)
    for last, need in enumerate(needs):
        alone = plan(needs[: last + 1], index_of(workers, mode), WorkerIndex(), None)
        got, with_others = served(alone, need), served(made, need)
        assert all(with_others[profile] >= got[profile] for profile in got)
        free = free_after(alone, workers)
        for profile in alone.unserved.get(need.job, {}):
            for host in workers:
                size = host.default if profile is None else profile
                assert not fits(size, free[host.worker]), f"{need.job} lacks {profile} although {host.worker} has room"


@settings(max_examples=300)
@given(jobs_wanting, host_lists())
def test_d_07_the_first_profile_of_the_first_job_gets_all_that_there_is_room_for(
    jobs: list[Counts], workers: list[Host]
) -> None:
    needs = needs_of(*jobs)
    profile, count = next(iter(needs[0].missing.items()))
    room = sum(times_fitting(host.default if profile is None else profile, host.free, count) for host in workers)
    made = plan(needs, index_of(workers), WorkerIndex(), None)
    assert served(made, needs[0])[profile] == min(count, room)


@settings(max_examples=300)
@given(jobs_wanting, host_lists(), host_lists(used=False), totals, st.sampled_from(SIZES[:4]))
def test_sz_01_all_that_can_be_met_is_met_and_none_is_asked_for_while_pending_ones_have_room(
    jobs: list[Counts], workers: list[Host], coming: list[Host], total: ResourceProfile, default: ResourceProfile
) -> None:
    needs = needs_of(*jobs)
    made = plan(needs, index_of(workers), index_of(coming), Template(total, default, 10**6))
    for counts in made.unserved.values():
        for profile in counts:
            size = default if profile is None else profile
            assert not fits(size, total)
    without = plan(needs, index_of(workers), index_of(coming), None)
    if made.new_workers:
        assert without.unserved
        # Every slot takes at most a worker of its own.
        assert made.new_workers <= sum(sum(counts.values()) for counts in without.unserved.values())


@given(jobs_wanting, host_lists(), modes, st.randoms(use_true_random=False))
def test_sm_16_the_plan_does_not_depend_on_the_order_of_insertion(
    jobs: list[Counts], workers: list[Host], mode: PlacementMode, drawn: random.Random
) -> None:
    needs = needs_of(*jobs)
    expected = plan(needs, index_of(workers, mode), WorkerIndex(), Template(BIG, SLOT, 3))
    shuffled = list(enumerate(workers))
    drawn.shuffle(shuffled)
    index = WorkerIndex(mode)
    for position, host in shuffled:
        # By way of another amount, so that classes come and go.
        index.add(WorkerId(host.worker), position, host.total, ZERO, host.default)
        index.update_free(WorkerId(host.worker), host.free)
    again = plan(needs, index, WorkerIndex(), Template(BIG, SLOT, 3))
    assert again == expected
    assert list(again.waiting.items()) == list(expected.waiting.items())


@given(
    st.dictionaries(sizes_or_unknown, st.integers(1, 5), max_size=5),
    st.dictionaries(st.sampled_from(SIZES), st.integers(1, 5), max_size=5),
)
def test_sm_13_the_ledger_finds_missing_what_the_matching_rule_finds_missing(
    required: Counts, held: dict[ResourceProfile, int]
) -> None:
    missing = JobEntry(JobId("job"), 0, required=required, held=held).missing()
    assert list(missing.items()) == list(match_slots(required, held)[0].items())
