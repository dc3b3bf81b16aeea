"""The slot manager: the RM's view of workers and slots, and the check that turns requirements into allocations.

Nothing of it is stored: it is rebuilt from registrations and reports, because the worker is the ground truth
(decision 4; B: SM-01 … SM-16). It sends nothing itself; :mod:`slotwise.resourcemanager.machine` turns what it returns
into messages."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise.model.ids import AllocationId, IdSource, JobId, WorkerId
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.protocol.messages import SlotReport
from slotwise.resourcemanager.fleet import Fleet, PendingWorker, Slot, Worker
from slotwise.resourcemanager.idle import Kind
from slotwise.resourcemanager.ledger import Ledger
from slotwise.resourcemanager.matching import Assignment, Need, Plan, Template, plan
from slotwise.resourcemanager.sizing import Sizing
from slotwise.resourcemanager.unconfirmed import UnconfirmedSlots
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerIndex


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

    What a check or a timer reads is kept up to date with each change: the jobs that lack something (``ledger``), the
    workers with their sums (``fleet``), the slots that no report has shown yet (``unconfirmed``)."""

    def __init__(self, ids: IdSource, sizing: Sizing, mode: PlacementMode = PlacementMode.PACK) -> None:
        self.ledger = Ledger()
        self.sizing = sizing
        self.fleet = Fleet(mode, sizing.worker.default_profile if sizing.worker is not None else None)
        self.unconfirmed = UnconfirmedSlots()
        self.cancelled: list[WorkerId] = []
        self._ids = ids
        self._next_position = 0

    @property
    def workers(self) -> dict[WorkerId, Worker]:
        """The registered workers. Not to be changed by the caller."""
        return self.fleet.workers

    @property
    def pending(self) -> dict[WorkerId, PendingWorker]:
        """The workers on their way. Not to be changed by the caller."""
        return self.fleet.pending

    @property
    def index(self) -> WorkerIndex:
        """The workers that may get slots, as classes of equals."""
        return self.fleet.index

    # ------------------------------------------------------------------------------------------- workers

    def expect(self, worker: WorkerId, total: ResourceProfile, default_profile: ResourceProfile, now: float) -> None:
        """An earlier leader had this worker started, and it is about to come back (B: F-02, SZ-04)."""
        self.fleet.expect(PendingWorker(worker, self._position(), total, default_profile, now, from_before=True))

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
            expected = self.fleet.give_up(worker)
            if expected is None and not report.slots:
                self._use_up(total)
            position = expected.position if expected is not None else self._position()
            self.fleet.add(Worker(worker, position, host, pid, total, default_profile, total), now)
            self._keep_maximum()
        elif known.leaving:
            self.fleet.mark(known, leaving=False)
        self.report(worker, report, now)

    def _use_up(self, total: ResourceProfile) -> None:
        """A worker that nobody asked for does the work of a pending one of exactly its size (B: SZ-02)."""
        alike = self.fleet.last_pending(total)
        if alike is not None:
            self.cancelled.append(alike)
            self.fleet.give_up(alike)

    def _keep_maximum(self) -> None:
        """A worker that an earlier leader's jobs hold is not refused: what is still to come makes room for it, the
        youngest first (B: SZ-04).
        """
        while not self.sizing.allows(self.fleet.there, self.fleet.count()):
            youngest = self.fleet.youngest_pending()
            if youngest is None:
                return
            self.cancelled.append(youngest)
            self.fleet.give_up(youngest)

    def report(self, worker: WorkerId, report: SlotReport, now: float) -> bool:
        """Bring the view in line with a slot report; true when something was freed, adopted or confirmed (B: SM-09)."""
        entry = self.workers[worker]
        self.fleet.hear(entry, now)
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
                self._add(entry, allocation, Slot(status.job, status.profile, None), now)
                changed = True
            elif known.pending_since is not None:
                known.pending_since = None
                self.fleet.touched += 1
                self.unconfirmed.remove(worker, allocation)
                changed = True
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
        self.fleet.give_up(worker)
        entry = self.fleet.remove(worker)
        if entry is None:
            return []
        lost = list(entry.slots.items())
        for allocation, slot in lost:
            self.unconfirmed.remove(worker, allocation)
            self.ledger.lose(slot.job, slot.profile)
        return lost

    def late(self, timeout_s: float, now: float) -> dict[WorkerId, list[tuple[AllocationId, Slot]]]:
        """By worker, the slots that were asked for so long ago and that no report has shown yet (B: ML-03)."""
        found: dict[WorkerId, list[tuple[AllocationId, Slot]]] = {}
        for worker, allocation in self.unconfirmed.oldest_first():
            slot = self.workers[worker].slots[allocation]
            if slot.pending_since is None or slot.pending_since + timeout_s > now:
                break
            found.setdefault(worker, []).append((allocation, slot))
        return found

    # ------------------------------------------------------------------------------------------- the check

    def check(self, now: float) -> CheckResult:
        """One pass (B: SM-01): 1. what each job lacks; 2. plan; 3. mark what is given; 4. ask for new workers;
        5. give up the pending ones that neither a plan nor minimum nor redundancy needs."""
        yielding = self.ledger.yielding
        needs = [Need(job, missing) for job, missing in self.ledger.lacking() if job not in yielding]
        decided = plan(needs, self.index, self.fleet.coming, self._template())
        given: list[Given] = []
        for assignment in decided.assignments:
            self._give(assignment, now, given)
        if yielding:
            self._serve_last(decided, now, given)
        surplus, more = self._upkeep(decided)
        for worker in surplus:
            self.fleet.give_up(worker)
        started = []
        for _ in range(decided.new_workers + more):
            template = self.sizing.worker
            assert template is not None
            fresh = PendingWorker(
                WorkerId(self._ids.new_id("worker")), self._position(), template.total, template.default_profile, now
            )
            self.fleet.expect(fresh)
            started.append(fresh)
        surplus += self.cancelled
        self.cancelled = []
        return CheckResult(given, started, surplus, decided)

    def _serve_last(self, decided: Plan, now: float, given: list[Given]) -> None:
        """Those that yield get what is left, and only when nobody lacks anything; no worker is asked for on their
        account.
        """
        needs = [Need(job, missing) for job, missing in self.ledger.lacking() if job in self.ledger.yielding]
        if self.wanted_by_others(decided):
            decided.unserved.update((need.job, need.missing) for need in needs)
            return
        rest = plan(needs, self.index, WorkerIndex(), None)
        for assignment in rest.assignments:
            self._give(assignment, now, given)
        decided.unserved.update(rest.unserved)

    def wanted_by_others(self, decided: Plan) -> bool:
        """Whether a job that does not yield lacks something that could be had."""
        yielding = self.ledger.yielding
        return bool(decided.waiting) or any(
            profile is None or self.fits_any_worker(profile)
            for job, missing in decided.unserved.items()
            if job not in yielding
            for profile in missing
        )

    def _template(self) -> Template | None:
        if self.sizing.worker is None:
            return None
        at_most = self.sizing.more_workers(self.fleet.there, self.fleet.count())
        return Template(self.sizing.worker.total, self.sizing.worker.default_profile, at_most)

    def _upkeep(self, decided: Plan) -> tuple[list[WorkerId], int]:
        """Beyond what jobs need: the pending workers to give up, and how many more to ask for (B: SZ-05, SZ-09, SZ-10).

        Best effort: within the maximum, and tried again with the next check.
        """
        planned, shape, pending = decided.on_pending, self.sizing.worker, self.pending
        spare: list[WorkerId] = []
        if len(planned) < len(pending):
            spare = [worker for worker, one in pending.items() if worker not in planned and not one.from_before]
        if shape is None or (self.sizing.min_total is None and not self.sizing.redundant_workers):
            return spare, 0
        # Registered workers that may get slots, those to be asked for, and the pending ones that are needed.
        there = self.fleet.capacity + shape.total * decided.new_workers
        there += sum((entry.total * len(entry.positions) for entry in self.fleet.coming.classes()), ZERO)
        for worker in spare:
            there -= pending[worker].total
        free = self.free_default_slots()
        left = self.sizing.more_workers(self.fleet.there, self.fleet.count()) - decided.new_workers
        more = kept = 0
        while self.sizing.workers_for_minimum(there) or self.sizing.workers_for_redundancy(free):
            if kept < len(spare):
                kept += 1
            elif more < left:
                more += 1
            else:
                break
            there += shape.total
            free += shape.slots
        return spare[kept:], more

    def free_default_slots(self) -> int:
        """How many whole default slots are free on the registered workers; fragments do not count (B: SZ-09)."""
        return self.index.units

    def idle_workers(self, now: float) -> list[WorkerId]:
        """Workers without a slot for the idle timeout that neither minimum nor redundancy needs (B: SZ-07)."""
        shape = self.sizing.worker
        there, free = self.fleet.capacity, self.free_default_slots()

        def may_go(kind: Kind) -> bool:
            nonlocal there, free
            total, blocked = kind
            if blocked or shape is None:
                return True
            if not self.sizing.can_spare(there, total, free):
                return False
            there -= total
            free -= self.sizing.slots_of(total)
            return True

        return self.fleet.idle.release(self.sizing.idle_timeout_s, now, may_go)

    def fits_any_worker(self, profile: ResourceProfile) -> bool:
        """Whether some worker, registered, coming or possible, could hold such a slot when empty."""
        shape = self.sizing.worker
        return (shape is not None and fits(profile, shape.total)) or self.fleet.could_hold(profile)

    # ------------------------------------------------------------------------------------------- the sums

    def _add(self, entry: Worker, allocation: AllocationId, slot: Slot, now: float) -> None:
        if not fits(slot.profile, entry.free):
            # Only a worker's own report can get here: its pending slots here are then the ones that are wrong.
            for other, pending in list(entry.slots.items()):
                if pending.pending_since is not None and not fits(slot.profile, entry.free):
                    self._drop(entry, other, now)
        entry.slots[allocation] = slot
        entry.free -= slot.profile
        self.fleet.touch(entry, now)
        self.ledger.gain(slot.job, slot.profile)

    def _give(self, assignment: Assignment, now: float, given: list[Given]) -> None:
        """Mark the slots of an assignment as given, before the worker is asked (B: SM-06)."""
        entry, job, profile = self.workers[assignment.worker], assignment.job, assignment.profile
        for _ in range(assignment.count):
            allocation = AllocationId(self._ids.new_id("slot"))
            entry.slots[allocation] = Slot(job, profile, now)
            self.unconfirmed.add(entry.worker, allocation, job)
            given.append(Given(allocation, entry.worker, job, profile))
        entry.free -= profile if assignment.count == 1 else profile * assignment.count
        self.fleet.touch(entry, now)
        self.ledger.gain(job, profile, assignment.count)

    def _drop(self, entry: Worker, allocation: AllocationId, now: float) -> None:
        slot = entry.slots.pop(allocation)
        self.unconfirmed.remove(entry.worker, allocation)
        entry.free += slot.profile
        self.fleet.touch(entry, now)
        self.ledger.lose(slot.job, slot.profile)

    def _position(self) -> int:
        self._next_position += 1
        return self._next_position

    def check_invariants(self) -> None:
        """Raise AssertionError unless every sum adds up (B: SM-14)."""
        held: dict[JobId, dict[ResourceProfile, int]] = {}
        pending: dict[tuple[WorkerId, AllocationId], tuple[JobId, float]] = {}
        for entry in self.workers.values():
            used = ZERO
            for allocation, slot in entry.slots.items():
                used += slot.profile
                of_job = held.setdefault(slot.job, {})
                of_job[slot.profile] = of_job.get(slot.profile, 0) + 1
                if slot.pending_since is not None:
                    pending[(entry.worker, allocation)] = (slot.job, slot.pending_since)
            assert used + entry.free == entry.total, f"{entry.worker}: {used} used + {entry.free} free"
            assert (entry.idle_since is None) == bool(entry.slots), f"{entry.worker}: idle mark is wrong"
        for account in self.ledger.in_order():
            assert account.held == held.get(account.job, {}), f"{account.job}: ledger and slots differ"
        self.ledger.check_invariants()
        self.unconfirmed.check_invariants(pending)
        self.fleet.check_invariants()
