"""The slot manager: the RM's view of workers and slots, and the check that turns requirements into allocations.

Nothing of it is stored: it is rebuilt from registrations and reports, because the worker is the ground truth
(decision 4; B: SM-01 … SM-16). It sends nothing itself; :mod:`slotwise.resourcemanager.machine` turns what it returns
into messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.model.ids import AllocationId, IdSource, JobId, WorkerId
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.protocol.messages import SlotReport
from slotwise.resourcemanager.ledger import Ledger
from slotwise.resourcemanager.matching import Need, Plan, Room, Template, plan
from slotwise.resourcemanager.sizing import Sizing


@dataclass
class Slot:
    """A slot as the RM sees it. ``pending_since`` is the time it was asked for, None once the worker has confirmed
    it.
    """

    job: JobId
    profile: ResourceProfile
    pending_since: float | None


@dataclass
class Worker:
    """A registered worker. ``free`` is kept equal to total − sum of slots."""

    worker: WorkerId
    position: int
    host: str
    pid: int
    total: ResourceProfile
    default_profile: ResourceProfile
    free: ResourceProfile
    slots: dict[AllocationId, Slot] = field(default_factory=dict)
    report_seq: int = -1
    last_heard: float = 0.0
    idle_since: float | None = None
    leaving: bool = False
    rss_bytes: int = 0


@dataclass
class PendingWorker:
    """A worker that was asked for and has not registered."""

    worker: WorkerId
    position: int
    total: ResourceProfile
    default_profile: ResourceProfile
    since: float


@dataclass(frozen=True)
class Given:
    """A slot that a check has just marked as given."""

    allocation: AllocationId
    worker: WorkerId
    job: JobId
    profile: ResourceProfile


@dataclass
class CheckResult:
    """What a check decided: slots to ask for, workers to start, and the plan for the notices."""

    given: list[Given]
    started: list[PendingWorker]
    surplus: list[WorkerId]
    plan: Plan


class SlotManager:
    """Workers, slots and the check. Every change of the sums goes through :meth:`_add` and :meth:`_drop`."""

    def __init__(self, ids: IdSource, sizing: Sizing) -> None:
        self.ledger = Ledger()
        self.sizing = sizing
        self.workers: dict[WorkerId, Worker] = {}
        self.pending: dict[WorkerId, PendingWorker] = {}
        self._ids = ids
        self._next_position = 0

    # ------------------------------------------------------------------------------------------- workers

    def register(
        self,
        worker: WorkerId,
        host: str,
        pid: int,
        total: ResourceProfile,
        default_profile: ResourceProfile,
        report: SlotReport,
        now: float,
    ) -> None:
        """A worker came, or came again: its report is the truth about it."""
        known = self.workers.get(worker)
        if known is None:
            expected = self.pending.pop(worker, None)
            position = expected.position if expected is not None else self._position()
            known = Worker(worker, position, host, pid, total, default_profile, free=total)
            self.workers[worker] = known
        known.last_heard = now
        known.leaving = False
        self.report(worker, report, now)

    def report(self, worker: WorkerId, report: SlotReport, now: float) -> bool:
        """Bring the view in line with a slot report; true when something was freed, adopted or confirmed (B: SM-09)."""
        entry = self.workers[worker]
        entry.last_heard = now
        if report.seq <= entry.report_seq:
            return False
        entry.report_seq = report.seq
        changed = False
        reported = {slot.allocation: slot for slot in report.slots}
        for allocation, slot in list(entry.slots.items()):
            if allocation not in reported and slot.pending_since is None:
                self._drop(entry, allocation, now)
                changed = True
        for allocation, status in reported.items():
            known = entry.slots.get(allocation)
            if known is None:
                # A slot that the view lacks (an earlier leader's, or one given up on) is its job's all the same.
                self._add(entry, allocation, Slot(status.job, status.profile, None))
                changed = True
            elif known.pending_since is not None:
                known.pending_since = None
                changed = True
        self._mark_idle(entry, now)
        return changed

    def refuse(self, worker: WorkerId, allocations: tuple[AllocationId, ...], now: float) -> bool:
        """The worker will not make these; roll them back (B: SM-06, SM-07). True when any was still pending."""
        entry = self.workers.get(worker)
        rolled_back = False
        for allocation in allocations:
            if entry is not None and (slot := entry.slots.get(allocation)) and slot.pending_since is not None:
                self._drop(entry, allocation, now)
                rolled_back = True
        return rolled_back

    def remove_worker(self, worker: WorkerId) -> list[tuple[AllocationId, Slot]]:
        """The worker is gone, with all its slots; returns them (B: SM-11)."""
        self.pending.pop(worker, None)
        entry = self.workers.pop(worker, None)
        if entry is None:
            return []
        lost = list(entry.slots.items())
        for _, slot in lost:
            self.ledger.lose(slot.job, slot.profile)
        return lost

    # ------------------------------------------------------------------------------------------- the check

    def check(self, now: float) -> CheckResult:
        """One pass (B: SM-01): 1. what each job lacks; 2. plan; 3. mark what is given; 4. ask for new workers;
        5. give up the pending ones that nothing is planned on."""
        needs = [Need(entry.job, missing) for entry in self.ledger.in_order() if (missing := entry.missing())]
        rooms = [
            Room(entry.worker, entry.position, entry.free, entry.default_profile)
            for entry in self.workers.values()
            if not entry.leaving
        ]
        coming = [Room(p.worker, p.position, p.total, p.default_profile) for p in self.pending.values()]
        decided = plan(needs, rooms, coming, self._template())
        given = []
        for assignment in decided.assignments:
            entry = self.workers[assignment.worker]
            for _ in range(assignment.count):
                allocation = AllocationId(self._ids.new_id("slot"))
                self._add(entry, allocation, Slot(assignment.job, assignment.profile, now))
                given.append(Given(allocation, entry.worker, assignment.job, assignment.profile))
        surplus = [worker for worker in self.pending if worker not in decided.on_pending]
        for worker in surplus:
            del self.pending[worker]
        started = []
        for _ in range(decided.new_workers):
            template = self.sizing.worker
            assert template is not None
            fresh = PendingWorker(
                WorkerId(self._ids.new_id("worker")), self._position(), template.total, template.default_profile, now
            )
            self.pending[fresh.worker] = fresh
            started.append(fresh)
        return CheckResult(given, started, surplus, decided)

    def _template(self) -> Template | None:
        if self.sizing.worker is None:
            return None
        there = ZERO
        for worker in self.workers.values():
            there += worker.total
        for pending in self.pending.values():
            there += pending.total
        at_most = self.sizing.more_workers(there, len(self.workers) + len(self.pending))
        return Template(self.sizing.worker.total, self.sizing.worker.default_profile, at_most)

    def idle_workers(self, now: float) -> list[WorkerId]:
        """Workers that have had no slot for the idle timeout (B: SZ-07)."""
        timeout = self.sizing.idle_timeout_s
        return [
            entry.worker
            for entry in self.workers.values()
            if not entry.leaving and entry.idle_since is not None and entry.idle_since + timeout <= now
        ]

    def fits_any_worker(self, profile: ResourceProfile) -> bool:
        """Whether some worker, registered, coming or possible, could hold such a slot when empty."""
        totals = [worker.total for worker in self.workers.values()] + [p.total for p in self.pending.values()]
        if self.sizing.worker is not None:
            totals.append(self.sizing.worker.total)
        return any(fits(profile, total) for total in totals)

    # ------------------------------------------------------------------------------------------- the sums

    def _add(self, entry: Worker, allocation: AllocationId, slot: Slot) -> None:
        if not fits(slot.profile, entry.free):
            # Only a worker's own report can get here: its pending slots here are then the ones that are wrong.
            for other, pending in list(entry.slots.items()):
                if pending.pending_since is not None and not fits(slot.profile, entry.free):
                    self._drop(entry, other, pending.pending_since)
        entry.slots[allocation] = slot
        entry.free -= slot.profile
        entry.idle_since = None
        self.ledger.gain(slot.job, slot.profile)

    def _drop(self, entry: Worker, allocation: AllocationId, now: float) -> None:
        slot = entry.slots.pop(allocation)
        entry.free += slot.profile
        self.ledger.lose(slot.job, slot.profile)
        self._mark_idle(entry, now)

    def _mark_idle(self, entry: Worker, now: float) -> None:
        if entry.slots:
            entry.idle_since = None
        elif entry.idle_since is None:
            entry.idle_since = now

    def _position(self) -> int:
        self._next_position += 1
        return self._next_position

    def check_invariants(self) -> None:
        """Raise AssertionError unless every sum adds up (B: SM-14)."""
        held: dict[JobId, dict[ResourceProfile, int]] = {}
        for entry in self.workers.values():
            used = ZERO
            for slot in entry.slots.values():
                used += slot.profile
                of_job = held.setdefault(slot.job, {})
                of_job[slot.profile] = of_job.get(slot.profile, 0) + 1
            assert used + entry.free == entry.total, f"{entry.worker}: {used} used + {entry.free} free"
            assert (entry.idle_since is None) == bool(entry.slots), f"{entry.worker}: idle mark is wrong"
        for account in self.ledger.in_order():
            assert account.held == held.get(account.job, {}), f"{account.job}: ledger and slots differ"
