"""The TaskExecutor alone, spoken to as its ResourceManager and JobMasters would."""

from __future__ import annotations

from typing import Any, TypeVar

from slotwise.model.ids import (
    RESOURCE_MANAGER,
    Address,
    AllocationId,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.process import DriverProcess
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.effects import (
    CleanSlot,
    Effects,
    EndProcess,
    ProcessChanged,
    StartProcess,
    StopRequested,
)
from slotwise.protocol.messages import (
    AcceptSlots,
    AllocateSlots,
    AllocationsRefused,
    Deploy,
    Envelope,
    Fenced,
    FreeSlots,
    JobMasterHeartbeat,
    JobSlotsReport,
    OfferSlots,
    ProcessPhase,
    ProcessStatus,
    RegisterAgain,
    RegisterWorker,
    RejectSlots,
    ShutdownWorker,
    SlotAllocation,
    WorkerLeaving,
    WorkerRegistered,
    WorkerReport,
)
from slotwise.taskexecutor.machine import TaskExecutor, TaskExecutorConfig
from tests.unit.worlds import spec

Payload = TypeVar("Payload")
TOTAL = ResourceProfile(4000, 8 * GIB)
SIZE = ResourceProfile(1000, 2 * GIB)
WORKER = WorkerId("w")
JOB, OTHER = JobId("job"), JobId("other")
A = AllocationId("a")
RM_TOKEN, JM_TOKEN = LeaderToken(5), LeaderToken(3)


class Bench:
    """A TaskExecutor on a bench, with the time and what it has said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[Envelope] = []
        self.did: list[Any] = []
        self.ended: str | None = None
        self.te = TaskExecutor(TaskExecutorConfig(WORKER, "host", 1, "v", TOTAL, SIZE), self.now)

    def take(self, effects: Effects) -> None:
        self.te.check_invariants()
        self.said += effects.send
        self.did += effects.processes
        self.ended = effects.shutdown or self.ended

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.te.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            self.take(self.te.on_timer(self.now))
        self.now = until

    def rm(self, payload: Any, token: LeaderToken = RM_TOKEN) -> None:
        self.take(
            self.te.handle(
                Envelope(0, worker_address(WORKER), LeaderToken(0), RESOURCE_MANAGER, token, payload), self.now
            )
        )

    def jm(self, payload: Any, job: JobId = JOB, token: LeaderToken = JM_TOKEN) -> None:
        sender = job_master_address(job)
        self.take(self.te.handle(Envelope(0, worker_address(WORKER), LeaderToken(0), sender, token, payload), self.now))

    def register(self) -> None:
        self.wait(0)
        self.rm(WorkerRegistered(10.0, 50.0))

    def allocate(self, allocation: AllocationId = A, size: ResourceProfile = SIZE, job: JobId = JOB) -> None:
        slot = SlotAllocation(allocation, job, size, job_master_address(job), JM_TOKEN)
        self.rm(AllocateSlots((slot,)))

    def slot(self) -> None:
        """Registered, with slot A held by JOB."""
        self.register()
        self.allocate()
        self.jm(AcceptSlots(JOB, (A,)))

    def deploy(self, process: str = "driver-1") -> None:
        self.jm(Deploy(JOB, A, process, DriverProcess(spec(), "secret")))

    def exited(self, process: str = "driver-1", code: int = 0) -> None:
        status = ProcessStatus(process, ProcessPhase.EXITED, exit_code=code)
        self.take(self.te.handle(ProcessChanged(A, status), self.now))

    def of(self, kind: type[Payload]) -> list[Payload]:
        return [envelope.payload for envelope in self.said if isinstance(envelope.payload, kind)]

    def done(self, kind: type[Payload]) -> list[Payload]:
        return [effect for effect in self.did if isinstance(effect, kind)]


def test_ml_02_registration_is_repeated_with_back_off_until_it_is_accepted() -> None:
    bench = Bench()
    bench.wait(60)
    assert 6 <= len(bench.of(RegisterWorker)) <= 12
    bench.register()
    before = len(bench.of(RegisterWorker))
    bench.rm(WorkerRegistered(1000.0, 5000.0))
    bench.wait(120)
    assert len(bench.of(RegisterWorker)) == before


def test_a_worker_that_nobody_accepts_ends_itself() -> None:
    bench = Bench()
    bench.wait(301)
    assert bench.ended is not None
    assert "300 s" in bench.ended


def test_an_allocation_makes_a_slot_reports_it_and_offers_it() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    report = bench.of(WorkerReport)[-1].report
    assert [slot.allocation for slot in report.slots] == [A]
    assert report.available == TOTAL - SIZE
    offer = bench.of(OfferSlots)[-1]
    assert [slot.allocation for slot in offer.slots] == [A]
    sent = next(e for e in bench.said if isinstance(e.payload, OfferSlots))
    assert (sent.to, sent.to_token) == (job_master_address(JOB), JM_TOKEN)


def test_ml_03_the_same_allocation_twice_makes_one_slot() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    bench.allocate()
    assert bench.te.table.available == TOTAL - SIZE
    assert bench.of(AllocationsRefused) == []


def test_st_02_over_budget_is_refused_with_what_is_there() -> None:
    bench = Bench()
    bench.register()
    bench.allocate(size=ResourceProfile(5000, GIB))
    refused = bench.of(AllocationsRefused)[-1]
    assert refused.allocations == (A,)
    assert refused.report.available == TOTAL


def test_ml_05_an_offer_is_repeated_until_it_is_answered() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    bench.wait(3.5)
    offers = len(bench.of(OfferSlots))
    assert offers >= 3
    bench.jm(AcceptSlots(JOB, (A,)))
    bench.wait(5)
    assert len(bench.of(OfferSlots)) == offers


def test_st_04_a_slot_that_no_job_accepts_is_released_and_announced_at_once() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    bench.wait(9.5)
    assert A in bench.te.table.slots
    bench.wait(1.5)
    assert A not in bench.te.table.slots
    assert bench.of(WorkerReport)[-1].report.available == TOTAL


def test_st_04_acceptance_cancels_the_timeout() -> None:
    bench = Bench()
    bench.slot()
    bench.wait(30)
    assert A in bench.te.table.slots


def test_a_rejected_slot_is_gone() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    bench.jm(RejectSlots(JOB, (A,)))
    assert bench.te.table.slots == {}
    assert bench.done(CleanSlot)


def test_a_late_copy_of_an_allocation_does_not_bring_a_released_slot_back() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    bench.jm(RejectSlots(JOB, (A,)))
    bench.allocate()
    assert bench.te.table.slots == {}
    assert bench.of(AllocationsRefused)[-1].allocations == (A,)


def test_st_05_a_job_deploys_into_its_own_slots_only() -> None:
    bench = Bench()
    bench.slot()
    bench.jm(Deploy(OTHER, A, "driver-1", DriverProcess(spec(), "secret")), OTHER)
    bench.jm(FreeSlots(OTHER, (A,), "mine now"), OTHER)
    assert bench.done(StartProcess) == []
    assert A in bench.te.table.slots


def test_st_05_ml_05_a_doubled_deployment_starts_nothing_again_also_after_another_process() -> None:
    bench = Bench()
    bench.slot()
    for process in ("driver-1", "driver-2"):
        bench.deploy(process)
        bench.exited(process, 1)
    bench.deploy("driver-1")
    assert [start.process for start in bench.done(StartProcess)] == ["driver-1", "driver-2"]


def test_st_05_nothing_is_deployed_into_a_slot_that_is_not_accepted() -> None:
    bench = Bench()
    bench.register()
    bench.allocate()
    bench.deploy()
    assert bench.done(StartProcess) == []


def test_a_deployment_that_comes_twice_starts_one_process() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    bench.deploy()
    bench.exited()
    bench.deploy()
    assert len(bench.done(StartProcess)) == 1
    status = bench.of(JobSlotsReport)[-1].slots[0].process
    assert status is not None
    assert (status.phase, status.exit_code) == (ProcessPhase.EXITED, 0)


def test_st_06_resources_come_back_only_when_the_process_has_ended() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    bench.jm(FreeSlots(JOB, (A,), "done"))
    assert bench.done(EndProcess) == [EndProcess(A, "driver-1")]
    assert bench.te.table.available == TOTAL - SIZE
    assert bench.done(CleanSlot) == []
    bench.exited(code=-15)
    assert bench.te.table.available == TOTAL
    assert bench.done(CleanSlot) == [CleanSlot(A)]
    assert bench.of(JobSlotsReport)[-1].gone == (A,)


def test_st_07_slots_of_a_silent_job_are_kept_for_a_while_then_released() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    bench.wait(49)
    bench.jm(JobMasterHeartbeat(JOB))
    bench.wait(55)
    assert bench.done(EndProcess) == []
    bench.wait(15)
    assert bench.done(EndProcess) == [EndProcess(A, "driver-1")]


def test_st_07_a_new_leader_of_the_job_takes_the_slots_over() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    newer = LeaderToken(JM_TOKEN + 1)
    bench.jm(Fenced(job_master_address(JOB), newer), token=newer)
    bench.wait(10)
    last = [e for e in bench.said if isinstance(e.payload, JobSlotsReport)][-1]
    assert last.to_token == newer
    bench.jm(FreeSlots(JOB, (A,), "from an old leader"))
    assert bench.done(EndProcess) == []


def test_st_08_when_the_resource_manager_is_lost_what_runs_goes_on() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    # Its job is heard of all the while; only the ResourceManager is silent.
    for _ in range(12):
        bench.wait(10)
        bench.jm(JobMasterHeartbeat(JOB))
    assert len(bench.of(RegisterWorker)) > 2
    assert bench.done(EndProcess) == []
    report = bench.of(RegisterWorker)[-1].report
    assert [(slot.allocation, slot.job) for slot in report.slots] == [(A, JOB)]
    assert report.available == TOTAL - SIZE


def test_sm_10_told_to_register_again_it_does() -> None:
    bench = Bench()
    bench.register()
    before = len(bench.of(RegisterWorker))
    bench.rm(RegisterAgain())
    bench.wait(0)
    assert len(bench.of(RegisterWorker)) == before + 1


def test_st_10_a_shutdown_from_an_old_leader_is_ignored_and_answered_fenced() -> None:
    bench = Bench()
    bench.register()
    bench.rm(ShutdownWorker("idle"), token=LeaderToken(RM_TOKEN - 1))
    assert bench.ended is None
    assert bench.of(Fenced) == [Fenced(RESOURCE_MANAGER, RM_TOKEN)]


def test_st_10_a_shutdown_ends_the_worker_after_its_slots() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    bench.rm(ShutdownWorker("idle"))
    before = bench.ended
    bench.exited(code=-15)
    assert (before, bench.ended) == (None, "the master said so: idle")
    assert bench.of(WorkerLeaving)


def test_a_stopping_worker_takes_no_new_slots() -> None:
    bench = Bench()
    bench.slot()
    bench.deploy()
    bench.take(bench.te.handle(StopRequested("SIGTERM"), bench.now))
    bench.allocate(AllocationId("b"))
    assert bench.of(AllocationsRefused)[-1].allocations == (AllocationId("b"),)


def test_ml_04_reports_are_repeated_and_rise() -> None:
    bench = Bench()
    bench.register()
    bench.wait(35)
    numbers = [message.report.seq for message in bench.of(WorkerReport)]
    assert len(numbers) >= 3
    assert numbers == sorted(set(numbers))


def test_messages_go_to_the_job_under_its_address() -> None:
    bench = Bench()
    bench.slot()
    assert {e.to for e in bench.said} == {RESOURCE_MANAGER, Address("jm:job")}
