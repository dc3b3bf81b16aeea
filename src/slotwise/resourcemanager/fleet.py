"""The workers that there are and those that are coming, with every sum that a check or a timer reads.

The sums are kept with each change, so that nothing walks over all workers (decision 5; B: SM-14, SM-15). All changes
of a worker's slots end in :meth:`Fleet.touch`."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.resourcemanager.idle import IdleWorkers
from slotwise.resourcemanager.silence import LastHeard
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerIndex


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
    """A registered worker. ``free`` is kept equal to total − sum of slots. ``leaving``: it was told to go.
    ``blocked``: it keeps its slots and gets no new ones. Both are changed through the :class:`Fleet`."""

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
    rss_bytes: int = 0
    leaving: bool = False
    blocked: bool = False

    @property
    def usable(self) -> bool:
        """Whether it may get slots."""
        return not (self.leaving or self.blocked)


@dataclass(slots=True)
class PendingWorker:
    """A worker that was asked for and has not registered. ``from_before``: an earlier leader asked for it; it may hold
    slots, so it is given up only when it does not come back.
    """

    worker: WorkerId
    position: int
    total: ResourceProfile
    default_profile: ResourceProfile
    since: float
    from_before: bool = False


class Fleet:
    """``workers``: the registered ones; ``pending``: those on their way. ``index`` has the workers that may get slots,
    ``coming`` the pending ones, ``blocked`` the blocked ones. ``revision`` changes with every change that a shortage
    is explained by: workers that come and go, and what blocked ones have free. ``unit`` is the slot in which
    ``index`` counts what is free (None: not counted).
    """

    def __init__(self, mode: PlacementMode, unit: ResourceProfile | None) -> None:
        self.workers: dict[WorkerId, Worker] = {}
        self.pending: dict[WorkerId, PendingWorker] = {}
        self.index = WorkerIndex(mode, unit)
        self.coming = WorkerIndex()
        self.blocked = WorkerIndex()
        self.idle = IdleWorkers()
        self.heard: LastHeard[WorkerId] = LastHeard()
        self.revision = 0
        self.touched = 0
        """Changes with every change of any worker's slots."""
        self.there = ZERO
        """The sum of all workers, registered and pending."""
        self.capacity = ZERO
        """The sum of the registered workers that may get slots: blocked and leaving ones are none (B: SM-15)."""
        self._totals: dict[ResourceProfile, int] = {}
        self._pending_totals: dict[ResourceProfile, dict[WorkerId, None]] = {}

    # ------------------------------------------------------------------------------------------- pending workers

    def expect(self, pending: PendingWorker) -> None:
        """The worker was asked for."""
        self.pending[pending.worker] = pending
        self._pending_totals.setdefault(pending.total, {})[pending.worker] = None
        self.coming.add(pending.worker, pending.position, pending.total, pending.total, pending.default_profile)
        self.there += pending.total
        self.revision += 1

    def give_up(self, worker: WorkerId) -> PendingWorker | None:
        """The worker is not waited for any more; returns it if it was."""
        pending = self.pending.pop(worker, None)
        if pending is not None:
            alike = self._pending_totals[pending.total]
            del alike[worker]
            if not alike:
                del self._pending_totals[pending.total]
            self.coming.remove(worker)
            self.there -= pending.total
            self.revision += 1
        return pending

    def last_pending(self, total: ResourceProfile) -> WorkerId | None:
        """Of the pending workers of this size that this leader asked for, the last one."""
        alike = reversed(self._pending_totals.get(total, {}))
        return next((worker for worker in alike if not self.pending[worker].from_before), None)

    def youngest_pending(self) -> WorkerId | None:
        """Of the pending workers that this leader asked for, the last one."""
        alike = reversed(self.pending)
        return next((worker for worker in alike if not self.pending[worker].from_before), None)

    # ------------------------------------------------------------------------------------------- registered workers

    def add(self, worker: Worker, now: float) -> None:
        """The worker has registered."""
        self.workers[worker.worker] = worker
        self._totals[worker.total] = self._totals.get(worker.total, 0) + 1
        self.there += worker.total
        self.revision += 1
        self._count(worker)
        self.hear(worker, now)
        self.touch(worker, now)

    def remove(self, worker: WorkerId) -> Worker | None:
        """The worker is gone; returns it if it was registered."""
        entry = self.workers.pop(worker, None)
        if entry is not None:
            self._totals[entry.total] -= 1
            if not self._totals[entry.total]:
                del self._totals[entry.total]
            self.there -= entry.total
            self.revision += 1
            self._discount(entry)
            self.idle.discard(worker)
            self.heard.forget(worker)
        return entry

    def hear(self, entry: Worker, now: float) -> None:
        """The worker has given a sign of life."""
        entry.last_heard = now
        self.heard.hear(entry.worker, now)

    def mark(self, entry: Worker, *, leaving: bool | None = None, blocked: bool | None = None) -> None:
        """Change whether the worker is leaving or blocked; None leaves it as it is."""
        self._discount(entry)
        entry.leaving = entry.leaving if leaving is None else leaving
        entry.blocked = entry.blocked if blocked is None else blocked
        self._count(entry)
        self._mark_idle(entry)
        self.revision += 1

    def touch(self, entry: Worker, now: float) -> None:
        """The slots of the worker have changed: bring everything in line with what it has free."""
        self.touched += 1
        if entry.usable:
            self.index.update_free(entry.worker, entry.free)
        if entry.blocked:
            self.blocked.update_free(entry.worker, entry.free)
            self.revision += 1
        if entry.slots:
            if entry.idle_since is not None:
                entry.idle_since = None
                self.idle.discard(entry.worker)
        elif entry.idle_since is None:
            entry.idle_since = now
            self._mark_idle(entry)

    def _mark_idle(self, entry: Worker) -> None:
        if entry.idle_since is None or entry.leaving:
            self.idle.discard(entry.worker)
        else:
            self.idle.put(entry.worker, entry.idle_since, entry.position, (entry.total, entry.blocked))

    def _count(self, entry: Worker) -> None:
        if entry.usable:
            self.capacity += entry.total
            self.index.add(entry.worker, entry.position, entry.total, entry.free, entry.default_profile)
        if entry.blocked:
            self.blocked.add(entry.worker, entry.position, entry.total, entry.free, entry.default_profile)

    def _discount(self, entry: Worker) -> None:
        if entry.usable:
            self.capacity -= entry.total
        self.index.remove(entry.worker)
        self.blocked.remove(entry.worker)

    # ------------------------------------------------------------------------------------------- questions

    def count(self) -> int:
        """How many workers there are, registered and pending."""
        return len(self.workers) + len(self.pending)

    def largest(self) -> ResourceProfile:
        """The largest total of the registered workers, of which there must be one, by memory."""
        return max(self._totals, key=lambda total: (total.memory_bytes, total.cpu_milli, total.extended))

    def could_hold(self, profile: ResourceProfile) -> bool:
        """Whether some worker, registered or coming, could hold such a slot when empty."""
        return any(fits(profile, total) for totals in (self._totals, self._pending_totals) for total in totals)

    def has_blocked_room(self, profile: ResourceProfile | None) -> bool:
        """Whether a blocked worker has room for such a slot, or for one of its own default slots for None."""
        if profile is None:
            return any(fits(entry.default_profile, entry.free) for entry in self.blocked.classes())
        least = (profile.cpu_milli, profile.memory_bytes)
        return any(fits(profile, entry.free) for entry in self.blocked.classes(least))

    def check_invariants(self) -> None:
        """Raise AssertionError unless everything that is kept is what the workers show."""
        index, blocked, coming = WorkerIndex(self.index.mode, self.index.unit), WorkerIndex(), WorkerIndex()
        there, capacity = ZERO, ZERO
        for entry in self.workers.values():
            there += entry.total
            for kept, into in ((entry.usable, index), (entry.blocked, blocked)):
                if kept:
                    into.add(entry.worker, entry.position, entry.total, entry.free, entry.default_profile)
            capacity += entry.total if entry.usable else ZERO
        for pending in self.pending.values():
            there += pending.total
            coming.add(pending.worker, pending.position, pending.total, pending.total, pending.default_profile)
        assert self.index.snapshot() == index.snapshot(), "the index differs from the workers"
        assert self.index.units == index.units, "the free default slots differ from the workers'"
        assert self.blocked.snapshot() == blocked.snapshot(), "the index of blocked workers differs from the workers"
        assert self.coming.snapshot() == coming.snapshot(), "the index of pending workers differs from them"
        assert (self.there, self.capacity) == (there, capacity), "the sums differ from the workers"
        totals = [entry.total for entry in self.workers.values()]
        assert self._totals == {total: totals.count(total) for total in totals}, "the totals differ from the workers"
        alike: dict[ResourceProfile, dict[WorkerId, None]] = {}
        for pending in self.pending.values():
            alike.setdefault(pending.total, {})[pending.worker] = None
        assert self._pending_totals == alike, "the pending totals differ from the pending workers"
        self.heard.check_invariants({entry.worker: entry.last_heard for entry in self.workers.values()})
        self.idle.check_invariants(
            {
                entry.worker: ((entry.total, entry.blocked), entry.idle_since)
                for entry in self.workers.values()
                if entry.idle_since is not None and not entry.leaving
            }
        )
