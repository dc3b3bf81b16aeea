"""The master process: wires Dispatcher, ResourceManager, JobMasters, a provisioner and the one HTTP port together.

It leads before it does anything (``ha/``), takes over what the store and the workers have of the masters before it,
and ends when it leads no more. A JobMaster that fails is the Dispatcher's business; a failure of Dispatcher or
ResourceManager ends the process, whose successor recovers (B: F-02, F-03, F-06, F-07)."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog
from starlette.applications import Starlette

from slotwise import __version__
from slotwise.dispatcher.audit import AuditLog
from slotwise.dispatcher.blob_store import FileBlobStore
from slotwise.dispatcher.files import open_files
from slotwise.dispatcher.http.app import build_app
from slotwise.dispatcher.http.auth import Authenticator
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.dispatcher.tokens import TokenStore
from slotwise.dispatcher.uploads import BlobLimits, UploadedFiles
from slotwise.dispatcher.warm_applications import WarmApplicationPolicy
from slotwise.ha.base import Grant, LeaderElection
from slotwise.ha.embedded import EmbeddedLeaderElection
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.machine import JobMaster
from slotwise.metrics.http import TimedApp
from slotwise.metrics.master import MasterMetrics
from slotwise.metrics.surroundings import MasterGauges, timed_checks
from slotwise.model.errors import ClusterError
from slotwise.model.ids import (
    DISPATCHER,
    RESOURCE_MANAGER,
    UNKNOWN_TOKEN,
    Address,
    JobId,
    LeaderToken,
    WorkerId,
    job_master_address,
)
from slotwise.model.job import ExecutorBounds, JobSpec, JobState
from slotwise.model.process import DriverReport
from slotwise.model.uploads import Uploads
from slotwise.protocol.codec import LogData, LogPosition, Mail
from slotwise.protocol.effects import (
    ConnectionClosed,
    Effects,
    JobMasterExited,
    StartJobMaster,
    StartWorker,
    StopJobMaster,
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
    WorkerBlocked,
)
from slotwise.provisioners.base import Provisioner
from slotwise.provisioners.standalone import StandaloneProvisioner
from slotwise.records import Records
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.runtime.actor import Actor
from slotwise.runtime.changes import JOBS, RESOURCES, WORKERS, Changes, job_topic, topics
from slotwise.runtime.clock import RandomIds, monotonic
from slotwise.runtime.events import EventLog, tell
from slotwise.runtime.http_server import HttpServer, listen
from slotwise.runtime.log_retention import remove_outlived
from slotwise.runtime.logs import SAFE_NAME, LogLimits, LogStore, WorkerLogStore
from slotwise.tls import ServerTls

log = structlog.get_logger(__name__)

# A Dispatcher gives its JobMasters tokens between its own and that of the next epoch.
_TOKENS_AN_EPOCH = 1_000_000
_RETRY_RECORDS_S = 1.0
_END_WARM_S = 5.0
# Said more than once: the jobs that wait for it register one after the other.
_TELL_ENDED_AFTER_S = (1.0, 5.0, 15.0)


class MasterOptions(msgspec.Struct, frozen=True):
    """How a master is started. ``port`` 0 takes that of the master before in ``directory``, else a free one.
    ``directory`` keeps the leadership, the jobs' records, logs and events, the tokens and the audit log;
    ``log_limits``: how much of jobs' output, ``blob_limits``: how much of uploaded files. ``token``: the cluster's own,
    for whoever may do everything and for its workers.
    ``settings``: the configuration as text, to be shown. ``log_file``: where this process's log goes, if anywhere;
    ``worker_logs``: the folder with the output of workers that it starts. ``log_events``: whether its log has what
    happens. ``tls``: None for plain HTTP. ``warm``: which warm applications are kept.
    """

    directory: Path
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    resource_manager: ResourceManagerConfig = ResourceManagerConfig()
    job_master: JobMasterConfig = JobMasterConfig()
    settings: dict[str, str] = {}
    log_limits: LogLimits = LogLimits()
    blob_limits: BlobLimits = BlobLimits()
    log_file: Path | None = None
    worker_logs: Path | None = None
    log_events: bool = False
    tls: ServerTls | None = None
    warm: WarmApplicationPolicy = WarmApplicationPolicy()


class Master:
    """All components of a master, in one event loop. Use :meth:`start` and :meth:`close`."""

    def __init__(self, options: MasterOptions, election: LeaderElection | None = None) -> None:
        self.options = options
        self.port = options.port
        self.logs = LogStore(options.directory / "jobs", options.log_limits)
        self.worker_log_store = WorkerLogStore(options.directory / "worker-logs")
        self.job_masters: dict[JobId, JobMaster] = {}
        self.crashed: asyncio.Future[str] | None = None
        """Why the master must end: a component failed, or it leads no more."""
        self.only_job: JobId | None = None
        self.metrics = MasterMetrics(self, MasterGauges(self))
        self._serves = False
        self.on_shut_down: Callable[[], None] | None = None
        """What ends the cluster when a client asks for it."""
        self.audit = AuditLog(options.directory)
        self._election = election or EmbeddedLeaderElection(options.directory, self._has_jobs)
        self._ids = RandomIds()
        self._provisioner: Provisioner = StandaloneProvisioner()
        self._actors: dict[Address, Actor] = {}
        self._workers: dict[Address, asyncio.Queue[Mail]] = {}
        self._clients: dict[Address, asyncio.Future[Message]] = {}
        self._next_client = 0
        self._server: HttpServer | None = None
        self._upkeep: asyncio.Future[Any] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._fleet_seen = (0, 0)
        self._app: Starlette | None = None
        self._tls: ssl.SSLContext | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where the master listens."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{'http' if self.options.tls is None else 'https'}://{host}:{self.port}"

    # ------------------------------------------------------------------------------------------- life

    async def start(
        self,
        provisioner: Callable[[Master], Provisioner] | None = None,
        *,
        wait: bool = False,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        """Lead, bind the port, take over what there is, and serve. ``provisioner`` builds what starts workers, once the
        address is known. With ``wait``, stand by while another master leads (``on_wait`` is told who).

        Raises :class:`~slotwise.ha.base.NotLeader` when another master leads,
        :class:`~slotwise.model.errors.EnvironmentProblem` when the port cannot be had,
        :class:`~slotwise.model.errors.StoreError` when the directory cannot be used.
        """
        # Before anything else: a certificate that cannot be used must not cost the master before its leadership.
        self._tls = self.options.tls.context() if self.options.tls is not None else None
        grant = await self._election.acquire(wait=wait, on_wait=on_wait)
        try:
            await self._lead(grant, provisioner)
        except BaseException:
            await self._election.release()
            raise

    async def _lead(self, grant: Grant, provisioner: Callable[[Master], Provisioner] | None) -> None:
        loop = asyncio.get_running_loop()
        files = open_files(self.options.directory)
        store = FileJobStore(files)
        self.auth = Authenticator(TokenStore(files, self.options.token), monotonic, secure=self.options.tls is not None)
        recovered = store.recover()
        # Beside the jobs' records, so that whoever takes over from this master has them too.
        self.uploads = UploadedFiles(FileBlobStore(files), self.options.blob_limits, self._uploads_of_jobs, monotonic)
        await asyncio.to_thread(self.uploads.load)
        self.events = EventLog(self.options.directory / "jobs", grant.epoch)
        self.changes = Changes(grant.epoch)
        self.auth.on_revoked.append(self.changes.wake)
        bound = listen(self.options.host, self.options.port, grant.previous_url)
        self.port = bound.getsockname()[1]
        self._election.announce(self.url)
        self.crashed = loop.create_future()
        self._grant = grant
        grant.lost.add_done_callback(lambda lost: self._end(lost.result()))
        if provisioner is not None:
            self._provisioner = provisioner(self)
        now = monotonic()
        token = LeaderToken(grant.epoch * _TOKENS_AN_EPOCH)
        config = msgspec.structs.replace(self.options.resource_manager, version=__version__)
        before = self._provisioner.recover()
        self.resource_manager = ResourceManager(config, token, self._ids, now, before.living)
        dispatcher = DispatcherConfig(warm=self.options.warm)
        self.dispatcher = Dispatcher(dispatcher, token, self._ids, now, recovered)
        self._records = Records(store, self.dispatcher, recovered)
        unfinished = sum(1 for job in recovered if job.result is None)
        if recovered:
            log.info("recovered jobs", unfinished=unfinished, ended=len(recovered) - unfinished, epoch=grant.epoch)
        self._start_actor(RESOURCE_MANAGER, self.resource_manager, self._on_fleet)
        self._start_actor(DISPATCHER, self.dispatcher)
        for worker in before.ended:
            exited = WorkerExited(worker, "it ended while there was no master", started=True)
            self._timers += [loop.call_later(after, self.worker_exited, exited) for after in _TELL_ENDED_AFTER_S]
        self._upkeep = asyncio.gather(
            self._retry_records(), remove_outlived(self.logs, self._with_logs), self.uploads.keep_swept()
        )
        self._upkeep.add_done_callback(self._on_upkeep_over)
        await self._serve(bound)

    async def _serve(self, bound: socket.socket) -> None:
        self._app = build_app(self)
        self._server = HttpServer(TimedApp(self._app, self._app.routes, self.metrics.answered), bound, self._tls)
        await self._server.started()
        self._serves = True

    def not_ready(self) -> str:
        """Why this master does not lead and serve now, in words; empty when it does."""
        if not self._serves:
            return "the master is starting or stopping"
        if self._grant.lost.done():
            return f"this master leads no more: {self._grant.lost.result()}"
        if self.crashed is not None and self.crashed.done():
            return f"the master ends: {self.crashed.result()}"
        return ""

    def _has_jobs(self) -> bool:
        jobs = self.options.directory / "jobs"
        return jobs.is_dir() and any(jobs.iterdir())

    async def _retry_records(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_RECORDS_S)
            self._records.retry()

    def _with_logs(self) -> Iterator[tuple[JobId, float]]:
        """The jobs that have ended and whose logs are there, with the time of their end."""
        for record in list(self.dispatcher.jobs.values()):
            if record.released and self.logs.has_logs(record.job):
                times = self.events.times(record.job)
                yield record.job, times.end_unix_s or times.last_unix_s

    def _uploads_of_jobs(self) -> dict[JobId, Uploads]:
        """What jobs have uploaded whose processes may need it still."""
        records = self.dispatcher.jobs.values()
        return {r.job: r.spec.uploads for r in records if not r.released and r.spec.uploads is not None}

    def _on_upkeep_over(self, upkeep: asyncio.Future[Any]) -> None:
        if not upkeep.cancelled() and (error := upkeep.exception()) is not None:
            self._end(f"upkeep failed: {error!r}")

    def knows_worker(self, worker: WorkerId) -> bool:
        """Whether the worker is registered."""
        return worker in self.resource_manager.slots.workers

    def _start_actor(
        self,
        address: Address,
        machine: Dispatcher | ResourceManager,
        carry_out: Callable[[Effects], None] | None = None,
    ) -> None:
        on_step = timed_checks(machine, self.metrics) if isinstance(machine, ResourceManager) else None
        carry_out = carry_out or self._carry_out
        actor = self._actors[address] = Actor(address, machine, carry_out, self._on_crash, on_step)
        actor.start()

    def _on_fleet(self, effects: Effects) -> None:
        """The ResourceManager's effects; workers' reports change what watchers see without any event."""
        self._carry_out(effects)
        fleet = self.resource_manager.slots.fleet
        if self._fleet_seen != (seen := (fleet.revision, fleet.touched)):
            self._fleet_seen = seen
            self.changes.note((WORKERS, RESOURCES))

    def _on_crash(self, name: str, error: BaseException) -> None:
        self._end(f"{name} failed: {error!r}")

    def _end(self, reason: str) -> None:
        if self.crashed is not None and not self.crashed.done():
            self.crashed.set_result(reason)

    async def close(self, grace_s: float = 10.0, *, leave: bool = False) -> None:
        """End the jobs' actors, so that nothing is restarted or requested any more; then the workers, the server, the
        rest. With ``leave``, what runs goes on for the next master.
        """
        if self._upkeep is None:
            return
        self._serves = False
        await self._end_warm()
        for address in [address for address in self._actors if leave or address != RESOURCE_MANAGER]:
            await self._actors[address].stop()
        for timer in self._timers:
            timer.cancel()
        await self._provisioner.close(grace_s, leave=leave)
        self.changes.close()
        if self._server is not None:
            await self._server.close()
        if self._app is not None:
            await self._app.state.close()
        for actor in list(self._actors.values()):
            await actor.stop()
        self._upkeep.cancel()
        await asyncio.gather(self._upkeep, return_exceptions=True)
        self._records.retry()
        for job in self._records.unwritten:
            log.error("the job's result could not be written and is lost with this process", job=job)
        await self._election.release()

    async def _end_warm(self) -> None:
        """Nobody comes after this master who would know of them."""
        self._actors[DISPATCHER].call(self.dispatcher.end_warm)
        deadline = monotonic() + _END_WARM_S
        while self.dispatcher.warm.entries and monotonic() < deadline:
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------------------------------- mail

    def _carry_out(self, effects: Effects) -> None:
        """In the order that :class:`Effects` prescribes."""
        if self._grant.lost.done():
            return
        self._records.keep(effects)
        by_worker: dict[Address, list[Envelope]] = {}
        for envelope in effects.send:
            if envelope.to.startswith("te:"):
                by_worker.setdefault(envelope.to, []).append(envelope)
            else:
                self.post(envelope)
        for address, envelopes in by_worker.items():
            queue = self._workers.get(address)
            if queue is not None:
                queue.put_nowait(Mail(tuple(envelopes)))
        for wish in effects.workers:
            if isinstance(wish, StartWorker):
                self._provisioner.start_worker(wish)
            else:
                self._provisioner.stop_worker(wish.worker)
        for change in effects.job_masters:
            if isinstance(change, StartJobMaster):
                self._start_job_master(change)
            else:
                self._stop_job_master(change)
        # A warm application is nobody's job, and has no history.
        effects.events = [event for event in effects.events if event.job not in self.dispatcher.warm.entries]
        self.events.add(effects.events)
        self.metrics.happened(effects.events)
        if self.options.log_events:
            for event in effects.events:
                tell(event)
        self.changes.note(topics(effects.events))
        if effects.shutdown is not None:
            # Whichever component it is: who knows of a newer leader of it has been told by another master.
            self._end(
                f"another master has taken over, or a worker was with one that used another --directory: "
                f"{effects.shutdown}"
            )

    def post(self, envelope: Envelope) -> None:
        """Deliver a message to a component here, or to a waiting client."""
        actor = self._actors.get(envelope.to)
        if actor is not None:
            actor.post(envelope)
            return
        waiting = self._clients.pop(envelope.to, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(envelope.payload)

    def _start_job_master(self, start: StartJobMaster) -> None:
        """In place of any that there is. One that fails is the Dispatcher's business, with the job's record."""
        job, address = start.job, job_master_address(start.job)
        self._retire(address)
        config, now = self.options.job_master, monotonic()
        progress, bounds, version = start.progress, start.bounds, start.bounds_version
        machine = JobMaster(
            job, start.spec, config, start.token, self._ids, now, progress, bounds, version, warm=start.warm
        )

        def on_crash(name: str, error: BaseException) -> None:
            if self._actors.get(address) is actor:
                self._retire(address)
                self.job_masters.pop(job, None)
                gone = JobMasterExited(
                    job, f"{name} failed: {error!r}", self._records.progress.get(job), self._records.results.get(job)
                )
                self._actors[DISPATCHER].post(gone)

        report: DriverReport | None = None

        def carry_out(effects: Effects) -> None:
            nonlocal report
            self._carry_out(effects)
            if machine.executors.report is not report:
                # Progress is no event: it changes with every task.
                report = machine.executors.report
                self.changes.note((JOBS, job_topic(job)))

        self.job_masters[job] = machine
        actor = self._actors[address] = Actor(address, machine, carry_out, on_crash)
        actor.start()

    def _stop_job_master(self, stop: StopJobMaster) -> None:
        self._records.results.pop(stop.job, None)
        if stop.failure is not None:
            tail = "\n".join(stop.failure.log_tail)
            log.warning("a warm application failed", application=stop.job, reason=stop.failure.reason, log_tail=tail)
        # What is worth keeping of an ended job is in its record and its events.
        self.job_masters.pop(stop.job, None)
        self._retire(job_master_address(stop.job))

    def _retire(self, address: Address) -> None:
        actor = self._actors.pop(address, None)
        if actor is not None:
            task = asyncio.get_running_loop().create_task(actor.stop())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    # ------------------------------------------------------------------------------------------- workers' streams

    def take_log(self, chunk: LogData) -> LogPosition | None:
        """Keep a job's output; that of a warm application only once it is a job's, from its beginning."""
        return None if chunk.job in self.dispatcher.warm.entries else self.logs.write(chunk)

    @contextlib.contextmanager
    def connection(self, worker: WorkerId) -> Iterator[asyncio.Queue[Mail]]:
        """A worker's stream is open: the queue holds what is to be sent to it. The newest connection wins."""
        address = Address(f"te:{worker}")
        queue: asyncio.Queue[Mail] = asyncio.Queue()
        self._workers[address] = queue
        try:
            yield queue
        finally:
            if self._workers.get(address) is queue:
                del self._workers[address]
                actor = self._actors.get(RESOURCE_MANAGER)
                if actor is not None:
                    actor.post(ConnectionClosed(worker))

    def end_workers(self, reason: str) -> None:
        """Have all workers end in order, also those that came by themselves: this cluster is over."""
        self._carry_out(self.resource_manager.end_workers(reason))

    def worker_exited(self, exited: WorkerExited) -> None:
        """The provisioner has seen a worker's end."""
        self._actors[RESOURCE_MANAGER].post(exited)

    # ------------------------------------------------------------------------------------------- clients

    async def ask(self, payload: Message, to: Address = DISPATCHER) -> Message:
        """Send a message to the Dispatcher (or ``to``) as a client and wait for the answer."""
        self._next_client += 1
        address = Address(f"client:{self._next_client}")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._clients[address] = answer
        # A client's first word is an introduction: it need not know the leader's token.
        self._actors[to].post(Envelope(self._next_client, to, UNKNOWN_TOKEN, address, UNKNOWN_TOKEN, payload))
        try:
            return await asyncio.wait_for(answer, 30)
        except TimeoutError:
            raise ClusterError("the master did not answer within 30 s; see its log") from None

    async def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Submit a job. Raises :class:`ClusterError` with the reason when it is refused."""
        try:
            return await self._submit(spec, key)
        except ClusterError:
            self.metrics.refused()
            raise

    async def _submit(self, spec: JobSpec, key: str | None) -> JobId:
        if self.only_job is not None:
            raise ClusterError(f"this master was started for one job, {self.only_job}; it takes no other")
        key = key or self._ids.new_id("key")
        if self.dispatcher.knows_key(key):
            # Accepted before: what it has uploaded may be gone by now.
            answer = await self.ask(SubmitJob(key, spec))
        else:
            async with self.uploads.admitted(spec):
                answer = await self.ask(SubmitJob(key, spec))
        if isinstance(answer, JobAccepted):
            return answer.job
        raise ClusterError(answer.reason if isinstance(answer, JobRefused) else "the submission was not understood")

    async def cancel(self, job: JobId) -> JobState:
        """Ask for the end of a job; returns the state it was in. Raises :class:`ClusterError` for an unknown one."""
        answer = await self.ask(CancelJob(job))
        if isinstance(answer, CancelAccepted):
            return answer.state
        raise ClusterError(answer.reason if isinstance(answer, JobRefused) else "the cancel was not understood")

    async def scale(self, job: JobId, bounds: ExecutorBounds) -> ExecutorBounds:
        """Change how many executors a job may have. Raises :class:`ClusterError` with the reason when it is refused."""
        answer = await self.ask(ScaleJob(job, bounds))
        if isinstance(answer, ScaleAccepted):
            return answer.bounds
        raise ClusterError(answer.reason if isinstance(answer, JobRefused) else "the change was not understood")

    def shut_down(self) -> None:
        """Ask for the end of the cluster. Raises :class:`ClusterError` where it is part of something else."""
        if self.on_shut_down is None:
            raise ClusterError(
                "this cluster belongs to a program (as with `slotwise run`): end that, or cancel its job"
            )
        self.on_shut_down()

    def own_logs(self) -> list[Path]:
        """The files of this process's log, older ones behind."""
        file = self.options.log_file
        return [] if file is None else [file, *sorted(file.parent.glob(f"{glob.escape(file.name)}.*"))]

    def worker_logs(self, worker: WorkerId) -> list[Path]:
        """What is kept of a worker's own log: what it has sent of it, and its output if it was started here."""
        folder = self.options.worker_logs
        if not SAFE_NAME.match(worker):
            return []
        output = [] if folder is None else sorted(folder.glob(f"{glob.escape(worker)}.log*"))
        return [*self.worker_log_store.paths(worker), *output]

    async def block(self, worker: WorkerId, blocked: bool) -> None:
        """Block or unblock a worker. Raises :class:`ClusterError` for an unknown one."""
        answer = await self.ask(BlockWorker(worker, blocked), RESOURCE_MANAGER)
        if not isinstance(answer, WorkerBlocked) or not answer.known:
            raise ClusterError(f"there is no worker {worker}")
