"""What the simulator found, each reduced to a few steps of one machine (B: SP, D, SZ-04, F, ML)."""

from __future__ import annotations

from typing import Any

from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.jobmaster.admission import Admission, admission
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.executors import Executors
from slotwise.jobmaster.machine import JobMaster
from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.model.ids import (
    DISPATCHER,
    Address,
    AllocationId,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.job import ExecutorBounds, JobResult, JobState
from slotwise.model.process import DriverReport, ExecutorIdentity
from slotwise.model.progress import JobProgress, RecoveredJob
from slotwise.model.requirements import Requirement
from slotwise.model.resources import GIB, ZERO, ResourceProfile
from slotwise.model.timers import Timers
from slotwise.protocol.effects import (
    Effects,
    JobMasterExited,
    PersistProgress,
    StartWorker,
    StopJobMaster,
    StopWorker,
    WorkerExited,
)
from slotwise.protocol.messages import (
    AcceptSlots,
    DeclareRequirements,
    Envelope,
    Fenced,
    JobSlotsReport,
    JobSlotStatus,
    JobStatus,
    OfferSlots,
    ProcessPhase,
    ProcessStatus,
    RegisterJobMaster,
    RegisterWorker,
    RegistrationRefused,
    ScaleJob,
    SlotOffer,
    SlotReport,
    SlotStatus,
    WorkerLost,
    WorkerRegistered,
)
from slotwise.protocol.outbox import Outbox
from slotwise.resourcemanager.ledger import Ledger
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.resourcemanager.provisioning import Provisioning
from slotwise.resourcemanager.sizing import Sizing, WorkerShape
from slotwise.resourcemanager.slot_manager import SlotManager
from slotwise.simulation.cluster import CountingIds
from tests.unit.worlds import DRIVER, EXECUTOR, WORKER, spec

JOB, ONE = JobId("job"), WorkerId("one")
SMALL = ResourceProfile(1000, GIB)
RM_TOKEN = LeaderToken(7)


def envelope(to: str, to_token: int, sender: str, sender_token: int, payload: Any) -> Envelope:
    return Envelope(1, Address(to), LeaderToken(to_token), Address(sender), LeaderToken(sender_token), payload)


def to_job(payload: Any) -> Envelope:
    return envelope(job_master_address(JOB), 5, worker_address(ONE), 0, payload)


def test_d_13_the_timer_for_surplus_slots_never_comes_up_for_nothing() -> None:
    pool = SlotPool()
    pool.required = {SMALL: 2}
    for name, now in (("a", 0.0), ("b", 30.0)):
        pool.offer(ONE, "host", (SlotOffer(AllocationId(name), SMALL),), now)
    pool.required = {SMALL: 1}
    for now in (10.0, 50.0, 60.0, 80.0):
        due = pool.next_surplus(50.0)
        assert due is not None
        assert due > now or pool.surplus(now, 50.0)


def recovered_job_master() -> JobMaster:
    progress = JobProgress(LeaderToken(1), 1, ONE, AllocationId("driver"), "secret")
    machine = JobMaster(JOB, spec(), JobMasterConfig(), LeaderToken(5), CountingIds(), 100.0, progress)
    machine.on_timer(100.0)
    return machine


def asked(effects: Effects) -> int:
    return sum(isinstance(sent.payload, AcceptSlots) for sent in effects.send)


def test_f_08_a_worker_is_not_asked_about_a_driver_with_each_of_its_answers() -> None:
    machine = recovered_job_master()
    count = sum(asked(machine.handle(to_job(JobSlotsReport(ONE, "h", seq, ())), 100.5)) for seq in range(1, 50))
    assert count == 0
    assert asked(machine.on_timer(102.0)) == 1
    assert asked(machine.on_timer(104.0)) == 0


def test_a_06_the_last_words_of_a_driver_are_not_taken_for_the_next_ones_in_its_slot() -> None:
    machine = JobMaster(
        JOB, spec(min_executors=0, initial_executors=0), JobMasterConfig(), LeaderToken(5), CountingIds(), 0.0
    )
    machine.on_timer(0.0)
    offer = SlotOffer(AllocationId("slot"), DRIVER.profile)
    machine.handle(to_job(OfferSlots(ONE, "h", (offer,))), 1.0)
    assert machine.state is JobState.DEPLOYING

    def report(seq: int, process: str, version: int) -> Envelope:
        phase = ProcessPhase.EXITED if process == "driver-0" else ProcessPhase.RUNNING
        said = DriverReport(version, f"app-of-{process}", driver_url="spark://x")
        status = JobSlotStatus(AllocationId("slot"), DRIVER.profile, ProcessStatus(process, phase), said)
        return to_job(JobSlotsReport(ONE, "h", seq, (status,)))

    machine.handle(report(1, "driver-0", 9), 2.0)
    assert machine.executors.wanted(None) == ()
    assert not machine.executors.active
    machine.handle(report(2, "driver-1", 1), 3.0)
    assert machine.executors.report is not None
    assert machine.executors.report.app_id == "app-of-driver-1"


def test_d_07_an_account_that_only_workers_told_of_goes_with_its_last_slot() -> None:
    ledger = Ledger()
    ledger.gain(JOB, SMALL)
    ledger.lose(JOB, SMALL)
    assert ledger.get(JOB) is None
    ledger.declare(JOB, 1, {SMALL: 1})
    ledger.gain(JOB, SMALL)
    ledger.lose(JOB, SMALL)
    assert ledger.get(JOB) is not None


def resource_manager(max_workers: int) -> ResourceManager:
    sizing = Sizing(WorkerShape(WORKER, ResourceProfile(2000, 4 * GIB)), max_workers=max_workers)
    return ResourceManager(ResourceManagerConfig(sizing=sizing), RM_TOKEN, CountingIds(), 0.0)


def test_sz_07_reports_do_not_put_off_the_end_of_idle_workers() -> None:
    slots = SlotManager(CountingIds(), Sizing(WorkerShape(WORKER, SMALL), idle_timeout_s=30.0))
    timers = Timers()
    provisioning = Provisioning(
        ResourceManagerConfig(sizing=slots.sizing), slots, Outbox(Address("rm"), RM_TOKEN), timers
    )
    slots.register(ONE, "h", 1, WORKER, SMALL, SlotReport(1, (), WORKER), 0.0)
    provisioning.arm_idle(100.0)
    due = timers.next()
    assert due is not None
    for now in range(101, 110):
        provisioning.arm_idle(float(now))
    assert timers.next() == due


def test_sz_04_the_workers_of_an_earlier_leader_count_until_they_are_back_or_gone() -> None:
    sizing = Sizing(WorkerShape(WORKER, SMALL), max_workers=2, min_total=WORKER * 2)
    before = [StartWorker(WorkerId(name), WORKER, SMALL) for name in ("one", "two")]
    machine = ResourceManager(ResourceManagerConfig(sizing=sizing), RM_TOKEN, CountingIds(), 0.0, before)
    declare(machine, 3, 1, 2)
    assert machine.on_timer(1.0).workers == []
    slot = SlotStatus(AllocationId("old"), JOB, WORKER)
    register = RegisterWorker(ONE, "h", 1, "", WORKER, SMALL, SlotReport(1, (slot,), ZERO))
    machine.handle(envelope("rm", 0, worker_address(ONE), 0, register), 2.0)
    assert machine.on_timer(3.0).workers == []
    # The other one has ended: jobs may wait to hear that, and its place is free.
    effects = machine.handle(WorkerExited(WorkerId("two"), "gone", started=True), 4.0)
    assert [sent.payload.dead for sent in effects.send if isinstance(sent.payload, WorkerLost)] == [True]
    assert [type(wish) for wish in machine.on_timer(5.0).workers] == [StartWorker]


def test_sz_04_an_empty_worker_of_an_earlier_leader_is_refused_above_the_maximum() -> None:
    sizing = Sizing(WorkerShape(WORKER, SMALL), max_workers=1)
    before = [StartWorker(WorkerId(name), WORKER, SMALL) for name in ("one", "two")]
    machine = ResourceManager(ResourceManagerConfig(sizing=sizing), RM_TOKEN, CountingIds(), 0.0, before)
    answers: list[type] = []
    for worker in ("one", "two"):
        register = RegisterWorker(WorkerId(worker), "h", 1, "", WORKER, SMALL, SlotReport(1, (), WORKER))
        effects = machine.handle(envelope("rm", 0, worker_address(WorkerId(worker)), 0, register), 2.0)
        answers += [type(sent.payload) for sent in effects.send]
    assert answers == [RegistrationRefused, WorkerRegistered]
    assert machine.slots.pending == {}


def test_f_02_a_worker_of_an_earlier_leader_that_does_not_come_back_is_given_up_like_a_silent_one() -> None:
    sizing = Sizing(WorkerShape(WORKER, SMALL), max_workers=1)
    before = [StartWorker(ONE, WORKER, SMALL)]
    machine = ResourceManager(ResourceManagerConfig(sizing=sizing), RM_TOKEN, CountingIds(), 0.0, before)
    declare(machine, 3, 1, 1)
    assert machine.on_timer(49.0).workers == []
    assert machine.on_timer(50.5).workers == [StopWorker(ONE)]
    assert machine.slots.pending == {}


def test_f_03_what_an_earlier_leader_of_a_job_writes_after_a_takeover_is_refused() -> None:
    progress = JobProgress(LeaderToken(1), 1, ONE, AllocationId("driver"), "secret")
    machine = JobMaster(JOB, spec(), JobMasterConfig(), LeaderToken(5), CountingIds(), 100.0, progress)
    claims = [record for record in machine.on_timer(100.0).persist if isinstance(record, PersistProgress)]
    assert [claim.progress.token for claim in claims] == [5]


def declare(machine: ResourceManager, token: int, version: int, count: int) -> None:
    address = job_master_address(JOB)
    machine.handle(envelope("rm", 0, address, token, RegisterJobMaster(JOB)), 1.0)
    wanted = DeclareRequirements(JOB, version, (Requirement(WORKER, count),))
    machine.handle(envelope("rm", RM_TOKEN, address, token, wanted), 1.0)


def test_sz_04_a_worker_that_comes_back_with_slots_takes_the_place_of_one_that_was_asked_for() -> None:
    machine = resource_manager(max_workers=2)
    declare(machine, 3, 1, 2)
    machine.on_timer(2.0)
    assert len(machine.slots.pending) == 2
    slot = SlotStatus(AllocationId("old"), JOB, WORKER)
    register = RegisterWorker(ONE, "h", 1, "", WORKER, SMALL, SlotReport(1, (slot,), ZERO))
    machine.handle(envelope("rm", 0, worker_address(ONE), 0, register), 2.5)
    assert len(machine.slots.pending) + len(machine.slots.workers) == 2
    stopped = [wish for wish in machine.on_timer(3.0).workers if isinstance(wish, StopWorker)]
    assert len(stopped) == 1


def test_d_02_f_03_the_declarations_of_a_jobs_new_leader_count_whatever_their_version() -> None:
    machine = resource_manager(max_workers=5)
    declare(machine, 3, 9, 4)
    declare(machine, 4, 1, 2)
    entry = machine.slots.ledger.get(JOB)
    assert entry is not None
    assert entry.required == {WORKER: 2}


def test_ml_07_a_resource_manager_that_heard_of_a_newer_job_master_fences_the_older() -> None:
    machine = resource_manager(max_workers=5)
    address = job_master_address(JOB)
    machine.handle(envelope("rm", 0, address, 3, RegisterJobMaster(JOB)), 1.0)
    machine.handle(envelope("rm", RM_TOKEN, address, 4, Fenced(address, LeaderToken(4))), 1.1)
    stale = DeclareRequirements(JOB, 1, (Requirement(WORKER, 1),))
    effects = machine.handle(envelope("rm", RM_TOKEN, address, 3, stale), 1.2)
    assert isinstance(effects.send[0].payload, Fenced)
    assert machine.slots.ledger.get(JOB) is None


def test_a_02_executors_that_are_found_again_do_not_lift_a_job_above_its_maximum() -> None:
    executors = Executors(CountingIds())
    for number in range(1, 4):
        executors.adopt(ExecutorIdentity(str(number), "t", "app", 0), AllocationId(f"s{number}"))
    executors.live["1"].registered = True
    assert [executor.executor_id for executor in executors.above(2)] == ["3"]
    assert executors.above(None) == []
    assert executors.above(3) == []


def test_f_06_a_new_dispatcher_ends_the_job_master_of_a_job_that_is_over() -> None:
    result = JobResult(JobState.FINISHED, 0)
    known = RecoveredJob(JOB, "key", spec(executor=EXECUTOR), result=result)
    machine = Dispatcher(DispatcherConfig(), LeaderToken(9), CountingIds(), 0.0, [known])
    status = JobStatus(JOB, 4, JobState.FINISHED, result, released=True)
    effects = machine.handle(envelope(DISPATCHER, 9, job_master_address(JOB), 5, status), 1.0)
    assert effects.job_masters == [StopJobMaster(JOB)]


def test_f_03_a_job_whose_job_master_fails_after_its_result_was_recorded_is_over() -> None:
    machine = Dispatcher(DispatcherConfig(), LeaderToken(9), CountingIds(), 0.0, [RecoveredJob(JOB, "key", spec())])
    machine.on_timer(0.0)
    result = JobResult(JobState.FINISHED, 0)
    effects = machine.handle(JobMasterExited(JOB, "a bug", None, result), 1.0)
    assert effects.job_masters == []
    assert machine.jobs[JOB].result == result
    assert machine.jobs[JOB].released


def test_a_job_that_is_over_is_not_sent_its_bounds_for_ever() -> None:
    known = RecoveredJob(JOB, "key", spec())
    machine = Dispatcher(DispatcherConfig(max_job_master_failures=0), LeaderToken(9), CountingIds(), 0.0, [known])
    machine.on_timer(0.0)
    machine.handle(envelope(DISPATCHER, 0, "client:1", 0, ScaleJob(JOB, ExecutorBounds(1, 4))), 1.0)
    assert machine.next_timer() is not None
    machine.handle(JobMasterExited(JOB, "a bug"), 1.1)
    assert machine.jobs[JOB].state is JobState.FAILED
    assert machine.next_timer() is None


def test_f_08_a_dispatcher_that_heard_of_a_newer_job_master_fences_the_older() -> None:
    machine = Dispatcher(DispatcherConfig(), LeaderToken(9), CountingIds(), 0.0, [RecoveredJob(JOB, "key", spec())])
    machine.on_timer(0.0)
    address = job_master_address(JOB)
    machine.handle(envelope(DISPATCHER, 9, address, 11, Fenced(address, LeaderToken(11))), 1.0)
    effects = machine.handle(envelope(DISPATCHER, 9, address, 9, JobStatus(JOB, 3, JobState.RUNNING)), 1.1)
    assert isinstance(effects.send[0].payload, Fenced)


def test_d_02_d_06_a_declaration_that_was_overtaken_stays_so_when_its_job_falls_silent() -> None:
    ledger = Ledger()
    ledger.declare(JOB, 1, {SMALL: 1})
    ledger.declare(JOB, 2, {})
    ledger.suspend(JOB)
    assert not ledger.declare(JOB, 1, {SMALL: 1})
    assert ledger.lacking() == []
    ledger.renew(JOB)
    assert ledger.declare(JOB, 1, {SMALL: 1})


def test_slots_of_a_worker_that_is_about_to_go_let_no_driver_begin() -> None:
    given = spec(initial_executors=1)

    def allowed(*, leaving: bool) -> Admission:
        driver = HeldSlot(AllocationId("d"), WorkerId("stays"), "h", DRIVER.profile, idle_since=0.0)
        executor = HeldSlot(AllocationId("e"), WorkerId("goes"), "h", EXECUTOR.profile, idle_since=0.0, leaving=leaving)
        return admission(given, given.bounds, [driver, executor])

    assert allowed(leaving=False) is Admission.ALL
    assert allowed(leaving=True) is Admission.NONE
