"""Runs what is deployed into a worker's slots: starts the commands, watches them, ends them, keeps their output; and
takes over what an earlier process of the worker has left running (B: ST-09).

What to run is the launcher's business (:class:`Launcher`, a port that ``slotwise.spark`` implements). A deployed
process is one or more commands, each with a keeper of its own; the last is the main one, and the process is over when
that is. The others are its helpers (a driver's JVM gateway)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from slotwise.model.errors import SlotwiseError
from slotwise.model.ids import AllocationId, JobId
from slotwise.model.process import DriverDirectives, ExecutorIdentity, ExecutorProcess, ProcessSpec
from slotwise.model.resources import ZERO, ResourceProfile
from slotwise.protocol.effects import AdoptedSlot, CleanSlot, EndProcess, ProcessChanged, StartProcess, TellDriver
from slotwise.protocol.messages import ProcessPhase, ProcessStatus
from slotwise.runtime.children import ChildRecords, birth, kill_marked
from slotwise.runtime.home import CommandRecord, SlotRecord, remove_slot, write_slot
from slotwise.runtime.kept import MARK, NAME, KeeperSettings, Kept, mark_of, start_kept
from slotwise.runtime.logs import LogShipper, tail_lines

log = structlog.get_logger(__name__)

_GRACE_S = 10.0
_HELPER_GRACE_S = 5.0
# Shorter than it takes to start executors that nobody waits for: a job gives up after some that could not join.
_ORPHAN_GRACE_S = 3.0
_LOGS_LIMIT_S = 5.0
_DYING_POLL_S = 0.02
_DYING_POLLS = 25


class WaitingProcess(Protocol):
    """A process that runs already, with a keeper, in the slot's directory, and waits to be told what to be."""

    @property
    def kept(self) -> Kept:
        """The process."""
        ...

    @property
    def outputs(self) -> tuple[Path, Path]:
        """The files of its standard output and error, in the slot's directory."""
        ...

    async def order(self, order: Mapping[str, object]) -> bool:
        """Tell it. False if it cannot do it: then it is of no use any more."""
        ...


@dataclass(frozen=True)
class SlotCommand:
    """One command of a deployed process. ``stdout`` and ``stderr`` name log files of the job (the same name: one
    file). ``files`` are written into the slot's directory before, readable by the owner only. ``keep_stdin``: its
    standard input is a pipe that stays open while its keeper lives. ``helper_pid_variable``: where it finds the
    process id of the first helper. ``waiting``: a process that can become this command when it gets ``order`` and the
    environment; if it does not, the command is started all the same, for which alone ``start_files`` are.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    stderr: str
    files: Mapping[str, str] = field(default_factory=dict)
    keep_stdin: bool = False
    helper_pid_variable: str = ""
    waiting: WaitingProcess | None = None
    order: Mapping[str, object] = field(default_factory=dict, repr=False)
    start_files: tuple[str, ...] = ()


class Launcher(Protocol):
    """Knows how to run a process spec on this machine."""

    async def commands(
        self,
        allocation: AllocationId,
        job: JobId,
        process: str,
        spec: ProcessSpec,
        slot_dir: Path,
        on_log: Callable[[Path], None],
    ) -> list[SlotCommand]:
        """What to start, helpers first. ``slot_dir`` is an empty folder, or one that a process before has used; an
        empty one may become a link to another beside it. It may take minutes; ``on_log`` is told of the log of that,
        in ``slot_dir``. Raises :class:`SlotwiseError` with what is missing on this machine.
        """
        ...

    def give_up(self, allocation: AllocationId) -> None:
        """The process in this slot is to end: what is still being prepared for it need not be."""
        ...

    def in_use(self, used: ResourceProfile) -> None:
        """So much of the worker is taken by its slots' processes."""
        ...

    def tell(self, allocation: AllocationId, directives: DriverDirectives) -> None:
        """Pass words on to the driver in this slot."""
        ...

    def remembered(self, allocation: AllocationId) -> dict[str, Any]:
        """What a later process of this worker must know to take the slot over: values that JSON can carry."""
        ...

    def adopt(self, allocation: AllocationId, remembered: Mapping[str, Any]) -> str:
        """Take a slot over. Empty, or the reason why its process cannot go on."""
        ...

    def ended(self, allocation: AllocationId) -> None:
        """The process in this slot is over."""
        ...


@dataclass
class _Running:
    record: SlotRecord
    children: list[Kept] = field(default_factory=list)
    placed: bool = False
    unordered: set[str] = field(default_factory=set)
    ending: bool = False
    killed: bool = False
    logs: list[Path] = field(default_factory=list)


class SlotRunner:
    """All slots of one worker, under ``directory``. ``report`` gets each change of a process; ``on_crash`` is told of
    an exception that nobody here expects.
    """

    def __init__(
        self,
        directory: Path,
        launcher: Launcher,
        shipper: LogShipper,
        report: Callable[[ProcessChanged], None],
        on_crash: Callable[[str, BaseException], None],
        keepers: KeeperSettings,
    ) -> None:
        self.directory = directory
        self._launcher = launcher
        self._shipper = shipper
        self._report = report
        self._on_crash = on_crash
        self._keepers = keepers
        self._running: dict[AllocationId, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        (directory / "slots").mkdir(parents=True, exist_ok=True)
        self._records = ChildRecords(directory / "children.json")

    def carry_out(self, effect: StartProcess | EndProcess | TellDriver | CleanSlot) -> None:
        """Do what the TaskExecutor wants done."""
        match effect:
            case StartProcess():
                record = SlotRecord(
                    effect.allocation,
                    effect.job,
                    effect.profile,
                    effect.job_master,
                    effect.job_master_token,
                    effect.process,
                    _identity(effect.spec),
                )
                running = self._running[effect.allocation] = _Running(record)
                self._spawn(self._run(effect.spec, running))
            case EndProcess(allocation, process):
                current = self._running.get(allocation)
                if current is not None and current.record.process == process:
                    self._spawn(self._end(current))
            case TellDriver(allocation, directives):
                self._launcher.tell(allocation, directives)
            case CleanSlot(allocation):
                self._spawn(self._clean(allocation))

    def adopt(self, records: Iterable[SlotRecord]) -> tuple[AdoptedSlot, ...]:
        """Take over slots of an earlier process of this worker; returns them for the TaskExecutor.

        A process that has ended meanwhile, or cannot go on, counts as running for a moment more: its end is reported
        like any other, after its output.
        """
        adopted = []
        for record in records:
            slot_dir = self._slot_dir(record.allocation)
            running = _Running(record, children=record.kept(slot_dir), placed=True)
            running.logs = [slot_dir / name for name in record.logs]
            for path in running.logs:
                self._shipper.follow(record.job, path, resumed=True)
            for child in running.children:
                if child.alive:
                    self._records.add(child.keeper)
            trouble = self._launcher.adopt(record.allocation, record.remembered)
            main = running.children[-1]
            ordered = all(command.ordered for command in record.commands)
            if len(running.children) < record.expected or not main.pid or not ordered:
                trouble = "its worker ended while it was being started"
            self._running[record.allocation] = running
            self._spawn(self._run_adopted(running, trouble))
            adopted.append(
                AdoptedSlot(
                    record.allocation,
                    record.job,
                    record.profile,
                    record.job_master,
                    record.job_master_token,
                    ProcessStatus(record.process, ProcessPhase.RUNNING, pid=main.pid or None),
                    record.executor,
                )
            )
        return tuple(adopted)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash("slots", error)
            log.error("a slot's task failed", exc_info=error)

    async def _run(self, spec: ProcessSpec, running: _Running) -> None:
        start = running.record
        slot_dir = self._slot_dir(start.allocation)
        code: int | None = None
        reason = ""
        commands: list[SlotCommand] = []
        try:
            slot_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            commands = await self._prepare(spec, running, slot_dir)
            running.record = msgspec.structs.replace(
                start, expected=len(commands), remembered=self._launcher.remembered(start.allocation)
            )
            running.placed = True
            self.say_use()
            for command in commands:
                if running.ending:
                    break
                await self._start(command, slot_dir, running)
            if running.children and len(running.children) == len(commands):
                status = ProcessStatus(start.process, ProcessPhase.RUNNING, pid=running.children[-1].pid)
                self._report(ProcessChanged(start.allocation, status))
                code, reason = await self._watch(running)
        except (SlotwiseError, OSError) as error:
            reason = str(error)
            log.error("process could not be started", process=start.process, error=reason)
        except Exception as error:
            reason = f"internal error while starting {start.process}: {error!r}"
            log.exception("process could not be started", process=start.process)
        finally:
            await self._end_all(running)
            for waiting in (command.waiting for command in commands):
                if waiting is not None and waiting.kept not in running.children:
                    # The slot was to end before it had begun; nobody else knows of it any more.
                    waiting.kept.kill()
                    await self._end_child(waiting.kept, 0.0)
        await self._shipper.flush(running.logs)
        self._report_end(running, code, reason)

    async def _prepare(self, spec: ProcessSpec, running: _Running, slot_dir: Path) -> list[SlotCommand]:
        """What to start."""
        start = running.record

        def on_log(path: Path) -> None:
            running.logs.append(path)
            self._shipper.follow(start.job, path)

        return await self._launcher.commands(start.allocation, start.job, start.process, spec, slot_dir, on_log)

    async def _run_adopted(self, running: _Running, trouble: str) -> None:
        code: int | None = None
        reason = trouble
        try:
            if trouble:
                # Through no fault of the program's.
                running.killed = True
                await self._end_child(running.children[-1], _GRACE_S)
            else:
                code, reason = await self._watch(running)
        finally:
            await self._end_all(running)
        # The master says how much it has of each log; then the end is told after the output, as ever.
        await self._shipper.catch_up(running.logs, _LOGS_LIMIT_S)
        self._report_end(running, code, reason)

    def note_keeper(self, pid: int, there: bool) -> None:
        """A keeper that is not of a slot yet has been started, or has ended."""
        if there:
            self._records.add(pid)
        else:
            self._records.remove(pid)

    def say_use(self) -> None:
        """Tell the launcher how much of the worker its slots' processes have."""
        placed = (running.record.profile for running in self._running.values() if running.placed)
        self._launcher.in_use(sum(placed, ZERO))

    def _slot_dir(self, allocation: AllocationId) -> Path:
        return self.directory / "slots" / allocation

    async def _end_all(self, running: _Running) -> None:
        for child in running.children:
            await self._end_child(child, _HELPER_GRACE_S)
        if running.children:
            await asyncio.to_thread(kill_marked, MARK, (mark_of(self._slot_dir(running.record.allocation)),))
        self._launcher.ended(running.record.allocation)

    def _report_end(self, running: _Running, code: int | None, reason: str) -> None:
        record = running.record
        status = ProcessStatus(
            record.process,
            ProcessPhase.EXITED,
            pid=running.children[-1].pid or None if running.children else None,
            exit_code=code,
            reason=reason,
            killed=running.killed and not running.ending,
            log_tail=tail_lines(running.logs) if code != 0 and not running.ending else (),
        )
        if self._running.get(record.allocation) is running:
            del self._running[record.allocation]
            self.say_use()
        self._report(ProcessChanged(record.allocation, status))

    async def _start(self, command: SlotCommand, slot_dir: Path, running: _Running) -> None:
        if command.waiting is not None:
            self._write_files(command, slot_dir, but=command.start_files)
        out = slot_dir / command.stdout
        err = slot_dir / command.stderr
        env = {**command.env, NAME: running.record.allocation}
        if running.children and command.helper_pid_variable:
            env[command.helper_pid_variable] = str(running.children[0].pid)
        for path in dict.fromkeys((out, err)):
            running.logs.append(path)
        waiting = command.waiting

        def made(kept: Kept) -> None:
            # On disk before the keeper learns what to run: there is no moment in which nobody knows of a command.
            self._records.add(kept.keeper)
            running.children.append(kept)
            self._note_commands(running, slot_dir)

        order = {**command.order, "env": env}
        taken = waiting is not None and await self._hand_over(waiting, order, (out, err), running, made)
        if waiting is not None and not taken and running.ending:
            return
        if not taken:
            self._write_files(command, slot_dir)
            await start_kept(
                command.argv,
                name=f"{running.record.process}.{len(running.children)}",
                directory=slot_dir,
                settings=self._keepers,
                env=env,
                cwd=command.cwd,
                stdout=out,
                stderr=err,
                keep_stdin=command.keep_stdin,
                made=made,
            )
        for path in dict.fromkeys((out, err)):
            self._shipper.follow(running.record.job, path)

    @staticmethod
    def _note_commands(running: _Running, slot_dir: Path) -> None:
        running.record = msgspec.structs.replace(
            running.record,
            commands=tuple(
                CommandRecord(child.name, child.keeper, child.keeper_birth, child.name not in running.unordered)
                for child in running.children
            ),
            logs=tuple(path.name for path in running.logs),
        )
        write_slot(slot_dir, running.record)

    @staticmethod
    def _write_files(command: SlotCommand, slot_dir: Path, but: Collection[str] = ()) -> None:
        for name, text in command.files.items():
            if name not in but:
                path = slot_dir / name
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)

    async def _hand_over(
        self,
        waiting: WaitingProcess,
        order: dict[str, Any],
        logs: tuple[Path, Path],
        running: _Running,
        made: Callable[[Kept], None],
    ) -> bool:
        """Make a waiting process one of the slot's; false if it does not do what it is told."""
        for path, name in dict(zip(waiting.outputs, logs, strict=True)).items():
            # What it has said until now is nobody's; it goes on writing into the same files.
            os.truncate(path, 0)
            path.rename(name)
        running.unordered.add(waiting.kept.name)
        made(waiting.kept)
        order["env"] = {**order["env"], MARK: mark_of(logs[0].parent)}
        if await waiting.order(order):
            running.unordered.discard(waiting.kept.name)
            self._note_commands(running, logs[0].parent)
            return True
        log.warning("a waiting process did not answer; another is started", process=running.record.process)
        running.children.remove(waiting.kept)
        await self._end_child(waiting.kept, 0.0)
        return False

    async def _watch(self, running: _Running) -> tuple[int, str]:
        """Wait for the main command; if a helper dies before, let the main one notice, then end it."""
        main = running.children[-1]
        waits = [asyncio.ensure_future(child.wait()) for child in running.children]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[-1].done():
                code = waits[-1].result()
                running.killed = code < 0
                if code > 0 and (helper_code := await self._killed_helper(running, waits)) is not None:
                    # The program's connection to its JVM broke, and it was quicker to end than the news of that.
                    running.killed = True
                    return code, f"the driver's JVM was killed by signal {-helper_code}"
                return code, ""
            helper_code = next(wait.result() for wait in waits if wait.done())
            running.killed = helper_code < 0
            await asyncio.wait([waits[-1]], timeout=_ORPHAN_GRACE_S)
            if not waits[-1].done():
                main.kill()
            code = await waits[-1]
            if running.ending:
                return code, ""
            return code or 1, f"the driver's JVM ended with code {helper_code} while the program ran"
        finally:
            for wait in waits:
                wait.cancel()

    async def _killed_helper(self, running: _Running, waits: Sequence[asyncio.Future[int]]) -> int | None:
        """The code of a helper that a signal has ended, if there is one."""
        helpers = list(zip(running.children[:-1], waits, strict=False))
        # A killed process takes a moment to be gone, and longer on a busy machine.
        patience = _DYING_POLLS
        while patience and helpers and not any(wait.done() or _is_gone(child) for child, wait in helpers):
            patience -= 1
            await asyncio.sleep(_DYING_POLL_S)
        for child, wait in helpers:
            if not wait.done() and _is_gone(child):
                await asyncio.wait([wait], timeout=_GRACE_S)
            if wait.done() and wait.result() < 0:
                return wait.result()
        return None

    async def _end(self, running: _Running) -> None:
        """The main command first, gracefully; the helpers follow when it is over."""
        running.ending = True
        self._launcher.give_up(running.record.allocation)
        if running.children:
            await self._end_child(running.children[-1], _GRACE_S)

    async def _end_child(self, child: Kept, grace_s: float) -> None:
        await child.end(grace_s)
        self._records.remove(child.keeper)

    async def _clean(self, allocation: AllocationId) -> None:
        slot_dir = self._slot_dir(allocation)
        await self._shipper.forget(slot_dir)
        # First, so that nobody takes half a slot over.
        (slot_dir / "slot.json").unlink(missing_ok=True)
        await asyncio.to_thread(remove_slot, slot_dir)

    async def settle(self) -> None:
        """Wait until all that was begun is done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill_all(self) -> None:
        """End everything at once, without grace."""
        for running in self._running.values():
            running.ending = True
            self._launcher.give_up(running.record.allocation)
            for child in running.children:
                child.kill()


def _is_gone(child: Kept) -> bool:
    return not child.pid or birth(child.pid) is None


def _identity(spec: ProcessSpec) -> ExecutorIdentity | None:
    if isinstance(spec, ExecutorProcess):
        return ExecutorIdentity(spec.executor_id, spec.ticket, spec.app_id, spec.profile_id)
    return None
