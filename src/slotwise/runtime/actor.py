"""Runs one machine: a mailbox, its timer, and somebody who carries its effects out.

The loop is single-threaded: stimuli are handled one at a time, in the order they came. A machine that raises is a
bug; it is logged with its traceback and handed to ``on_crash``, never swallowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from slotwise.protocol.effects import Effects
from slotwise.runtime.clock import monotonic
from slotwise.runtime.log_context import handling

log = structlog.get_logger(__name__)


class Machine(Protocol):
    """What all component machines have in common (design decision 1)."""

    def handle(self, stimulus: Any, now: float) -> Effects:
        """Take a stimulus."""
        ...

    def on_timer(self, now: float) -> Effects:
        """Do what is due."""
        ...

    def next_timer(self) -> float | None:
        """When to call :meth:`on_timer`."""
        ...


class Actor:
    """Owns ``machine``. ``carry_out`` gets every Effects it returns; ``on_crash`` is told of an exception; ``on_step``
    of the seconds that each step of the machine has taken, before its effects are carried out.
    """

    def __init__(
        self,
        name: str,
        machine: Machine,
        carry_out: Callable[[Effects], None],
        on_crash: Callable[[str, BaseException], None],
        on_step: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self.machine = machine
        self._carry_out = carry_out
        self._on_crash = on_crash
        self._on_step = on_step
        self._mailbox: deque[object] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many stimuli are in the mailbox."""
        return len(self._mailbox)

    def start(self) -> None:
        """Begin to handle what is in the mailbox."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"actor {self.name}")

    def post(self, stimulus: object) -> None:
        """Add a stimulus to the mailbox."""
        self._mailbox.append(stimulus)
        self._wake.set()

    def call(self, do: Callable[[float], Effects]) -> None:
        """Run a method of the machine that is not ``handle``, in turn with the rest."""
        self.post(do)

    async def stop(self) -> None:
        """End without handling what is left."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        try:
            while True:
                while self._mailbox:
                    stimulus = self._mailbox.popleft()
                    now = monotonic()
                    handling(stimulus)
                    effects = stimulus(now) if callable(stimulus) else self.machine.handle(stimulus, now)
                    self._after(effects, now)
                self._wake.clear()
                now = monotonic()
                due = self.machine.next_timer()
                handling(None)
                if due is not None and due <= now:
                    self._after(self.machine.on_timer(now), now)
                    await asyncio.sleep(0)
                    continue
                await self._sleep(None if due is None else due - now)
        except Exception as error:
            # Told first: logging can fail as well, on a full disk for one.
            self._on_crash(self.name, error)
            log.exception("machine failed", actor=self.name)

    def _after(self, effects: Effects, began: float) -> None:
        if self._on_step is not None:
            self._on_step(monotonic() - began)
        self._carry_out(effects)

    async def _sleep(self, limit_s: float | None) -> None:
        """Until somebody posts, for ``limit_s`` at most. Not ``wait_for``: before Python 3.12 it loses a cancellation
        that comes together with a stimulus, and :meth:`stop` would wait for ever.
        """
        alarm = None if limit_s is None else asyncio.get_running_loop().call_later(limit_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
