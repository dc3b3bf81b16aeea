"""Processes that wait on a worker for the next driver or executor, so that it need not wait for them.

A *unit* is what one slot's process needs: an executor's JVM; or a driver's, with a Python that has pyspark imported.
Its folder lies among the slots' folders, and becomes the slot's when the unit is taken: the slot's name is then a link
to it. Everything is used once; nothing of a job is left for the next.

Units only take what no slot's process uses (:meth:`WarmPool.in_use`): they end when their room is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from slotwise.model.errors import SlotwiseError
from slotwise.model.resources import GIB, ZERO, ResourceProfile, fits
from slotwise.model.warm import WarmUnits
from slotwise.runtime.kept import KeeperSettings, Kept, start_kept
from slotwise.spark.launch import Command
from slotwise.spark.warm_unit import DRIVER, EXECUTOR, READ_BY_JVM, READ_BY_PYTHON, Commands, Shape, Unit, Waiting

log = structlog.get_logger(__name__)

_LOOK_S = 0.5
_READY_LIMIT_S = 180.0
_RETRY_S = 10.0
_LONGEST_RETRY = 60
_END_GRACE_S = 2.0
_KEPT_SHAPES = 8


@dataclass(frozen=True)
class WarmPolicy:
    """How many units of what. ``drivers`` and ``executors``: so many of each, at most; the shapes used last come first.
    ``quiet_s``: so long after the last start of a slot's process none is begun, and what is under way is halted. None
    is begun with less than ``least_memory_bytes`` free on the machine, nor while more than ``busy_percent`` of its
    processors are in use. With ``quiet_s`` 0 they are begun at once, and however busy it is.
    """

    drivers: int = 1
    executors: int = 1
    quiet_s: float = 3.0
    busy_percent: float = 70.0
    least_memory_bytes: int = 1 * GIB


class WarmPool:
    """The waiting units of one worker, whose slots lie in ``slots`` and which has ``total``. ``commands`` says how to
    start a unit of a shape in a folder; ``first`` are the shapes to have before any was used. ``noted`` is told of each
    keeper that is started (True) and has ended (False).
    """

    def __init__(
        self,
        slots: Path,
        total: ResourceProfile,
        policy: WarmPolicy,
        keepers: KeeperSettings,
        commands: Callable[[Shape, Path], Awaitable[Commands]],
        first: Sequence[Shape],
        noted: Callable[[int, bool], None],
    ) -> None:
        self.units: list[Unit] = []
        self._hits = self._misses = self._failed = 0
        self._slots = slots
        self._total = total
        self._policy = policy
        self._keepers = keepers
        self._commands = commands
        self._shapes: deque[Shape] = deque(first, _KEPT_SHAPES)
        self._noted = noted
        self._used = ZERO
        self._last_start = 0.0
        self._not_before = 0.0
        self._failures = 0
        self._starting: set[Kept] = set()
        self._halted = False
        self._warming: Unit | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to keep units."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def take(self, shape: Shape, command: Command, slot_dir: Path, staged: Collection[str] = ()) -> Unit | None:
        """A unit that can become the process of the slot at ``slot_dir``, a folder with nothing but ``staged`` in it,
        which becomes the unit's; or None. Whether or not, there will be others of this shape.
        """
        self._last_start = time.monotonic()
        self._halt()
        if shape in self._shapes:
            self._shapes.remove(shape)
        self._shapes.append(shape)
        found = self._find(shape.role, command)
        if found is None or not _is_unused(slot_dir, staged):
            self._misses += 1
            return None
        for name in staged:
            with contextlib.suppress(FileNotFoundError):
                (slot_dir / name).rename(found.directory / name)
        slot_dir.rmdir()
        slot_dir.symlink_to(found.directory.name)
        self._hits += 1
        self.units.remove(found)
        return found

    def drop(self, waiting: Waiting) -> None:
        """A process of a unit that was taken is of no use to its slot."""
        self._spawn(self._end_process(waiting.kept))

    def _find(self, role: str, command: Command) -> Unit | None:
        if command.handover is None:
            return None
        for unit in self.units:
            same = unit.shape.role == role and unit.key == command.handover.key
            if same and unit is not self._warming and unit.ready and unit.jvm.fits(command.env):
                return unit
        return None

    def in_use(self, used: ResourceProfile) -> None:
        """The slots' processes now have this much of the worker: units that have no room beside them end."""
        self._used = used
        while self.units and not self._has_room(ZERO):
            # The one that is not ready yet, then the one whose shape was used longest ago.
            ready = {unit.directory: unit.ready for unit in self.units}
            last = min(self.units, key=lambda unit: (ready[unit.directory], self._rank(unit.shape), unit.begun))
            self._discard(last, "its room is needed")

    def report(self) -> WarmUnits:
        """What there is, for people."""
        ready = [unit for unit in self.units if unit is not self._warming]
        return WarmUnits(
            drivers=sum(1 for unit in ready if unit.shape.role == DRIVER),
            executors=sum(1 for unit in ready if unit.shape.role == EXECUTOR),
            warming=len(self.units) - len(ready),
            memory_bytes=sum(unit.memory_bytes for unit in self.units),
            oldest_s=max((time.monotonic() - unit.begun for unit in self.units), default=0.0),
            hits=self._hits,
            misses=self._misses,
            failed=self._failed,
        )

    async def close(self) -> None:
        """End all of them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for unit in list(self.units):
            self._discard(unit, "the worker ends")
        self._end_starting()
        await asyncio.gather(*self._ending, return_exceptions=True)

    # ------------------------------------------------------------------------------------------- keeping

    async def _keep(self) -> None:
        psutil.cpu_percent(None)
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except Exception as error:
                # What waits is a gain, not a condition: nothing else of the worker ends for it.
                log.error("the keeping of warm units failed; it is tried again", exc_info=error)
                self._later()

    async def _look(self) -> None:
        for unit in list(self.units):
            if unit is not self._warming and not unit.ready:
                self._discard(unit, "it has ended")
        now = time.monotonic()
        quiet = now - self._last_start >= self._policy.quiet_s
        if self._warming is not None:
            self._watch(self._warming, quiet)
        elif quiet and now >= self._not_before and (wanted := self._wanted()) and not self._busy():
            await self._provide(wanted)

    def _watch(self, unit: Unit, quiet: bool) -> None:
        """The one that warms up: one at a time, and only while no slot's process starts."""
        if not self._halted:
            unit.worked_s += _LOOK_S
        if self._halted and (quiet or unit.ready):
            unit.signal(signal.SIGCONT)
            self._halted = False
        if unit.ready:
            self._warming = None
            self._failures = 0
            took = time.monotonic() - unit.begun
            log.info("warm unit ready", role=unit.shape.role, seconds=round(took, 1), memory=unit.memory_bytes)
        elif not all(one.kept.alive for one in unit.processes) or unit.worked_s > _READY_LIMIT_S:
            self._failed += 1
            self._discard(unit, f"it did not get ready; {unit.last_words}")
            self._later()

    def _later(self) -> None:
        """Not again at once, and later each time: somebody should look at it."""
        self._failures += 1
        self._not_before = time.monotonic() + _RETRY_S * min(self._failures, _LONGEST_RETRY)

    def _halt(self) -> None:
        if self._warming is not None and not self._halted and self._policy.quiet_s > 0:
            self._warming.signal(signal.SIGSTOP)
            self._halted = True

    def _busy(self) -> bool:
        if self._policy.quiet_s <= 0:
            return False
        percent = psutil.cpu_percent(None)
        return percent > self._policy.busy_percent or (
            psutil.virtual_memory().available < self._policy.least_memory_bytes
        )

    def _wanted(self) -> Counter[Shape]:
        """The units to have, as far as there is room beside the slots: drivers first, which every job needs; of each
        role one of every shape, those used last first, then more of them.
        """
        found: Counter[Shape] = Counter()
        room = self._used
        for role, most in ((DRIVER, self._policy.drivers), (EXECUTOR, self._policy.executors)):
            shapes = [shape for shape in reversed(self._shapes) if shape.role == role]
            left = most
            while left and (fitting := [shape for shape in shapes if fits(room + shape.profile, self._total)]):
                for shape in fitting[:left]:
                    if fits(room + shape.profile, self._total):
                        found[shape] += 1
                        room += shape.profile
                        left -= 1
        return found

    async def _provide(self, wanted: Counter[Shape]) -> None:
        """Begin one that is missing; what is not wanted makes room for it."""
        have = Counter(unit.shape for unit in self.units)
        missing = wanted - have
        if not missing:
            return
        for unit in [unit for unit in self.units if have[unit.shape] > wanted[unit.shape]]:
            if have[unit.shape] > wanted[unit.shape]:
                have[unit.shape] -= 1
                self._discard(unit, "jobs use others now")
        shape = next(iter(missing))
        if self._has_room(shape.profile):
            await self._begin(shape)

    def _has_room(self, more: ResourceProfile) -> bool:
        wanted = sum((unit.shape.profile for unit in self.units), self._used + more)
        return fits(wanted, self._total)

    def _rank(self, shape: Shape) -> int:
        return self._shapes.index(shape) if shape in self._shapes else -1

    # ------------------------------------------------------------------------------------------- one unit

    async def _begin(self, shape: Shape) -> None:
        # A name that no slot's link has, not even one of an earlier process of this worker.
        directory = Path(tempfile.mkdtemp(prefix=".warm-", dir=self._slots))
        try:
            commands = await self._commands(shape, directory)
            jvm = await self._start(commands.jvm, directory, "jvm")
            unit = Unit(shape, commands.key, directory, time.monotonic(), jvm)
            self.units.append(unit)
            self._warming, self._halted = unit, False
            if commands.program is not None:
                unit.program = await self._start(commands.program, directory, "program")
                if unit not in self.units:
                    # Its room was needed meanwhile.
                    self._spawn(self._end(unit))
        except (SlotwiseError, OSError) as error:
            log.warning("a warm unit could not be started", role=shape.role, reason=str(error))
            self._later()
            self._end_starting()
            if self._warming is not None:
                self._discard(self._warming, "its program did not start")
            else:
                shutil.rmtree(directory, ignore_errors=True)

    async def _start(self, command: Command, directory: Path, name: str) -> Waiting:
        folder = directory / f"waiting-{name}"
        folder.mkdir(mode=0o700)
        os.mkfifo(folder / "order", 0o600)
        for file, text in command.files.items():
            path = directory / file
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as made:
                made.write(text)
        is_jvm = name == "jvm"
        output, error = directory / f"{name}.log", directory / f"{name}.{'log' if is_jvm else 'err'}"
        kept = await start_kept(
            (*command.argv, str(folder)),
            name=f"warm-{name}",
            directory=directory,
            settings=self._keepers,
            env=command.env,
            cwd=command.cwd,
            stdout=output,
            stderr=error,
            keep_stdin=is_jvm,
            made=self._made,
        )
        self._starting.discard(kept)
        return Waiting(kept, folder, (output, error), command.env, READ_BY_JVM if is_jvm else READ_BY_PYTHON)

    def _made(self, kept: Kept) -> None:
        self._starting.add(kept)
        self._noted(kept.keeper, True)

    def _end_starting(self) -> None:
        """End what was begun and belongs to no unit yet."""
        while self._starting:
            self._spawn(self._end_process(self._starting.pop()))

    def _discard(self, unit: Unit, why: str) -> None:
        if unit in self.units:
            self.units.remove(unit)
        if unit is self._warming:
            self._warming, self._halted = None, False
        log.info("warm unit ends", role=unit.shape.role, reason=why)
        self._spawn(self._end(unit))

    def _spawn(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, unit: Unit) -> None:
        for one in unit.processes:
            await self._end_process(one.kept)
        await asyncio.to_thread(shutil.rmtree, unit.directory, ignore_errors=True)

    async def _end_process(self, kept: Kept) -> None:
        # It has files outside its folder that it removes in the end. It may be halted.
        kept.signal(signal.SIGCONT)
        await kept.end(_END_GRACE_S)
        self._noted(kept.keeper, False)


def _is_unused(slot_dir: Path, staged: Collection[str]) -> bool:
    """Whether no process has had this slot before; what it has left would be there."""
    return not slot_dir.is_symlink() and all(path.name in staged for path in slot_dir.iterdir())
