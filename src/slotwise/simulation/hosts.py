"""A worker's host: the worker process with its TaskExecutor, its stream to the master, and the slot processes with
their keepers, which outlive a killed worker process for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.ids import AllocationId, WorkerId, worker_address
from slotwise.model.process import ExecutorIdentity, ExecutorProcess
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import (
    AdoptedSlot,
    CleanSlot,
    ConnectionClosed,
    EndProcess,
    StartProcess,
    StopRequested,
    TellDriver,
)
from slotwise.simulation.engine import Actor, OsProcess
from slotwise.simulation.programs import SlotProcess
from slotwise.simulation.scenario import VERSION
from slotwise.taskexecutor.machine import TaskExecutor, TaskExecutorConfig

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.masters import MasterProcess

_DIAL_S = 0.2
_DIAL_MAX_S = 5.0


class Host:
    """See the module's head. ``link`` is the master process that its stream is connected to. ``provisioned``: the
    provisioner made it, and it is gone for good when its worker process ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: WorkerId,
        total: ResourceProfile,
        default_profile: ResourceProfile,
        provisioned: bool,
    ) -> None:
        self.name = name
        self.total = total
        self.default_profile = default_profile
        self.provisioned = provisioned
        self.up = True
        self.process: OsProcess | None = None
        self.actor: Actor | None = None
        self.link: MasterProcess | None = None
        self.slots: dict[AllocationId, SlotProcess] = {}
        self.incarnation = 0
        self._cluster = cluster
        self._dialling = 0

    # ------------------------------------------------------------------------------------------- the worker process

    def start_worker(self) -> None:
        """The worker process comes up, and takes over what still runs here (B: ST-09)."""
        if not self.up or self.process is not None:
            return
        cluster = self._cluster
        self.process = OsProcess(f"{self.name}.{self.incarnation}", cluster.clock_offset())
        times = cluster.scenario.times
        adopted = [_adopted(process) for process in self.slots.values()]
        cluster.note("worker", "starts", self.process.name, "adopts", [slot.allocation for slot in adopted])
        config = TaskExecutorConfig(
            worker=self.name,
            host=f"host-{self.name}",
            pid=1,
            version=VERSION,
            total=self.total,
            default_profile=self.default_profile,
            heartbeat_interval_s=times.heartbeat_interval_s,
            heartbeat_timeout_s=times.heartbeat_timeout_s,
            registration_timeout_s=times.registration_timeout_s,
            slot_timeout_s=times.slot_timeout_s,
            job_master_timeout_s=times.job_master_timeout_s,
            job_takeover_s=times.job_takeover_s,
            incarnation=self.incarnation,
        )
        machine = TaskExecutor(config, cluster.engine.now + self.process.offset_s, adopted)
        self.actor = Actor(worker_address(self.name), machine, self.process)
        self.actor.owner = self
        self.incarnation += 1
        cluster.engine.start(self.actor)
        for process in self.slots.values():
            if process.alive and process.report is not None:
                cluster.programs.reconnect(process)
        self._dial(_DIAL_S)

    def kill_worker(self) -> None:
        """kill -9 of the worker process: its keepers go on for a while."""
        if self.process is None:
            return
        self._cluster.note("worker", "killed", self.process.name)
        self._worker_gone()
        patience_s = 0.0 if self.provisioned else self._cluster.scenario.times.orphan_timeout_s
        if patience_s == 0.0:
            self.kill_slots()
        else:
            self._cluster.engine.after(patience_s, self._orphaned, self.incarnation)

    def _orphaned(self, incarnation: int) -> None:
        if self.process is None and self.incarnation == incarnation:
            self.kill_slots()

    def _worker_gone(self) -> None:
        if self.process is not None:
            self.process.alive = False
        self.process = None
        self.actor = None
        self.disconnect()

    def kill_slots(self) -> None:
        """Everything in the slots ends at once."""
        for process in list(self.slots.values()):
            self._cluster.programs.end(process, -9)

    def crash(self) -> None:
        """The host is gone with all that ran on it."""
        if not self.up:
            return
        self._cluster.note("host", "crashes", self.name)
        self.up = False
        self._worker_gone()
        self.kill_slots()
        self.slots.clear()

    def boot(self) -> None:
        """The host comes up again, empty."""
        if not self.up and not self.provisioned:
            self.up = True
            self.start_worker()

    def terminate(self, reason: str) -> None:
        """SIGTERM to the worker process."""
        if self.actor is not None:
            # Whoever starts workers ends those that it needs no more: they have nothing to move.
            self._cluster.engine.post(self.actor, StopRequested(reason, drain=not self.provisioned))

    def ended(self, reason: str) -> None:
        """The TaskExecutor has ended its process by itself; nothing is left in its slots."""
        self._cluster.note("worker", "ends", self.name, reason)
        self._worker_gone()
        self.kill_slots()
        self.slots.clear()

    # ------------------------------------------------------------------------------------------- the stream

    def _dial(self, retry_s: float) -> None:
        self._dialling += 1
        self._cluster.engine.after(retry_s, self._try, self._dialling, retry_s)

    def _try(self, attempt: int, retry_s: float) -> None:
        if self.actor is None or self.process is None or attempt != self._dialling or self.link is not None:
            return
        master = self._cluster.leader
        if master is None or master.process.paused or self.process.paused or self._cluster.network.is_cut(self.name):
            self._dialling += 1
            again_s = min(retry_s * 2, _DIAL_MAX_S)
            self._cluster.engine.after(again_s, self._try, self._dialling, again_s)
            return
        self.link = master
        master.connected[self.name] = self
        self._cluster.note("stream", "opens", self.name, master.process.name)
        machine = self.actor.machine
        assert isinstance(machine, TaskExecutor)
        self._cluster.engine.call(self.actor, machine.connection_opened)

    def disconnect(self) -> None:
        """The stream breaks; both ends see it. A living worker dials again."""
        master, self.link = self.link, None
        if master is not None:
            self._cluster.note("stream", "closes", self.name, master.process.name)
            if master.connected.get(self.name) is self:
                del master.connected[self.name]
                master.tell_resource_manager(ConnectionClosed(self.name))
        if self.actor is not None:
            self._dial(_DIAL_S)

    # ------------------------------------------------------------------------------------------- slots

    def carry_out(self, effect: StartProcess | EndProcess | TellDriver | CleanSlot) -> None:
        """What the TaskExecutor wants done with its slots."""
        programs = self._cluster.programs
        match effect:
            case StartProcess(allocation):
                machine = self.actor.machine if self.actor is not None else None
                assert isinstance(machine, TaskExecutor)
                table = machine.table.slots[allocation]
                process = SlotProcess(self, effect, table.profile, table.job_master)
                before = self.slots.get(allocation)
                assert before is None or not before.alive, f"{allocation} is given a second process"
                self.slots[allocation] = process
                self._cluster.checks.process_starts(process)
                programs.start(process)
            case EndProcess(allocation, name):
                running = self.slots.get(allocation)
                if running is not None and running.name == name and running.alive:
                    self._cluster.note("process", "is to end", running)
                    programs.stop(running)
            case TellDriver(allocation, directives):
                driver = self.slots.get(allocation)
                if driver is not None:
                    programs.tell(driver, directives)
            case CleanSlot(allocation):
                gone = self.slots.pop(allocation, None)
                self._cluster.checks.slot_cleaned(self, allocation, gone)


def _adopted(process: SlotProcess) -> AdoptedSlot:
    spec = process.spec
    executor = None
    if isinstance(spec, ExecutorProcess):
        executor = ExecutorIdentity(spec.executor_id, spec.ticket, spec.app_id, spec.profile_id)
    return AdoptedSlot(
        process.allocation,
        process.job,
        process.profile,
        process.job_master,
        process.job_master_token,  # type: ignore[arg-type]
        process.status,
        executor,
    )
