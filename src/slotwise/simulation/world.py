"""A cluster of the real machines in virtual time, driven step by step; deterministic for a seed.

Messages take ``latency_s``; :attr:`World.lose` decides which are lost and :attr:`World.double` which come twice.
Processes and workers are models (:mod:`slotwise.simulation.spark_model`). After every step all machines' invariants
are checked. Times are virtual seconds."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec

from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.ids import (
    DISPATCHER,
    RESOURCE_MANAGER,
    UNKNOWN_TOKEN,
    Address,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
    worker_address,
)
from slotwise.model.job import ExecutorBounds, JobSpec, JobState
from slotwise.model.progress import RecoveredJob
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import (
    AdoptedSlot,
    ConnectionClosed,
    Effects,
    Event,
    JobMasterExited,
    PersistBounds,
    PersistCancel,
    PersistJob,
    PersistProgress,
    PersistRecord,
    PersistResult,
    StartJobMaster,
    StartWorker,
    WorkerExited,
)
from slotwise.protocol.messages import CancelJob, Envelope, JobAccepted, Message, ScaleJob, SubmitJob
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.simulation.spark_model import SparkModel
from slotwise.taskexecutor.machine import TaskExecutor, TaskExecutorConfig

VERSION = "simulated"


class SeededIds:
    """Ids that count up and secrets from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers: dict[str, itertools.count[int]] = {}

    def new_id(self, prefix: str) -> str:
        """``prefix-1``, ``prefix-2``, …"""
        return f"{prefix}-{next(self._numbers.setdefault(prefix, itertools.count(1)))}"

    def new_secret(self) -> str:
        """128 bits of the seed's randomness."""
        return f"{self._rng.getrandbits(128):032x}"


class World:
    """The cluster. Give it workers (or a provisioner shape in ``rm_config``), submit jobs, and :meth:`run`."""

    def __init__(
        self,
        seed: int = 0,
        *,
        rm_config: ResourceManagerConfig | None = None,
        jm_config: JobMasterConfig | None = None,
        latency_s: float = 0.001,
        worker_start_s: float = 2.0,
    ) -> None:
        self.now = 1000.0
        self.rng = random.Random(seed)
        self.ids = SeededIds(self.rng)
        self.rm_config = rm_config or ResourceManagerConfig(version=VERSION)
        self.jm_config = jm_config or JobMasterConfig()
        self.latency_s = latency_s
        self.worker_start_s = worker_start_s
        self.lose: Callable[[Envelope], bool] = lambda _: False
        self.double: Callable[[Envelope], bool] = lambda _: False
        self.worker_starts_fail: Callable[[StartWorker], str | None] = lambda _: None
        self.events: list[tuple[float, Event]] = []
        self.delivered: list[Envelope] = []
        self.started_workers: list[WorkerId] = []
        self.persisted: list[object] = []
        self.store: dict[JobId, RecoveredJob] = {}
        self.incarnations: dict[WorkerId, int] = {}
        self.spark: dict[WorkerId, SparkModel] = {}
        self.machines: dict[Address, Any] = {}
        self._answers: dict[Address, Message] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._tokens = itertools.count(1)
        self._clients = itertools.count(1)
        self.start_resource_manager()
        self.start_dispatcher()

    # ------------------------------------------------------------------------------------------- what there is

    @property
    def rm(self) -> ResourceManager:
        """The present ResourceManager."""
        machine = self.machines[RESOURCE_MANAGER]
        assert isinstance(machine, ResourceManager)
        return machine

    @property
    def dispatcher(self) -> Dispatcher:
        """The Dispatcher."""
        machine = self.machines[DISPATCHER]
        assert isinstance(machine, Dispatcher)
        return machine

    def jm(self, job: JobId) -> JobMaster:
        """The JobMaster of ``job``; it stays readable after the job's end."""
        machine = self.machines[job_master_address(job)]
        assert isinstance(machine, JobMaster)
        return machine

    def te(self, worker: WorkerId) -> TaskExecutor:
        """The TaskExecutor on ``worker``."""
        machine = self.machines[worker_address(worker)]
        assert isinstance(machine, TaskExecutor)
        return machine

    def workers(self) -> list[WorkerId]:
        """The living workers."""
        return list(self.spark)

    def named(self, name: str) -> list[Event]:
        """The events of one name so far."""
        return [event for _, event in self.events if event.name == name]

    # ------------------------------------------------------------------------------------------- what happens

    def start_resource_manager(self) -> None:
        """A (new) ResourceManager takes over, with nothing but a higher token (B: F-02)."""
        self.machines[RESOURCE_MANAGER] = ResourceManager(self.rm_config, self._grant(), self.ids, self.now)

    def start_dispatcher(self) -> None:
        """A (new) Dispatcher takes over what the store has (B: F-06)."""
        recovered = [msgspec.structs.replace(job) for job in self.store.values()]
        self.machines[DISPATCHER] = Dispatcher(DispatcherConfig(), self._grant(), self.ids, self.now, recovered)

    def _grant(self) -> LeaderToken:
        """Leadership's token: there is room for the JobMasters' below the next."""
        return LeaderToken(next(self._tokens) * 1_000_000)

    def crash_master(self) -> None:
        """kill -9 of the master process: Dispatcher, ResourceManager and all JobMasters are gone."""
        for address in [address for address in self.machines if not address.startswith("te:")]:
            del self.machines[address]

    def start_master(self) -> None:
        """A new master on the same store; the workers find it and register at once."""
        self.start_resource_manager()
        self.start_dispatcher()
        self._carry_out(DISPATCHER, self.dispatcher.on_timer(self.now))
        for worker in self.workers():
            self._open_connection(worker)

    def crash_job_master(self, job: JobId) -> None:
        """A JobMaster fails; the Dispatcher is told."""
        del self.machines[job_master_address(job)]
        self.stimulate(DISPATCHER, JobMasterExited(job, "it crashed", self.store[job].progress))

    def restart_worker(self, worker: WorkerId) -> None:
        """The worker's process is killed and comes up again at once: what runs in its slots goes on (B: ST-09)."""
        address = worker_address(worker)
        before = self.te(worker)
        adopted = [
            AdoptedSlot(
                slot.allocation, slot.job, slot.profile, slot.job_master, LeaderToken(0), slot.process, slot.executor
            )
            for slot in before.table.slots.values()
            if slot.process is not None
        ]
        self.incarnations[worker] = self.incarnations.get(worker, 0) + 1
        config = msgspec.structs.replace(before.config, incarnation=self.incarnations[worker])
        self.machines[address] = TaskExecutor(config, self.now, adopted)
        self._open_connection(worker)
        self.spark[worker].reconnect()

    def _open_connection(self, worker: WorkerId) -> None:
        address = worker_address(worker)
        self._carry_out(address, self.te(worker).connection_opened(self.now))

    def stop_resource_manager(self) -> None:
        """The ResourceManager is gone; mail to it is lost."""
        del self.machines[RESOURCE_MANAGER]

    def add_worker(
        self, total: ResourceProfile, worker: WorkerId | None = None, default_profile: ResourceProfile | None = None
    ) -> WorkerId:
        """A worker comes up by itself."""
        name = worker or WorkerId(self.ids.new_id("w"))
        config = TaskExecutorConfig(
            worker=name,
            host=f"host-{name}",
            pid=1,
            version=VERSION,
            total=total,
            default_profile=default_profile or ResourceProfile(total.cpu_milli // 2, total.memory_bytes // 2),
            heartbeat_interval_s=self.rm_config.heartbeat_interval_s,
            heartbeat_timeout_s=self.rm_config.heartbeat_timeout_s,
        )
        address = worker_address(name)
        self.machines[address] = TaskExecutor(config, self.now)
        self.spark[name] = SparkModel(self, address)
        return name

    def kill_worker(self, worker: WorkerId, *, noticed: bool = True) -> None:
        """The worker and its processes are gone; the master sees the connection close if ``noticed``, and a provisioner
        sees the end of the process.
        """
        del self.machines[worker_address(worker)]
        self.spark.pop(worker).dead = True
        if noticed and RESOURCE_MANAGER in self.machines:
            self.stimulate(RESOURCE_MANAGER, ConnectionClosed(worker))
            if self.rm_config.sizing.worker is not None:
                self.stimulate(RESOURCE_MANAGER, WorkerExited(worker, "its process was killed", started=True))

    def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Submit a job and run until it is accepted."""
        answer = self.ask(SubmitJob(key or self.ids.new_id("key"), spec))
        assert isinstance(answer, JobAccepted), answer
        return answer.job

    def cancel(self, job: JobId) -> Message:
        """Ask for the end of a job."""
        return self.ask(CancelJob(job))

    def scale(self, job: JobId, least: int, most: int | None) -> Message:
        """Change how many executors a job may have."""
        return self.ask(ScaleJob(job, ExecutorBounds(least, most)))

    def ask(self, payload: Message, to: Address = DISPATCHER) -> Message:
        """A client's message to the Dispatcher (or ``to``), and the answer."""
        client = Address(f"client:{next(self._clients)}")
        self.deliver(Envelope(0, to, UNKNOWN_TOKEN, client, UNKNOWN_TOKEN, payload))
        self.run_until(lambda: client in self._answers, 10)
        return self._answers.pop(client)

    def state(self, job: JobId) -> JobState:
        """What the Dispatcher knows of the job's state."""
        return self.dispatcher.jobs[job].state

    # ------------------------------------------------------------------------------------------- time

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        until = self.now + seconds
        while self._step(until):
            pass
        self.now = until

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600) -> None:
        """Let time pass until ``condition`` holds; AssertionError when it does not within ``limit_s``."""
        until = self.now + limit_s
        while not condition():
            if not self._step(until):
                raise AssertionError(f"the condition did not hold within {limit_s:g} virtual seconds")

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time."""
        heapq.heappush(self._queue, (time, next(self._sequence), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while."""
        self.at(self.now + seconds, action)

    def _step(self, until: float) -> bool:
        due: tuple[float, Address | None] = (self._queue[0][0], None) if self._queue else (float("inf"), None)
        for address, machine in self.machines.items():
            timer = machine.next_timer()
            if timer is not None and timer < due[0]:
                due = (timer, address)
        if due[0] > until:
            return False
        self.now = max(self.now, due[0])
        if due[1] is None:
            heapq.heappop(self._queue)[2]()
        else:
            self._carry_out(due[1], self.machines[due[1]].on_timer(self.now))
        return True

    # ------------------------------------------------------------------------------------------- effects

    def stimulate(self, address: Address, stimulus: object) -> None:
        """Hand a stimulus to a machine now."""
        machine = self.machines.get(address)
        if machine is not None:
            self._carry_out(address, machine.handle(stimulus, self.now))

    def deliver(self, envelope: Envelope) -> None:
        """Put a message on its way, with whatever befalls it."""
        if self.lose(envelope):
            return
        copies = 2 if self.double(envelope) else 1
        for copy in range(copies):
            self.after(self.latency_s * (1 + 3 * copy), lambda: self.arrive(envelope))

    def arrive(self, envelope: Envelope) -> None:
        """A message is there."""
        self.delivered.append(envelope)
        if envelope.to in self.machines:
            self.stimulate(envelope.to, envelope)
        elif envelope.to.startswith("client:"):
            self._answers[envelope.to] = envelope.payload

    def _carry_out(self, address: Address, effects: Effects) -> None:
        machine = self.machines[address]
        machine.check_invariants()
        for record in effects.persist:
            self._persist(record)
        for envelope in effects.send:
            self.deliver(envelope)
        for process in effects.processes:
            self.spark[WorkerId(address.removeprefix("te:"))].carry_out(process)
        for wish in effects.workers:
            if isinstance(wish, StartWorker):
                self._start_worker(wish)
        for change in effects.job_masters:
            if isinstance(change, StartJobMaster):
                self.machines[job_master_address(change.job)] = JobMaster(
                    change.job,
                    change.spec,
                    self.jm_config,
                    change.token,
                    self.ids,
                    self.now,
                    change.progress,
                    change.bounds,
                    change.bounds_version,
                )
        self.events += [(self.now, event) for event in effects.events]
        if effects.shutdown is not None:
            del self.machines[address]
            if address.startswith("te:"):
                self.spark.pop(WorkerId(address.removeprefix("te:"))).dead = True

    def _persist(self, record: PersistRecord) -> None:
        self.persisted.append(record)
        if isinstance(record, PersistJob):
            self.store[record.job] = RecoveredJob(record.job, record.key, record.spec)
            return
        known = self.store[record.job]
        match record:
            case PersistProgress(_, progress):
                known = msgspec.structs.replace(known, progress=progress)
            case PersistBounds(_, bounds, version):
                known = msgspec.structs.replace(known, bounds=bounds, bounds_version=version)
            case PersistCancel():
                known = msgspec.structs.replace(known, cancelled=True)
            case PersistResult(_, result):
                known = msgspec.structs.replace(known, result=known.result or result)
        self.store[record.job] = known

    def _start_worker(self, wish: StartWorker) -> None:
        failure = self.worker_starts_fail(wish)
        self.started_workers.append(wish.worker)
        if failure is not None:
            exited = WorkerExited(wish.worker, failure, started=False)
            self.after(0.1, lambda: self.stimulate(RESOURCE_MANAGER, exited))
        else:
            self.after(
                self.worker_start_s,
                lambda: void(self.add_worker(wish.total, wish.worker, wish.default_profile)),
            )


def void(_: object) -> None:
    """For actions whose result nobody needs."""
