"""A training run: a driver and an executor with the very command lines of jobs do a little of everything, and the
driver's JVM keeps what it has loaded.

The executor's classes are loaded into the driver's JVM in the end (see ``jvm_training_program.py``), because one cache
for both is little slower than one for each and takes half the room, on disk and in memory. All is local, on loopback,
and at the priority of the process that calls.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.ids import AllocationId
from slotwise.model.job import JobSpec
from slotwise.model.process import DriverDirectives, DriverProcess, DriverReport, ExecutorProcess
from slotwise.runtime.children import start_child, wait_exit
from slotwise.spark import launch
from slotwise.spark.bridge import BridgeServer
from slotwise.spark.conf import job_sizes
from slotwise.spark.home import SparkHome
from slotwise.spark.java import Java
from slotwise.spark.jvm_files import argument_file
from slotwise.spark.jvm_flags import OPTION_VARIABLES, FromCache, base_flags, make_flags, quiet_flags, record_flags
from slotwise.spark.jvm_modules import module_options

_PROGRAM = Path(__file__).with_name("jvm_training_program.py")
_DRIVER = AllocationId("training")
_CLASSES = "classes"
_HOST = "127.0.0.1"
_SAID_LINES = 8
_LEFT_OUT = (
    # A cluster's configuration would have the training run write elsewhere than in its folder.
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_PYTHON"),
    # Agents and archives of the user's: there is no cache with them.
    *OPTION_VARIABLES,
)


@dataclass
class Training:
    """One training run in ``folder``, which is there, empty and on the disk of the cache. Nothing is left running.

    ``base``: where an archive of Java's own classes is to be made first, because this Java brings none. ``jars``: come
    first on the class path, in their final place.
    """

    java: Java
    spark: SparkHome
    bridge_jar: Path
    folder: Path
    base: Path | None = None
    jars: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    async def run(self) -> None:
        """Leave the cache in ``folder``, by the names of :func:`slotwise.spark.jvm_flags.file_names`.

        Raises :class:`EnvironmentProblem` with what went wrong, OSError where the disk is full. Cancel it to end it.
        """
        try:
            if self.base is not None:
                argv = (str(self.java.path), *base_flags(self.java, self.base))
                child = self._start(launch.Command(argv, dict(self.env), {}, str(self.folder)), "base")
                self._check("the making of an archive of Java's own classes", await wait_exit(child), "base")
            await self._train()
            if flags := make_flags(self.java, self.folder):
                slot = self._slot("making", flags)
                command = launch.driver_jvm_command(self._driver(), slot)
                code = await wait_exit(self._start(command, "making"))
                (self.folder / "recorded").unlink(missing_ok=True)
                self._check("the making of the cache", code, "making")
        finally:
            self.kill()

    async def check(self, start: FromCache) -> None:
        """Raise :class:`EnvironmentProblem` unless a JVM that starts so finds a class of Spark in the cache."""
        try:
            slot = self._slot("check", start.flags)
            class_path = [*map(str, start.jars), *launch.spark_class_path(slot)]
            arguments = ["-cp", os.pathsep.join(class_path), *start.flags]
            arguments += [*module_options(self.java.major), f"-Xlog:class+load=info:file={_CLASSES}:none"]
            argv = (str(self.java.path), f"@{slot.directory / 'check.args'}", launch.EXECUTOR_CLASS)
            files = {"check.args": argument_file(arguments)}
            # Without arguments it says how to use it, and ends.
            child = self._start(launch.Command(argv, dict(slot.base_env), files, str(slot.directory)), "check")
            await wait_exit(child)
            loaded = (slot.directory / _CLASSES).read_text(encoding="utf-8", errors="replace")
            if f"\n{launch.EXECUTOR_CLASS} source: shared objects file" not in loaded:
                raise EnvironmentProblem(f"Java does not use the cache that it made; {self._said('check')}")
        finally:
            self.kill()

    def kill(self) -> None:
        """End what still runs, at once."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
        self._children.clear()

    async def _train(self) -> None:
        reports: asyncio.Queue[DriverReport] = asyncio.Queue()
        bridge = BridgeServer(lambda _slot, report: reports.put_nowait(report))
        await bridge.start()
        try:
            # The G1 collector is the one whose recordings hold most, and cores of 1 would choose another.
            slot = self._slot("driver", self._recording(), bridge)
            process = self._driver()
            jvm = self._start(launch.driver_jvm_command(process, slot), "driver", subprocess.PIPE)
            program = self._start(launch.driver_program_command(process, slot, jvm_pid=jvm.pid), "program")
            serving = asyncio.ensure_future(self._serve(bridge, reports, process))
            ending = asyncio.ensure_future(wait_exit(program))
            try:
                await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    await serving
                code = await ending
                # A JVM that ended before its time knows why; the program only saw that.
                if code and jvm.poll() is not None:
                    self._check("the driver's JVM", jvm.returncode or code, "driver", "program")
                self._check("the training program", code, "program", "driver", "executor")
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                ending.cancel()
            assert jvm.stdin is not None
            jvm.stdin.close()
            self._check("the driver's JVM", await wait_exit(jvm), "driver")
        finally:
            await bridge.close()

    def _recording(self) -> tuple[str, ...]:
        return (*record_flags(self.java, self.folder, self.base), *self._private(), self._listing("driver"))

    def _private(self) -> tuple[str, ...]:
        """Nothing outside ``folder``: not even the file by which tools find a JVM."""
        return ("-XX:-UsePerfData", f"-Djava.io.tmpdir={self.folder}")

    def _listing(self, name: str) -> str:
        # A relative name, because this option has a meaning for colons.
        return f"-Xlog:class+load=info:file={name}.{_CLASSES}:none"

    def _driver(self) -> DriverProcess:
        conf = {
            "spark.executor.instances": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        sizes = job_sizes(conf, driver_memory="768m", driver_cores=2, executor_memory="512m")
        spec = JobSpec(
            name="training",
            program=str(_PROGRAM),
            args=(str(self.folder), f"driver.{_CLASSES}", f"executor/executor.{_CLASSES}"),
            working_dir=str(self.folder),
            conf=conf,
            driver=sizes.driver,
            executor=sizes.executor,
            min_executors=1,
            initial_executors=1,
            max_executors=sizes.max_executors,
            dynamic_allocation=False,
        )
        return DriverProcess(spec, secrets.token_hex(32))

    def _slot(self, name: str, flags: tuple[str, ...], bridge: BridgeServer | None = None) -> launch.SlotContext:
        directory = self.folder / name
        directory.mkdir(mode=0o700)
        return launch.SlotContext(
            java=self.java,
            spark_home=self.spark.path,
            bridge_jar=self.bridge_jar,
            python=sys.executable,
            directory=directory,
            host=_HOST,
            job_id="training",
            bridge_port=bridge.port if bridge else 0,
            bridge_token=bridge.admit(_DRIVER) if bridge else "",
            jvm_cache=FromCache(flags, self.jars),
            base_env={**{k: v for k, v in self.env.items() if k not in _LEFT_OUT}, "TMPDIR": str(self.folder)},
        )

    async def _serve(self, bridge: BridgeServer, reports: asyncio.Queue[DriverReport], process: DriverProcess) -> None:
        """Start the executor that the driver asks for; end by an error when it is gone before its time."""
        report = await reports.get()
        while not report.totals or not report.driver_url:
            report = await reports.get()
        flags = (*quiet_flags(self.java), *self._private(), self._listing("executor"))
        slot = self._slot("executor", flags)
        executor = ExecutorProcess(
            executor_id="1",
            ticket=secrets.token_hex(16),
            app_id=report.app_id,
            driver_url=report.driver_url,
            profile_id=report.totals[0].profile_id,
            size=report.totals[0].size,
            secret=process.secret,
            working_dir=str(self.folder),
            launch=report.launch,
        )
        child = self._start(launch.executor_command(executor, slot), "executor")
        bridge.tell(_DRIVER, DriverDirectives(1, report.app_id, {executor.executor_id: executor.ticket}))
        gone = asyncio.ensure_future(wait_exit(child))
        try:
            while not report.ended and not gone.done():
                coming = asyncio.ensure_future(reports.get())
                await asyncio.wait([coming, gone], return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    report = coming.result()
                else:
                    coming.cancel()
            if not report.ended:
                self._check("the executor", await gone, "executor")
            await asyncio.get_running_loop().create_future()
        finally:
            gone.cancel()

    def _start(self, command: launch.Command, name: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        directory = self.folder / name
        directory.mkdir(mode=0o700, exist_ok=True)
        for file, text in command.files.items():
            (directory / file).write_text(text, encoding="utf-8")
        with (self.folder / f"{name}.log").open("ab") as output:
            child = start_child(
                command.argv, env=command.env, cwd=command.cwd, stdin=stdin, stdout=output, stderr=output
            )
        self._children.append(child)
        return child

    def _check(self, what: str, code: int, *logs: str) -> None:
        if code:
            raise EnvironmentProblem(f"{what} ended with code {code}; {self._said(*logs)}")

    def _said(self, *names: str) -> str:
        for name in names:
            try:
                text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return f"the last that {name} said: " + " | ".join(lines[-_SAID_LINES:])
        return "it said nothing"
