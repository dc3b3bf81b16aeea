"""What a JobMaster has started in the job's slots: the driver, and the executors that the driver wants (B: A-07,
D-05, F-01, F-05).

A wish stays in :attr:`HeldSlot.use` and is sent again until a report shows it."""

from __future__ import annotations

from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.driver import DriverLife
from slotwise.jobmaster.executors import Executor, Executors
from slotwise.jobmaster.slot_pool import HeldSlot, SlotPool
from slotwise.jobmaster.worker_link import WorkerLink
from slotwise.model.ids import IdSource, JobId, worker_address
from slotwise.model.job import JobResult, JobSpec, JobState
from slotwise.model.process import DriverProcess, ProcessSpec, Program
from slotwise.model.requirements import Counts
from slotwise.protocol.effects import Effects, Event
from slotwise.protocol.messages import Deploy, DirectDriver, JobSlotStatus, ProcessPhase, ProcessStatus
from slotwise.protocol.outbox import Outbox


class Deployments:
    """The processes of one job. ``not_before``: no executor is started before that time, after one that failed.
    ``warm``: what it is to run is not known yet.
    """

    def __init__(
        self,
        job: JobId,
        spec: JobSpec,
        config: JobMasterConfig,
        pool: SlotPool,
        driver: DriverLife,
        workers: WorkerLink,
        out: Outbox,
        ids: IdSource,
        now: float,
        *,
        warm: bool = False,
    ) -> None:
        self._standing = None if spec.dynamic_allocation else spec.initial_executors
        self.executors = Executors(ids, driver.progress.executor_ids_below, self._standing)
        self.not_before = now
        self._job = job
        self._spec = spec
        self._warm = warm
        self._config = config
        self._pool = pool
        self._driver = driver
        self._workers = workers
        self._out = out
        self._ids = ids
        self._directed = 0

    # ------------------------------------------------------------------------------------------- starting

    def start_driver(self, now: float, effects: Effects) -> None:
        """Send a driver into an unused slot of its size, which is there."""
        slot = self._pool.unused(self._spec.driver.profile)
        assert slot is not None
        self._driver.deploy(slot, self.executors.next_id, now, effects, warm=self._warm)
        slot.use = self._driver.name
        slot.idle_since = None
        self._deploy(slot, effects)

    def start_executors(self, most: int | None, now: float, effects: Effects) -> None:
        """Start what the driver wants and the job has slots for, ``most`` at the most."""
        executors = self.executors
        if not executors.active or now < self.not_before:
            return
        for total in executors.to_start(most):
            for _ in range(total.count):
                slot = self._pool.unused(total.size.profile)
                if slot is None:
                    break
                self._driver.reserve_ids(executors.next_id + 1, effects)
                secret = self._driver.progress.secret
                executor = executors.launch(total, slot.allocation, secret, self._spec, warm=self._warm)
                slot.use = f"executor-{executor.executor_id}"
                slot.idle_since = None
                self._deploy(slot, effects)

    def _deploy(self, slot: HeldSlot, effects: Effects) -> None:
        self.send(slot, effects)
        effects.events.append(Event("deployed", self._job, slot.worker, slot.allocation, {"process": slot.use}))

    def send(self, slot: HeldSlot, effects: Effects) -> None:
        """Send what is meant to run in the slot; harmless to repeat, a worker knows it by its name."""
        assert slot.use is not None
        if slot.allocation == self._driver.slot:
            progress = self._driver.progress
            spec: ProcessSpec = DriverProcess(self._spec, progress.secret, progress.attempt, progress.warm)
            self._driver.record_again(effects)
        else:
            executor = self.executors.by_allocation(slot.allocation)
            if executor is None or executor.process is None:
                return
            spec = executor.process
        message = Deploy(self._job, slot.allocation, slot.use, spec)
        self._out.send(effects, worker_address(slot.worker), message)

    def run(self, spec: JobSpec) -> None:
        """What the warm application is to run is known now."""
        self._warm = False
        self._spec = spec

    # ------------------------------------------------------------------------------------------- the driver's wishes

    def required(self, most: int | None) -> Counts | None:
        """The slots for the driver and for what it wants, ``most`` executors at the most; None before it has said
        anything.
        """
        if self.executors.report is None:
            return None
        counts: Counts = {self._spec.driver.profile: 1}
        for profile, count in self.executors.required(most).items():
            counts[profile] = counts.get(profile, 0) + count
        return counts

    def stop_surplus(self, most: int | None, now: float, effects: Effects) -> float | None:
        """End the executors that the driver gives back, and those beyond ``most``; these may first move what they hold
        to others. Returns when to call again at the latest.
        """
        for executor in self.executors.above(most):
            self.decommission(executor, now, effects)
        return self.stop_given_back(now, effects)

    def decommission(self, executor: Executor, now: float, effects: Effects) -> None:
        """Have an executor move what it holds to others, and end; at once if it has not joined."""
        if not executor.registered or not self.executors.active:
            self.stop(executor, effects)
            return
        self.executors.decommission(executor, now + self._config.decommission_timeout_s)
        fields: dict[str, str | int | float | None] = {"executor": executor.executor_id}
        effects.events.append(Event("decommissioning", self._job, None, executor.allocation, fields))

    def stop_given_back(self, now: float, effects: Effects) -> float | None:
        """End the executors that the driver gives back, and those that have had their time to leave. Returns when to
        call again at the latest.
        """
        for executor in self.executors.to_stop():
            self.stop(executor, effects)
        for executor in self.executors.to_hand_over():
            self.decommission(executor, now, effects)
        leaving = [executor for executor in self.executors.live.values() if executor.leave_by is not None]
        for executor in leaving:
            if executor.leave_by is not None and (executor.leave_by <= now or not self.executors.active):
                executor.leave_by = None
                self.stop(executor, effects)
        return min((one.leave_by for one in leaving if one.leave_by is not None), default=None)

    def stop(self, executor: Executor, effects: Effects) -> None:
        """End an executor."""
        executor.stopping = True
        slot = self._pool.slots.get(executor.allocation)
        if slot is not None:
            self._workers.end_process(slot, effects)

    def direct(self, effects: Effects, again: bool = False) -> None:
        """Tell the driver's JVM what is new to it; ``again``: what it has not confirmed."""
        if self._driver.progress.warm and not self._warm:
            # A leader that takes the job over does not know whether its driver has heard it.
            self.executors.run(Program(self._spec.name, self._spec.program, self._spec.args))
        directives = self.executors.directives()
        if directives is None or (directives.version == self._directed and not again):
            return
        self._directed = directives.version
        if directives.program is not None and self.executors.report is not None and self.executors.report.waits:
            # As with everything that is deployed: the record may not have been written yet.
            self._driver.record_again(effects)
        slot = self._pool.slots.get(self._driver.slot) if self._driver.slot is not None else None
        if slot is not None:
            message = DirectDriver(self._job, slot.allocation, directives)
            self._out.send(effects, worker_address(slot.worker), message)

    # ------------------------------------------------------------------------------------------- what becomes of them

    def adopt(self, slot: HeldSlot, status: JobSlotStatus, effects: Effects) -> None:
        """Take over what an earlier leader of the job has running in a slot."""
        unseen = self._driver.unseen
        process = status.process
        if unseen is not None and slot.allocation == unseen.allocation:
            self._driver.seen(slot)
        elif process is None or process.phase is ProcessPhase.EXITED:
            return
        elif status.executor is not None:
            self.executors.adopt(status.executor, slot.allocation)
            slot.use = process.process
            slot.idle_since = None
        else:
            slot.process = process
            self._workers.end_process(slot, effects)

    def executor_ended(
        self, executor: Executor, status: ProcessStatus, now: float, effects: Effects
    ) -> JobResult | None:
        """An executor's process is over. Returns how the job must fail when too many never joined (one after the
        other)."""
        # Spark itself ends an executor that it decommissions, and then with code 0.
        decommissioned = executor.registered and status.exit_code == 0
        wanted = status.stopped or executor.stopping or decommissioned
        clean_end = self.executors.report is not None and self.executors.report.ended
        reason = status.reason or f"executor {executor.executor_id} ended with code {status.exit_code}"
        self.executors.gone(executor.executor_id, status.exit_code, not wanted, reason)
        fields: dict[str, str | int | float | None] = {
            "executor": executor.executor_id,
            "exit_code": status.exit_code,
            "asked": int(wanted),
        }
        effects.events.append(Event("executor-ended", self._job, allocation=executor.allocation, fields=fields))
        if wanted or clean_end:
            return None
        self.not_before = now + (0.0 if executor.registered else self._config.executor_restart_delay_s)
        if executor.registered:
            return None
        self.executors.failures_in_a_row += 1
        if self.executors.failures_in_a_row < self._config.max_executor_start_failures:
            return None
        text = f"{self.executors.failures_in_a_row} executors in a row ended before they joined: {reason}"
        return JobResult(JobState.FAILED, None, text, status.log_tail)

    def end_all(self, effects: Effects) -> bool:
        """End whatever still runs in the job's slots; true when nothing does."""
        busy = [slot for slot in self._pool.slots.values() if slot.busy]
        for slot in busy:
            self._workers.end_process(slot, effects)
        return not busy

    def begin_again(self) -> None:
        """Forget the executors of a driver that is gone; none of them runs."""
        self.executors = Executors(self._ids, self.executors.next_id, self._standing)
        self._directed = 0
