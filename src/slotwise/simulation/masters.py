"""The master processes: each holds a Dispatcher, a ResourceManager and JobMasters, which talk by messages even there.

The leadership service grants a number that rises with every grant. A master that has lost it may go on for a while
(a zombie), talking with its old tokens; so may a single component that was replaced inside a living master."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.ids import (
    DISPATCHER,
    RESOURCE_MANAGER,
    Address,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
)
from slotwise.protocol.effects import (
    ConnectionClosed,
    JobMasterExited,
    StartJobMaster,
    StartWorker,
    StopJobMaster,
    StopWorker,
    WorkerExited,
)
from slotwise.protocol.messages import Envelope
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.simulation.engine import Actor, Machine, OsProcess

_AGAIN_S = 0.1

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.hosts import Host


class MasterProcess:
    """One master process. ``actors``: its present components; ``zombies``: replaced ones that talk on. ``torn``: it
    dies with the next step that persists something, before that step's messages are sent.
    """

    def __init__(self, cluster: Cluster, token: LeaderToken) -> None:
        self.process = OsProcess(f"m{token}", cluster.clock_offset())
        self.token = token
        self.actors: dict[Address, Actor] = {}
        self.zombies: list[Actor] = []
        self.connected: dict[WorkerId, Host] = {}
        self.torn = False
        self._cluster = cluster

    @property
    def now(self) -> float:
        """Its monotonic clock."""
        return self._cluster.engine.now + self.process.offset_s

    def start(self) -> None:
        """It has the leadership: its components begin, with nothing but the store."""
        self._cluster.note("master", "starts", self.process.name)
        self.start_resource_manager(self.token)
        self.start_dispatcher(self.token)

    def start_resource_manager(self, token: LeaderToken) -> None:
        """A (new) ResourceManager (B: F-02)."""
        cluster = self._cluster
        before = cluster.provisioner.recover()
        machine = ResourceManager(cluster.scenario.rm, token, cluster.ids, self.now, before)
        self._put(RESOURCE_MANAGER, machine, token)

    def start_dispatcher(self, token: LeaderToken) -> None:
        """A (new) Dispatcher, which recovers the jobs (B: F-06)."""
        cluster = self._cluster
        recovered = list(cluster.store.jobs.values())
        cluster.store.dispatcher = token
        machine = Dispatcher(DispatcherConfig(warm=cluster.scenario.warm), token, cluster.ids, self.now, recovered)
        cluster.checks.orders.recovered(machine, recovered)
        self._put(DISPATCHER, machine, token)

    def _put(self, address: Address, machine: Machine, token: LeaderToken) -> None:
        before = self.actors.get(address)
        if before is not None:
            before.alive = False
        actor = Actor(address, machine, self.process, token)
        actor.owner = self
        self.actors[address] = actor
        self._cluster.note("component", "starts", actor.name)
        self._cluster.engine.start(actor)

    # ------------------------------------------------------------------------------------------- its runtime

    def carry_out_job_master(self, change: StartJobMaster | StopJobMaster) -> None:
        """The Dispatcher wants a JobMaster to begin or end."""
        address = job_master_address(change.job)
        if isinstance(change, StopJobMaster):
            actor = self.actors.pop(address, None)
            if actor is not None:
                actor.alive = False
            return
        cluster = self._cluster
        config, progress = cluster.scenario.jm, change.progress
        given = (change.bounds, change.bounds_version)
        machine = JobMaster(
            change.job, change.spec, config, change.token, cluster.ids, self.now, progress, *given, warm=change.warm
        )
        self._put(address, machine, change.token)

    def carry_out_worker(self, wish: StartWorker | StopWorker) -> None:
        """The ResourceManager wants a worker to begin or end."""
        if isinstance(wish, StartWorker):
            self._cluster.provisioner.start_worker(wish, self)
        else:
            self._cluster.provisioner.stop_worker(wish.worker)

    def tell_resource_manager(self, stimulus: ConnectionClosed | WorkerExited) -> None:
        """What the process or the provisioner has seen."""
        actor = self.actors.get(RESOURCE_MANAGER)
        if actor is not None:
            self._cluster.engine.post(actor, stimulus)

    def receive(self, envelope: Envelope) -> None:
        """A message has come; one that is meant for a zombie finds that, too."""
        engine = self._cluster.engine
        actor = self.actors.get(envelope.to)
        if actor is not None:
            engine.post(actor, envelope)
        for zombie in list(self.zombies):
            if zombie.address == envelope.to and zombie.token == envelope.to_token:
                engine.post(zombie, envelope)

    # ------------------------------------------------------------------------------------------- faults

    def crash_component(self, address: Address, again_after_s: float, talks_on_s: float) -> bool:
        """A component alone fails, and is started again; the old one may talk on. False when it is not there."""
        actor = self.actors.pop(address, None)
        if actor is None:
            return False
        self._cluster.note("component", "crashes", actor.name, "talks on for", talks_on_s)
        if talks_on_s > 0:
            self.zombies.append(actor)
            self._cluster.engine.after(talks_on_s, self.end_zombie, actor)
        else:
            actor.alive = False
        self._cluster.engine.after(again_after_s, self._again, address)
        return True

    def end_zombie(self, actor: Actor) -> None:
        """A replaced component is gone."""
        actor.alive = False
        if actor in self.zombies:
            self.zombies.remove(actor)

    def _again(self, address: Address) -> None:
        if not self.process.alive or address in self.actors or self._cluster.leader is not self:
            # Nothing is granted to a master that does not lead any more.
            return
        if self.process.paused:
            self._cluster.engine.after(_AGAIN_S, self._again, address)
            return
        if address == RESOURCE_MANAGER:
            self.start_resource_manager(self._cluster.next_token())
        elif address == DISPATCHER:
            self.start_dispatcher(self._cluster.next_token())
        else:
            job = JobId(address.removeprefix("jm:"))
            dispatcher = self.actors.get(DISPATCHER)
            # Without a Dispatcher there is nobody to tell; the next one starts all JobMasters anyway.
            if dispatcher is not None:
                known = self._cluster.store.jobs.get(job)
                # A warm application is on no record.
                left = () if known is None else (known.progress, known.result)
                exited = JobMasterExited(job, "simulated crash", *left)
                self._cluster.engine.post(dispatcher, exited)

    def end(self) -> None:
        """The process is gone, with all streams to it."""
        if not self.process.alive:
            return
        self._cluster.note("master", "ends", self.process.name)
        self.process.alive = False
        for host in list(self.connected.values()):
            host.disconnect()
        self._cluster.master_ended(self)
