"""The ResourceManager with jobs that yield: they take what nobody else wants, and are told to give it back."""

from __future__ import annotations

from typing import Any

from slotwise.model.ids import RESOURCE_MANAGER, UNKNOWN_TOKEN, JobId, LeaderToken, WorkerId, job_master_address
from slotwise.model.ids import worker_address as address_of
from slotwise.model.job import JobState
from slotwise.model.requirements import Requirement
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.effects import Effects, StartWorker
from slotwise.protocol.messages import (
    AllocateSlots,
    DeclareRequirements,
    Envelope,
    GiveWay,
    JobDone,
    Message,
    NotEnoughResources,
    RegisterJobMaster,
    RegisterWorker,
    SlotReport,
)
from slotwise.resourcemanager.ledger import Ledger
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.simulation.cluster import CountingIds
from tests.unit.warm_worlds import WarmWorld
from tests.unit.worlds import spec

SLOT = ResourceProfile(1000, GIB)
ROOM_FOR_TWO = ResourceProfile(2000, 2 * GIB)
HUGE = ResourceProfile(1000, 64 * GIB)
TOKEN, LEADER = LeaderToken(7), LeaderToken(3)
WARM, JOB, OTHER = JobId("warm"), JobId("job"), JobId("other")
NO_KIND = spec(conf={"spark.eventLog.enabled": "true"})


class Broker:
    """A ResourceManager and what it sends. ``shape``: it may ask for workers of that size, ``most`` at the most."""

    def __init__(self, shape: ResourceProfile | None = None, most: int = 5, **config: Any) -> None:
        sizing = Sizing() if shape is None else Sizing(WorkerShape(shape, SLOT), max_workers=most)
        settings = ResourceManagerConfig(sizing=sizing, **config)
        self.machine = ResourceManager(settings, TOKEN, CountingIds(), 0.0)
        self.now = 0.0
        self.workers: list[StartWorker] = []
        self.versions: dict[JobId, int] = {}

    def _take(self, effects: Effects) -> list[tuple[str, Message]]:
        self.machine.check_invariants()
        self.workers += [wish for wish in effects.workers if isinstance(wish, StartWorker)]
        return [(sent.to, sent.payload) for sent in effects.send]

    def hear(self, sender: str, sender_token: int, payload: Message) -> list[tuple[str, Message]]:
        token = UNKNOWN_TOKEN if isinstance(payload, RegisterJobMaster | RegisterWorker) else TOKEN
        envelope = Envelope(1, RESOURCE_MANAGER, token, sender, LeaderToken(sender_token), payload)  # type: ignore[arg-type]
        return self._take(self.machine.handle(envelope, self.now))

    def wait(self, seconds: float = 0.2) -> list[tuple[str, Message]]:
        """Let time pass: checks are made. Returns all that was sent."""
        until, sent = self.now + seconds, []
        while (due := self.machine.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            sent += self._take(self.machine.on_timer(self.now))
        self.now = until
        return sent

    def worker(self, name: str, total: ResourceProfile = ROOM_FOR_TWO) -> None:
        worker = WorkerId(name)
        register = RegisterWorker(worker, "h", 1, "", total, SLOT, SlotReport(1, (), total))
        self.hear(address_of(worker), 0, register)

    def declare(
        self, job: JobId, count: int, *, yields: bool = False, profile: ResourceProfile = SLOT
    ) -> list[tuple[str, Message]]:
        """What the job requires from now on; returns the answers."""
        sender = job_master_address(job)
        self.hear(sender, LEADER, RegisterJobMaster(job))
        self.versions[job] = version = self.versions.get(job, 0) + 1
        required = (Requirement(profile, count),) if count else ()
        return self.hear(sender, LEADER, DeclareRequirements(job, version, required, yields))

    def again(self, job: JobId, count: int, *, yields: bool = False) -> list[tuple[str, Message]]:
        """The last declaration once more, as a sign of life; returns the answers."""
        required = (Requirement(SLOT, count),)
        message = DeclareRequirements(job, self.versions[job], required, yields)
        return self.hear(job_master_address(job), LEADER, message)

    def held(self, job: JobId) -> int:
        entry = self.machine.slots.ledger.get(job)
        return sum(entry.held.values()) if entry is not None else 0


def give_ways(sent: list[tuple[str, Message]]) -> list[str]:
    """Who is told to give way."""
    for to, payload in sent:
        assert not isinstance(payload, GiveWay) or to == job_master_address(payload.job)
    return [payload.job for _, payload in sent if isinstance(payload, GiveWay)]


def test_one_that_yields_gets_what_nobody_else_wants() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    sent = broker.wait()
    assert broker.held(WARM) == 2
    assert [len(payload.slots) for _, payload in sent if isinstance(payload, AllocateSlots)] == [2]


def test_one_that_yields_is_served_after_a_job_that_came_later() -> None:
    broker = Broker()
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(JOB, 1)
    broker.wait()
    broker.worker("w")
    broker.wait()
    assert (broker.held(JOB), broker.held(WARM)) == (1, 1)


def test_one_that_yields_gets_nothing_while_a_job_lacks_what_could_be_had() -> None:
    broker = Broker()
    broker.worker("w")
    broker.worker("large", ResourceProfile(4000, 3 * GIB))
    broker.declare(OTHER, 1, profile=ResourceProfile(1000, 3 * GIB))
    broker.declare(JOB, 1, profile=ResourceProfile(1000, 3 * GIB))
    broker.declare(WARM, 1, yields=True)
    broker.wait()
    assert (broker.held(OTHER), broker.held(JOB), broker.held(WARM)) == (1, 0, 0)
    broker.declare(JOB, 0)
    broker.wait()
    assert broker.held(WARM) == 1


def test_those_that_yield_are_served_first_come_first_served_among_themselves() -> None:
    broker = Broker()
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(OTHER, 1, yields=True)
    broker.wait()
    broker.worker("w")
    broker.wait()
    assert (broker.held(WARM), broker.held(OTHER)) == (2, 0)


def test_no_worker_is_started_for_one_that_yields() -> None:
    broker = Broker(ROOM_FOR_TWO)
    broker.declare(WARM, 2, yields=True)
    broker.wait(10)
    assert broker.workers == []
    broker.declare(JOB, 1)
    broker.wait()
    assert len(broker.workers) == 1


def test_one_that_yields_gets_what_a_worker_that_was_started_for_others_has_left() -> None:
    broker = Broker(ROOM_FOR_TWO)
    broker.declare(WARM, 2, yields=True)
    broker.declare(JOB, 1)
    broker.wait()
    (started,) = broker.workers
    broker.worker(started.worker)
    broker.wait()
    assert (broker.held(JOB), broker.held(WARM)) == (1, 1)
    broker.wait(10)
    assert len(broker.workers) == 1


def test_one_that_yields_and_lacks_something_asks_nobody_to_give_way() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(OTHER, 1, yields=True)
    sent = broker.wait() + broker.again(WARM, 2, yields=True) + broker.again(OTHER, 1, yields=True)
    assert give_ways(sent) == []
    lacking = [to for to, payload in sent if isinstance(payload, NotEnoughResources) and payload.missing]
    assert set(lacking) == {job_master_address(OTHER)}


def test_it_is_told_to_give_way_when_a_job_lacks_what_it_holds() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    assert give_ways(broker.wait()) == []
    broker.declare(JOB, 1)
    assert give_ways(broker.wait()) == [WARM]


def test_it_is_told_so_too_while_workers_for_the_job_are_on_their_way() -> None:
    broker = Broker(ROOM_FOR_TWO)
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(JOB, 1)
    assert give_ways(broker.wait()) == [WARM]
    assert len(broker.workers) == 1


def test_all_that_yield_are_told() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 1, yields=True)
    broker.declare(OTHER, 1, yields=True)
    broker.wait()
    broker.declare(JOB, 1)
    assert sorted(give_ways(broker.wait())) == [OTHER, WARM]


def test_ml_it_is_told_again_with_each_of_its_declarations_while_something_is_missing() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(JOB, 1)
    broker.wait()
    assert give_ways(broker.again(WARM, 2, yields=True)) == [WARM]
    assert give_ways(broker.again(WARM, 2, yields=True)) == [WARM]
    # Nobody else is told with its own.
    assert give_ways(broker.again(JOB, 1)) == []
    broker.declare(JOB, 0)
    broker.wait()
    assert give_ways(broker.again(WARM, 2, yields=True)) == []


def test_it_is_not_told_because_of_what_no_worker_could_hold() -> None:
    for broker in (Broker(), Broker(ROOM_FOR_TWO)):
        broker.worker("w")
        broker.declare(WARM, 1, yields=True)
        broker.wait()
        broker.declare(JOB, 1, profile=HUGE)
        assert give_ways(broker.wait()) == []
        assert give_ways(broker.again(WARM, 1, yields=True)) == []
        broker.declare(WARM, 2, yields=True)
        broker.wait()
        assert broker.held(WARM) == 2


def test_d_09_it_is_not_told_before_the_workers_have_had_their_time_to_come_back() -> None:
    broker = Broker(start_up_grace_s=5.0)
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(JOB, 1)
    assert give_ways(broker.wait()) == []
    assert give_ways(broker.again(WARM, 2, yields=True)) == []
    assert give_ways(broker.wait(5)) == [WARM]
    assert give_ways(broker.again(WARM, 2, yields=True)) == [WARM]


def test_one_that_does_not_yield_any_more_keeps_its_slots_and_is_not_told() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(WARM, 2)
    broker.declare(JOB, 1)
    sent = broker.wait() + broker.again(WARM, 2)
    assert give_ways(sent) == []
    assert (broker.held(WARM), broker.held(JOB)) == (2, 0)


def test_one_that_does_not_yield_any_more_is_served_in_its_place_in_the_queue() -> None:
    broker = Broker()
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(JOB, 2)
    broker.wait()
    broker.declare(WARM, 2)
    broker.wait()
    broker.worker("w")
    broker.wait()
    assert (broker.held(WARM), broker.held(JOB)) == (2, 0)


def test_workers_are_started_at_once_for_one_that_does_not_yield_any_more() -> None:
    broker = Broker(ROOM_FOR_TWO)
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(WARM, 2)
    broker.wait()
    assert len(broker.workers) == 1


def test_an_older_declaration_does_not_make_it_yield_again() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.declare(WARM, 2)
    broker.wait()
    broker.versions[WARM] = 1
    broker.again(WARM, 2, yields=True)
    broker.declare(JOB, 1)
    assert give_ways(broker.wait()) == []


def test_one_that_has_ended_yields_no_more() -> None:
    broker = Broker()
    broker.worker("w")
    broker.declare(WARM, 2, yields=True)
    broker.wait()
    broker.declare(JOB, 1)
    broker.hear(job_master_address(WARM), LEADER, JobDone(WARM))
    assert give_ways(broker.wait()) == []
    assert broker.machine.slots.ledger.yielding <= {WARM}


def test_a_job_that_begins_again_under_its_id_is_not_forgotten_with_its_last_old_slot() -> None:
    # What a warm application held comes back after the cold start has declared.
    ledger = Ledger()
    ledger.declare(JOB, 1, {SLOT: 1}, yields=True)
    ledger.gain(JOB, SLOT)
    ledger.forget(JOB)
    ledger.renew(JOB)
    ledger.declare(JOB, 1, {SLOT: 2})
    ledger.lose(JOB, SLOT)
    assert ledger.lacking() == [(JOB, {SLOT: 2})]
    ledger.check_invariants()
    ledger.forget(JOB)
    assert ledger.get(JOB) is None


# ----------------------------------------------------------------------------------------------- a whole cluster


def test_a_job_that_can_use_none_gets_the_room_of_a_warm_application() -> None:
    world = WarmWorld(workers=1)
    warm = world.warm_waiting()
    begun = world.now
    job = world.submit(NO_KIND)
    assert job != warm
    world.run_until(lambda: world.state(job) is JobState.RUNNING, 60)
    assert world.now - begun < 5
    assert warm in world.stopped
    world.until_finished(job)


def test_a_job_that_took_one_keeps_it_when_others_wait() -> None:
    world = WarmWorld(workers=1)
    warm = world.warm_waiting()
    job = world.submit(spec(program="/long.py"))
    assert job == warm
    world.submit(NO_KIND)
    world.run(60)
    assert world.sent(GiveWay) == []
    assert len(world.executors(job)) == 2
    world.until_finished(job)


def test_ml_a_word_to_give_way_that_is_lost_is_said_again() -> None:
    world = WarmWorld(workers=1)
    warm = world.warm_waiting()
    world.lose_all(GiveWay)
    job = world.submit(NO_KIND)
    world.run(5)
    assert world.state(job) is JobState.WAITING_FOR_RESOURCES
    assert warm not in world.stopped
    world.keep_all()
    world.run_until(lambda: world.state(job) is JobState.RUNNING, 30)
