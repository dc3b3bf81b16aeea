"""A real master in a thread of its own, with workers that are real TaskExecutors and run a model of Spark instead of
processes: everything the dashboard sees is as on a cluster, without one JVM."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from slotwise import __version__
from slotwise.master import Master, MasterOptions
from slotwise.model.ids import Address, JobId, WorkerId, worker_address
from slotwise.model.job import JobSpec
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.codec import LogData
from slotwise.protocol.effects import Effects
from slotwise.resourcemanager.machine import ResourceManagerConfig
from slotwise.runtime.actor import Actor
from slotwise.runtime.clock import monotonic
from slotwise.simulation.spark_model import SparkModel
from slotwise.taskexecutor.machine import TaskExecutor, TaskExecutorConfig

TOKEN = "t" * 64
WORKER = ResourceProfile(16_000, 64 * GIB)
Value = TypeVar("Value")


class Fleet:
    """Workers of ``master``. ``pace``: how many seconds a second of the model of Spark takes."""

    def __init__(self, master: Master, pace: float) -> None:
        self.spark: dict[WorkerId, SparkModel] = {}
        self._master = master
        self._pace = pace
        self._actors: dict[Address, Actor] = {}
        self._pumps: dict[WorkerId, asyncio.Task[None]] = {}

    def add(self, name: str, total: ResourceProfile = WORKER) -> None:
        """A worker comes."""
        worker = WorkerId(name)
        config = TaskExecutorConfig(
            worker=worker,
            host=f"host-{name}",
            pid=1,
            version=__version__,
            total=total,
            default_profile=ResourceProfile(1000, GIB),
        )
        machine = TaskExecutor(config, monotonic())
        machine.rss_bytes = 41 * 1024**2
        model = SparkModel(self, worker_address(worker))  # type: ignore[arg-type]
        self.spark[worker] = model

        def carry_out(effects: Effects) -> None:
            for envelope in effects.send:
                self._master.post(envelope)
            for effect in effects.processes:
                model.carry_out(effect)

        actor = Actor(worker_address(worker), machine, carry_out, self._on_crash)
        self._actors[worker_address(worker)] = actor
        actor.start()
        self._pumps[worker] = asyncio.get_running_loop().create_task(self._pump(worker, actor, machine))

    async def _pump(self, worker: WorkerId, actor: Actor, machine: TaskExecutor) -> None:
        with self._master.connection(worker) as queue:
            actor.call(machine.connection_opened)
            while True:
                for envelope in (await queue.get()).envelopes:
                    actor.post(envelope)

    def _on_crash(self, name: str, error: BaseException) -> None:
        raise AssertionError(f"{name} failed") from error

    def stimulate(self, address: Address, stimulus: object) -> None:
        """As :class:`~slotwise.simulation.world.World` does it."""
        self._actors[address].post(stimulus)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Likewise, in the fleet's pace."""
        asyncio.get_running_loop().call_later(seconds * self._pace, action)

    async def remove(self, name: str) -> None:
        """A worker goes away without a word."""
        worker = WorkerId(name)
        self.spark[worker].dead = True
        self._pumps.pop(worker).cancel()
        await self._actors.pop(worker_address(worker)).stop()

    async def close(self) -> None:
        """End all."""
        for name in list(self._pumps):
            await self.remove(name)


class LiveMaster:
    """The master and its fleet, for a thread that drives a browser. Use as a context manager."""

    def __init__(self, directory: Path, *, config: ResourceManagerConfig | None = None, pace: float = 0.02) -> None:
        self.directory = directory
        self.master: Master
        self.fleet: Fleet
        self._config = config or ResourceManagerConfig()
        self._pace = pace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="master")

    def __enter__(self) -> LiveMaster:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._loop.close()

    def run(self, action: Coroutine[Any, Any, Value]) -> Value:
        """Run ``action`` in the master's loop."""
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(60)

    def start(self) -> None:
        """Start a master in the directory, at the address of the one before."""

        async def begin() -> None:
            self.master = Master(MasterOptions(self.directory, TOKEN, resource_manager=self._config))
            await self.master.start()
            self.fleet = Fleet(self.master, self._pace)

        self.run(begin())

    def stop(self) -> None:
        """The master goes, and leaves everything to the next."""

        async def end() -> None:
            await self.master.close(leave=True)
            await self.fleet.close()

        self.run(end())

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.master.url

    def add_workers(self, number: int, total: ResourceProfile = WORKER, *, prefix: str = "worker-") -> None:
        """Workers come, and are registered when this returns."""

        async def add() -> None:
            before = len(self.master.resource_manager.slots.workers)
            for index in range(number):
                self.fleet.add(f"{prefix}{index:03}", total)
            while len(self.master.resource_manager.slots.workers) < before + number:
                await asyncio.sleep(0.01)

        self.run(add())

    def submit(self, *specs: JobSpec) -> list[JobId]:
        """Submit jobs."""

        async def submit() -> list[JobId]:
            return [await self.master.submit(spec) for spec in specs]

        return self.run(submit())

    def until(self, condition: Callable[[Master], object]) -> None:
        """Wait for something in the master."""

        async def wait() -> None:
            while not condition(self.master):
                await asyncio.sleep(0.01)

        self.run(asyncio.wait_for(wait(), 45))

    def call(self, action: Callable[[Master], Value]) -> Value:
        """Call ``action`` in the master's loop."""

        async def call() -> Value:
            return action(self.master)

        return self.run(call())

    def wait_for(self, action: Callable[[Master], Awaitable[Value]]) -> Value:
        """Await ``action`` in the master's loop."""

        async def call() -> Value:
            return await action(self.master)

        return self.run(call())

    @contextlib.contextmanager
    def meanwhile(self, action: Callable[[Master], Coroutine[Any, Any, None]]) -> Iterator[None]:
        """Have ``action`` go on in the master's loop."""
        going = asyncio.run_coroutine_threadsafe(action(self.master), self._loop)
        try:
            yield
            if going.done():
                going.result()
        finally:
            going.cancel()

    def write_log(self, job: JobId, name: str, text: str, offset: int = 0) -> int:
        """What a worker sends of a process's output; returns the offset behind it."""
        data = text.encode()
        self.call(lambda master: master.logs.write(LogData(job, name, offset, data)))
        return offset + len(data)
