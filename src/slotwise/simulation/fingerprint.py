"""The state of a machine as a comparable value, without what an answer to a stale message may change (the number of
the next message, and when somebody was last heard)."""

from __future__ import annotations

from slotwise.dispatcher.machine import Dispatcher
from slotwise.jobmaster.machine import JobMaster
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.taskexecutor.machine import TaskExecutor


def fingerprint(machine: object) -> object:
    """See the module's head."""
    if isinstance(machine, TaskExecutor):
        table = machine.table
        slots = tuple((s.allocation, s.job, s.state, s.process, s.directives) for s in table.slots.values())
        return (slots, table.available, machine.registered, machine.stopping)
    if isinstance(machine, ResourceManager):
        slots_manager = machine.slots
        workers = tuple(
            (w.worker, w.free, w.leaving, w.blocked, tuple((a, s.job, s.pending_since) for a, s in w.slots.items()))
            for w in slots_manager.workers.values()
        )
        ledger = tuple((e.job, e.order, tuple(e.required.items())) for e in slots_manager.ledger.in_order())
        return (workers, ledger, tuple(slots_manager.pending), tuple(machine.jobs))
    if isinstance(machine, JobMaster):
        held = tuple((s.allocation, s.confirmed, s.use, s.process) for s in machine.pool.slots.values())
        executors = tuple((e.executor_id, e.registered, e.stopping) for e in machine.executors.live.values())
        required = tuple(machine.pool.required.items())
        return (machine.state, machine.result, held, executors, required, machine.shortages, machine.executors.report)
    if isinstance(machine, Dispatcher):
        return tuple((r.job, r.state, r.status_seq, r.cancelling, r.released) for r in machine.jobs.values())
    raise TypeError(type(machine))
