"""The worker process: wires a TaskExecutor to its master's stream, to Spark and to this machine's processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import structlog

from slotwise import __version__
from slotwise.model.ids import WorkerId
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.codec import PROTOCOL_VERSION, Frame, Hello, LogData, LogPosition, Mail
from slotwise.protocol.effects import DriverSaid, Effects, ProcessChanged, StopRequested
from slotwise.runtime.actor import Actor
from slotwise.runtime.blob_cache import BlobCache
from slotwise.runtime.clock import RandomIds, monotonic
from slotwise.runtime.environments import Environments
from slotwise.runtime.events import tell
from slotwise.runtime.fetch import MasterBlobs
from slotwise.runtime.home import settle, sweep_stale
from slotwise.runtime.kept import KeeperSettings
from slotwise.runtime.log_context import recent_lines
from slotwise.runtime.logs import LogShipper
from slotwise.runtime.slots import SlotRunner
from slotwise.runtime.staging import Staging
from slotwise.runtime.stream import MasterStream
from slotwise.spark.bridge import BridgeServer
from slotwise.spark.jvm_cache_keeper import KeeperPolicy
from slotwise.spark.launcher import SparkLauncher, default_shapes
from slotwise.spark.warm_pool import WarmPolicy, WarmPool
from slotwise.taskexecutor.machine import TaskExecutor, TaskExecutorConfig
from slotwise.tls import ClientTls

log = structlog.get_logger(__name__)

_OWN_LOG_INTERVAL_S = 1.0


@dataclass(frozen=True)
class UploadPolicy:
    """How a worker keeps uploaded files and the Python environments made of them, below ``root``; see the options
    ``taskmanager.uploads.*`` and ``taskmanager.environments.*``.
    """

    root: Path
    blob_bytes: int = 10 * GIB
    environment_bytes: int = 20 * GIB
    build_timeout_s: float = 900.0
    installer: str = "auto"


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker is started. Its directory is made below ``base`` and removed at the end. Without a ``worker`` it
    takes over what another of this host has left there alive, if it can, or draws an id of its own.

    ``orphan_timeout_s``: how long what runs in its slots outlives this process; 0: not at all. ``drain_timeout_s``: how
    long its executors may move what they hold when it is told to go by SIGTERM. ``jvm_cache_root``:
    where caches of loaded classes are (None: neither used nor made); one is made when no process was started for
    ``jvm_cache_quiet_s`` seconds. ``warm``: what waits for drivers and executors to come (None: nothing), and
    ``warm_rounds``: how often that goes through a little work first.
    ``uploads``: None takes no jobs with uploaded files.
    """

    master_url: str
    token: str
    worker: WorkerId | None
    host: str
    total: ResourceProfile
    default_profile: ResourceProfile
    base: Path
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    registration_timeout_s: float = 300.0
    slot_timeout_s: float = 10.0
    orphan_timeout_s: float = 15.0
    drain_timeout_s: float = 30.0
    jvm_cache_root: Path | None = None
    jvm_cache_quiet_s: float = 15.0
    warm: WarmPolicy | None = None
    uploads: UploadPolicy | None = None
    warm_rounds: int = 2
    tls: ClientTls = field(default_factory=ClientTls)


class WorkerProcess:
    """One worker, until it is told to end (by its master, a signal, or the lack of a master)."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self._done: asyncio.Future[str] | None = None
        self._signals = 0
        self._log_name = ""
        self._log_sent = 0

    async def run(self) -> int:
        """Serve until the end; returns the exit code."""
        options = self.options
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        home = settle(
            options.base, options.worker, options.total, options.host, lambda: WorkerId(RandomIds().new_id("worker"))
        )
        sweep_stale(options.base)
        worker = home.record.worker
        structlog.contextvars.bind_contextvars(worker=worker)
        self._log_name = f"worker-{home.record.incarnation}.log"
        config = TaskExecutorConfig(
            worker=worker,
            host=options.host,
            pid=os.getpid(),
            version=__version__,
            total=options.total,
            default_profile=options.default_profile,
            heartbeat_interval_s=options.heartbeat_interval_s,
            heartbeat_timeout_s=options.heartbeat_timeout_s,
            job_master_timeout_s=options.heartbeat_timeout_s,
            registration_timeout_s=options.registration_timeout_s,
            slot_timeout_s=options.slot_timeout_s,
            incarnation=home.record.incarnation,
            drain_timeout_s=options.drain_timeout_s,
        )
        self._stream = MasterStream(
            options.master_url,
            options.token,
            Hello(worker, PROTOCOL_VERSION, __version__),
            self._on_frame,
            self._on_open,
            options.tls.context(options.master_url),
        )
        self._shipper = LogShipper(self._stream.send)
        bridge = BridgeServer(lambda allocation, report: self._actor.post(DriverSaid(allocation, report)))
        await bridge.start(home.record.bridge_port)
        home.note_bridge(bridge.port)
        source = MasterBlobs(options.master_url, options.token, options.tls)
        launcher = SparkLauncher(
            bridge,
            options.host,
            options.total.extended,
            cache_root=options.jvm_cache_root,
            cache_policy=KeeperPolicy(quiet_s=options.jvm_cache_quiet_s),
            staging=self._staging(options.uploads, source) if options.uploads is not None else None,
            warm_rounds=options.warm_rounds,
        )
        keepers = KeeperSettings(home.lock, options.orphan_timeout_s)
        self._runner = SlotRunner(home.directory, launcher, self._shipper, self._on_process, self._on_crash, keepers)
        adopted = self._runner.adopt(home.left)
        if options.warm is not None:
            launcher.pool = WarmPool(
                home.directory / "slots",
                options.total,
                options.warm,
                keepers,
                launcher.warm_commands,
                default_shapes(),
                self._runner.note_keeper,
            )
            self._runner.say_use()
            launcher.pool.start()
        machine = TaskExecutor(config, monotonic(), adopted=adopted)
        self._actor = Actor(f"te:{worker}", machine, self._carry_out, self._on_crash)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._actor.start()
        self._stream.start()
        self._shipper.start()
        assert self._stream.refused is not None
        watches = [loop.create_task(self._watch_memory(machine, launcher)), loop.create_task(self._ship_own_log())]
        try:
            await asyncio.wait([self._done, self._stream.refused], return_when=asyncio.FIRST_COMPLETED)
            if self._stream.refused.done():
                print(f"slotwise worker: {self._stream.refused.result()}", file=sys.stderr)
                return 1
            log.info("worker ends", reason=self._done.result())
            return 1 if self._done.result().startswith("bug:") else 0
        finally:
            for watch in watches:
                watch.cancel()
            self._runner.kill_all()
            await launcher.close()
            await self._runner.settle()
            await self._shipper.stop()
            self._send_own_log()
            await self._stream.close()
            await self._actor.stop()
            await bridge.close()
            await source.close()
            home.remove()

    def _staging(self, policy: UploadPolicy, source: MasterBlobs) -> Staging:
        blobs = BlobCache(policy.root, policy.blob_bytes, source)
        environments = Environments(
            policy.root,
            blobs,
            policy.environment_bytes,
            policy.build_timeout_s,
            policy.installer,
            self._note_group,
        )
        return Staging(blobs, environments)

    def _note_group(self, pid: int, there: bool) -> None:
        # The runner comes later than the launcher, whose part this is.
        self._runner.note_keeper(pid, there)

    async def _watch_memory(self, machine: TaskExecutor, launcher: SparkLauncher) -> None:
        process = psutil.Process()
        while True:
            machine.rss_bytes = process.memory_info().rss
            if launcher.pool is not None:
                machine.warm = launcher.pool.report()
            await asyncio.sleep(5)

    async def _ship_own_log(self) -> None:
        while True:
            self._send_own_log()
            await asyncio.sleep(_OWN_LOG_INTERVAL_S)

    def _send_own_log(self) -> None:
        """What this process has logged since the last time, so that it can be read at the master."""
        offset, data = recent_lines.since(self._log_sent)
        if data and self._stream.send(LogData("", self._log_name, offset, data)):
            self._log_sent = offset + len(data)

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            # Ctrl-C is somebody who waits; SIGTERM comes from what runs machines.
            name = signal.Signals(number).name
            self._actor.post(StopRequested(f"signal {name}", drain=number == signal.SIGTERM))
        else:
            self._finish("a second signal")

    def _on_crash(self, name: str, error: BaseException) -> None:
        self._finish(f"bug: {name} failed with {error!r}")

    def _finish(self, reason: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(reason)

    def _on_open(self) -> None:
        machine = self._actor.machine
        assert isinstance(machine, TaskExecutor)
        self._actor.call(machine.connection_opened)
        # What was on its way may be lost; the master takes no byte twice.
        self._log_sent = 0
        self._shipper.resync()

    def _on_frame(self, frame: Frame) -> None:
        match frame:
            case Mail(envelopes):
                for envelope in envelopes:
                    self._actor.post(envelope)
            case LogPosition():
                self._shipper.position(frame)
            case _:
                log.warning("unexpected frame", kind=type(frame).__name__)

    def _on_process(self, change: ProcessChanged) -> None:
        self._actor.post(change)

    def _carry_out(self, effects: Effects) -> None:
        if effects.send:
            self._stream.send(Mail(tuple(effects.send)))
        for effect in effects.processes:
            self._runner.carry_out(effect)
        for event in effects.events:
            tell(event)
        if effects.shutdown is not None:
            self._finish(effects.shutdown)
