"""Real Spark processes for tests of the bridge, started by our own command lines.

``Worker`` stands in for JobMaster and TaskExecutor: it listens where the JVM connects, launches what the driver wants,
and says what has become of it. Its ``settle`` does the part that a test leaves to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slotwise.model.job import JobSpec
from slotwise.model.pipeline import PipelineDirectives
from slotwise.model.process import DriverDirectives, DriverProcess, DriverReport, ExecutorProcess, LostExecutor
from slotwise.spark.bridge_jar import bridge_jar
from slotwise.spark.conf import job_sizes
from slotwise.spark.home import find_spark
from slotwise.spark.java import find_java
from slotwise.spark.launch import (
    Command,
    SlotContext,
    driver_jvm_command,
    driver_program_command,
    executor_command,
)

TOKEN = "a-token-of-the-test"
SECRET = "0123456789abcdef0123456789abcdef"
WAIT_S = 90.0

# Executes what it is sent line by line, and answers with the variable `result`.
INTERPRETER = """
import json, sys
scope = {}
for line in sys.stdin:
    scope["result"] = None
    try:
        exec(json.loads(line), scope)
        answer = {"result": scope["result"]}
    except Exception as error:
        answer = {"error": repr(error)}
    print("ANSWER " + json.dumps(answer), flush=True)
"""


@dataclass
class Executor:
    child: subprocess.Popen[bytes]
    app_id: str
    profile_id: int
    log: Path


class Worker:
    """Stands in for a TaskExecutor and its JobMaster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.spark = find_spark()
        self.java = find_java(spark_version=self.spark.version)
        self.jar = bridge_jar(self.spark, self.java)
        self.children: list[subprocess.Popen[bytes]] = []
        self.executors: dict[str, Executor] = {}
        self.tickets: dict[str, str] = {}
        self.lost: list[LostExecutor] = []
        self.regions: dict[str, str] = {}
        self.instructions: PipelineDirectives | None = None
        self.hellos: list[dict[str, Any]] = []
        self.reports: list[DriverReport] = []
        self.directives = DriverDirectives(0, "")
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    # ---- the line to the JVM ----

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                with self._changed:
                    if "hello" in said:
                        self.hellos.append(said["hello"])
                        self._connection = connection
                    else:
                        self.reports.append(msgspec.convert(said["report"], DriverReport))
                    self._changed.notify_all()

    def hang_up(self) -> None:
        connection = self._connection
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)

    def tell(self, *, gone: set[str] = frozenset()) -> DriverDirectives:  # type: ignore[assignment]
        """Say what is launched and lost, in a new version."""
        app = self.report.app_id
        launched = {
            key: ticket
            for key, ticket in self.tickets.items()
            if key not in gone and key in self.executors and self.executors[key].app_id == app
        }
        self.directives = DriverDirectives(
            self.directives.version + 1,
            app,
            launched,
            tuple(self.lost),
            regions=dict(self.regions),
            pipeline=self.instructions,
        )
        assert self._connection is not None
        self._connection.sendall(msgspec.json.encode({"directives": self.directives}) + b"\n")
        return self.directives

    @property
    def report(self) -> DriverReport:
        return self.reports[-1]

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        """Until ``condition`` holds; it is looked at after each line and each quarter of a second."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{what}: not within {timeout_s} s\n{self.logs()}")
                self._changed.wait(min(left, 0.25))

    def logs(self) -> str:
        parts = [f"report: {self.reports[-1] if self.reports else None}"]
        parts += [f"--- {path}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.rglob("*.log"))]
        return "\n".join(parts)

    # ---- the processes ----

    def slot(self, name: str) -> SlotContext:
        directory = self.folder / name
        directory.mkdir()
        return SlotContext(
            java=self.java,
            spark_home=self.spark.path,
            bridge_jar=self.jar,
            python=sys.executable,
            directory=directory,
            host="127.0.0.1",
            job_id="job-7",
            bridge_port=self._listener.getsockname()[1],
            bridge_token=TOKEN,
            base_env=dict(os.environ),
        )

    def start(self, command: Command, slot: SlotContext, name: str, **options: Any) -> subprocess.Popen[bytes]:
        for file, text in command.files.items():
            path = slot.directory / file
            path.touch(mode=0o600)
            path.write_text(text)
        with (slot.directory / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command.argv,
                env=command.env,
                cwd=command.cwd,
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **options},
            )
        self.children.append(child)
        return child

    def driver(self, name: str, program: str | Path, conf: dict[str, str], **options: Any) -> Driver:
        """Start a driver with a program: its text, or where it lies."""
        if isinstance(program, Path):
            file = program
        else:
            file = self.folder / f"{name}.py"
            file.write_text(program)
        sizes = job_sizes(conf, executor_memory="512m", driver_memory="600m")
        of_sizes = {"initial_executors": sizes.initial_executors, "dynamic_allocation": sizes.dynamic_allocation}
        spec = JobSpec(
            name=name,
            program=str(file),
            working_dir=str(self.folder),
            conf=conf,
            driver=sizes.driver,
            executor=sizes.executor,
            **{**of_sizes, **options},
        )
        process = DriverProcess(spec, SECRET)
        slot = self.slot(name)
        jvm = self.start(driver_jvm_command(process, slot), slot, "jvm", stdin=subprocess.PIPE)
        python = self.start(
            driver_program_command(process, slot, jvm_pid=jvm.pid),
            slot,
            "python",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return Driver(self, jvm, python, slot.directory)

    def launch(self, key: str, profile_id: int = 0, **changes: Any) -> Executor:
        """Start executor ``key``; ``changes`` replace fields of its process. Tells nobody."""
        report = self.report
        if "size" not in changes:
            changes["size"] = next(total.size for total in report.totals if total.profile_id == profile_id)
        ticket = self.tickets.setdefault(key, f"ticket-of-{key}")
        process = ExecutorProcess(
            executor_id=key,
            ticket=ticket,
            app_id=report.app_id,
            driver_url=report.driver_url,
            profile_id=profile_id,
            size=changes["size"],
            secret=SECRET,
            working_dir=str(self.folder),
            launch=report.launch,
        )
        slot = self.slot(f"executor-{key}")
        command = executor_command(msgspec.structs.replace(process, **changes), slot)
        child = self.start(command, slot, "executor")
        executor = Executor(child, report.app_id, profile_id, slot.directory / "executor.log")
        self.executors[key] = executor
        return executor

    def lose(self, key: str, *, caused_by_program: bool) -> None:
        code = self.executors.pop(key).child.wait(timeout=30)
        self.lost.append(LostExecutor(key, code, caused_by_program, "said the test"))

    def settle(self) -> None:
        """One round of a JobMaster: launch what is missing, end what is given back, tell what has gone."""
        report = self.report
        changed = False
        for key in report.kills:
            if key in self.executors:
                self.executors[key].child.terminate()
        for key in [key for key, executor in self.executors.items() if executor.child.poll() is not None]:
            self.lose(key, caused_by_program=False)
            changed = True
        for total in report.totals:
            live = [e for e in self.executors.values() if (e.app_id, e.profile_id) == (report.app_id, total.profile_id)]
            for _ in range(total.count - len(live)):
                self.launch(str(len(self.tickets) + 1), total.profile_id)
                changed = True
        if changed:
            self.tell()

    def settle_until(self, condition: Callable[[], object], what: str) -> None:
        def round_() -> object:
            if self.reports:
                self.settle()
            return condition()

        self.wait(round_, what)

    def close(self) -> None:
        self._listener.close()
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait(timeout=30)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


class Driver:
    """A driver that executes what a test sends it (INTERPRETER), or a program of its own."""

    def __init__(
        self, worker: Worker, jvm: subprocess.Popen[bytes], python: subprocess.Popen[bytes], directory: Path
    ) -> None:
        self.worker = worker
        self.jvm = jvm
        self.python = python
        self.directory = directory
        self.answers: list[dict[str, Any]] = []
        self.output: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.python.stdout is not None
        for raw in self.python.stdout:
            line = raw.decode()
            if line.startswith("ANSWER "):
                self.answers.append(json.loads(line[7:]))
            else:
                self.output.append(line)

    def send(self, code: str) -> None:
        assert self.python.stdin is not None
        self.python.stdin.write(json.dumps(code).encode() + b"\n")
        self.python.stdin.flush()

    def answer(self, *, settle: bool = True) -> Any:
        wait = self.worker.settle_until if settle else self.worker.wait
        wait(lambda: self.answers or self.python.poll() is not None, "an answer of the program")
        if not self.answers:
            raise AssertionError(f"the program ended with {self.python.poll()}\n{self.worker.logs()}")
        answer = self.answers.pop(0)
        assert "error" not in answer, answer["error"] + self.worker.logs()
        return answer["result"]

    def run(self, code: str) -> Any:
        self.send(code)
        return self.answer()

    def finish(self) -> int:
        """Wait for the program's end, then let the JVM end too. Returns the program's exit code."""
        with contextlib.suppress(OSError):
            assert self.python.stdin is not None
            self.python.stdin.close()
        code = self.python.wait(timeout=60)
        assert self.jvm.stdin is not None
        self.jvm.stdin.close()
        assert self.jvm.wait(timeout=30) == 0
        return code
