"""The part of a worker that runs slots, with shell commands in place of Spark; also as a process to be killed:
``python -m tests.unit.slot_owner BASE WORKER ORPHAN_TIMEOUT COMMAND…`` starts each command in a slot and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slotwise.model.ids import AllocationId, JobId, LeaderToken, WorkerId, job_master_address
from slotwise.model.process import DriverDirectives, ExecutorLaunch, ExecutorProcess, ProcessSpec
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.codec import LogData
from slotwise.protocol.effects import AdoptedSlot, ProcessChanged, StartProcess
from slotwise.protocol.messages import ProcessPhase, ProcessStatus
from slotwise.runtime.children import birth
from slotwise.runtime.home import WorkerHome, settle
from slotwise.runtime.kept import KeeperSettings
from slotwise.runtime.logs import LogShipper, LogStore
from slotwise.runtime.slots import SlotCommand, SlotRunner
from tests.unit.worlds import spec as job_spec

TOTAL = ResourceProfile(8000, 8 * GIB)
PROFILE = ResourceProfile(1000, GIB)
JOB = JobId("job-1")


def wait_for(condition: Callable[[], Any], limit_s: float = 20.0) -> Any:
    """Wait until ``condition`` gives something true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come in time"
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    """Whether a process is there that has not ended."""
    return birth(pid) is not None


def executor(command: str) -> ExecutorProcess:
    """What is deployed into a slot; the shell command travels as the driver's address."""
    size = job_spec().executor
    return ExecutorProcess("7", "ticket-7", "app-1", command, 0, size, "secret", "/", ExecutorLaunch())


class ShellLauncher:
    """Runs the command in a shell; a word before `` ;; `` is a helper's command."""

    def __init__(self) -> None:
        self.adopted: dict[AllocationId, Mapping[str, Any]] = {}
        self.trouble = ""
        self.ended_slots: list[AllocationId] = []

    async def commands(
        self,
        allocation: AllocationId,
        job: JobId,
        process: str,
        spec: ProcessSpec,
        slot_dir: Path,
        on_log: Callable[[Path], None],
    ) -> list[SlotCommand]:
        """Helpers first."""
        assert isinstance(spec, ExecutorProcess)
        env = {"PATH": os.environ["PATH"], "PASSWORD": spec.secret}
        parts = spec.driver_url.split(" ;; ")
        names = [*(f"{process}.{number}.log" for number in range(len(parts) - 1)), f"{process}.log"]
        return [
            SlotCommand(("/bin/sh", "-c", part), env, str(slot_dir), name, name)
            for part, name in zip(parts, names, strict=True)
        ]

    def give_up(self, allocation: AllocationId) -> None:
        """Nothing takes long here."""

    def in_use(self, used: ResourceProfile) -> None:
        """Nothing depends on it."""

    def tell(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        """Nobody to tell."""

    def remembered(self, allocation: AllocationId) -> dict[str, Any]:
        """Something to be found again."""
        return {"of": allocation}

    def adopt(self, allocation: AllocationId, remembered: Mapping[str, Any]) -> str:
        """Note what was found again."""
        self.adopted[allocation] = remembered
        return self.trouble

    def ended(self, allocation: AllocationId) -> None:
        """Note it."""
        self.ended_slots.append(allocation)


class Owner:
    """A worker in this process: its home, its runner, and a master's store for its logs."""

    def __init__(self, home: WorkerHome, timeout_s: float, store: LogStore) -> None:
        self.home = home
        self.changes: list[ProcessChanged] = []
        self.launcher = ShellLauncher()
        self.shipper = LogShipper(lambda data: self._send(store, data))
        keepers = KeeperSettings(home.lock, timeout_s, 0.5)
        self.crashes: list[BaseException] = []
        self.runner = SlotRunner(
            home.directory,
            self.launcher,
            self.shipper,
            self.changes.append,
            lambda _, error: self.crashes.append(error),
            keepers,
        )
        self.adopted: tuple[AdoptedSlot, ...] = self.runner.adopt(home.left)
        self.shipper.start()
        self.shipper.resync()

    def _send(self, store: LogStore, data: LogData) -> bool:
        answer = store.write(data)
        if answer is not None:
            # Not before the shipper has counted this chunk, as over a network.
            asyncio.get_running_loop().call_soon(self.shipper.position, answer)
        return True

    def start(self, slot: str, command: str) -> None:
        """Deploy a shell command into a slot."""
        start = StartProcess(
            AllocationId(slot),
            JOB,
            f"executor-{slot}",
            executor(command),
            PROFILE,
            job_master_address(JOB),
            LeaderToken(5),
        )
        self.runner.carry_out(start)

    async def until(self, slot: str, phase: ProcessPhase, limit_s: float = 20.0) -> ProcessStatus:
        """Wait for a change of the process in a slot."""
        deadline = time.monotonic() + limit_s
        while True:
            for change in self.changes:
                if change.allocation == slot and change.status.phase is phase:
                    return change.status
            assert time.monotonic() < deadline, self.changes
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End as a worker does."""
        self.runner.kill_all()
        await self.runner.settle()
        await self.shipper.stop()
        self.home.remove()
        assert self.crashes == []


def make_home(base: Path, worker: str | None, total: ResourceProfile = TOTAL) -> WorkerHome:
    """A home as a worker takes it."""
    named = WorkerId(worker) if worker is not None else None
    return settle(base, named, total, "127.0.0.1", lambda: WorkerId("worker-fresh"))


def make_store(folder: Path) -> LogStore:
    """A master's logs, in its own part of ``folder``."""
    (folder / "master").mkdir(exist_ok=True)
    return LogStore(folder / "master")


def main() -> None:
    """See the module's head."""
    base, worker, timeout_s, *commands = sys.argv[1:]

    async def serve() -> None:
        owner = Owner(make_home(Path(base), worker), float(timeout_s), make_store(Path(base).parent))
        for number, command in enumerate(commands):
            owner.start(f"slot-{number}", command)
            status = await owner.until(f"slot-{number}", ProcessPhase.RUNNING)
            print(status.pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


class OwnerProcess:
    """An owner as a process of its own. ``pids``: of the commands in its slots."""

    def __init__(self, base: Path, worker: str, timeout_s: float, *commands: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.slot_owner", str(base), worker, str(timeout_s), *commands],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pids = [int(self.process.stdout.readline()) for _ in commands]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def owner_process(base: Path, worker: str, timeout_s: float, *commands: str) -> Iterator[OwnerProcess]:
    """An owner that is killed at the end if it was not before."""
    owner = OwnerProcess(base, worker, timeout_s, *commands)
    try:
        yield owner
    finally:
        owner.kill()
        assert owner.process.stdout is not None
        owner.process.stdout.close()


if __name__ == "__main__":
    main()
