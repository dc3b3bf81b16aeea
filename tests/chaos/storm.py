"""Chaos on real processes: what is done to them, and what must be true in the end (B: F-01 … F-08)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from slotwise.client import Client
from slotwise.model.errors import ClusterError
from slotwise.model.job import DriverSize, ExecutorSize, JobSpec
from slotwise.model.resources import MIB
from tests.chaos.proxy import Relay
from tests.integration.clusters import Sandbox

_PROGRAM = Path(__file__).with_name("program.py")
_ROUND_TOTAL = sum(range(20_000))
_WORKERS = 3
_HEARTBEATS = ("-D", "heartbeat.interval=1s", "-D", "heartbeat.timeout=6s")
_MANY_RESTARTS = ("-D", "restart-strategy.exponential-delay.attempts-before-reset-backoff=50")
_END_LIMIT_S = 420.0
_FINAL = ("FINISHED", "FAILED", "CANCELED")


@dataclass
class _Job:
    name: str
    spec: JobSpec
    rounds: int
    key: str
    job: str | None = None
    cancelled: bool = False
    state: str = ""
    reason: str = ""
    driver_starts: int = 0


@dataclass
class _Host:
    """A place where a worker runs: its relay and its process. ``down``: we have ended that ourselves."""

    name: str
    relay: Relay
    process: subprocess.Popen[bytes] | None = None
    down: bool = False


@dataclass
class Storm:
    """One run of ``seconds`` of faults, in ``folder``."""

    folder: Path
    seed: int
    seconds: float
    parallel: int
    done: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._sandbox = Sandbox(self.folder)
        self._marks = self.folder / "marks"
        self._marks.mkdir(exist_ok=True)
        self._port = _free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._hosts: list[_Host] = []
        self._jobs: list[_Job] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._started = time.monotonic()

    # ------------------------------------------------------------------------------------------- the run

    def run(self) -> int:
        """Returns the exit code: 0 when all is well."""
        self._say(f"seed {self.seed}, {self.seconds:g} s of faults, in {self.folder}")
        try:
            self._start_master()
            # The master makes the token, without which no worker starts.
            _wait_until((self.folder / "state" / "token").exists, 60)
            for number in range(_WORKERS):
                host = _Host(f"host{number}", Relay(self._port))
                self._hosts.append(host)
                self._start_worker(host)
            self._storm()
            self._calm()
            self._check_jobs()
        except KeyboardInterrupt:
            self._say("interrupted")
            self.violations.append("interrupted")
        finally:
            self._close()
        return self._summary()

    def _storm(self) -> None:
        until = time.monotonic() + self.seconds
        strike_at = time.monotonic() + 12
        while (now := time.monotonic()) < until:
            self._run_due(now)
            self._watch_workers()
            self._keep_jobs()
            if now >= strike_at:
                self._strike()
                strike_at = now + self._random.uniform(2, 9)
            time.sleep(0.2)

    def _watch_workers(self) -> None:
        """A worker that ends by itself is a fault of ours."""
        for host in self._hosts:
            if not host.down and host.process is not None and host.process.poll() is not None:
                log = (self.folder / f"{host.name}.log").read_text(errors="replace").splitlines()
                said = log[-1] if log else "nothing"
                self.violations.append(f"{host.name} ended by itself with code {host.process.returncode}: {said}")
                self._start_worker(host)

    def _calm(self) -> None:
        """Faults are over: what was stopped goes on, what is missing comes back, and every job must end."""
        self._say("calm")
        deadline = time.monotonic() + _END_LIMIT_S
        while self._later and time.monotonic() < deadline:
            self._run_due(time.monotonic())
            time.sleep(0.1)
        for host in self._hosts:
            host.relay.heal()
            if not _lives(host.process):
                self._start_worker(host)
        if not _lives(self._master):
            self._start_master()
        while time.monotonic() < deadline:
            self._look()
            if all(job.state in _FINAL for job in self._jobs):
                return
            time.sleep(0.5)

    # ------------------------------------------------------------------------------------------- jobs

    def _keep_jobs(self) -> None:
        self._look()
        open_jobs = [job for job in self._jobs if job.state not in _FINAL]
        if len(open_jobs) < self.parallel:
            number = len(self._jobs) + 1
            rounds = self._random.randint(3, 10)
            name = f"job{number}"
            spec = JobSpec(
                name=name,
                program=str(_PROGRAM),
                args=(str(self._marks), name, str(rounds)),
                working_dir=str(self.folder),
                driver=DriverSize(1, 512 * MIB, 256 * MIB),
                executor=ExecutorSize(1, 512 * MIB, 256 * MIB),
                initial_executors=self._random.choice((1, 2)),
            )
            self._jobs.append(_Job(name, spec, rounds, f"{self.seed}-{number}"))
        elif self._random.random() < 0.002:
            victim = self._random.choice(open_jobs)
            victim.cancelled = True
            self._count("cancel", victim.name)

    def _look(self) -> None:
        """Submit what is not acknowledged, cancel what is to be cancelled, read the states. The master may be away."""
        token_file = self.folder / "state" / "token"
        if not token_file.exists():
            return
        with contextlib.suppress(ClusterError), self._client(token_file.read_text().strip()) as client:
            for job in self._jobs:
                if job.state in _FINAL:
                    continue
                if job.job is None:
                    answer = client.call(
                        "POST", "/v1/jobs", content=msgspec.json.encode(job.spec), headers={"Idempotency-Key": job.key}
                    )
                    job.job = str(answer["jid"])
                if job.cancelled:
                    client.call("PATCH", f"/v1/jobs/{job.job}?mode=cancel")
                details = client.job(job.job)
                job.state, job.reason = details["state"], details["reason"]
                if job.state in _FINAL:
                    self._say(f"{job.name} ({job.job}) is {job.state} {job.reason}")

    def _client(self, token: str) -> Client:
        return Client(f"http://127.0.0.1:{self._port}", token, timeout_s=3.0)

    def _check_jobs(self) -> None:
        for job in self._jobs:
            starts = self._marks / f"{job.name}.starts"
            job.driver_starts = len(starts.read_text().splitlines()) if starts.exists() else 0
            if (self._marks / f"{job.name}.overlap").exists():
                self.violations.append(f"{job.name} ran twice at once")
            if job.state == "FINISHED":
                answer = self._marks / f"{job.name}.answer"
                found = json.loads(answer.read_text())["total"] if answer.exists() else None
                if found != job.rounds * _ROUND_TOTAL:
                    self.violations.append(f"{job.name} finished with {found}, not {job.rounds * _ROUND_TOTAL}")
            elif job.state == "FAILED":
                # What is done to it here is nothing that the cluster's restart strategy does not cover.
                self.violations.append(f"{job.name} failed: {job.reason or 'without a reason'}")
            elif job.state == "CANCELED":
                if not job.cancelled:
                    self.violations.append(f"{job.name} was cancelled by nobody")
            else:
                self.violations.append(f"{job.name} ({job.job}) did not end: {job.state} {job.reason}")

    # ------------------------------------------------------------------------------------------- faults

    def _strike(self) -> None:
        faults: list[tuple[float, Callable[[], None]]] = [
            (2, self._kill_master),
            (3, self._kill_worker),
            (3, self._kill_executor),
            (2, self._kill_driver),
            (3, self._pause_something),
            (3, self._cut_worker),
            (1, self._stop_worker),
        ]
        weights = [weight for weight, _ in faults]
        self._random.choices([fault for _, fault in faults], weights)[0]()

    def _kill_master(self) -> None:
        if not _lives(self._master):
            return
        assert self._master is not None
        wait_s = self._random.choice((0.0, 1.0, 4.0, 10.0))
        self._count("kill -9 master", f"back after {wait_s:g} s")
        self._master.kill()
        self._master.wait()
        self._after(wait_s, self._start_master)

    def _living_host(self) -> _Host | None:
        living = [host for host in self._hosts if _lives(host.process)]
        return self._random.choice(living) if living else None

    def _kill_worker(self) -> None:
        host = self._living_host()
        if host is None or host.process is None:
            return
        wait_s = self._random.choice((0.0, 2.0, 8.0, 30.0))
        self._count("kill -9 worker", f"{host.name}, back after {wait_s:g} s")
        host.down = True
        host.process.kill()
        host.process.wait()
        self._after(wait_s, lambda: self._start_worker(host))

    def _stop_worker(self) -> None:
        host = self._living_host()
        if host is None or host.process is None:
            return
        process = host.process
        self._count("SIGTERM worker", host.name)
        host.down = True
        process.send_signal(signal.SIGTERM)

        def again() -> None:
            if process.poll() is None:
                self._after(1.0, again)
            else:
                self._start_worker(host)

        self._after(3.0, again)

    def _kill_executor(self) -> None:
        self._kill_one_of("kill -9 executor", self._java("CoarseGrainedExecutorBackend"))

    def _kill_driver(self) -> None:
        drivers = [*self._java("PythonGatewayServer"), *self._sandbox.processes("runner.py")]
        self._kill_one_of("kill -9 driver", [process for process in drivers if not _is_keeper(process)])

    def _java(self, main_class: str) -> list[psutil.Process]:
        return [process for process in self._sandbox.processes(main_class) if not _is_keeper(process)]

    def _kill_one_of(self, what: str, processes: list[psutil.Process]) -> None:
        if processes:
            victim = self._random.choice(sorted(processes, key=lambda process: process.pid))
            self._count(what, f"pid {victim.pid}")
            with contextlib.suppress(psutil.Error):
                victim.kill()

    def _pause_something(self) -> None:
        processes = [process for process in self._sandbox.processes() if not _is_keeper(process)]
        if not processes:
            return
        victim = self._random.choice(sorted(processes, key=lambda process: process.pid))
        pause_s = self._random.choice((1.0, 4.0, 12.0))
        with contextlib.suppress(psutil.Error):
            self._count("SIGSTOP", f"pid {victim.pid} for {pause_s:g} s: {_short(victim)}")
            victim.suspend()
        self._after(pause_s, lambda: _resume(victim))

    def _cut_worker(self) -> None:
        host = self._living_host()
        if host is None:
            return
        silent = self._random.random() < 0.5
        cut_s = self._random.choice((0.2, 3.0, 12.0, 25.0))
        self._count("cut off silently" if silent else "cut off", f"{host.name} for {cut_s:g} s")
        host.relay.cut(silent=silent)
        self._after(cut_s, host.relay.heal)

    # ------------------------------------------------------------------------------------------- processes

    def _start_master(self) -> None:
        if _lives(self._master):
            return
        options = ("--port", str(self._port), *_HEARTBEATS, *_MANY_RESTARTS)
        self._master = self._start("master", "master", *options)

    def _start_worker(self, host: _Host) -> None:
        if _lives(host.process):
            return
        host.down = False
        host.process = self._start(
            host.name,
            *("worker", "--master", f"http://127.0.0.1:{host.relay.port}"),
            *("--cpus", "4", "--memory", "4g", "--directory", str(self.folder / host.name)),
            *_HEARTBEATS,
        )

    def _start(self, name: str, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "slotwise", *argv],
                env=self._sandbox.env,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def _close(self) -> None:
        for process in self._sandbox.processes():
            _resume(process)
        ours = [host.process for host in self._hosts] + [self._master]
        for own in ours:
            if own is not None and own.poll() is None:
                own.send_signal(signal.SIGINT)
        for own in ours:
            if own is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    own.wait(60)
        for host in self._hosts:
            host.relay.close()
        deadline = time.monotonic() + 30
        while self._sandbox.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        left = self._sandbox.processes()
        self.violations += [f"left over: pid {process.pid} {_short(process)}" for process in left]
        self.violations += [f"left over: {path}" for path in self.folder.glob("host*/*/slots/*")]
        self._sandbox.kill_leftovers()

    # ------------------------------------------------------------------------------------------- small things

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def _run_due(self, now: float) -> None:
        due = [entry for entry in self._later if entry[0] <= now]
        for entry in due:
            self._later.remove(entry)
            entry[1]()

    def _count(self, what: str, detail: str) -> None:
        self.done[what] += 1
        self._say(f"{what}: {detail}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:7.1f} s  {text}", flush=True)

    def _summary(self) -> int:
        states = Counter(job.state or "never accepted" for job in self._jobs)
        starts = sum(job.driver_starts for job in self._jobs)
        print(f"\nseed {self.seed}: {sum(self.done.values())} faults in {self.seconds:g} s")
        for what, count in sorted(self.done.items()):
            print(f"  {count:4d} × {what}")
        print(f"{len(self._jobs)} jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
        print(f"{starts} drivers started")
        for violation in self.violations:
            print(f"VIOLATION: {violation}")
        print("all as promised" if not self.violations else f"{len(self.violations)} violation(s)")
        return 1 if self.violations else 0


def _wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _lives(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is None


def _is_keeper(process: psutil.Process) -> bool:
    """The small process that watches one of a slot's: it is not what a user's trouble hits."""
    with contextlib.suppress(psutil.Error):
        return any(os.path.basename(word) == "keeper.py" for word in process.cmdline())
    return True


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.resume()


def _short(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        for name in ("CoarseGrainedExecutorBackend", "PythonGatewayServer", "runner.py", "pyspark.daemon", "slotwise"):
            if any(name in word for word in words):
                return (
                    f"{name} {words[words.index('slotwise') + 1] if name == 'slotwise' and 'slotwise' in words else ''}"
                )
        return " ".join(words)[:80]
    return "?"
