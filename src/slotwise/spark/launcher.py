"""How a worker runs drivers and executors: the launcher that :mod:`slotwise.runtime.slots` asks for commands."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.ids import AllocationId, JobId
from slotwise.model.job import DriverSize, ExecutorSize, placed
from slotwise.model.process import DriverDirectives, DriverProcess, ExecutorProcess, ProcessSpec
from slotwise.model.resources import ResourceProfile
from slotwise.runtime.slots import SlotCommand
from slotwise.runtime.staging import PYTHON, Staged, Staging
from slotwise.spark import launch
from slotwise.spark.bridge import BridgeServer
from slotwise.spark.bridge_jar import bridge_jar
from slotwise.spark.conf import job_sizes
from slotwise.spark.home import SparkHome, find_spark
from slotwise.spark.java import Java, find_java
from slotwise.spark.jvm_cache import JvmCache
from slotwise.spark.jvm_cache_keeper import CacheKeeper, KeeperPolicy
from slotwise.spark.jvm_flags import NO_CACHE, FromCache
from slotwise.spark.warm_pool import WarmPool
from slotwise.spark.warm_unit import DRIVER, EXECUTOR, Commands, Shape, Unit, Waiting

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Installed:
    java: Java
    spark: SparkHome
    jar: Path
    cache: JvmCache | None


class ResourceAddresses:
    """Which unit of an extended resource (the GPU 0, 1, …) belongs to which slot, so that no two executors share one.

    A worker with ``amount`` of a resource has the addresses 0 … amount − 1.
    """

    def __init__(self, total: Iterable[tuple[str, int]]) -> None:
        self._free = {name: [str(unit) for unit in range(amount)] for name, amount in total}
        self._given: dict[AllocationId, dict[str, tuple[str, ...]]] = {}

    def give(self, allocation: AllocationId, wanted: Iterable[tuple[str, int]]) -> dict[str, tuple[str, ...]]:
        """Addresses for a slot. The slot table has made sure that there are enough."""
        given = {}
        for name, amount in wanted:
            free = self._free.get(name, [])
            given[name], self._free[name] = tuple(free[:amount]), free[amount:]
        self._given[allocation] = given
        return given

    def given(self, allocation: AllocationId) -> dict[str, tuple[str, ...]]:
        """The addresses that a slot has."""
        return self._given.get(allocation, {})

    def give_again(self, allocation: AllocationId, given: Mapping[str, Iterable[str]]) -> None:
        """A slot was given these by an earlier process of this worker."""
        kept = {name: tuple(addresses) for name, addresses in given.items()}
        for name, addresses in kept.items():
            self._free[name] = [address for address in self._free.get(name, []) if address not in addresses]
        self._given[allocation] = kept

    def take_back(self, allocation: AllocationId) -> None:
        """The slot's process has ended."""
        for name, addresses in self._given.pop(allocation, {}).items():
            self._free[name] = sorted({*self._free[name], *addresses}, key=int)


class SparkLauncher:
    """Knows this machine's Java and Spark, found at the first use. ``host`` is how other workers reach this one;
    ``extended`` are the worker's extended resources. ``cache_root`` is where JVM caches are (None: they are not used,
    nor made), ``cache_policy`` when they are made. ``staging`` puts uploaded files into slots (None: jobs with such are
    refused). ``warm_rounds``: how much work a JVM does before it waits."""

    def __init__(
        self,
        bridge: BridgeServer,
        host: str,
        extended: Iterable[tuple[str, int]] = (),
        *,
        cache_root: Path | None = None,
        cache_policy: KeeperPolicy | None = None,
        staging: Staging | None = None,
        warm_rounds: int = 2,
    ) -> None:
        self.pool: WarmPool | None = None
        """Processes that wait for slots, where there are to be any."""
        self._bridge = bridge
        self._staging = staging
        self._preparing: dict[AllocationId, asyncio.Future[Staged | None]] = {}
        self._given_up: set[AllocationId] = set()
        self._cache_root = cache_root
        self._warm_rounds = warm_rounds
        self._keeper = None if cache_root is None else CacheKeeper(cache_root, self._cache_wanted, cache_policy)
        self._host = host
        self._addresses = ResourceAddresses(extended)
        self._lock = asyncio.Lock()
        self._installed: _Installed | None = None

    async def commands(
        self,
        allocation: AllocationId,
        job: JobId,
        process: str,
        spec: ProcessSpec,
        slot_dir: Path,
        on_log: Callable[[Path], None],
    ) -> list[SlotCommand]:
        """See :class:`slotwise.runtime.slots.Launcher`."""
        # What was said of a process before this one in the same slot.
        self._given_up.discard(allocation)
        installed = await self._find()
        staged = await self._staged(allocation, process, spec, slot_dir, on_log)
        if staged is not None:
            spec = _with_staged(spec, staged)
        names = () if staged is None else staged.entries
        slot = launch.SlotContext(
            java=installed.java,
            spark_home=installed.spark.path,
            bridge_jar=installed.jar,
            python=sys.executable,
            directory=slot_dir,
            host=self._host,
            job_id=job,
            bridge_port=self._bridge.port,
            bridge_token=self._bridge.admit(allocation) if isinstance(spec, DriverProcess) else "",
            python_zips=installed.spark.python_zips,
            jvm_cache=await self._from_cache(installed),
            base_env=os.environ,
            warm_rounds=self._warm_rounds,
            resource_addresses=(
                self._addresses.give(allocation, spec.size.extended) if isinstance(spec, ExecutorProcess) else {}
            ),
            executor_python=PYTHON if staged is not None and staged.python is not None else "",
        )
        if isinstance(spec, ExecutorProcess):
            command = launch.executor_command(spec, slot)
            unit = self._take(_executor_shape(spec.size), command, slot_dir, names)
            return [_slot_command(command, f"{process}.log", waiting=unit.jvm if unit else None)]
        if not Path(spec.spec.working_dir).is_dir():
            raise EnvironmentProblem(f"the job's working directory {spec.spec.working_dir} is not on this worker")
        jvm, program = launch.driver_jvm_command(spec, slot), launch.driver_program_command(spec, slot)
        unit = self._take(_driver_shape(spec.spec.driver), jvm, slot_dir, names)
        waiting = unit.program if unit is not None else None
        if waiting is not None and (program.argv[0] != sys.executable or not waiting.fits(program.env)):
            # Another Python, or one in another environment.
            assert self.pool is not None
            self.pool.drop(waiting)
            waiting = None
        return [
            _slot_command(jvm, f"{process}.jvm.log", keep_stdin=True, waiting=unit.jvm if unit else None),
            _slot_command(program, f"{process}.out", f"{process}.err", waiting=waiting),
        ]

    def in_use(self, used: ResourceProfile) -> None:
        """What waits may have the rest."""
        if self.pool is not None:
            self.pool.in_use(used)

    async def warm_commands(self, shape: Shape, directory: Path) -> Commands:
        """How to start a unit of ``shape`` that waits in ``directory``."""
        installed = await self._find()
        slot = launch.SlotContext(
            java=installed.java,
            spark_home=installed.spark.path,
            bridge_jar=installed.jar,
            python=sys.executable,
            directory=directory,
            host=self._host,
            job_id="",
            jvm_cache=await self._from_cache(installed, used=False),
            base_env=os.environ,
            warm_rounds=self._warm_rounds,
        )
        program = launch.warm_program_command(slot) if shape.role == DRIVER else None
        return Commands(launch.warm_command(slot, shape.heap_bytes, shape.cores, driver=shape.role == DRIVER), program)

    async def _staged(
        self,
        allocation: AllocationId,
        process: str,
        spec: ProcessSpec,
        slot_dir: Path,
        on_log: Callable[[Path], None],
    ) -> Staged | None:
        """As :meth:`_stage`, which :meth:`give_up` cancels."""
        staging = asyncio.ensure_future(self._stage(process, spec, slot_dir, on_log))
        self._preparing[allocation] = staging
        if allocation in self._given_up:
            staging.cancel()
        try:
            return await staging
        except asyncio.CancelledError:
            if allocation not in self._given_up:
                staging.cancel()
                raise
            raise EnvironmentProblem("it was to end before it had begun") from None
        finally:
            del self._preparing[allocation]

    def give_up(self, allocation: AllocationId) -> None:
        """Fetch and build no more for this slot."""
        self._given_up.add(allocation)
        if allocation in self._preparing:
            self._preparing[allocation].cancel()

    async def _stage(
        self, process: str, spec: ProcessSpec, slot_dir: Path, on_log: Callable[[Path], None]
    ) -> Staged | None:
        job = spec.spec if isinstance(spec, DriverProcess) else None
        uploads, python = (spec.uploads, spec.python) if isinstance(spec, ExecutorProcess) else (None, None)
        if job is not None:
            uploads, python = job.uploads, job.python
        if uploads is None:
            return None
        if self._staging is None:
            raise EnvironmentProblem("this worker takes no uploaded files")
        archives = () if job is None else tuple(path.partition("#")[0] for path in job.archives if path[0] != "/")
        return await self._staging.stage(
            uploads,
            slot_dir,
            process,
            on_log,
            python=python,
            driver=job is not None,
            archives=tuple(name for name in archives if "://" not in name),
        )

    def _take(self, shape: Shape, command: launch.Command, slot_dir: Path, staged: Collection[str] = ()) -> Unit | None:
        return None if self.pool is None else self.pool.take(shape, command, slot_dir, staged)

    async def _from_cache(self, installed: _Installed, *, used: bool = True) -> FromCache:
        if installed.cache is None or self._keeper is None:
            return NO_CACHE
        # The first look reads the whole file; who asks meanwhile waits for it rather than reading it too.
        async with self._lock:
            start = await asyncio.to_thread(installed.cache.start)
        if used:
            self._keeper.process_started(cached=bool(start))
        return start

    def tell(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        """Pass directives on to the driver's JVM."""
        self._bridge.tell(allocation, directives)

    def remembered(self, allocation: AllocationId) -> dict[str, Any]:
        """The driver's token and the bridge's port; the addresses of the slot's resources."""
        token = self._bridge.token(allocation)
        driver = {"token": token, "port": self._bridge.port} if token else {}
        return {"driver": driver, "addresses": self._addresses.given(allocation)}

    def adopt(self, allocation: AllocationId, remembered: Mapping[str, Any]) -> str:
        """A driver can only go on when the bridge has its old port again: its JVM knows no other."""
        self._addresses.give_again(allocation, remembered.get("addresses", {}))
        driver = remembered.get("driver", {})
        if driver and driver["port"] != self._bridge.port:
            return f"its restarted worker could not have port {driver['port']} again, on which the driver reports"
        if driver:
            self._bridge.readmit(allocation, driver["token"])
        return ""

    def ended(self, allocation: AllocationId) -> None:
        """Forget the driver's token, and free the addresses of the slot's resources."""
        self._given_up.discard(allocation)
        self._addresses.take_back(allocation)
        self._bridge.dismiss(allocation)

    async def close(self) -> None:
        """End what is done in the background, and what waits."""
        if self.pool is not None:
            await self.pool.close()
        if self._keeper is not None:
            await self._keeper.close()

    async def _find(self) -> _Installed:
        async with self._lock:
            if self._installed is None:
                self._installed = await asyncio.to_thread(_find_installed, self._cache_root)
            return self._installed

    def _cache_wanted(self) -> bool:
        if self._installed is None or self._cache_root is None:
            return False
        # Of its own: the other one is used meanwhile.
        found = _cache(self._cache_root, self._installed.java, self._installed.spark, self._installed.jar)
        return found is not None and found.wanted()


def _with_staged(spec: ProcessSpec, staged: Staged) -> ProcessSpec:
    """The process as it is on this worker."""
    folder = str(staged.folder)
    if isinstance(spec, ExecutorProcess):
        return msgspec.structs.replace(spec, working_dir=folder) if spec.working_dir == "." else spec
    python = str(staged.python) if staged.python is not None else None
    return msgspec.structs.replace(spec, spec=placed(spec.spec, folder, python))


def _find_installed(cache_root: Path | None) -> _Installed:
    spark = find_spark()
    java = find_java(spark_version=spark.version)
    jar = bridge_jar(spark, java)
    return _Installed(java, spark, jar, None if cache_root is None else _cache(cache_root, java, spark, jar))


def _cache(root: Path, java: Java, spark: SparkHome, jar: Path) -> JvmCache | None:
    try:
        return JvmCache(root, java, spark, jar)
    except OSError as error:
        log.warning("JVM caches are not used", reason=str(error))
        return None


def default_shapes() -> tuple[Shape, ...]:
    """What a job gets that states no sizes."""
    sizes = job_sizes({})
    return (_executor_shape(sizes.executor), _driver_shape(sizes.driver))


def _driver_shape(size: DriverSize) -> Shape:
    return Shape(DRIVER, size.heap_bytes, size.cores, size.profile)


def _executor_shape(size: ExecutorSize) -> Shape:
    return Shape(EXECUTOR, size.heap_bytes, size.cores, size.profile)


def _slot_command(
    command: launch.Command,
    stdout: str,
    stderr: str | None = None,
    *,
    keep_stdin: bool = False,
    waiting: Waiting | None = None,
) -> SlotCommand:
    # A Python is told what follows its runner. Where a process is, it never knows by the name of a link.
    order: dict[str, object] = {"cwd": os.path.realpath(command.cwd), "args": command.argv[2:]}
    if command.handover is not None:
        main, *arguments = command.handover.main
        order.update(main=main, args=arguments, properties=command.handover.properties)
    return SlotCommand(
        command.argv,
        command.env,
        command.cwd,
        stdout,
        stderr or stdout,
        command.files,
        keep_stdin,
        "SLOTWISE_JVM_PID",
        waiting,
        order,
        tuple(name for name in command.files if name.endswith((".args", ".properties"))),
    )
