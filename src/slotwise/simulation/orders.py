"""Rules about order: what was overtaken has no effect, what was done once is not done again (B: ML-05, ML-06, D-02).

Most breaches of them are made good a moment later, because everything is absolute and repeated; so nobody would see
them in the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotwise.dispatcher.machine import Dispatcher
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.progress import RecoveredJob
from slotwise.model.requirements import Counts, counts_of
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import (
    AllocateSlots,
    DeclarationRefused,
    DeclareRequirements,
    Envelope,
    Fenced,
    WorkerReport,
)
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.simulation.story import Violation
from slotwise.taskexecutor.machine import TaskExecutor

if TYPE_CHECKING:
    from slotwise.simulation.engine import Actor
    from slotwise.simulation.programs import SlotProcess


class Orders:
    """Looks at every step of every machine."""

    def __init__(self) -> None:
        self._started: set[tuple[AllocationId, str]] = set()
        self._made: dict[Actor, set[AllocationId]] = {}
        self._there: dict[Actor, frozenset[AllocationId]] = {}
        self._seqs: dict[tuple[Actor, WorkerId], tuple[object, int]] = {}
        self._pending: dict[Actor, frozenset[AllocationId]] = {}
        self._shown: dict[Actor, frozenset[AllocationId]] = {}
        self._bounds: dict[Actor, int] = {}
        self._declared: dict[tuple[Actor, JobId], tuple[int, int, Counts]] = {}

    def process_starts(self, process: SlotProcess) -> None:
        """A worker has asked a keeper to start it."""
        key = (process.allocation, process.name)
        if key in self._started:
            raise Violation("started-once", f"{process} is started a second time", process.job, process.allocation)
        self._started.add(key)

    def after_step(self, actor: Actor, stimulus: object, effects: Effects, stale: bool) -> None:
        """``stale``: the message was a replaced leader's."""
        machine = actor.machine
        if isinstance(machine, TaskExecutor):
            self._slots_once(actor, machine, stimulus)
        elif isinstance(machine, ResourceManager):
            self._pending_stays(actor, machine, stimulus)
            self._reports_in_order(actor, {one.worker: (one, one.report_seq) for one in machine.slots.workers.values()})
            if isinstance(stimulus, Envelope) and not stale:
                self._last_declaration(actor, machine, stimulus, effects)
        elif isinstance(machine, JobMaster):
            self._reports_in_order(actor, machine.workers.report_seqs())
            if machine.rescaling.version < self._bounds.get(actor, 0):
                text = f"{actor.name} goes back to bounds of version {machine.rescaling.version}"
                raise Violation("last-bounds-count", text, machine.job)
            self._bounds[actor] = machine.rescaling.version

    def _slots_once(self, actor: Actor, machine: TaskExecutor, stimulus: object) -> None:
        before = self._there.get(actor, frozenset())
        now = frozenset(machine.table.slots)
        made = self._made.setdefault(actor, set())
        for allocation in now - before:
            if allocation in made:
                raise Violation("slot-made-once", f"{actor.name} makes {allocation} a second time", allocation)
            allocates = isinstance(stimulus, Envelope) and isinstance(stimulus.payload, AllocateSlots)
            if allocates and not machine.registered:
                text = f"{actor.name} makes {allocation} for a leader that does not know it"
                raise Violation("registered-first", text, allocation)
        made |= now
        self._there[actor] = now

    def _pending_stays(self, actor: Actor, machine: ResourceManager, stimulus: object) -> None:
        """A report that does not show an allocation may have been sent before that came (B: SM-09, ML-06)."""
        before = self._pending.get(actor, frozenset())
        now = frozenset(allocation for _, allocation in machine.slots.unconfirmed.oldest_first())
        if isinstance(stimulus, Envelope) and isinstance(stimulus.payload, WorkerReport):
            shown = {slot.allocation for slot in stimulus.payload.report.slots}
            gone = before - now - shown
            # A slot that the view lacked may take the room of one that was asked for.
            if gone and shown <= self._shown.get(actor, frozenset()):
                text = f"{actor.name} gives up {sorted(gone)}, which a report does not show yet"
                raise Violation("pending-stays", text, *sorted(gone))
        self._pending[actor] = now
        slots = [slot for worker in machine.slots.workers.values() for slot in worker.slots]
        self._shown[actor] = frozenset(slots)

    @staticmethod
    def recovered(dispatcher: Dispatcher, jobs: Iterable[RecoveredJob]) -> None:
        """A new Dispatcher knows what was acknowledged (B: F-06)."""
        for known in jobs:
            record = dispatcher.jobs.get(known.job)
            if record is None or record.cancelling != known.cancelled or record.result != known.result:
                raise Violation("acknowledged-job-known", f"a new Dispatcher has {record} of {known}", known.job)

    def _reports_in_order(self, actor: Actor, seqs: dict[WorkerId, tuple[object, int]]) -> None:
        for worker, (view, seq) in seqs.items():
            known, last = self._seqs.get((actor, worker), (None, -1))
            if known is view and seq < last:
                text = f"{actor.name} believes an older report of {worker}"
                raise Violation("reports-in-order", text, actor.address, worker)
            self._seqs[actor, worker] = (view, seq)

    def _last_declaration(self, actor: Actor, machine: ResourceManager, envelope: Envelope, effects: Effects) -> None:
        """The newest declaration of the newest leader of a job is what is required for it."""
        message = envelope.payload
        if not isinstance(message, DeclareRequirements) or message.job not in machine.jobs:
            return
        if any(isinstance(answer.payload, Fenced | DeclarationRefused) for answer in effects.send):
            return
        key = (actor, message.job)
        counts = counts_of(message.requirements)
        token, version, _ = self._declared.get(key, (-1, -1, {}))
        if (envelope.sender_token, message.version) >= (token, version):
            self._declared[key] = (envelope.sender_token, message.version, counts)
        entry = machine.slots.ledger.get(message.job)
        required = entry.required if entry is not None else {}
        if dict(required) != dict(self._declared[key][2]):
            text = f"{message.job} has declared something else last: {self._declared[key]}"
            raise Violation("last-declaration-counts", text, message.job)
