"""The slot manager: the RM's view of workers and slots, and the check that turns requirements into allocations.

Nothing of it is stored: it is rebuilt from registrations and reports, because the worker is the ground truth
(decision 4; B: SM-01 … SM-16). It sends nothing itself; :mod:`slotwise.resourcemanager.machine` turns what it returns
into messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.model.ids import AllocationId, IdSource, JobId, WorkerId
from slotwise.model.resources import ZERO, ResourceProfile, fits, times_fitting
from slotwise.protocol.messages import SlotReport
from slotwise.resourcemanager.ledger import Ledger
from slotwise.resourcemanager.matching import Assignment, Need, Plan, Template, plan
from slotwise.resourcemanager.sizing import Sizing
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerIndex

_MANY = 1_000_000


@dataclass(slots=True)
class Slot:
    """A slot as the RM sees it. ``pending_since`` is the time it was asked for, None once the worker has confirmed
    it.
    """

    job: JobId
    profile: ResourceProfile
    pending_since: float | None


@dataclass(slots=True)
class Worker:
    """A registered worker. ``free`` is kept equal to total − sum of slots. It is in ``index``, and so may get slots,
    unless it is leaving or blocked."""

    worker: WorkerId
    position: int
    host: str
    pid: int
    total: ResourceProfile
    default_profile: ResourceProfile
    free: ResourceProfile
    index: WorkerIndex = field(repr=False, compare=False)
    slots: dict[AllocationId, Slot] = field(default_factory=dict)
    report_seq: int = -1
    last_heard: float = 0.0
    idle_since: float | None = None
    rss_bytes: int = 0
    _leaving: bool = False
    _blocked: bool = False

    @property
    def leaving(self) -> bool:
        """It was told to go."""
        return self._leaving

    @leaving.setter
    def leaving(self, value: bool) -> None:
        self._leaving = value
        self.reindex()

    @property
    def blocked(self) -> bool:
        """It keeps its slots and gets no new ones (B: SM-15)."""
        return self._blocked

    @blocked.setter
    def blocked(self, value: bool) -> None:
        self._blocked = value
        self.reindex()

    def reindex(self) -> None:
        """Bring the index in line with this worker."""
        if self._leaving or self._blocked:
            self.index.remove(self.worker)
        elif self.worker in self.index:
            self.index.update_free(self.worker, self.free)
        else:
            self.index.add(self.worker, self.position, self.total, self.free, self.default_profile)


@dataclass(slots=True)
class PendingWorker:
    """A worker that was asked for and has not registered."""

    worker: WorkerId
    position: int
    total: ResourceProfile
    default_profile: ResourceProfile
    since: float


@dataclass(frozen=True, slots=True)
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
    """Workers, slots and the check. Every change of the sums goes through _add, _give and _drop.

    What a check reads is kept up to date with each change: the jobs that lack something (``ledger``), the workers as
    classes of equals (``index``), how many there are of each size."""

    def __init__(self, ids: IdSource, sizing: Sizing, mode: PlacementMode = PlacementMode.PACK) -> None:
        self.ledger = Ledger()
        self.sizing = sizing
        self.workers: dict[WorkerId, Worker] = {}
        self.pending: dict[WorkerId, PendingWorker] = {}
        self.cancelled: list[WorkerId] = []
        self.index = WorkerIndex(mode)
        self._coming = WorkerIndex()
        self._totals: dict[ResourceProfile, int] = {}
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
            if expected is None and not report.slots:
                self._use_up(total)
            position = expected.position if expected is not None else self._position()
            known = Worker(worker, position, host, pid, total, default_profile, total, self.index)
            self.workers[worker] = known
            self._totals[total] = self._totals.get(total, 0) + 1
            self._keep_maximum()
        known.last_heard = now
        known.leaving = False
        self.report(worker, report, now)

    def _use_up(self, total: ResourceProfile) -> None:
        """A worker that nobody asked for does the work of a pending one of exactly its size (B: SZ-02)."""
        alike = [pending.worker for pending in self.pending.values() if pending.total == total]
        if alike:
            self.cancelled.append(alike[-1])
            del self.pending[alike[-1]]

    def _keep_maximum(self) -> None:
        """A worker that an earlier leader's jobs hold is not refused: what is still to come makes room for it, the
        youngest first (B: SZ-04).
        """
        while self.pending and not self.sizing.allows(self.total_there(), len(self.workers) + len(self.pending)):
            self.cancelled.append(self.pending.popitem()[0])

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
        self.index.remove(worker)
        self._totals[entry.total] -= 1
        if not self._totals[entry.total]:
            del self._totals[entry.total]
        lost = list(entry.slots.items())
        for _, slot in lost:
            self.ledger.lose(slot.job, slot.profile)
        return lost

    # ------------------------------------------------------------------------------------------- the check

    def check(self, now: float) -> CheckResult:
        """One pass (B: SM-01): 1. what each job lacks; 2. plan; 3. mark what is given; 4. ask for new workers;
        5. give up the pending ones that neither a plan nor minimum nor redundancy needs."""
        needs = [Need(job, missing) for job, missing in self.ledger.lacking()]
        decided = plan(needs, self.index, self._pending_index(), self._template())
        given: list[Given] = []
        for assignment in decided.assignments:
            self._give(assignment, now, given)
        kept, more = self._upkeep(decided)
        surplus = [worker for worker in self.pending if worker not in kept]
        for worker in surplus:
            del self.pending[worker]
        started = []
        for _ in range(decided.new_workers + more):
            template = self.sizing.worker
            assert template is not None
            fresh = PendingWorker(
                WorkerId(self._ids.new_id("worker")), self._position(), template.total, template.default_profile, now
            )
            self.pending[fresh.worker] = fresh
            started.append(fresh)
        surplus += self.cancelled
        self.cancelled = []
        return CheckResult(given, started, surplus, decided)

    def _template(self) -> Template | None:
        if self.sizing.worker is None:
            return None
        at_most = self.sizing.more_workers(self.total_there(), len(self.workers) + len(self.pending))
        return Template(self.sizing.worker.total, self.sizing.worker.default_profile, at_most)

    def total_there(self) -> ResourceProfile:
        """The sum of all workers, registered and coming."""
        totals = self._totals.copy()
        for pending in self.pending.values():
            totals[pending.total] = totals.get(pending.total, 0) + 1
        return sum((total * count for total, count in totals.items()), ZERO)

    def _upkeep(self, decided: Plan) -> tuple[set[WorkerId], int]:
        """Beyond what jobs need: the pending workers to keep, and how many more to ask for (B: SZ-05, SZ-09, SZ-10).

        Best effort: within the maximum, and tried again with the next check.
        """
        kept, shape = set(decided.on_pending), self.sizing.worker
        if shape is None or (self.sizing.min_total is None and not self.sizing.redundant_workers):
            return kept, 0
        there = self._capacity() + shape.total * decided.new_workers
        for worker in kept:
            there += self.pending[worker].total
        free = self.free_default_slots()
        spare = [worker for worker in self.pending if worker not in kept]
        left = self.sizing.more_workers(self.total_there(), len(self.workers) + len(self.pending))
        left -= decided.new_workers
        more = 0
        while self.sizing.workers_for_minimum(there) or self.sizing.workers_for_redundancy(free):
            if spare:
                kept.add(spare.pop(0))
            elif more < left:
                more += 1
            else:
                break
            there += shape.total
            free += shape.slots
        return kept, more

    def _capacity(self) -> ResourceProfile:
        """The sum of the registered workers that may get slots: blocked and leaving ones are none (B: SM-15)."""
        there = sum((total * count for total, count in self._totals.items()), ZERO)
        for entry in self.workers.values() if len(self.index) < len(self.workers) else ():
            if entry.leaving or entry.blocked:
                there -= entry.total
        return there

    def free_default_slots(self) -> int:
        """How many whole default slots are free on the registered workers; fragments do not count (B: SZ-09)."""
        shape = self.sizing.worker
        if shape is None:
            return 0
        return sum(
            times_fitting(shape.default_profile, entry.free, _MANY) * len(entry.positions)
            for entry in self.index.classes()
        )

    def _pending_index(self) -> WorkerIndex:
        """The pending workers as classes; only those that came or went since the last check are touched."""
        known = self._coming.known()
        if known != self.pending.keys():
            for worker in [worker for worker in known if worker not in self.pending]:
                self._coming.remove(worker)
            for worker, entry in self.pending.items():
                if worker not in known:
                    self._coming.add(worker, entry.position, entry.total, entry.total, entry.default_profile)
        return self._coming

    def idle_workers(self, now: float) -> list[WorkerId]:
        """Workers without a slot for the idle timeout that neither minimum nor redundancy needs (B: SZ-07)."""
        timeout = self.sizing.idle_timeout_s
        there, free, shape = self._capacity(), self.free_default_slots(), self.sizing.worker
        found = []
        for entry in self.workers.values():
            if entry.leaving or entry.idle_since is None or entry.idle_since + timeout > now:
                continue
            if not entry.blocked and shape is not None:
                if not self.sizing.can_spare(there, entry.total, free):
                    continue
                there -= entry.total
                free -= times_fitting(shape.default_profile, entry.total, _MANY)
            found.append(entry.worker)
        return found

    def fits_any_worker(self, profile: ResourceProfile) -> bool:
        """Whether some worker, registered, coming or possible, could hold such a slot when empty."""
        totals = [*self._totals, *{pending.total: None for pending in self.pending.values()}]
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
        entry.reindex()
        self.ledger.gain(slot.job, slot.profile)

    def _give(self, assignment: Assignment, now: float, given: list[Given]) -> None:
        """Mark the slots of an assignment as given, before the worker is asked (B: SM-06)."""
        entry, job, profile = self.workers[assignment.worker], assignment.job, assignment.profile
        for _ in range(assignment.count):
            allocation = AllocationId(self._ids.new_id("slot"))
            entry.slots[allocation] = Slot(job, profile, now)
            given.append(Given(allocation, entry.worker, job, profile))
        entry.free -= profile if assignment.count == 1 else profile * assignment.count
        entry.idle_since = None
        entry.reindex()
        self.ledger.gain(job, profile, assignment.count)

    def _drop(self, entry: Worker, allocation: AllocationId, now: float) -> None:
        slot = entry.slots.pop(allocation)
        entry.free += slot.profile
        entry.reindex()
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
        self.ledger.check_invariants()
        fresh = WorkerIndex(self.index.mode)
        for entry in self.workers.values():
            if not entry.leaving and not entry.blocked:
                fresh.add(entry.worker, entry.position, entry.total, entry.free, entry.default_profile)
        assert self.index.snapshot() == fresh.snapshot(), "the index differs from the workers"
        totals = [entry.total for entry in self.workers.values()]
        assert self._totals == {total: totals.count(total) for total in totals}, "the totals differ from the workers"
