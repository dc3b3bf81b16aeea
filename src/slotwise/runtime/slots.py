"""Runs what is deployed into a worker's slots: starts the commands, watches them, ends them, keeps their output.

What to run is the launcher's business (:class:`Launcher`, a port that ``slotwise.spark`` implements). A deployed
process is one or more commands; the last is the main one, and the process is over when that is. The others are its
helpers (a driver's JVM gateway)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from slotwise.model.errors import SlotwiseError
from slotwise.model.ids import AllocationId, JobId
from slotwise.model.process import DriverDirectives, ProcessSpec
from slotwise.protocol.effects import CleanSlot, EndProcess, ProcessChanged, StartProcess, TellDriver
from slotwise.protocol.messages import ProcessPhase, ProcessStatus
from slotwise.runtime.children import ChildRecords, kill_marked, signal_group, start_child, wait_exit
from slotwise.runtime.logs import LogShipper, tail_lines

log = structlog.get_logger(__name__)

_GRACE_S = 10.0
_MARK = "SLOT_ALLOCATION"
_HELPER_GRACE_S = 5.0


@dataclass(frozen=True)
class SlotCommand:
    """One command of a deployed process. ``stdout`` and ``stderr`` name log files of the job (the same name: one
    file). ``files`` are written into the slot's directory before, readable by the owner only. ``keep_stdin``: its
    standard input is a pipe that stays open while the worker lives. ``helper_pid_variable``: where it finds the
    process id of the first helper.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    stderr: str
    files: Mapping[str, str] = field(default_factory=dict)
    keep_stdin: bool = False
    helper_pid_variable: str = ""


class Launcher(Protocol):
    """Knows how to run a process spec on this machine."""

    async def commands(
        self, allocation: AllocationId, job: JobId, process: str, spec: ProcessSpec, slot_dir: Path
    ) -> list[SlotCommand]:
        """What to start, helpers first. Raises :class:`SlotwiseError` with what is missing on this machine."""
        ...

    def tell(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        """Pass words on to the driver in this slot."""
        ...

    def ended(self, allocation: AllocationId) -> None:
        """The process in this slot is over."""
        ...


@dataclass
class _Running:
    process: str
    task: asyncio.Task[None] | None = None
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ending: bool = False
    logs: list[Path] = field(default_factory=list)


class SlotRunner:
    """All slots of one worker, under ``directory``. ``report`` gets each change of a process."""

    def __init__(
        self,
        directory: Path,
        launcher: Launcher,
        shipper: LogShipper,
        report: Callable[[ProcessChanged], None],
        *,
        bound_to_parent: bool = True,
    ) -> None:
        self.directory = directory
        self._launcher = launcher
        self._shipper = shipper
        self._report = report
        self._bound = bound_to_parent
        self._running: dict[AllocationId, _Running] = {}
        self._background: set[asyncio.Task[None]] = set()
        (directory / "slots").mkdir(parents=True, exist_ok=True)
        self._records = ChildRecords(directory / "children.json")

    def carry_out(self, effect: StartProcess | EndProcess | TellDriver | CleanSlot) -> None:
        """Do what the TaskExecutor wants done."""
        match effect:
            case StartProcess():
                running = self._running[effect.allocation] = _Running(effect.process)
                running.task = asyncio.get_running_loop().create_task(self._run(effect, running))
            case EndProcess(allocation, process):
                current = self._running.get(allocation)
                if current is not None and current.process == process:
                    self._spawn(self._end(current))
            case TellDriver(allocation, directives):
                self._launcher.tell(allocation, directives)
            case CleanSlot(allocation):
                self._spawn(self._clean(allocation))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run(self, start: StartProcess, running: _Running) -> None:
        slot_dir = self.directory / "slots" / start.allocation
        code: int | None = None
        reason = ""
        tail: tuple[str, ...] = ()
        try:
            slot_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            commands = await self._launcher.commands(start.allocation, start.job, start.process, start.spec, slot_dir)
            for command in commands:
                if running.ending:
                    break
                self._start(command, slot_dir, running, start.job)
            if running.children and len(running.children) == len(commands):
                main = running.children[-1]
                self._report(
                    ProcessChanged(start.allocation, ProcessStatus(start.process, ProcessPhase.RUNNING, pid=main.pid))
                )
                code, reason = await self._watch(running)
        except (SlotwiseError, OSError) as error:
            reason = str(error)
            log.error("process could not be started", process=start.process, error=reason)
        except Exception as error:
            reason = f"internal error while starting {start.process}: {error!r}"
            log.exception("process could not be started", process=start.process)
        finally:
            for child in running.children:
                await self._end_child(child, _HELPER_GRACE_S)
            if running.children:
                await asyncio.to_thread(kill_marked, _MARK, start.allocation)
            self._launcher.ended(start.allocation)
        if code != 0 and not running.ending:
            tail = tail_lines(running.logs)
        await self._shipper.flush(running.logs)
        status = ProcessStatus(
            start.process,
            ProcessPhase.EXITED,
            pid=running.children[-1].pid if running.children else None,
            exit_code=code,
            reason=reason,
            log_tail=tail,
        )
        if self._running.get(start.allocation) is running:
            del self._running[start.allocation]
        self._report(ProcessChanged(start.allocation, status))

    def _start(self, command: SlotCommand, slot_dir: Path, running: _Running, job: JobId) -> None:
        for name, text in command.files.items():
            path = slot_dir / name
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        out = slot_dir / command.stdout
        err = slot_dir / command.stderr
        env = {**command.env, _MARK: slot_dir.name}
        if running.children and command.helper_pid_variable:
            env[command.helper_pid_variable] = str(running.children[0].pid)
        with out.open("ab") as stdout, err.open("ab") as stderr:
            child = start_child(
                command.argv,
                env=env,
                cwd=command.cwd,
                stdout=stdout,
                stderr=stdout if out == err else stderr,
                stdin=subprocess.PIPE if command.keep_stdin else subprocess.DEVNULL,
                bound_to_parent=self._bound,
            )
        self._records.add(child.pid)
        running.children.append(child)
        for path in dict.fromkeys((out, err)):
            running.logs.append(path)
            self._shipper.follow(job, path)

    async def _watch(self, running: _Running) -> tuple[int, str]:
        """Wait for the main command; if a helper dies before, let the main one notice, then end it."""
        main = running.children[-1]
        waits = [asyncio.ensure_future(wait_exit(child)) for child in running.children]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[-1].done():
                return waits[-1].result(), ""
            helper_code = next(wait.result() for wait in waits if wait.done())
            await asyncio.wait([waits[-1]], timeout=_GRACE_S)
            if not waits[-1].done():
                signal_group(main.pid, signal.SIGKILL)
            code = await waits[-1]
            if running.ending:
                return code, ""
            return code or 1, f"the driver's JVM ended with code {helper_code} while the program ran"
        finally:
            for wait in waits:
                wait.cancel()

    async def _end(self, running: _Running) -> None:
        """The main command first, gracefully; the helpers follow when it is over."""
        running.ending = True
        if running.children:
            await self._end_child(running.children[-1], _GRACE_S)

    async def _end_child(self, child: subprocess.Popen[bytes], grace_s: float) -> None:
        if child.poll() is None:
            signal_group(child.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(wait_exit(child), grace_s)
            except TimeoutError:
                signal_group(child.pid, signal.SIGKILL)
                await wait_exit(child)
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        # Whatever the leader left behind in its group goes with it.
        signal_group(child.pid, signal.SIGKILL)
        self._records.remove(child.pid)

    async def _clean(self, allocation: AllocationId) -> None:
        slot_dir = self.directory / "slots" / allocation
        await self._shipper.forget(slot_dir)
        await asyncio.to_thread(shutil.rmtree, slot_dir, ignore_errors=True)

    async def settle(self) -> None:
        """Wait until all that was begun is done."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        await asyncio.gather(*tasks, *self._background, return_exceptions=True)

    def kill_all(self) -> None:
        """End everything at once, without grace."""
        for running in self._running.values():
            running.ending = True
            for child in running.children:
                signal_group(child.pid, signal.SIGKILL)
