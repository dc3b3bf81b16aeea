"""The master process: wires Dispatcher, ResourceManager, JobMasters, a provisioner and the one HTTP port together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog
import uvicorn

from slotwise import __version__
from slotwise.dispatcher.files import open_files
from slotwise.dispatcher.http.app import build_app
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.dispatcher.machine import Dispatcher, DispatcherConfig
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.errors import ClusterError, EnvironmentProblem, StoreError
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
from slotwise.model.job import JobSpec, JobState
from slotwise.protocol.codec import Mail
from slotwise.protocol.effects import (
    ConnectionClosed,
    Effects,
    PersistJob,
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
    SubmitJob,
    WorkerBlocked,
)
from slotwise.provisioners.base import Provisioner
from slotwise.provisioners.standalone import StandaloneProvisioner
from slotwise.resourcemanager.machine import ResourceManager, ResourceManagerConfig
from slotwise.runtime.actor import Actor
from slotwise.runtime.clock import RandomIds, monotonic, unix_time
from slotwise.runtime.events import EventLog
from slotwise.runtime.logs import LogStore

log = structlog.get_logger(__name__)


class MasterOptions(msgspec.Struct, frozen=True):
    """How a master is started. ``port`` 0 takes a free one. ``directory`` keeps the jobs' records, logs and events."""

    directory: Path
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    resource_manager: ResourceManagerConfig = ResourceManagerConfig()
    job_master: JobMasterConfig = JobMasterConfig()


class Master:
    """All components of a master, in one event loop. Use :meth:`start` and :meth:`close`."""

    def __init__(self, options: MasterOptions) -> None:
        self.options = options
        self.port = options.port
        self.logs = LogStore(options.directory / "jobs")
        self.events = EventLog(options.directory / "jobs")
        self.job_masters: dict[JobId, JobMaster] = {}
        self.crashed: asyncio.Future[str] | None = None
        self._store = FileJobStore(open_files(options.directory))
        self._ids = RandomIds()
        self._provisioner: Provisioner = StandaloneProvisioner()
        self._actors: dict[Address, Actor] = {}
        self._workers: dict[Address, asyncio.Queue[Mail]] = {}
        self._clients: dict[Address, asyncio.Future[Message]] = {}
        self._next_client = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the master listens."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"http://{host}:{self.port}"

    # ------------------------------------------------------------------------------------------- life

    async def start(self, provisioner: Callable[[Master], Provisioner] | None = None) -> None:
        """Bind the port and serve. ``provisioner`` builds what starts workers, once the address is known.

        Raises :class:`EnvironmentProblem` when the port cannot be had.
        """
        bound = self._bind()
        self.port = bound.getsockname()[1]
        self.crashed = asyncio.get_running_loop().create_future()
        if provisioner is not None:
            self._provisioner = provisioner(self)
        now = monotonic()
        # One leadership for the life of the process, above those of all processes before it.
        token = LeaderToken(int(unix_time() * 1000))
        config = msgspec.structs.replace(self.options.resource_manager, version=__version__)
        self.resource_manager = ResourceManager(config, token, self._ids, now)
        self.dispatcher = Dispatcher(DispatcherConfig(), token, self._ids)
        self._start_actor(RESOURCE_MANAGER, self.resource_manager)
        self._start_actor(DISPATCHER, self.dispatcher)
        server = uvicorn.Server(
            uvicorn.Config(
                build_app(self),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="websockets-sansio",
                ws_max_size=16 * 1024 * 1024,
                timeout_graceful_shutdown=1,
            )
        )
        # Signals are the caller's business, not the HTTP server's.
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._server = server
        self._serving = asyncio.get_running_loop().create_task(server.serve(sockets=[bound]))
        while not server.started:
            if self._serving.done():
                await self._serving
                raise EnvironmentProblem("the HTTP server ended while it was starting")
            await asyncio.sleep(0.005)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.options.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self.options.host, self.options.port))
            bound.listen(256)
        except OSError as error:
            bound.close()
            where = f"{self.options.host}:{self.options.port}"
            raise EnvironmentProblem(
                f"cannot listen on {where}: {error.strerror or error}; choose another with --port (0: any free one)"
            ) from error
        return bound

    def _start_actor(self, address: Address, machine: Dispatcher | ResourceManager | JobMaster) -> None:
        actor = Actor(address, machine, self._carry_out, self._on_crash)
        self._actors[address] = actor
        actor.start()

    def _on_crash(self, name: str, error: BaseException) -> None:
        if self.crashed is not None and not self.crashed.done():
            self.crashed.set_result(f"{name} failed: {error!r}")

    async def close(self, grace_s: float = 10.0) -> None:
        """End the jobs' actors, so that nothing is restarted or requested any more; then the workers, the server, the
        rest.
        """
        for address in [address for address in self._actors if address != RESOURCE_MANAGER]:
            await self._actors[address].stop()
        await self._provisioner.close(grace_s)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        for actor in list(self._actors.values()):
            await actor.stop()

    # ------------------------------------------------------------------------------------------- mail

    def _carry_out(self, effects: Effects) -> None:
        """In the order that :class:`Effects` prescribes."""
        for record in effects.persist:
            try:
                self._store.persist(record)
            except StoreError as error:
                log.error("cannot write the job's record", job=record.job, error=str(error))
                if isinstance(record, PersistJob):
                    # Not durable, so not acknowledged: the job is none, and the client is told.
                    self.dispatcher.forget(record.job)
                    self._refuse_all(effects, f"the master cannot write the job's record: {error}")
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
                self._provisioner.start_worker(wish.worker, wish.total, wish.default_profile)
            else:
                self._provisioner.stop_worker(wish.worker)
        for change in effects.job_masters:
            if isinstance(change, StartJobMaster):
                self._start_job_master(change)
            else:
                self._stop_job_master(change)
        self.events.add(effects.events)

    def _refuse_all(self, effects: Effects, reason: str) -> None:
        effects.send = [
            msgspec.structs.replace(envelope, payload=JobRefused(reason))
            if isinstance(envelope.payload, JobAccepted)
            else envelope
            for envelope in effects.send
        ]
        effects.job_masters = []

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
        machine = JobMaster(start.job, start.spec, self.options.job_master, start.token, self._ids, monotonic())
        self.job_masters[start.job] = machine
        self._start_actor(job_master_address(start.job), machine)

    def _stop_job_master(self, stop: StopJobMaster) -> None:
        # What is worth keeping of an ended job is in its record and its events.
        self.job_masters.pop(stop.job, None)
        actor = self._actors.pop(job_master_address(stop.job), None)
        if actor is not None:
            task = asyncio.get_running_loop().create_task(actor.stop())
            task.add_done_callback(lambda _: None)

    # ------------------------------------------------------------------------------------------- workers' streams

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
        answer = await self.ask(SubmitJob(key or self._ids.new_id("key"), spec))
        if isinstance(answer, JobAccepted):
            return answer.job
        raise ClusterError(answer.reason if isinstance(answer, JobRefused) else "the submission was not understood")

    async def cancel(self, job: JobId) -> JobState:
        """Ask for the end of a job; returns the state it was in. Raises :class:`ClusterError` for an unknown one."""
        answer = await self.ask(CancelJob(job))
        if isinstance(answer, CancelAccepted):
            return answer.state
        raise ClusterError(answer.reason if isinstance(answer, JobRefused) else "the cancel was not understood")

    async def block(self, worker: WorkerId, blocked: bool) -> None:
        """Block or unblock a worker. Raises :class:`ClusterError` for an unknown one."""
        answer = await self.ask(BlockWorker(worker, blocked), RESOURCE_MANAGER)
        if not isinstance(answer, WorkerBlocked) or not answer.known:
            raise ClusterError(f"there is no worker {worker}")
