"""How long recovery takes on real processes: a worker that is killed, and a master that is killed, under a running job.

Four workers of one slot each: the driver's, two executors', and a free one. The job's tasks note when and in which
process they ran. Then (1) an executor's worker is killed with -9 and never comes back: how long until the master says
so, and until a replacement executor runs its first task; (2) the master is killed with -9 and started again: how long
until the job is RUNNING again, the longest time without a new task meanwhile, and how many drivers were started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import itertools

from _harness import arguments, case, median, show
from slotwise.client import Client, read_token
from slotwise.model.job import DriverSize, ExecutorSize, JobSpec

PROGRAM = """\
import os, sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession

notes, until = sys.argv[1], sys.argv[2]
spark = SparkSession.builder.getOrCreate()

def task(number):
    with open(notes, "a") as file:
        file.write(f"{time.time():.3f} {os.getppid()}\\n")
    time.sleep(0.05)
    return number

while not os.path.exists(until):
    assert spark.sparkContext.parallelize(range(4), 4).map(task).sum() == 6
spark.stop()
"""
MIB = 1024 * 1024
LIMIT_S = 120.0


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median is shown")
    given = parser.parse_args()
    cases = []
    with tempfile.TemporaryDirectory(prefix="recovery-caches-") as caches:
        for cached in (False, True):
            # Nothing is to be made in the background while times are taken.
            quiet = {"SLOTWISE_CONF_TASKMANAGER_WARM_MODE": "off"}
            jvm = quiet | {"SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_MODE": "off"}
            if cached:
                jvm = quiet | {"SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY": caches}
                subprocess.run([sys.executable, "-m", "slotwise", "cache", "build"], env=os.environ | jvm, check=True)
            rounds = []
            for _ in range(given.rounds):
                with tempfile.TemporaryDirectory(prefix="recovery-") as folder, cluster(Path(folder), jvm) as bench:
                    rounds.append(bench.measure())
            for name in rounds[0]:
                unit = "count" if name == "drivers started" else "s"
                cases.append(
                    case(f"{'JVM cache: ' if cached else ''}{name}", unit, median([one[name] for one in rounds]))
                )
    show(cases, given.json)


class Bench:
    """A running cluster with one job in it."""

    def __init__(self, folder: Path, jvm: dict[str, str]) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "SLOTWISE_STATE_DIR": str(folder / "state"),
            "PYTHONUNBUFFERED": "1",
            **jvm,
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.master = self.start("master", "--port", str(self.port))
        self.workers: list[subprocess.Popen[bytes]] = []
        self.notes = folder / "notes"
        self.over = folder / "over"

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start ``slotwise …`` in the background."""
        with (self.folder / f"{argv[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "slotwise", *argv], env=self.env, stdout=log, stderr=log, cwd=self.folder
            )

    def client(self) -> Client:
        """A client that gives up soon."""
        return Client(f"http://127.0.0.1:{self.port}", read_token(self.folder / "state" / "token"), timeout_s=5)

    def measure(self) -> dict[str, float]:
        """Both cases; seconds by name."""
        until((self.folder / "state" / "token").exists)
        for number in range(4):
            master = ("--master", f"http://127.0.0.1:{self.port}", "--directory", str(self.folder / f"w{number}"))
            self.workers.append(self.start("worker", *master, "--cpus", "1", "--memory", "1g"))
        program = self.folder / "program.py"
        program.write_text(PROGRAM)
        client = until(self._ready)
        spec = JobSpec(
            name="recovery",
            program=str(program),
            args=(str(self.notes), str(self.over)),
            working_dir=str(self.folder),
            driver=DriverSize(1, 512 * MIB, 256 * MIB),
            executor=ExecutorSize(1, 512 * MIB, 256 * MIB),
        )
        job = client.submit(spec)
        until(lambda: len(self.processes()) == 2)
        time.sleep(3)
        found = self._kill_worker(client, job) | self._kill_master(job)
        self.over.touch()
        with self.client() as again:
            details = again.wait(job)
            events = again.call("GET", f"/v1/jobs/{job}/events")["events"]
        assert details["state"] == "FINISHED", details
        deployed = [event["fields"]["process"] for event in events if event["name"] == "deployed"]
        found["drivers started"] = float(sum(1 for name in deployed if name.startswith("driver-")))
        return found

    def _ready(self) -> Client | None:
        with contextlib.suppress(Exception):
            client = self.client()
            if len(client.call("GET", "/v1/taskmanagers")["taskmanagers"]) == 4:
                return client
        return None

    def runs(self) -> list[tuple[float, str]]:
        """When each task began and in which executor's Python."""
        if not self.notes.exists():
            return []
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        return [(float(words[0]), words[1]) for words in lines if len(words) == 2]

    def processes(self) -> set[str]:
        """The executors that have run a task."""
        return {process for _, process in self.runs()}

    def _kill_worker(self, client: Client, job: str) -> dict[str, float]:
        held = client.job(job)["held"]
        place = next(slot["worker"] for slot in held if slot["use"].startswith("executor-"))
        pids = {one["id"]: one["pid"] for one in client.call("GET", "/v1/taskmanagers")["taskmanagers"]}
        before = self.processes()
        killed_at = time.time()
        os.kill(pids[place], signal.SIGKILL)

        def lost() -> float | None:
            events = client.call("GET", f"/v1/jobs/{job}/events")["events"]
            return next((event["unix_s"] for event in events if event["name"] == "slot-lost"), None)

        noticed_at = until(lost)
        until(lambda: self.processes() - before)
        first = min(at for at, process in self.runs() if process not in before)
        return {
            "killed worker: noticed after": noticed_at - killed_at,
            "killed worker: first task of the replacement after": first - killed_at,
        }

    def _kill_master(self, job: str) -> dict[str, float]:
        time.sleep(2)
        killed_at = time.time()
        self.master.kill()
        self.master.wait()
        self.master = self.start("master", "--port", str(self.port))

        def running() -> float | None:
            with contextlib.suppress(Exception), self.client() as client:
                if client.job(job)["phase"] == "RUNNING":
                    return time.time()
            return None

        back_at = until(running)
        time.sleep(3)
        times = sorted(at for at, _ in self.runs() if at > killed_at - 2)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return {
            "killed master: job taken over after": back_at - killed_at,
            "killed master: longest time without a task's start": max(gaps),
        }

    def close(self) -> None:
        """End all."""
        for process in [*self.workers, self.master]:
            process.send_signal(signal.SIGINT)
        for process in [*self.workers, self.master]:
            process.wait(60)


@contextlib.contextmanager
def cluster(folder: Path, jvm: dict[str, str]) -> Iterator[Bench]:
    """A cluster that is ended whatever happens. ``jvm``: the environment that says which JVM cache it has."""
    bench = Bench(folder, jvm)
    try:
        yield bench
    finally:
        bench.close()


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something true."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit("the cluster did not do what the benchmark waits for")


if __name__ == "__main__":
    main()
