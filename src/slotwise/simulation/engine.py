"""Virtual time: a heap of what happens when, the operating-system processes with clocks of their own, and the actors
in them that run a machine each.

A step costs O(log n) in the number of waiting events: an actor has at most one live timer event, and an event that has
been overtaken is recognised when it comes up instead of being searched for. Machines only ever see the monotonic clock
of their own process, so a step of the wall clock changes nothing, by construction (B: F-09)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

from slotwise.model.ids import Address
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import Envelope
from slotwise.simulation.story import Violation

_NEVER = float("inf")
# So many events in so short a time are components that call each other, or themselves, without end.
_CROWD = 8000
_WINDOW_S = 2.0


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


class OsProcess:
    """A process of some host: alive, paused or dead. ``offset_s``: its monotonic clock less virtual time."""

    def __init__(self, name: str, offset_s: float) -> None:
        self.name = name
        self.offset_s = offset_s
        self.alive = True
        self.paused = False
        self.held: list[tuple[Actor, object]] = []
        self.late: list[Actor] = []


class Actor:
    """A machine that runs in a process. ``owner``: what the process is of (a master or a host). ``armed``: the virtual
    time of its live timer event.
    """

    __slots__ = ("address", "alive", "armed", "machine", "owner", "process", "token")

    def __init__(self, address: Address, machine: Machine, process: OsProcess, token: int = 0) -> None:
        self.address = address
        self.machine: Any = machine
        self.process = process
        self.token = token
        self.owner: Any = None
        self.alive = True
        self.armed = _NEVER

    @property
    def name(self) -> str:
        """Who this is, for the log."""
        return f"{self.address}@{self.process.name}#{self.token}" if self.token else f"{self.address}"


class Engine:
    """Runs events in the order of their times, and of their making where those are equal. ``after_step`` gets each
    step's actor, stimulus (None: a timer) and effects.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.before_step: Callable[[Actor, object], Any] = lambda _actor, _stimulus: None
        self.after_step: Callable[[Actor, object, Effects, Any], None] = lambda *_: None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._window = 0.0
        self._crowd = 0

    # ------------------------------------------------------------------------------------------- events

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        """Do something at a virtual time, or now if that is past."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time, self.now), self._sequence, action, args))

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Do something after a while."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, action, args))

    def run(self, until: float) -> None:
        """Let time pass up to ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action, args = heapq.heappop(heap)
            if self.now > self._window:
                self._window, self._crowd = self.now + _WINDOW_S, 0
            self._crowd += 1
            if self._crowd > _CROWD:
                self._complain(args)
            action(*args)
        self.now = until

    def _complain(self, args: tuple[Any, ...]) -> None:
        names = [thing.address for thing in args if isinstance(thing, Actor)]
        for thing in args:
            names += [thing.sender, thing.to] if isinstance(thing, Envelope) else []
        text = f"{_CROWD} events within {_WINDOW_S:g} s at {self.now:.3f}, the last for {', '.join(names) or args}"
        raise Violation("no-endless-talk", text, *names)

    # ------------------------------------------------------------------------------------------- actors

    def start(self, actor: Actor) -> None:
        """Begin to serve an actor's timers."""
        self._arm(actor)

    def post(self, actor: Actor, stimulus: object) -> None:
        """Hand a stimulus to an actor: now, or when its process goes on. A dead one never gets it."""
        process = actor.process
        if not (actor.alive and process.alive):
            return
        if process.paused:
            process.held.append((actor, stimulus))
            return
        before = self.before_step(actor, stimulus)
        effects = actor.machine.handle(stimulus, self.now + process.offset_s)
        self._done(actor, stimulus, effects, before)

    def call(self, actor: Actor, method: Callable[[float], Effects]) -> None:
        """Run a method of the actor's machine that takes the time alone."""
        if actor.alive and actor.process.alive:
            effects = method(self.now + actor.process.offset_s)
            self._done(actor, None, effects, None)

    def pause(self, process: OsProcess) -> None:
        """Stop a process: its clock goes on, its mail and timers wait."""
        process.paused = True

    def resume(self, process: OsProcess) -> None:
        """Let it go on: first the mail that came meanwhile, then the timers that are late."""
        if not process.paused:
            return
        process.paused = False
        held, process.held = process.held, []
        late, process.late = process.late, []
        for actor, stimulus in held:
            self.post(actor, stimulus)
        for actor in late:
            actor.armed = _NEVER
            self._arm(actor)

    def _done(self, actor: Actor, stimulus: object, effects: Effects, before: Any) -> None:
        self.steps += 1
        self.after_step(actor, stimulus, effects, before)
        self._arm(actor)

    def _arm(self, actor: Actor) -> None:
        """See that an event comes up no later than the machine's next timer."""
        if not actor.alive:
            return
        due = actor.machine.next_timer()
        if due is None:
            return
        at = max(due - actor.process.offset_s, self.now)
        if at < actor.armed:
            actor.armed = at
            self._sequence += 1
            heapq.heappush(self._heap, (at, self._sequence, self._fire, (actor, at)))

    def _fire(self, actor: Actor, armed: float) -> None:
        process = actor.process
        if armed != actor.armed or not (actor.alive and process.alive):
            return
        if process.paused:
            process.late.append(actor)
            return
        actor.armed = _NEVER
        due = actor.machine.next_timer()
        if due is None:
            return
        now = self.now + process.offset_s
        # Adding and taking away the offset may lose the last bit; a timer must not come up for ever just before time.
        if due > now + 1e-6:
            self._arm(actor)
            return
        effects = actor.machine.on_timer(max(now, due))
        self._done(actor, None, effects, None)
