"""What stands outside the machines: the job store, the provisioner and the clients."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from slotwise.model.ids import UNKNOWN_TOKEN, Address, JobId, WorkerId
from slotwise.model.job import ExecutorBounds
from slotwise.model.progress import JobProgress, RecoveredJob
from slotwise.protocol.effects import (
    PersistBounds,
    PersistCancel,
    PersistJob,
    PersistProgress,
    PersistRecord,
    PersistResult,
    StartWorker,
    WorkerExited,
)
from slotwise.protocol.messages import (
    BlockWorker,
    CancelAccepted,
    CancelJob,
    Envelope,
    JobAccepted,
    JobRefused,
    Message,
    ScaleAccepted,
    ScaleJob,
    SubmitJob,
)
from slotwise.simulation.hosts import Host
from slotwise.simulation.story import Violation

if TYPE_CHECKING:
    from slotwise.simulation.cluster import Cluster
    from slotwise.simulation.masters import MasterProcess
    from slotwise.simulation.scenario import JobPlan

_CLIENT_RETRY_S = 3.0
_STOP_GRACE_S = 20.0


class Store:
    """The job store: it survives everything. ``epoch`` is that of the newest master that opened it, ``dispatcher`` the
    token of the newest Dispatcher that recovered from it.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobId, RecoveredJob] = {}
        self.epoch = 0
        self.dispatcher = 0

    def accepts(self, job: JobId, token: int, epoch: int) -> bool:
        """Whether a job's leader may write to its record."""
        progress = self.progress(job)
        return epoch >= self.epoch and (progress is None or token >= progress.token)

    def persist(self, record: PersistRecord, token: int, epoch: int) -> bool:
        """Write a record of the component that leads by ``token`` in the master of ``epoch``; false when the writer has
        been replaced and nothing was written.
        """
        if epoch < self.epoch:
            return False
        if isinstance(record, PersistJob | PersistCancel | PersistBounds) and token < self.dispatcher:
            return False
        known = self.jobs.get(record.job)
        match record:
            case PersistJob(job, key, spec):
                if known is not None:
                    raise Violation("one-job", f"{job} is recorded twice", job)
                if any(other.key == key for other in self.jobs.values()):
                    raise Violation("one-job", f"two jobs are recorded for the key {key}", job)
                self.jobs[job] = RecoveredJob(job, key, spec)
                return True
            case PersistResult(job, result, token):
                assert known is not None, f"a result of {job}, which is not recorded"
                if known.progress is not None and token < known.progress.token:
                    return False
                if known.result is None:
                    self.jobs[job] = msgspec.structs.replace(known, result=result)
            case PersistProgress(job, progress):
                assert known is not None, f"progress of {job}, which is not recorded"
                if known.progress is not None and progress.token < known.progress.token:
                    return False
                self.jobs[job] = msgspec.structs.replace(known, progress=progress)
            case PersistBounds(job, bounds, version):
                assert known is not None, f"bounds of {job}, which is not recorded"
                self.jobs[job] = msgspec.structs.replace(known, bounds=bounds, bounds_version=version)
            case PersistCancel(job):
                assert known is not None, f"a cancel of {job}, which is not recorded"
                self.jobs[job] = msgspec.structs.replace(known, cancelled=True)
        return True

    def progress(self, job: JobId) -> JobProgress | None:
        """The record of a running job."""
        known = self.jobs.get(job)
        return known.progress if known is not None else None


class SimulatedProvisioner:
    """Starts and stops hosts, for whichever master asks; it outlives them all. ``slow``: factors in force;
    ``failing``: chances of failure in force.
    """

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.slow: dict[int, float] = {}
        self.failing: dict[int, float] = {}
        self._starting: dict[WorkerId, tuple[int, StartWorker]] = {}
        self._cluster = cluster
        self._rng = rng
        self._attempt = 0

    def recover(self) -> list[StartWorker]:
        """The workers that were asked for and have not ended, whichever master asked."""
        coming = [wish for _, wish in self._starting.values()]
        there = [host for host in self._cluster.hosts.values() if host.provisioned]
        return coming + [StartWorker(host.name, host.total, host.default_profile) for host in there]

    def start_worker(self, wish: StartWorker, master: MasterProcess) -> None:
        """A host will come up, if nothing befalls it."""
        plan, engine = self._cluster.scenario.provisioner, self._cluster.engine
        self._attempt += 1
        self._starting[wish.worker] = (self._attempt, wish)
        seconds = plan.start_s * self._rng.uniform(0.7, 1.3)
        for factor in self.slow.values():
            seconds *= factor
        if any(self._rng.random() < chance for chance in self.failing.values()):
            if self._rng.random() < 0.8:
                engine.after(min(seconds, 1.0), self._failed, wish.worker, self._attempt, master)
            return
        engine.after(seconds, self._come_up, wish, self._attempt)

    def _failed(self, worker: WorkerId, attempt: int, master: MasterProcess) -> None:
        if self._starting.get(worker, (0, None))[0] == attempt:
            del self._starting[worker]
            exited = WorkerExited(worker, "simulated: no quota", started=False)
            master.tell_resource_manager(exited)

    def _come_up(self, wish: StartWorker, attempt: int) -> None:
        if self._starting.pop(wish.worker, None) == (attempt, wish) and wish.worker not in self._cluster.hosts:
            self._cluster.add_host(wish.worker, wish.total, wish.default_profile, provisioned=True)

    def stop_worker(self, worker: WorkerId) -> None:
        """Not to come up, or to end: asked first, then by force."""
        self._starting.pop(worker, None)
        host = self._cluster.hosts.get(worker)
        if host is not None and host.up:
            host.terminate("the provisioner stops it")
            self._cluster.engine.after(_STOP_GRACE_S, self._kill, host)

    def _kill(self, host: Host) -> None:
        if self._cluster.hosts.get(host.name) is host:
            host.crash()
            self.gone(host)

    def gone(self, host: Host) -> None:
        """A host of ours, or its worker process, has ended: what ran there is swept, and the master is told."""
        if self._cluster.hosts.get(host.name) is not host:
            return
        host.crash()
        del self._cluster.hosts[host.name]
        self._cluster.engine.after(self._cluster.scenario.provisioner.exit_notice_s, self._notice, host.name)

    def _notice(self, worker: WorkerId) -> None:
        if self._cluster.leader is not None:
            self._cluster.leader.tell_resource_manager(WorkerExited(worker, "its process ended", started=True))


class Client:
    """Submits one job, cancels it if that is its plan, and asks again until it is answered."""

    def __init__(self, cluster: Cluster, plan: JobPlan) -> None:
        self.plan = plan
        self.address = Address(f"client:{plan.name}")
        self.job: JobId | None = None
        self.refused: str | None = None
        self.cancel_wanted = False
        self.cancel_done = False
        self._cluster = cluster
        cluster.engine.at(plan.submit_at_s, self._submit)
        if plan.cancel_at_s is not None:
            cluster.engine.at(plan.cancel_at_s, self.cancel)
        for at_s, bounds in plan.scales:
            cluster.engine.at(at_s, self._scale, bounds)
        self.bounds: list[ExecutorBounds] = []

    def _submit(self) -> None:
        if self.job is None and self.refused is None:
            self._cluster.send_from_client(self.address, SubmitJob(f"key-{self.plan.name}", self.plan.spec))
            self._cluster.engine.after(_CLIENT_RETRY_S, self._submit)

    def _scale(self, bounds: ExecutorBounds) -> None:
        """Said once; what comes of it is known when it is answered."""
        if self.job is not None:
            self._cluster.send_from_client(self.address, ScaleJob(self.job, bounds))

    def cancel(self) -> None:
        """Have the job ended; as soon as it is accepted, if it is not yet."""
        if not self.cancel_wanted:
            self.cancel_wanted = True
            self._cancel()

    def _cancel(self) -> None:
        if self.cancel_done:
            return
        if self.job is not None:
            self._cluster.send_from_client(self.address, CancelJob(self.job))
        self._cluster.engine.after(_CLIENT_RETRY_S, self._cancel)

    def answered(self, message: Message) -> None:
        """An answer of the Dispatcher has come."""
        match message:
            case ScaleAccepted(_, bounds):
                self.bounds.append(bounds)
            case JobRefused(reason) if self.job is not None and not reason.startswith("there is no job"):
                # Bounds that it cannot have, or of a job that is over.
                pass
            case JobAccepted(job):
                if self.job is not None and self.job != job:
                    text = f"the submission of {self.plan.name} was acknowledged as {self.job} and as {job}"
                    raise Violation("one-job", text, self.job, job)
                self.job = job
            case JobRefused(reason) if self.job is None:
                self.refused = reason
            case JobRefused(reason) if not self.cancel_done:
                text = f"{self.job} is unknown to the Dispatcher: {reason}"
                raise Violation("acknowledged-job-known", text, str(self.job))
            case CancelAccepted():
                self.cancel_done = True
            case _:
                pass


def block(cluster: Cluster, worker: WorkerId, blocked: bool) -> None:
    """An operator blocks or unblocks a worker."""
    cluster.send_from_client(Address("client:operator"), BlockWorker(worker, blocked))


def client_envelope(sender: Address, to: Address, payload: Message) -> Envelope:
    """A client's first word is an introduction: it need not know the leader's token."""
    return Envelope(0, to, UNKNOWN_TOKEN, sender, UNKNOWN_TOKEN, payload)
