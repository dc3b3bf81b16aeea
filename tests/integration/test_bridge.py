"""The bridge against real Spark: driver JVM, Python program and executors, started by our own command lines.

``Worker`` stands in for JobMaster and TaskExecutor: it listens where the JVM connects, launches what the driver wants,
and says what has become of it. Its ``settle`` does the part that a test leaves to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotwise.model.job import JobSpec
from slotwise.model.process import DriverDirectives, DriverProcess, DriverReport, ExecutorProcess, LostExecutor
from slotwise.model.resources import MIB
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

pytestmark = pytest.mark.spark

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
        self.spark = find_spark()
        self.java = find_java()
        self.jar = bridge_jar(self.spark, self.java)
        self.children: list[subprocess.Popen[bytes]] = []
        self.executors: dict[str, Executor] = {}
        self.tickets: dict[str, str] = {}
        self.lost: list[LostExecutor] = []
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
        self.directives = DriverDirectives(self.directives.version + 1, app, launched, tuple(self.lost))
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

    def driver(self, name: str, program: str, conf: dict[str, str], **options: Any) -> Driver:
        file = self.folder / f"{name}.py"
        file.write_text(program)
        sizes = job_sizes(conf, executor_memory="512m", driver_memory="600m")
        spec = JobSpec(
            name=name,
            program=str(file),
            working_dir=str(self.folder),
            conf=conf,
            driver=sizes.driver,
            executor=sizes.executor,
            initial_executors=sizes.initial_executors,
            dynamic_allocation=sizes.dynamic_allocation,
            **options,
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
        size = next(total.size for total in report.totals if total.profile_id == profile_id)
        ticket = self.tickets.setdefault(key, f"ticket-of-{key}")
        process = ExecutorProcess(
            executor_id=key,
            ticket=ticket,
            app_id=report.app_id,
            driver_url=report.driver_url,
            profile_id=profile_id,
            size=size,
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


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("bridge"))
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def driver(worker: Worker) -> Driver:
    """One JVM and one program for the tests below, which run in the order of this file."""
    conf = {
        "spark.executor.instances": "1",
        "spark.sql.shuffle.partitions": "4",
        # Any failure that counts against the program is one too many.
        "spark.task.maxFailures": "1",
        "spark.decommission.enabled": "false",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    }
    return worker.driver("interpreter", INTERPRETER, conf)


QUERY = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf, sum as total
spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext
twice = udf(lambda n: n * 2, "long")
def query():
    rows = spark.range(0, 1000, 1, 8).selectExpr("id % 3 as key", "id as value")
    rows = rows.groupBy("key").agg(total(twice("value")).alias("sum"))
    return sorted([row.key, row.sum] for row in rows.collect())
"""
RESULT = [[key, 2 * sum(n for n in range(1000) if n % 3 == key)] for key in range(3)]


def test_an_unmodified_program_runs(worker: Worker, driver: Driver) -> None:
    assert driver.run(QUERY + "result = query()") == RESULT
    report = worker.report
    assert worker.hellos == [{"token": TOKEN, "protocol": 1, "app_id": "slotwise-job-7-1-1"}]
    assert report.app_id == "slotwise-job-7-1-1"
    assert report.driver_url.startswith("spark://CoarseGrainedScheduler@127.0.0.1:")
    assert report.ui_url.startswith("http://")
    assert report.registered == ("1",)
    total = report.totals[0]
    assert (total.profile_id, total.count) == (0, 1)
    sizes = job_sizes({}, executor_memory="512m")
    assert total.size == sizes.executor
    worker.wait(lambda: worker.report.tasks_done >= 9 and not worker.report.stages, "the progress of the query")
    assert worker.report.first_task_unix_s == pytest.approx(time.time(), abs=120)
    assert worker.report.directives_seen == worker.directives.version
    versions = [report.version for report in worker.reports]
    assert versions == sorted(versions)


def test_no_secret_is_visible_to_other_users(worker: Worker, driver: Driver) -> None:
    for child in worker.children:
        if child.poll() is None:
            assert SECRET not in Path(f"/proc/{child.pid}/cmdline").read_text()
    assert SECRET not in str(worker.report)
    for path in worker.folder.rglob("*.args"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_broken_connection_is_made_anew(worker: Worker, driver: Driver) -> None:
    version = worker.report.version
    seen = len(worker.hellos)
    worker.hang_up()
    worker.wait(lambda: len(worker.hellos) > seen, "a second hello")
    count = len(worker.reports)
    worker.wait(lambda: len(worker.reports) > count, "the report again")
    assert worker.report.version >= version
    assert worker.report.registered == ("1",)


def test_executors_nobody_launched_are_refused(worker: Worker, driver: Driver) -> None:
    wrong_ticket = worker.launch("101", ticket="another")
    worker.tell()
    wrong_secret = worker.launch("102", secret="f" * 32)
    assert wrong_ticket.child.wait(timeout=60) != 0
    assert wrong_secret.child.wait(timeout=60) != 0
    assert "wrong ticket" in wrong_ticket.log.read_text()
    for key in ("101", "102"):
        worker.lose(key, caused_by_program=False)
        del worker.tickets[key]
    assert worker.report.registered == ("1",)


def test_an_executor_that_comes_before_its_directives_is_held(worker: Worker, driver: Driver) -> None:
    early = worker.launch("2")
    # Registration comes some seconds after the start; that it is held for as long shows in the driver's silence.
    worker.wait(lambda: "Connecting to driver" in early.log.read_text() or early.child.poll() is None, "its start")
    assert worker.report.registered == ("1",)
    worker.tell()
    worker.wait(lambda: worker.report.registered == ("1", "2"), "the executor's registration")


SLOW_JOB = """
import time
def slow(n):
    time.sleep(0.5)
    return n
def slow_job():
    return sc.parallelize(range(6), 6).map(slow).sum()
result = slow_job()
"""


def send_and_wait_for_tasks(worker: Worker, driver: Driver, code: str, tasks: int = 1) -> None:
    # Reports of progress come late: what runs now must not be taken for the tasks of this job.
    worker.wait(lambda: not worker.report.stages, "the end of earlier stages")
    driver.send(code)
    worker.settle_until(lambda: sum(stage.running for stage in worker.report.stages) >= tasks, "running tasks")


def test_a_killed_executor_is_replaced_and_no_task_fails(worker: Worker, driver: Driver) -> None:
    send_and_wait_for_tasks(worker, driver, SLOW_JOB, tasks=2)
    for key in ("1", "2"):
        os.kill(worker.executors[key].child.pid, signal.SIGKILL)
        worker.lose(key, caused_by_program=False)
    worker.tell()
    assert driver.answer() == sum(range(6))
    registered = worker.report.registered
    assert "1" not in registered
    assert "2" not in registered
    assert driver.run("result = query()") == RESULT


FAILING_JOB = """
try:
    slow_job()
    result = "no failure"
except Exception as error:
    result = str(error.java_exception)
"""


def test_a_loss_that_the_program_caused_counts_against_it(worker: Worker, driver: Driver) -> None:
    send_and_wait_for_tasks(worker, driver, FAILING_JOB)
    for key in list(worker.executors):
        os.kill(worker.executors[key].child.pid, signal.SIGKILL)
        worker.lose(key, caused_by_program=True)
    worker.tell()
    reason = driver.answer()
    assert "ExecutorLostFailure" in reason
    assert "said the test" in reason


def test_without_word_of_the_worker_sparks_own_verdict_stands(worker: Worker, driver: Driver) -> None:
    send_and_wait_for_tasks(worker, driver, FAILING_JOB)
    for executor in worker.executors.values():
        os.kill(executor.child.pid, signal.SIGKILL)
    assert "its worker is silent" in driver.answer(settle=False)


def test_with_resources_asks_for_another_size(worker: Worker, driver: Driver) -> None:
    driver.send(
        "from pyspark.resource import *\n"
        "need = ExecutorResourceRequests().cores(2).memory('700m').memoryOverhead('100m').pysparkMemory('600m')\n"
        "profile = ResourceProfileBuilder().require(need).require(TaskResourceRequests().cpus(1)).build\n"
        "result = [profile.id, sc.parallelize(range(4), 2).withResources(profile).map(lambda n: n + 1).sum()]"
    )
    profile, total = driver.answer()
    assert total == 10
    wanted = {entry.profile_id: entry for entry in worker.report.totals}
    assert set(wanted) == {0, profile}
    assert wanted[profile].count == 1
    size = wanted[profile].size
    assert (size.cores, size.heap_bytes, size.overhead_bytes, size.python_bytes) == (
        2,
        700 * MIB,
        100 * MIB,
        600 * MIB,
    )


def test_killing_executors_by_hand_reports_them(worker: Worker, driver: Driver) -> None:
    victim = next(key for key in worker.report.registered if worker.executors[key].profile_id == 0)
    driver.send(f"result = sc._jsc.sc().killExecutor({victim!r})")
    assert driver.answer(settle=False) is True
    worker.wait(lambda: worker.report.kills == (victim,), "the kill")
    worker.settle_until(lambda: not worker.report.kills and victim not in worker.report.registered, "its end")


def test_a_second_context_in_the_same_jvm_with_dynamic_allocation(worker: Worker, driver: Driver) -> None:
    first = worker.report.version
    driver.run("spark.stop()")
    worker.wait(lambda: worker.report.ended, "the end of the first application")
    for executor in worker.executors.values():
        executor.child.wait(timeout=60)
    worker.executors.clear()
    worker.lost.clear()
    driver.send(
        "spark = SparkSession.builder.config('spark.dynamicAllocation.enabled', 'true')"
        ".config('spark.executor.instances', '0').getOrCreate()\nsc = spark.sparkContext\nresult = sc.applicationId"
    )
    assert driver.answer(settle=False) == "slotwise-job-7-1-2"
    worker.wait(lambda: worker.report.app_id == "slotwise-job-7-1-2", "the second application")
    assert worker.report.version > first
    assert not worker.report.ended
    worker.directives = DriverDirectives(0, "")

    def total() -> int:
        return sum(entry.count for entry in worker.report.totals)

    assert total() == 0
    driver.send("result = query()")
    worker.wait(lambda: total() > 0, "a total above zero")
    assert driver.answer() == RESULT
    worker.settle_until(lambda: any(report.kills for report in worker.reports), "idle executors given back")
    worker.settle_until(lambda: total() == 0 and not worker.report.registered, "all of them given back")


def test_with_resources_works_with_dynamic_allocation(worker: Worker, driver: Driver) -> None:
    assert driver.run("result = sc.parallelize(range(4), 2).withResources(profile).map(lambda n: n + 1).sum()") == 10


def test_the_driver_ends_in_order(worker: Worker, driver: Driver) -> None:
    assert driver.finish() == 0
    worker.wait(lambda: worker.report.ended, "the last report")
    for executor in worker.executors.values():
        executor.child.wait(timeout=60)
    log = (driver.directory / "jvm.log").read_text() + (driver.directory / "python.log").read_text()
    assert "incubator" not in log
    assert "default log4j profile" not in log


def test_sigterm_ends_a_local_program_cleanly(worker: Worker) -> None:
    driver = worker.driver(
        "local",
        "from pyspark.sql import SparkSession\nimport time\n"
        "spark = SparkSession.builder.master('local[2]').getOrCreate()\n"
        "print(spark.range(5).count(), spark.sparkContext.master, flush=True)\n"
        "spark.sparkContext.parallelize(range(2), 2).foreach(lambda n: time.sleep(600))\n",
        {},
    )
    worker.wait(lambda: driver.output, "the program's first line")
    assert driver.output[0].split() == ["5", "local[2]"]
    driver.python.terminate()
    assert driver.finish() == 143
