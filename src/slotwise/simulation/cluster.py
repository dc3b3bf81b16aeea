"""A whole cluster in virtual time: masters, hosts, store, provisioner, clients and network, around the real machines.

Whatever a machine returns is carried out here in the order that :class:`~slotwise.protocol.effects.Effects` prescribes,
as ``master.py`` and ``worker.py`` do it."""

from __future__ import annotations

import itertools
import random
from typing import Any

from slotwise.model.ids import (
    DISPATCHER,
    RESOURCE_MANAGER,
    Address,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
)
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import BlockWorker, Envelope, Message
from slotwise.simulation.checkers import Checks
from slotwise.simulation.engine import Actor, Engine
from slotwise.simulation.hosts import Host
from slotwise.simulation.injector import Injector
from slotwise.simulation.masters import MasterProcess
from slotwise.simulation.network import Network
from slotwise.simulation.outside import Client, SimulatedProvisioner, Store, client_envelope
from slotwise.simulation.pipeline_model import PipelineBehaviour
from slotwise.simulation.programs import Programs
from slotwise.simulation.scenario import Scenario
from slotwise.simulation.story import Log, Violation

_TOKEN_STEP = 1000


class CountingIds:
    """Ids that count up, and secrets that name their number: nothing here needs to be hard to guess."""

    def __init__(self) -> None:
        self._numbers: dict[str, itertools.count[int]] = {}

    def new_id(self, prefix: str) -> str:
        """``prefix-1``, ``prefix-2``, …"""
        return f"{prefix}-{next(self._numbers.setdefault(prefix, itertools.count(1)))}"

    def new_secret(self) -> str:
        """A word that no other is equal to."""
        return self.new_id("secret")


class Cluster:
    """See the module's head."""

    def __init__(self, scenario: Scenario) -> None:
        seed = scenario.seed
        self.scenario = scenario
        self.engine = Engine()
        self.log = Log()
        self.ids = CountingIds()
        self.store = Store()
        self.network = Network(scenario.network, random.Random(f"{seed}/network"))
        self.rng = random.Random(f"{seed}/cluster")
        self.checks = Checks(self)
        programs = {plan.spec.name: plan.programs for plan in scenario.jobs}
        pipelines = {
            plan.spec.name: PipelineBehaviour(plan.pipeline.graph, plan.pipeline.region_s, dict(plan.pipeline.failures))
            for plan in scenario.jobs
            if plan.pipeline is not None
        }
        self.programs = Programs(self, random.Random(f"{seed}/programs"), programs, pipelines)
        self.provisioner = SimulatedProvisioner(self, random.Random(f"{seed}/provisioner"))
        self.hosts: dict[WorkerId, Host] = {}
        self.leader: MasterProcess | None = None
        self.masters: list[MasterProcess] = []
        self._token = 0
        self.engine.before_step = self.checks.before_step
        self.engine.after_step = self._after_step
        self.elect()
        for plan in scenario.hosts:
            name = WorkerId(plan.name)
            self.engine.at(plan.joins_at_s, self.add_host, name, plan.total, plan.default_profile)
        self.clients = [Client(self, plan) for plan in scenario.jobs]
        self.injector = Injector(self)

    # ------------------------------------------------------------------------------------------- what there is

    def note(self, what: str, *objects: Any) -> None:
        """Write to the log."""
        self.log.add(self.engine.now, what, *objects)

    def clock_offset(self) -> float:
        """The monotonic clock of a new process less virtual time: any host's clock has its own zero."""
        return float(self.rng.randint(1, 1_000_000))

    def next_token(self) -> LeaderToken:
        """The leadership service grants a leadership."""
        self._token += _TOKEN_STEP
        return LeaderToken(self._token)

    def actor(self, address: Address) -> Actor | None:
        """The present leader at this address."""
        return self.leader.actors.get(address) if self.leader is not None else None

    def resource_manager(self) -> Actor | None:
        """The present ResourceManager."""
        return self.actor(RESOURCE_MANAGER)

    def dispatcher(self) -> Actor | None:
        """The present Dispatcher."""
        return self.actor(DISPATCHER)

    def job_master(self, job: JobId) -> Actor | None:
        """The present JobMaster of a job."""
        return self.actor(job_master_address(job))

    def job_ids(self) -> list[JobId]:
        """The jobs whose submission was acknowledged."""
        return [client.job for client in self.clients if client.job is not None]

    def disturbed(self) -> bool:
        """Whether a living driver may be out of reach for so long that it is right to give it up."""
        plan, times = self.scenario.network, self.scenario.times
        if self.network.faulty and (plan.loss > 0.01 or plan.spike):
            return True
        lingering_s = self.scenario.rm.heartbeat_timeout_s + times.job_master_timeout_s + times.job_takeover_s + 30.0
        return self.engine.now < self.injector.disturbed_until + lingering_s

    # ------------------------------------------------------------------------------------------- masters and hosts

    def elect(self) -> None:
        """A new master process gets the leadership; it fences the store, then begins."""
        master = MasterProcess(self, self.next_token())
        self.store.epoch = master.token
        self.leader = master
        self.masters.append(master)
        master.start()
        for host in list(self.hosts.values()):
            if host.link is not None:
                self.engine.after(self.rng.uniform(0, self.scenario.network.notice_s), self._move, host, host.link)

    def _move(self, host: Host, link: MasterProcess) -> None:
        """A worker has learnt that its master is not the leader any more."""
        if host.link is link and link is not self.leader:
            host.disconnect()

    def master_ended(self, master: MasterProcess) -> None:
        """A master process is gone."""
        self.masters.remove(master)
        if self.leader is master:
            self.leader = None

    def add_host(
        self, name: WorkerId, total: ResourceProfile, default_profile: ResourceProfile, provisioned: bool = False
    ) -> None:
        """A host comes up with its worker."""
        host = self.hosts[name] = Host(self, name, total, default_profile, provisioned)
        host.start_worker()

    # ------------------------------------------------------------------------------------------- effects

    def _after_step(self, actor: Actor, stimulus: object, effects: Effects, before: Any) -> None:
        for event in effects.events:
            self.log.add(self.engine.now, "event", actor.name, event)
        self.checks.after_step(actor, stimulus, effects, before)
        owner = actor.owner
        if isinstance(owner, Host):
            for envelope in effects.send:
                self._send_from_host(owner, envelope)
            for effect in effects.processes:
                owner.carry_out(effect)
            if effects.shutdown is not None:
                self._worker_shut_down(owner, effects.shutdown)
        else:
            self._carry_out_in_master(owner, actor, effects)

    def _carry_out_in_master(self, master: MasterProcess, actor: Actor, effects: Effects) -> None:
        for record in effects.persist:
            if not self.store.persist(record, actor.token, master.token):
                self.note("store", "refuses", actor.name, record)
                self._stale(master, actor)
                return
            self.note("store", "takes", actor.name, record)
            self.checks.persisted(record)
        if effects.persist and master.torn:
            self.note("fault", "torn: nothing of this step is sent by", actor.name)
            master.end()
            return
        for envelope in effects.send:
            self._send_from_master(master, envelope)
        for wish in effects.workers:
            self.note("provisioner", actor.name, wish)
            master.carry_out_worker(wish)
        for change in effects.job_masters:
            master.carry_out_job_master(change)
        if effects.shutdown is not None:
            self.note("component", "shuts down", actor.name, effects.shutdown)
            if master is self.leader and master.actors.get(actor.address) is actor:
                text = f"{actor.name} is the leader and was told of a newer one: {effects.shutdown}"
                raise Violation("leader-not-fenced", text, actor.address)
            self._stale(master, actor)

    def _stale(self, master: MasterProcess, actor: Actor) -> None:
        """A replaced leader has been fenced, and ends: alone, or with its process when that is replaced."""
        if master is not self.leader:
            master.end()
        elif master.actors.get(actor.address) is actor:
            raise Violation("leader-not-fenced", f"the store refuses the leader {actor.name}", actor.address)
        else:
            master.end_zombie(actor)

    def _worker_shut_down(self, host: Host, reason: str) -> None:
        host.ended(reason)
        if host.provisioned:
            self.provisioner.gone(host)
        else:
            # Whatever watches over the hosts of a standalone cluster starts it again.
            self.engine.after(self.rng.uniform(1, 10), host.start_worker)

    # ------------------------------------------------------------------------------------------- mail

    def _send_from_host(self, host: Host, envelope: Envelope) -> None:
        master = host.link
        if master is None:
            self.log.add(self.engine.now, "unsent", envelope)
            return
        delays = self.network.delays(host.name, False, envelope.sender, envelope.to)
        self._on_its_way(envelope, delays, self._arrive_at_master, master)

    def _send_from_master(self, master: MasterProcess, envelope: Envelope) -> None:
        to = envelope.to
        if to.startswith("te:"):
            worker = WorkerId(to[3:])
            host = self.hosts.get(worker)
            if host is None or host.link is None or (host.link is not master and not self._strays(master)):
                self.log.add(self.engine.now, "unsent", envelope)
                return
            delays = self.network.delays(host.name, True, envelope.sender, to)
            self._on_its_way(envelope, delays, self._arrive_at_host, worker)
        elif to.startswith("client:"):
            delays = self.network.delays(None, False, envelope.sender, "client")
            self._on_its_way(envelope, delays, self._arrive_at_client, None)
        else:
            delays = self.network.delays(None, False, envelope.sender, to)
            self._on_its_way(envelope, delays, self._arrive_at_master, master)

    def _strays(self, master: MasterProcess) -> bool:
        """Whether a message of a master reaches a worker that is not connected to it: only an old leader's may."""
        return master is not self.leader and self.network.faulty and self.rng.random() < self.scenario.network.stray

    def send_from_client(self, client: Address, payload: Message) -> None:
        """A client's message goes to whoever leads now."""
        to = RESOURCE_MANAGER if isinstance(payload, BlockWorker) else DISPATCHER
        if self.leader is not None:
            delays = self.network.delays(None, False, "client", to)
            self._on_its_way(client_envelope(client, to, payload), delays, self._arrive_at_master, self.leader)

    def _on_its_way(self, envelope: Envelope, delays: tuple[float, ...], arrive: Any, where: Any) -> None:
        if not delays:
            self.log.add(self.engine.now, "lost", envelope)
        for delay_s in delays:
            self.engine.after(delay_s, arrive, envelope, where)

    def _arrive_at_master(self, envelope: Envelope, master: MasterProcess) -> None:
        if master.process.alive:
            self.log.add(self.engine.now, "arrives", master.process.name, envelope)
            master.receive(envelope)

    def _arrive_at_host(self, envelope: Envelope, worker: WorkerId) -> None:
        host = self.hosts.get(worker)
        if host is not None and host.actor is not None:
            self.log.add(self.engine.now, "arrives", envelope)
            self.engine.post(host.actor, envelope)

    def _arrive_at_client(self, envelope: Envelope, _: None) -> None:
        self.log.add(self.engine.now, "arrives", envelope)
        for client in self.clients:
            if client.address == envelope.to:
                client.answered(envelope.payload)
