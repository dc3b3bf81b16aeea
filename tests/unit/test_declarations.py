"""How declarations live and die (B: D-05 … D-12) and when checks run (B: SM-01, SM-05, SM-08, SM-11), on the real
machines.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.errors import SizeError
from slotwise.model.ids import RESOURCE_MANAGER, Address, JobId, LeaderToken, job_master_address
from slotwise.model.job import JobState
from slotwise.model.requirements import Requirement, check_all_or_none_stated
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.messages import (
    AllocateSlots,
    AllocationsRefused,
    DeclarationRefused,
    DeclareRequirements,
    Envelope,
    JobMasterRegistered,
    NotEnoughResources,
    RegisterAgain,
    RegisterJobMaster,
    ResourceManagerHeartbeat,
    ShortageReason,
    SlotReport,
    WorkerLost,
    WorkerRegistered,
    WorkerReport,
)
from slotwise.resourcemanager.slot_manager import CheckResult
from slotwise.simulation.spark_model import BEHAVIOURS, Behaviour
from slotwise.simulation.world import World
from tests.unit.worlds import DRIVER, EXECUTOR, WORKER, provisioned, spec

BEHAVIOURS["/long.py"] = Behaviour(seconds=2000)
SIZE = ResourceProfile(1000, 2 * GIB)


class Job:
    """A JobMaster that is only its words to the ResourceManager: it takes every slot and never lets go."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.job = JobId(name)
        self.version = 0
        self.say(RegisterJobMaster(self.job))
        world.run(0.01)

    def say(self, payload: object) -> None:
        address = job_master_address(self.job)
        token = self.world.rm.token
        self.world.deliver(Envelope(0, RESOURCE_MANAGER, token, address, LeaderToken(1), payload))  # type: ignore[arg-type]

    def declare(self, count: int, profile: ResourceProfile | None = SIZE, settle_s: float = 0.2) -> None:
        self.version += 1
        requirements = (Requirement(profile, count),) if count else ()
        self.say(DeclareRequirements(self.job, self.version, requirements))
        self.world.run(settle_s)

    def held(self) -> dict[ResourceProfile, int]:
        entry = self.world.rm.slots.ledger.get(self.job)
        return dict(entry.held) if entry is not None else {}

    def heard(self, kind: type) -> list[object]:
        address = job_master_address(self.job)
        return [m.payload for m in self.world.delivered if m.to == address and isinstance(m.payload, kind)]


def asked(world: World) -> list[AllocateSlots]:
    return [m.payload for m in world.delivered if isinstance(m.payload, AllocateSlots)]


def test_d_05_requirements_rise_and_fall_while_the_job_runs() -> None:
    world = World()
    world.add_worker(WORKER)
    job = Job(world, "a")
    job.declare(1)
    assert job.held() == {SIZE: 1}
    job.declare(3)
    assert job.held() == {SIZE: 3}
    job.declare(2)
    # The ResourceManager never takes a slot back: the job still holds three.
    assert job.held() == {SIZE: 3}


def test_d_06_a_silent_job_requires_nothing_and_goes_on_where_it_was_when_it_is_heard_again() -> None:
    world = World()
    first, second = Job(world, "first"), Job(world, "second")
    first.declare(2)
    second.declare(2)
    for _ in range(6):
        world.run(9)
        second.declare(2)
    entry = world.rm.slots.ledger.get(first.job)
    assert entry is not None
    assert entry.required == {}
    first.declare(2)
    world.add_worker(ResourceProfile(3000, 6 * GIB))
    world.run(1)
    # It has kept its place in the queue.
    assert first.held() == {SIZE: 2}
    assert second.held() == {SIZE: 1}


def test_d_07_a_later_change_of_its_requirements_does_not_move_a_job_back() -> None:
    world = World()
    first, second = Job(world, "first"), Job(world, "second")
    first.declare(1)
    second.declare(2)
    first.declare(3)
    world.add_worker(ResourceProfile(4000, 8 * GIB))
    world.run(1)
    assert first.held() == {SIZE: 3}
    assert second.held() == {SIZE: 1}


def test_d_08_no_slot_is_taken_from_a_job_for_another() -> None:
    world = World()
    world.add_worker(WORKER)
    late = Job(world, "early")
    late.declare(4)
    other = Job(world, "late")
    other.declare(4)
    world.run(30)
    assert late.held() == {SIZE: 4}
    assert other.held() == {}


def test_d_11_the_resource_manager_never_times_requirements_out() -> None:
    world = World()
    job = Job(world, "patient")
    job.declare(2)
    for _ in range(100):
        world.run(9)
        job.say(DeclareRequirements(job.job, job.version, (Requirement(SIZE, 2),)))
    entry = world.rm.slots.ledger.get(job.job)
    assert entry is not None
    assert entry.required == {SIZE: 2}
    world.add_worker(WORKER)
    world.run(1)
    assert job.held() == {SIZE: 2}


def test_d_12_a_reduction_before_the_free_changes_the_books_and_nothing_else() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job = Job(world, "a")
    job.declare(2)
    before = len(asked(world))
    job.declare(1)
    assert len(asked(world)) == before
    report = SlotReport(10_000, world.te(worker).table.statuses()[:1], WORKER - SIZE)
    world.stimulate(
        RESOURCE_MANAGER,
        Envelope(0, RESOURCE_MANAGER, world.rm.token, Address(f"te:{worker}"), LeaderToken(0), WorkerReport(report)),
    )
    world.run(0.2)
    assert len(asked(world)) == before
    assert job.held() == {SIZE: 1}


def test_d_12_a_free_before_the_reduction_starts_an_attempt_that_the_reduction_cancels() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job = Job(world, "a")
    job.declare(2)
    before = len(asked(world))
    report = SlotReport(10_000, world.te(worker).table.statuses()[:1], WORKER - SIZE)
    world.stimulate(
        RESOURCE_MANAGER,
        Envelope(0, RESOURCE_MANAGER, world.rm.token, Address(f"te:{worker}"), LeaderToken(0), WorkerReport(report)),
    )
    # The check delay has not passed yet: nothing was sent, and the reduction comes in time.
    job.declare(1)
    assert len(asked(world)) == before


def test_d_14_a_declaration_that_mixes_stated_and_unknown_profiles_changes_nothing_and_is_refused() -> None:
    world = World()
    world.add_worker(WORKER)
    world.run(1)
    job = Job(world, "a")
    job.declare(1)
    job.version += 1
    mixed = (Requirement(SIZE, 2), Requirement(None, 1))
    job.say(DeclareRequirements(job.job, job.version, mixed))
    world.run(1)
    refused = job.heard(DeclarationRefused)
    assert [(one.version, str(SIZE) in one.reason) for one in refused if isinstance(one, DeclarationRefused)] == [
        (2, True)
    ]
    assert job.held() == {SIZE: 1}
    entry = world.rm.slots.ledger.get(job.job)
    assert entry is not None
    assert entry.required == {SIZE: 1}
    assert [event.job for event in world.named("declaration-refused")] == [job.job]


def test_d_14_a_jobs_next_step_may_not_be_of_the_other_kind_either() -> None:
    """FLIP-56 speaks of a whole job, not of the steps that run at one time."""
    world = World()
    world.add_worker(WORKER)
    world.run(1)
    job, other = Job(world, "a"), Job(world, "b")
    job.declare(1)
    job.declare(0)
    job.declare(1, profile=None)
    other.declare(1, profile=None)
    assert len(job.heard(DeclarationRefused)) == 1
    assert not other.heard(DeclarationRefused)
    assert sum(other.held().values()) == 1


def test_d_14_a_job_whose_declaration_is_refused_fails_with_the_reason() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec(program="/long.py"))
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    refused = DeclarationRefused(job, 1, "a job must state the resources of all its steps or of none")
    address = job_master_address(job)
    world.deliver(Envelope(0, address, world.jm(job).token, RESOURCE_MANAGER, world.rm.token, refused))
    world.run_until(lambda: world.dispatcher.jobs[job].released)
    result = world.dispatcher.jobs[job].result
    assert result is not None
    assert (result.state, result.reason) == (JobState.FAILED, refused.reason)


@given(st.lists(st.none() | st.sampled_from([SIZE, WORKER]), max_size=4))
def test_d_14_all_or_none_of_a_jobs_profiles_are_stated(profiles: list[ResourceProfile | None]) -> None:
    if None in profiles and any(profile is not None for profile in profiles):
        with pytest.raises(SizeError, match=r"all its steps or of none.*default slots"):
            check_all_or_none_stated(profiles)
    else:
        check_all_or_none_stated(profiles)


def test_a_declaration_of_a_job_that_never_registered_is_answered_register_again() -> None:
    world = World()
    stranger = job_master_address(JobId("nobody"))
    message = DeclareRequirements(JobId("nobody"), 1, (Requirement(SIZE, 1),))
    world.deliver(Envelope(0, RESOURCE_MANAGER, world.rm.token, stranger, LeaderToken(1), message))
    world.run(0.1)
    assert [m.payload for m in world.delivered if m.to == stranger] == [RegisterAgain()]
    assert world.rm.slots.ledger.in_order() == []


def test_sm_01_a_change_has_a_check_at_once_those_in_the_delay_after_it_share_one_and_no_change_means_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.add_worker(WORKER)
    world.run(1)
    checks: list[float] = []
    real = world.rm.slots.check

    def counted(now: float) -> CheckResult:
        checks.append(now)
        return real(now)

    monkeypatch.setattr(world.rm.slots, "check", counted)
    jobs = [Job(world, str(i)) for i in range(5)]
    checks.clear()
    world.run(1)
    checks.clear()
    began = world.now
    for job in jobs:
        job.declare(1, settle_s=0)
    world.run(0.01)
    # What came after a quiet time did not wait for the end of the delay.
    assert len(checks) == 1
    for count in (2, 3):
        for job in jobs:
            job.declare(count, settle_s=0)
        world.run(0.01)
    assert len(checks) == 1
    world.run(0.03)
    assert checks[0] - began < 0.01
    assert [round(now - checks[0], 3) for now in checks] == [0, 0.05]
    world.run(5)
    settled = len(checks)
    for job in jobs:
        job.say(DeclareRequirements(job.job, job.version, (Requirement(SIZE, 3),)))
    world.run(4)
    assert len(checks) == settled


def test_sm_01_a_check_that_fails_is_reported_and_does_not_stop_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add_worker(WORKER)
    job = Job(world, "a")
    real = world.rm.slots.check
    failures = iter([True])

    def failing(now: float) -> CheckResult:
        if next(failures, False):
            raise RuntimeError("planted")
        return real(now)

    monkeypatch.setattr(world.rm.slots, "check", failing)
    job.declare(1)
    assert [event.fields["error"] for event in world.named("check-failed")] == ["RuntimeError('planted')"]
    world.run(2)
    assert job.held() == {SIZE: 1}


def test_sm_05_a_profile_that_no_worker_can_hold_asks_for_none_and_the_rest_is_served() -> None:
    world = provisioned()
    job = Job(world, "a")
    job.version += 1
    huge = ResourceProfile(1000, 100 * GIB)
    message = DeclareRequirements(job.job, job.version, (Requirement(huge, 1), Requirement(SIZE, 2)))
    job.say(message)
    world.run(5)
    assert job.held() == {SIZE: 2}
    assert len(world.started_workers) == 1
    notice = job.heard(NotEnoughResources)[-1]
    assert isinstance(notice, NotEnoughResources)
    assert [(s.profile, s.reason, s.final) for s in notice.missing] == [(huge, ShortageReason.TOO_LARGE, True)]


def test_sm_04_an_unknown_profile_gets_each_workers_own_default_slot() -> None:
    world = World()
    small, large = ResourceProfile(1000, GIB), ResourceProfile(2000, 3 * GIB)
    world.add_worker(small * 1, default_profile=small)
    world.add_worker(large * 1, default_profile=large)
    world.run(1)
    job = Job(world, "a")
    job.declare(2, profile=None)
    assert job.held() == {small: 1, large: 1}


def test_sm_06_a_slot_counts_as_acquired_before_the_worker_is_asked() -> None:
    world = World(latency_s=1.0)
    world.add_worker(WORKER)
    world.run(5)
    job = Job(world, "a")
    job.declare(1, settle_s=1.2)
    # The allocation is on its way; a second declaration must not ask again.
    assert job.held() == {SIZE: 1}
    slot = next(slot for w in world.rm.slots.workers.values() for slot in w.slots.values())
    assert slot.pending_since is not None
    job.declare(1, settle_s=0.5)
    assert len(world.named("allocated")) == 1


def test_sm_08_a_late_refusal_of_a_confirmed_slot_changes_nothing() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job = Job(world, "a")
    job.declare(1)
    allocation = next(iter(world.rm.slots.workers[worker].slots))
    old = AllocationsRefused((allocation,), "late", SlotReport(0, (), WORKER))
    world.deliver(Envelope(0, RESOURCE_MANAGER, world.rm.token, Address(f"te:{worker}"), LeaderToken(0), old))
    world.run(0.3)
    assert job.held() == {SIZE: 1}
    assert len(world.named("allocated")) == 1


def test_sm_08_a_refusal_of_a_worker_that_is_gone_changes_nothing() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job = Job(world, "a")
    job.declare(1)
    allocation = next(iter(world.rm.slots.workers[worker].slots))
    world.kill_worker(worker)
    world.run(2)
    refused = AllocationsRefused((allocation,), "late", SlotReport(99, (), WORKER))
    world.deliver(Envelope(0, RESOURCE_MANAGER, world.rm.token, Address(f"te:{worker}"), LeaderToken(0), refused))
    world.run(0.3)
    assert job.held() == {}
    assert world.rm.slots.workers == {}


def test_sm_11_the_jobs_on_a_lost_worker_are_told_and_their_requirements_are_missing_again() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job, other = Job(world, "a"), Job(world, "b")
    job.declare(2)
    other.declare(1)
    world.kill_worker(worker)
    world.run(2)
    lost = job.heard(WorkerLost)[-1]
    assert isinstance(lost, WorkerLost)
    assert (lost.worker, len(lost.allocations)) == (worker, 2)
    assert other.heard(WorkerLost)
    entry = world.rm.slots.ledger.get(job.job)
    assert entry is not None
    assert entry.missing() == {SIZE: 2}


def test_sz_01_n_slots_need_one_worker_and_one_more_needs_a_second() -> None:
    world = provisioned(max_workers=5)
    job = Job(world, "a")
    job.declare(4)
    assert len(world.started_workers) == 1
    job.declare(5)
    assert len(world.started_workers) == 2
    world.run(5)
    assert job.held() == {SIZE: 5}


def test_explain_names_the_reason_and_what_would_help() -> None:
    world = provisioned(max_workers=1)
    job = world.submit(spec(program="/long.py", initial_executors=9))
    world.run(20)
    found = world.rm.explain(job)
    assert found.known
    assert found.unmet[0].shortage.reason is ShortageReason.CLUSTER_FULL
    assert "slotmanager.max-total-resource" in found.unmet[0].help
    assert sum(r.count for r in found.required) == 10
    assert sum(r.count for r in found.acquired) + sum(u.shortage.count for u in found.unmet) == 10
    later = world.submit(spec())
    world.run(1)
    assert world.rm.explain(later).ahead == 1
    assert not world.rm.explain(JobId("nobody")).known
    assert world.state(job) is JobState.RUNNING


def test_explain_says_so_when_nothing_is_missing() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec(program="/long.py"))
    world.run(20)
    assert world.rm.explain(job).summary == "it has all 3 slot(s) that it requires"
    assert {DRIVER.profile, EXECUTOR.profile} == {r.profile for r in world.rm.explain(job).acquired}


def test_acknowledgements_are_repeated_with_every_declaration() -> None:
    world = World(jm_config=JobMasterConfig())
    job = Job(world, "a")
    job.declare(1)
    job.declare(1)
    assert len(job.heard(ResourceManagerHeartbeat)) == 2
    assert job.heard(JobMasterRegistered)
    assert not [m for m in world.delivered if isinstance(m.payload, WorkerRegistered)]
