"""How a worker runs drivers and executors: the launcher that :mod:`slotwise.runtime.slots` asks for commands."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.ids import AllocationId, JobId
from slotwise.model.process import DriverDirectives, DriverProcess, ExecutorProcess, ProcessSpec
from slotwise.runtime.slots import SlotCommand
from slotwise.spark import launch
from slotwise.spark.bridge import BridgeServer
from slotwise.spark.bridge_jar import bridge_jar
from slotwise.spark.home import SparkHome, find_spark
from slotwise.spark.java import Java, find_java


@dataclass(frozen=True)
class _Installed:
    java: Java
    spark: SparkHome
    jar: Path


class SparkLauncher:
    """Knows this machine's Java and Spark, found at the first use. ``host`` is how other workers reach this one."""

    def __init__(self, bridge: BridgeServer, host: str) -> None:
        self._bridge = bridge
        self._host = host
        self._lock = asyncio.Lock()
        self._installed: _Installed | None = None

    async def commands(
        self, allocation: AllocationId, job: JobId, process: str, spec: ProcessSpec, slot_dir: Path
    ) -> list[SlotCommand]:
        """See :class:`slotwise.runtime.slots.Launcher`."""
        installed = await self._find()
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
            base_env=os.environ,
        )
        if isinstance(spec, ExecutorProcess):
            return [_slot_command(launch.executor_command(spec, slot), f"{process}.log")]
        if not Path(spec.spec.working_dir).is_dir():
            raise EnvironmentProblem(f"the job's working directory {spec.spec.working_dir} is not on this worker")
        return [
            _slot_command(launch.driver_jvm_command(spec, slot), f"{process}.jvm.log", keep_stdin=True),
            _slot_command(launch.driver_program_command(spec, slot), f"{process}.out", f"{process}.err"),
        ]

    def tell(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        """Pass directives on to the driver's JVM."""
        self._bridge.tell(allocation, directives)

    def ended(self, allocation: AllocationId) -> None:
        """Forget the driver's token."""
        self._bridge.dismiss(allocation)

    async def _find(self) -> _Installed:
        async with self._lock:
            if self._installed is None:
                self._installed = await asyncio.to_thread(_find_installed)
            return self._installed


def _find_installed() -> _Installed:
    spark = find_spark()
    java = find_java(spark_version=spark.version)
    return _Installed(java, spark, bridge_jar(spark, java))


def _slot_command(
    command: launch.Command, stdout: str, stderr: str | None = None, *, keep_stdin: bool = False
) -> SlotCommand:
    return SlotCommand(
        command.argv, command.env, command.cwd, stdout, stderr or stdout, command.files, keep_stdin, "SLOTWISE_JVM_PID"
    )
