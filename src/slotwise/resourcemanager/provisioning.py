"""The ResourceManager's talk with the provisioner: workers to start, to give up and to let go (B: SZ-03, SZ-07, SZ-10,
SZ-11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slotwise.model.ids import WorkerId, worker_address
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects, Event, StartWorker, StopWorker
from slotwise.protocol.messages import ShutdownWorker
from slotwise.protocol.outbox import Outbox
from slotwise.resourcemanager.config import ResourceManagerConfig
from slotwise.resourcemanager.fleet import PendingWorker
from slotwise.resourcemanager.slot_manager import SlotManager


class Provisioning:
    """Uses the timers ``retry-workers``, ``idle`` and ``("start", worker)``. What is to be stopped and started goes
    into the effects; standalone workers are not ours to stop."""

    def __init__(self, config: ResourceManagerConfig, slots: SlotManager, out: Outbox, timers: Timers) -> None:
        self._config = config
        self._slots = slots
        self._out = out
        self._timers = timers
        self._failures: deque[float] = deque(maxlen=config.provisioner_retries_per_minute)

    def start(self, started: Sequence[PendingWorker], now: float, effects: Effects) -> None:
        """Ask for workers, unless starting failed so recently or so often that it must wait (B: SZ-11)."""
        failures = self._failures
        wait_until = failures[-1] + self._config.provisioner_retry_interval_s if failures else now
        if len(failures) == failures.maxlen:
            wait_until = max(wait_until, failures[0] + 60.0)
        if started and wait_until > now:
            for pending in started:
                self._slots.fleet.give_up(pending.worker)
            self._timers.set_once("retry-workers", wait_until)
            return
        for pending in started:
            effects.workers.append(StartWorker(pending.worker, pending.total, pending.default_profile))
            effects.events.append(
                Event("worker-requested", worker=pending.worker, fields={"total": str(pending.total)})
            )
            self._timers.set(("start", pending.worker), now + self._config.worker_start_timeout_s)

    def cancel(self, surplus: Sequence[WorkerId], effects: Effects) -> None:
        """Pending workers that nobody needs any more."""
        for worker in surplus:
            self._timers.clear(("start", worker))
            effects.workers.append(StopWorker(worker))
            effects.events.append(Event("worker-cancelled", worker=worker))

    def expect(self, before: Sequence[StartWorker], now: float) -> None:
        """Workers that an earlier leader had started: they count, and are as good as heard of now (B: F-02)."""
        for wish in before:
            self._slots.expect(wish.worker, wish.total, wish.default_profile, now)
            self._timers.set(("start", wish.worker), now + self._config.heartbeat_timeout_s)

    def overdue(self, worker: WorkerId, effects: Effects) -> str | None:
        """The worker had to be here by now; why its start has failed, if it has."""
        pending = self._slots.pending.get(worker)
        if pending is None:
            return None
        effects.workers.append(StopWorker(worker))
        if pending.from_before:
            self.not_back(worker, "no heartbeat", effects)
            return None
        return f"it did not register within {self._config.worker_start_timeout_s:g} s"

    def not_back(self, worker: WorkerId, reason: str, effects: Effects) -> None:
        """A worker that an earlier leader had started has not come back."""
        self._timers.clear(("start", worker))
        self._slots.fleet.give_up(worker)
        effects.events.append(Event("worker-lost", worker=worker, fields={"reason": reason}))

    def failed(self, worker: WorkerId, reason: str, now: float, effects: Effects) -> None:
        """A pending worker could not be started, or ended before it registered."""
        self._failures.append(now)
        effects.events.append(Event("worker-failed", worker=worker, fields={"reason": reason}))
        self._slots.remove_worker(worker)
        self._timers.set_once("retry-workers", now + self._config.provisioner_retry_interval_s)

    def arm_idle(self, now: float) -> None:
        """Wake when the next idle worker is due."""
        sizing = self._config.sizing
        if sizing.worker is None:
            return
        later, overdue = self._slots.fleet.idle.next_due(sizing.idle_timeout_s, now)
        # Those that are due and still here are needed now; whether they stay so is looked at again and again.
        again = now + max(1.0, sizing.idle_timeout_s / 4)
        due = [at for at in (later, again if overdue else None) if at is not None]
        if due:
            # Called with every report: a deadline that it could put off would never come.
            self._timers.set_earlier("idle", min(due))

    def release_idle(self, now: float, effects: Effects) -> None:
        """Let idle workers go that neither minimum nor redundancy needs (B: SZ-07)."""
        fleet = self._slots.fleet
        for worker in self._slots.idle_workers(now):
            fleet.mark(fleet.workers[worker], leaving=True)
            self._out.send(effects, worker_address(worker), ShutdownWorker("idle"))
            effects.events.append(Event("worker-released", worker=worker, fields={"reason": "idle"}))
        self.arm_idle(now)
