"""The ResourceManager with real TaskExecutors and JobMasters in virtual time."""

from __future__ import annotations

from slotwise.model.ids import RESOURCE_MANAGER, Address, AllocationId, JobId, LeaderToken, WorkerId, job_master_address
from slotwise.model.job import JobState
from slotwise.model.requirements import Requirement
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.messages import (
    AllocateSlots,
    DeclareRequirements,
    Envelope,
    Fenced,
    JobDone,
    NotEnoughResources,
    RegisterAgain,
    RegisterWorker,
    RegistrationRefused,
    ShortageReason,
    SlotReport,
    WorkerReport,
)
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.simulation.world import VERSION, World
from tests.unit.worlds import DRIVER, EXECUTOR, WORKER, provisioned, spec


def declare(world: World, job: JobId, version: int, count: int, token: int | None = None) -> None:
    """A declaration straight to the ResourceManager, as if of the job's own leader."""
    sender = job_master_address(job)
    own = world.jm(job).token if token is None else LeaderToken(token)
    requirements = (Requirement(EXECUTOR.profile, count),) if count else ()
    message = DeclareRequirements(job, version, requirements)
    world.deliver(Envelope(0, RESOURCE_MANAGER, world.rm.token, sender, own, message))
    world.run(0.2)


def required(world: World, job: JobId) -> dict[ResourceProfile | None, int]:
    entry = world.rm.slots.ledger.get(job)
    assert entry is not None
    return entry.required


def test_d_01_d_02_the_last_declaration_wins_and_an_older_one_changes_nothing() -> None:
    world = World()
    job = world.submit(spec())
    world.run(1)
    declare(world, job, 10, 5)
    declare(world, job, 11, 3)
    declare(world, job, 10, 5)
    assert required(world, job) == {EXECUTOR.profile: 3}


def test_d_03_a_declaration_of_an_old_leader_changes_nothing_and_is_answered_fenced() -> None:
    world = World()
    job = world.submit(spec())
    world.run(1)
    before = dict(required(world, job))
    declare(world, job, 99, 7, token=world.jm(job).token - 1)
    assert required(world, job) == before
    answers = [m.payload for m in world.delivered if m.to == job_master_address(job)]
    assert Fenced(job_master_address(job), world.jm(job).token) in answers


def test_d_04_the_same_declaration_again_causes_nothing() -> None:
    world = provisioned()
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    asked = len(world.started_workers)
    given = len(world.named("allocated"))
    world.run(35)
    assert len(world.started_workers) == asked
    assert len(world.named("allocated")) == given


def test_d_07_jobs_are_served_first_come_first_served() -> None:
    world = World()
    first = world.submit(spec(initial_executors=3))
    world.run(1)
    second = world.submit(spec(initial_executors=3))
    world.run(1)
    world.add_worker(ResourceProfile(4000, 9 * GIB))
    world.run(1)
    held = world.rm.slots.ledger.get(first)
    other = world.rm.slots.ledger.get(second)
    assert held is not None
    assert other is not None
    assert sum(held.held.values()) == 4
    assert other.held == {}


def test_d_10_a_profile_larger_than_any_worker_fails_the_job_at_once_with_both_sizes() -> None:
    world = provisioned()
    big = ResourceProfile(1000, 9 * GIB)
    job = world.submit(spec(executor=type(EXECUTOR)(1, 9 * GIB, 0)))
    world.run_until(lambda: world.state(job).is_final, 5)
    record = world.dispatcher.jobs[job]
    assert record.state is JobState.FAILED
    assert record.result is not None
    assert str(big) in record.result.reason
    assert str(WORKER) in record.result.reason


def test_d_10_a_full_cluster_is_named_as_the_reason() -> None:
    world = provisioned(max_workers=1)
    job = world.submit(spec(initial_executors=6))
    world.run(10)
    shortages = world.rm.shortages(job)
    assert [(s.count, s.reason) for s in shortages] == [(4, ShortageReason.CLUSTER_FULL)]


def test_d_10_workers_on_their_way_are_named_as_the_reason() -> None:
    world = provisioned()
    job = world.submit(spec())
    world.run(1)
    notices = [m.payload for m in world.delivered if isinstance(m.payload, NotEnoughResources)]
    assert notices[-1].missing[0].reason is ShortageReason.WORKERS_COMING
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    notices = [m.payload for m in world.delivered if isinstance(m.payload, NotEnoughResources)]
    assert notices[-1].missing == ()


def test_d_09_no_notice_before_the_start_up_grace_is_over() -> None:
    world = World(rm_config=ResourceManagerConfig(version=VERSION, start_up_grace_s=20))
    world.submit(spec())
    world.run(19)
    assert not [m for m in world.delivered if isinstance(m.payload, NotEnoughResources)]
    world.run(2)
    assert [m for m in world.delivered if isinstance(m.payload, NotEnoughResources)]


def test_sm_02_a_worker_before_and_one_after_the_declaration_both_get_exact_slots() -> None:
    world = World()
    early = world.add_worker(DRIVER.profile)
    world.run(1)
    job = world.submit(spec(initial_executors=2, min_executors=2))
    world.run(1)
    late = world.add_worker(EXECUTOR.profile * 2)
    world.run(1)
    sizes = {
        worker: sorted(slot.profile.memory_bytes for slot in world.te(worker).table.slots.values())
        for worker in (early, late)
    }
    assert sizes[early] == [DRIVER.profile.memory_bytes]
    assert sizes[late] == [EXECUTOR.profile.memory_bytes] * 2
    asked = [m for m in world.delivered if isinstance(m.payload, AllocateSlots)]
    assert all(m.sender_token == world.rm.token for m in asked)
    slots = [slot for m in asked if isinstance(m.payload, AllocateSlots) for slot in m.payload.slots]
    assert {slot.job_master for slot in slots} == {job_master_address(job)}


def test_sm_03_slots_of_different_sizes_share_a_worker_and_the_sums_are_exact() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    world.submit(spec())
    world.run(2)
    entry = world.rm.slots.workers[worker]
    used = DRIVER.profile + EXECUTOR.profile * 2
    assert entry.free == WORKER - used
    assert world.te(worker).table.available == WORKER - used


def test_sm_07_a_refused_allocation_is_rolled_back_and_tried_elsewhere_under_a_new_id() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    world.run(1)
    # The worker has made a slot that the ResourceManager has not heard of yet.
    other = JobId("other")
    world.te(worker).table.allocate(
        AllocationId("unheard-of"), other, ResourceProfile(3500, 7 * GIB), job_master_address(other), world.now
    )
    second = world.add_worker(WORKER)
    world.run(1)
    job = world.submit(spec(initial_executors=1))
    world.run(3)
    assert world.state(job) is JobState.RUNNING
    assert {slot.job for slot in world.te(second).table.slots.values()} == {job}
    asked = [event.allocation for event in world.named("allocated")]
    assert len(asked) == len(set(asked)) > 2
    assert world.rm.slots.workers[worker].free == world.te(worker).table.available


def test_sm_09_a_slot_that_the_worker_no_longer_has_is_freed_by_its_report() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    world.run(1)
    world.submit(spec())
    world.run(2)
    entry = world.rm.slots.workers[worker]
    report = SlotReport(10_000, (), WORKER)
    address = Address(f"te:{worker}")
    world.deliver(Envelope(0, RESOURCE_MANAGER, world.rm.token, address, LeaderToken(0), WorkerReport(report)))
    world.run(0.003)
    assert entry.free == WORKER


def test_sm_10_a_report_of_an_unknown_worker_is_answered_register_again() -> None:
    world = World()
    stranger = Address("te:stranger")
    report = WorkerReport(SlotReport(1, (), WORKER))
    world.deliver(Envelope(0, RESOURCE_MANAGER, world.rm.token, stranger, LeaderToken(0), report))
    world.run(0.1)
    assert [m.payload for m in world.delivered if m.to == stranger] == [RegisterAgain()]
    assert world.rm.slots.workers == {}


def test_sm_12_a_freed_slot_goes_to_a_waiting_job() -> None:
    world = World()
    world.add_worker(ResourceProfile(3000, DRIVER.profile.memory_bytes + 2 * EXECUTOR.profile.memory_bytes))
    first = world.submit(spec())
    world.run(1)
    second = world.submit(spec())
    world.run_until(lambda: world.state(first) is JobState.FINISHED)
    world.run_until(lambda: world.state(second) is JobState.FINISHED)


def test_sz_04_the_maximum_is_never_passed() -> None:
    world = provisioned(max_workers=2)
    for _ in range(4):
        world.submit(spec(initial_executors=8))
    for _ in range(60):
        world.run(1)
        assert len(world.rm.slots.workers) + len(world.rm.slots.pending) <= 2
    assert len(set(world.started_workers)) == 2


def test_sz_07_an_idle_worker_is_released_after_the_timeout_and_not_before() -> None:
    world = provisioned()
    job = world.submit(spec())
    world.run_until(lambda: world.dispatcher.jobs[job].released)
    world.run(29)
    assert len(world.workers()) == 1
    world.run(3)
    assert world.workers() == []
    assert world.rm.slots.workers == {}


def test_sz_03_sz_10_workers_that_nobody_needs_any_more_are_cancelled() -> None:
    world = provisioned()
    job = world.submit(spec())
    world.run(1)
    assert len(world.rm.slots.pending) == 1
    world.cancel(job)
    world.run(1)
    assert world.rm.slots.pending == {}
    assert world.named("worker-cancelled")


def test_sz_11_a_failing_provisioner_is_tried_again_and_the_request_is_not_lost() -> None:
    world = provisioned()
    failures = iter(["no more machines"] * 3)
    world.worker_starts_fail = lambda _: next(failures, None)
    job = world.submit(spec())
    world.run(4)
    reasons = {shortage.reason for shortage in world.rm.shortages(job)}
    assert reasons <= {ShortageReason.PROVISIONER_FAILING, ShortageReason.WORKERS_COMING}
    world.run_until(lambda: world.state(job) is JobState.FINISHED)


def test_sz_11_a_provisioner_that_always_fails_is_asked_ten_times_a_minute_at_most() -> None:
    world = provisioned()
    world.worker_starts_fail = lambda _: "no more machines"
    world.submit(spec())
    world.run(180)
    assert 10 <= len(world.started_workers) <= 31


def test_st_10_a_worker_of_another_version_is_refused_with_both_versions_named() -> None:
    world = World()
    message = RegisterWorker(WorkerId("old"), "host", 1, "0.0.1", WORKER, WORKER, SlotReport(1, (), WORKER))
    old = Address("te:old")
    world.deliver(Envelope(0, RESOURCE_MANAGER, LeaderToken(0), old, LeaderToken(0), message))
    world.run(0.1)
    refused = [m.payload for m in world.delivered if m.to == old]
    assert isinstance(refused[0], RegistrationRefused)
    assert "0.0.1" in refused[0].reason
    assert VERSION in refused[0].reason


def test_a_worker_whose_report_does_not_add_up_is_refused() -> None:
    world = World()
    liar = Address("te:liar")
    message = RegisterWorker(WorkerId("liar"), "host", 1, VERSION, WORKER, WORKER, SlotReport(1, (), WORKER * 2))
    world.deliver(Envelope(0, RESOURCE_MANAGER, LeaderToken(0), liar, LeaderToken(0), message))
    world.run(0.1)
    assert isinstance(next(m.payload for m in world.delivered if m.to == liar), RegistrationRefused)
    assert world.rm.slots.workers == {}


def test_f_02_a_new_resource_manager_learns_all_from_registrations() -> None:
    world = World()
    worker = world.add_worker(WORKER)
    job = world.submit(spec())
    world.run_until(lambda: world.state(job) is JobState.RUNNING)
    before = world.te(worker).table.statuses()
    world.stop_resource_manager()
    world.run(5)
    world.start_resource_manager()
    world.run(70)
    assert world.state(job) is JobState.FINISHED
    assert len(world.named("allocated")) == len(before)


def test_ml_01_a_job_whose_farewell_was_lost_is_forgotten_in_the_end() -> None:
    world = World()
    world.add_worker(WORKER)
    job = world.submit(spec())
    world.lose = lambda m: isinstance(m.payload, JobDone)
    world.run_until(lambda: world.dispatcher.jobs[job].released)
    world.machines.pop(job_master_address(job))
    world.run(700)
    assert world.rm.jobs == {}
    assert world.rm.slots.ledger.in_order() == []


def test_sm_14_the_sums_add_up_while_jobs_come_and_go() -> None:
    world = provisioned(max_workers=3)
    jobs = [world.submit(spec(initial_executors=1 + i % 3)) for i in range(6)]
    # World checks every machine's invariants after every step.
    world.run_until(lambda: all(world.state(job).is_final for job in jobs), 900)
    assert {world.state(job) for job in jobs} == {JobState.FINISHED}
