"""A unit of what waits on a worker (see :mod:`slotwise.spark.warm_pool`): its processes, and how they are told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from slotwise.model.resources import ResourceProfile
from slotwise.runtime.kept import Kept
from slotwise.spark.jvm_flags import OPTION_VARIABLES
from slotwise.spark.launch import Command

DRIVER = "driver"
EXECUTOR = "executor"

_POLL_S = 0.01
_TAKEN_LIMIT_S = 5.0
# Read when a process starts, or when it imports: too late for one that waits.
_READ_BY_ALL = (
    *("LD_", "TZ", "LANG", "LC_", "MALLOC_", "GLIBC_", "KRB5"),
    # Java changes its own idea of the environment only: native libraries, and what starts other programs by their plain
    # names, see that of the start.
    *("PATH", "CUDA_", "NVIDIA_", "MKL_", "OPENBLAS_", "KMP_", "BLIS_", "VECLIB_"),
)
READ_BY_JVM = (*_READ_BY_ALL, *OPTION_VARIABLES)
READ_BY_PYTHON = (*_READ_BY_ALL, "PYTHON", "NUMEXPR_", "ARROW_", "NPY_", "HOME")


@dataclass(frozen=True)
class Shape:
    """What a unit is for: its role, the heap and the cores of its JVM, and the size of the slot that can take it."""

    role: str
    heap_bytes: int
    cores: int
    profile: ResourceProfile


@dataclass(frozen=True)
class Commands:
    """How a unit is started; ``program`` is its Python, for drivers."""

    jvm: Command
    program: Command | None

    @property
    def key(self) -> tuple[str, ...]:
        """Who can take it (:class:`slotwise.spark.launch.Handover`)."""
        assert self.jvm.handover is not None
        return self.jvm.handover.key


@dataclass
class Waiting:
    """One process of a unit. Its pipe lies in ``folder``; ``outputs`` are the files of its standard output and error.
    It was started with ``env``, of which it has read the variables that begin with ``read`` for good.
    """

    kept: Kept
    folder: Path
    outputs: tuple[Path, Path]
    env: Mapping[str, str] = field(repr=False)
    read: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether it waits for its order."""
        return (self.folder / "ready").exists()

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether it can take this environment, though it was started with another."""
        names = {name for name in (*env, *self.env) if name.startswith(self.read)}
        return all(env.get(name) == self.env.get(name) for name in names)

    async def order(self, order: Mapping[str, object]) -> bool:
        """Have it begin. False if it does not: then it is of no use any more."""
        return await asyncio.to_thread(self._order, json.dumps(order).encode())

    def _order(self, text: bytes) -> bool:
        deadline = time.monotonic() + _TAKEN_LIMIT_S

        def in_time() -> bool:
            time.sleep(_POLL_S)
            return time.monotonic() < deadline and self.kept.alive

        pipe = -1
        try:
            while pipe < 0:
                try:
                    # Without a reader at the other end this fails rather than waits; it may be about to read.
                    pipe = os.open(self.folder / "order", os.O_WRONLY | os.O_NONBLOCK)
                except OSError as error:
                    if error.errno != errno.ENXIO or not in_time():
                        return False
            while text:
                try:
                    text = text[os.write(pipe, text) :]
                except BlockingIOError:
                    if not in_time():
                        return False
        except OSError:
            return False
        finally:
            if pipe >= 0:
                os.close(pipe)
        taken = self.folder / "taken"
        while not taken.exists():
            if not in_time():
                # It may have begun, and even have ended, in the meantime.
                return taken.exists()
        return True


@dataclass
class Unit:
    """A unit in ``directory``. ``begun``: when, by the monotonic clock; ``worked_s``: so long it was getting ready, the
    time left out in which it was halted.
    """

    shape: Shape
    key: tuple[str, ...]
    directory: Path
    begun: float
    jvm: Waiting
    program: Waiting | None = None
    worked_s: float = 0.0

    @property
    def processes(self) -> list[Waiting]:
        """All of its processes."""
        return [self.jvm] if self.program is None else [self.jvm, self.program]

    @property
    def ready(self) -> bool:
        """Whether it can be taken."""
        return all(one.ready and one.kept.alive for one in self.processes)

    @property
    def memory_bytes(self) -> int:
        """What its processes hold."""
        found = 0
        for one in self.processes:
            with contextlib.suppress(psutil.Error):
                found += psutil.Process(one.kept.pid).memory_info().rss
        return found

    @property
    def last_words(self) -> str:
        """The last that it has said."""
        for name in ("program.err", "program.log", "jvm.log"):
            with contextlib.suppress(OSError):
                lines = (self.directory / name).read_text(encoding="utf-8", errors="replace").split("\n")
                if words := [line.strip() for line in lines if line.strip()]:
                    return f"{name}: {words[-1]}"
        return "it said nothing"

    def signal(self, number: int) -> None:
        """Send a signal to its processes, not to their keepers: these must see when the worker is gone."""
        for one in self.processes:
            if one.kept.pid:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(one.kept.pid)
                    # With those that it has for its practice, any of which may end meanwhile.
                    for each in (process, *process.children(recursive=True)):
                        with contextlib.suppress(psutil.Error):
                            each.send_signal(number)
