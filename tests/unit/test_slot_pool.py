"""The slot pool of a JobMaster (B: SP-01 … SP-07)."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.slot_pool import SlotPool
from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.job import JobState
from slotwise.model.requirements import Counts
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.messages import SlotOffer
from slotwise.resourcemanager.ledger import Ledger
from slotwise.simulation.world import World
from tests.unit.worlds import DRIVER, EXECUTOR, spec

SMALL, LARGE = ResourceProfile(1000, GIB), ResourceProfile(2000, 4 * GIB)
ONE, TWO = WorkerId("one"), WorkerId("two")
counts = st.dictionaries(st.sampled_from([SMALL, LARGE, ResourceProfile(500, GIB)]), st.integers(1, 4))


def offer(pool: SlotPool, name: str, profile: ResourceProfile, worker: WorkerId = ONE) -> bool:
    """Whether the pool takes a slot."""
    accepted, _ = pool.offer(worker, "host", (SlotOffer(AllocationId(name), profile),), 0.0)
    return bool(accepted)


def test_sp_02_offers_in_any_order_lead_to_the_same_matching() -> None:
    offers = {"a": SMALL, "b": SMALL, "c": LARGE, "d": LARGE, "e": SMALL}
    results = set()
    for order in itertools.permutations(offers):
        pool = SlotPool()
        pool.required = {LARGE: 1, SMALL: 2}
        for name in order:
            offer(pool, name, offers[name])
        results.add((tuple(sorted(pool.held().items())), tuple(pool.missing().items())))
    assert results == {(((SMALL, 2), (LARGE, 1)), ())}


@given(counts, counts, st.integers(0, 3))
def test_sp_03_the_pool_and_the_resource_manager_agree_on_what_is_missing(
    required: dict[ResourceProfile, int], held: dict[ResourceProfile, int], unknown: int
) -> None:
    wanted: Counts = {None: unknown} if unknown else {}
    wanted.update(required.items())
    pool, ledger, job = SlotPool(), Ledger(), JobId("job")
    pool.required = dict.fromkeys(held, 100)
    numbers = itertools.count()
    for profile, count in held.items():
        for _ in range(count):
            assert offer(pool, f"slot-{next(numbers)}", profile)
            ledger.gain(job, profile)
    pool.required = wanted
    ledger.declare(job, 1, wanted)
    entry = ledger.get(job)
    assert entry is not None
    assert pool.missing() == entry.missing()


def test_sp_06_a_workers_loss_takes_away_exactly_what_its_slots_fulfilled() -> None:
    pool = SlotPool()
    pool.required = {LARGE: 1, SMALL: 3}
    for name, profile, worker in (("a", SMALL, ONE), ("b", LARGE, TWO), ("c", SMALL, TWO), ("d", SMALL, ONE)):
        assert offer(pool, name, profile, worker)
    for slot in pool.on_worker(TWO):
        pool.remove(slot.allocation)
    assert pool.held() == {SMALL: 2}
    assert pool.missing() == {LARGE: 1, SMALL: 1}


def test_sp_07_a_request_that_times_out_fails_what_waits_on_it_with_the_reason() -> None:
    world = World(jm_config=JobMasterConfig(resource_wait_timeout_s=20))
    world.add_worker(DRIVER.profile)
    job = world.submit(spec())
    world.run(25)
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert result.state is JobState.FAILED
    assert str(EXECUTOR.profile) in result.reason
