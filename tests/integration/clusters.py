"""Real clusters for tests: the command line as users call it, and proof that nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROGRAMS = Path(__file__).with_name("programs")
# Small ones, so that several fit on a small machine.
SMALL = (
    *("--driver-memory", "512m", "--executor-memory", "512m"),
    *("--conf", "spark.driver.memoryOverhead=256m", "--conf", "spark.executor.memoryOverhead=256m"),
)
# Processes start from a cache that is there (`make test` has it made); no test begins to make one by itself.
JVM_CACHE_THAT_IS_THERE = {
    "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_MODE": "auto",
    "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_QUIET_TIME": "1000 h",
}
NO_WARM_UNITS = "SLOTWISE_CONF_TASKMANAGER_WARM_MODE"
UPLOADS = "SLOTWISE_CONF_TASKMANAGER_UPLOADS_DIRECTORY"
SLOT_BYTES = 768 * 1024 * 1024


def wait_for(condition: Callable[[], Any], limit_s: float = 90.0, what: str = "the condition") -> Any:
    """Wait until ``condition`` gives something true, and return it."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come within {limit_s:g} s")


class Sandbox:
    """A place of its own for the commands of one test; every process that comes of them carries its mark."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.temporary = directory / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLOTWISE_")},
            "SLOTWISE_STATE_DIR": str(directory / "state"),
            **JVM_CACHE_THAT_IS_THERE,
            NO_WARM_UNITS: "off",
            UPLOADS: str(directory / "uploads"),
            "TEST_MARK": self.mark,
            "TMPDIR": str(self.temporary),
        }

    def start(self, *argv: str, **more: Any) -> subprocess.Popen[str]:
        """Start ``slotwise …``."""
        return subprocess.Popen(
            [sys.executable, "-m", "slotwise", *argv],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=more.pop("cwd", self.directory),
            **more,
        )

    def run(self, *argv: str, timeout: float = 150, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run ``slotwise …`` to its end."""
        process = self.start(*argv, **more)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"slotwise {argv} did not end within {timeout} s:\n{out}\n{err}") from None
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def processes(self, part: str = "") -> list[psutil.Process]:
        """The living processes of this sandbox whose command line has ``part``."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TEST_MARK") != self.mark or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        return self.processes("CoarseGrainedExecutorBackend")

    def workers(self) -> list[psutil.Process]:
        """The workers' processes."""
        return self.processes("slotwise worker")

    def assert_nothing_left(self) -> None:
        """No process, no temporary file."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.processes(), 10, "the end of all processes")
        assert [process.cmdline() for process in self.processes()] == []
        left = [path for path in self.temporary.iterdir() if path.name.startswith(("slotwise", "spark-", "blockmgr"))]
        assert left == []
        slots = list((self.directory / "state").glob("**/slots/*"))
        assert slots == []

    def kill_leftovers(self) -> None:
        """After a failed test."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


class Cluster:
    """A standalone cluster of real processes in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.processes: list[subprocess.Popen[str]] = []

    def start_master(self, *options: str) -> None:
        """Start a master on a free port and make it the default of the sandbox."""
        address = self.sandbox.directory / "address.json"
        self._background("master", "--port", "0", "--address-file", str(address), *options)
        wait_for(address.exists, 30, "the master's address")
        self.sandbox.env["SLOTWISE_MASTER"] = json.loads(address.read_text())["url"]

    def start_worker(self, *options: str) -> subprocess.Popen[str]:
        """Start a worker."""
        return self._background("worker", *options)

    def _background(self, name: str, *options: str) -> subprocess.Popen[str]:
        log = (self.sandbox.directory / f"{name}-{len(self.processes)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "slotwise", name, *options],
            env=self.sandbox.env,
            stdout=log,
            stderr=log,
            text=True,
            cwd=self.sandbox.directory,
        )
        self.processes.append(process)
        return process

    def json(self, *argv: str) -> Any:
        """What a listing says."""
        done = self.sandbox.run(*argv, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self) -> None:
        """End workers and master as Ctrl-C would."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(60)


@contextlib.contextmanager
def sandbox_at(directory: Path) -> Iterator[Sandbox]:
    """A sandbox that must be empty in the end."""
    sandbox = Sandbox(directory)
    try:
        yield sandbox
        sandbox.assert_nothing_left()
    finally:
        sandbox.kill_leftovers()
