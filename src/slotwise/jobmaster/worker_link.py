"""A JobMaster's side of its talk with the workers that have slots of the job (B: SP-01, ML-05, A-04).

What is wanted of a worker is kept (slots to accept, processes to end, slots to free) and said again until a report
shows that it has come true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.model.ids import AllocationId, JobId, WorkerId, worker_address
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import (
    AcceptSlots,
    FreeSlots,
    JobMasterHeartbeat,
    JobSlotsReport,
    JobSlotStatus,
    OfferSlots,
    RejectSlots,
    StopProcess,
)
from slotwise.protocol.outbox import Outbox


@dataclass
class _View:
    """The last report of a worker."""

    seq: int
    last_heard: float


class WorkerLink:
    """All workers with slots of ``job``. ``freeing``: slots given back and not yet known to be gone, with their
    worker.
    """

    def __init__(self, job: JobId, pool: SlotPool, out: Outbox) -> None:
        self.freeing: dict[AllocationId, WorkerId] = {}
        self._job = job
        self._pool = pool
        self._out = out
        self._views: dict[WorkerId, _View] = {}

    def _heard(self, worker: WorkerId, now: float) -> _View:
        view = self._views.setdefault(worker, _View(-1, now))
        view.last_heard = now
        return view

    def report_seqs(self) -> dict[WorkerId, tuple[object, int]]:
        """By worker: the view of it that this is, and the number of the last report in it."""
        return {worker: (view, view.seq) for worker, view in self._views.items()}

    def on_offer(self, message: OfferSlots, now: float, effects: Effects, driver: AllocationId | None = None) -> None:
        """Accept what the pool needs, and ``driver``, into which a driver may have been sent; reject the rest."""
        self._heard(message.worker, now)
        before = set(self._pool.slots)
        for offer in message.slots:
            if offer.allocation == driver:
                self._pool.adopt(message.worker, message.host, driver, offer.profile, now).confirmed = False
        accepted, rejected = self._pool.offer(message.worker, message.host, message.slots, now)
        to = worker_address(message.worker)
        if accepted:
            self._out.send(effects, to, AcceptSlots(self._job, accepted))
        if rejected:
            self._out.send(effects, to, RejectSlots(self._job, rejected))
        for allocation in accepted:
            if allocation not in before:
                profile = str(self._pool.slots[allocation].profile)
                effects.events.append(Event("acquired", self._job, message.worker, allocation, {"profile": profile}))

    def on_report(
        self, message: JobSlotsReport, now: float, effects: Effects, adopting: Callable[[AllocationId], bool]
    ) -> tuple[list[tuple[HeldSlot, JobSlotStatus]], tuple[AllocationId, ...]]:
        """Bring the pool in line; returns what runs in held slots, and the held slots that turn out to be gone.

        A report that is not newer than the last only tells that the worker lives and what is ``gone`` for ever. Slots
        that the job does not hold are given back, unless ``adopting`` says that they are to be taken over.
        """
        view = self._heard(message.worker, now)
        for allocation in message.gone:
            self.freeing.pop(allocation, None)
        lost = [allocation for allocation in message.gone if allocation in self._pool.slots]
        if message.seq <= view.seq:
            return [], tuple(lost)
        view.seq = message.seq
        reported = {status.allocation: status for status in message.slots}
        for slot in self._pool.on_worker(message.worker):
            if slot.allocation in reported:
                slot.confirmed = True
            elif slot.confirmed and slot.allocation not in lost:
                lost.append(slot.allocation)
        running = []
        for allocation, status in reported.items():
            held = self._pool.slots.get(allocation)
            if held is not None:
                running.append((held, status))
            elif allocation in self.freeing:
                continue
            elif adopting(allocation):
                adopted = self._pool.adopt(message.worker, message.host, allocation, status.profile, now)
                running.append((adopted, status))
            else:
                self.free(allocation, message.worker, "not held by its job", effects)
        return running, tuple(lost)

    def ask_about(self, allocation: AllocationId, worker: WorkerId, effects: Effects) -> None:
        """Have the worker say whether a slot is there: its next report names it, as present or as gone."""
        self._out.send(effects, worker_address(worker), AcceptSlots(self._job, (allocation,)))

    def free(self, allocation: AllocationId, worker: WorkerId, cause: str, effects: Effects) -> None:
        """Give a slot back."""
        self._give_back(allocation, worker, cause, effects)
        self._out.send(effects, worker_address(worker), FreeSlots(self._job, (allocation,), cause))

    def free_all(self, cause: str, effects: Effects) -> None:
        """Give all slots back: one message a worker."""
        by_worker: dict[WorkerId, list[AllocationId]] = {}
        for slot in list(self._pool.slots.values()):
            by_worker.setdefault(slot.worker, []).append(slot.allocation)
            self._give_back(slot.allocation, slot.worker, cause, effects)
        for worker, allocations in by_worker.items():
            self._out.send(effects, worker_address(worker), FreeSlots(self._job, tuple(allocations), cause))

    def _give_back(self, allocation: AllocationId, worker: WorkerId, cause: str, effects: Effects) -> None:
        self._pool.remove(allocation)
        self.freeing[allocation] = worker
        effects.events.append(Event("released", self._job, worker, allocation, {"cause": cause}))

    def end_process(self, slot: HeldSlot, effects: Effects, *, again: bool = False) -> None:
        """Have what runs in the slot ended; said once, and ``again`` by :meth:`repeat`."""
        process = slot.use or (slot.process.process if slot.process is not None else None)
        if process is not None and (slot.stop_sent != process or again):
            slot.stop_sent = process
            message = StopProcess(self._job, slot.allocation, process)
            self._out.send(effects, worker_address(slot.worker), message)

    def repeat(self, effects: Effects) -> list[HeldSlot]:
        """Say again what has not come true; returns the slots whose deployment no report has shown yet."""
        undeployed = []
        involved = {slot.worker for slot in self._pool.slots.values()} | set(self.freeing.values())
        for worker in sorted(involved):
            to = worker_address(worker)
            slots = self._pool.on_worker(worker)
            unconfirmed = tuple(slot.allocation for slot in slots if not slot.confirmed)
            if unconfirmed:
                self._out.send(effects, to, AcceptSlots(self._job, unconfirmed))
            for slot in slots:
                if slot.use is not None and (slot.process is None or slot.process.process != slot.use):
                    undeployed.append(slot)
                if slot.busy and slot.stop_sent is not None and slot.stop_sent == (slot.use or slot.stop_sent):
                    self.end_process(slot, effects, again=True)
            freeing = tuple(allocation for allocation, on in self.freeing.items() if on == worker)
            if freeing:
                self._out.send(effects, to, FreeSlots(self._job, freeing, "the job gave it back"))
        return undeployed

    def heartbeat(self, now: float, timeout_s: float, effects: Effects) -> list[WorkerId]:
        """Greet every worker with slots of the job; returns those that have been silent for too long."""
        silent = []
        for worker in sorted({slot.worker for slot in self._pool.slots.values()}):
            if self._views[worker].last_heard + timeout_s < now:
                silent.append(worker)
            else:
                self._out.send(effects, worker_address(worker), JobMasterHeartbeat(self._job))
        return silent
