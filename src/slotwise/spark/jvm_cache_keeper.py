"""When a worker has its machine's cache of loaded classes made: in the background, once it has run Spark and is quiet.

A worker that has run nothing has nothing to gain; while a process of a slot starts, or others want the processor, a
build would be in the way. The builder is a process of its own at the lowest priority (see
:mod:`slotwise.spark.jvm_cache_builder`). It ends with the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from slotwise.model.resources import GIB
from slotwise.runtime.children import signal_group, start_child, wait_exit
from slotwise.spark.jvm_cache_builder import LIMIT_S, Code

log = structlog.get_logger(__name__)

_END_GRACE_S = 5.0


@dataclass(frozen=True)
class KeeperPolicy:
    """When to build. ``quiet_s``: so long no process of a slot was started (0: at once, and however busy the machine);
    ``look_s``: how often is looked; more than ``busy_percent`` of the machine's processor in use, or less than
    ``least_memory_bytes`` available, is no time for it. ``pause_s``: the wait after an attempt that failed for want of
    time or because another process was at it; ``attempts``: so many of this worker's, at most. ``limit_s``: the longest
    that one may take.
    """

    quiet_s: float = 15.0
    look_s: float = 5.0
    busy_percent: float = 60.0
    least_memory_bytes: int = 2 * GIB
    pause_s: float = 60.0
    attempts: int = 3
    limit_s: float = LIMIT_S


def machine_is_busy(policy: KeeperPolicy) -> bool:
    """Whether others need the machine: its processor since the last call, and its memory now."""
    percent = psutil.cpu_percent(None)
    return percent > policy.busy_percent or psutil.virtual_memory().available < policy.least_memory_bytes


class CacheKeeper:
    """Starts builders for the caches in ``root`` when ``wanted()`` (called on a thread) says that one is missing.

    ``argv`` and ``busy`` are what tests replace.
    """

    def __init__(
        self,
        root: Path,
        wanted: Callable[[], bool],
        policy: KeeperPolicy | None = None,
        *,
        argv: tuple[str, ...] | None = None,
        busy: Callable[[KeeperPolicy], bool] = machine_is_busy,
    ) -> None:
        self._policy = policy or KeeperPolicy()
        module = (sys.executable, "-m", "slotwise.spark.jvm_cache_builder", str(root))
        self._argv = argv or (*module, "--limit-s", str(self._policy.limit_s))
        self._wanted = wanted
        self._busy = busy
        self._last_start = 0.0
        self._given_up = False
        self._child: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    def process_started(self, *, cached: bool) -> None:
        """A process of a slot is about to start, from the cache or without one."""
        self._last_start = time.monotonic()
        if not cached and not self._given_up and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(_ended)

    async def close(self) -> None:
        """End the builder, if there is one, and wait until it has cleaned up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        child = self._child
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wait_exit(child), _END_GRACE_S)
            if child.poll() is None:
                signal_group(child.pid, signal.SIGKILL)
            child.wait()

    async def _run(self) -> None:
        attempts = 0
        while attempts < self._policy.attempts:
            await self._quiet()
            if not await asyncio.to_thread(self._wanted):
                return
            code, said = await self._build()
            if code == Code.MADE:
                log.info("JVM cache made", cache=said)
                return
            if code == Code.NOT_WANTED:
                return
            if code == Code.FAILED:
                # The builder has noted it for a day, if it could write at all.
                log.warning("JVM cache could not be made; JVMs start without", reason=said)
                break
            if code == Code.BUSY:
                # That one may die before it is done.
                log.debug("another process makes the JVM cache")
            else:
                attempts += 1
                log.info("JVM cache not made yet", reason=said, attempt=attempts)
            await asyncio.sleep(self._policy.pause_s)
        self._given_up = True

    async def _quiet(self) -> None:
        policy = self._policy
        if policy.quiet_s <= 0:
            return
        self._busy(policy)
        while True:
            await asyncio.sleep(policy.look_s)
            if time.monotonic() - self._last_start >= policy.quiet_s and not self._busy(policy):
                return

    async def _build(self) -> tuple[int, str]:
        """Run a builder to its end; its exit code and last line."""
        with tempfile.TemporaryFile() as output:
            try:
                self._child = start_child(self._argv, env=os.environ, cwd="/", stdout=output, stderr=output)
            except OSError as error:
                return Code.FAILED, f"cannot start a process: {error}"
            log.info("making the JVM cache in the background", pid=self._child.pid)
            code = await wait_exit(self._child)
            output.seek(0)
            lines = output.read().decode("utf-8", "replace").strip().splitlines()
        return code, lines[-1] if lines else f"its builder ended with code {code}"


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        # A cache is a gain, not a condition: nothing else of the worker ends for it.
        log.error("the keeper of the JVM cache failed", exc_info=error)
