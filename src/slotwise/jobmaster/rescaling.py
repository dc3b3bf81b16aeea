"""How many executors a job may use now, and the history of that (FLIP-138; B: A-02, A-03, A-04).

Growing disturbs nobody: an executor that joins is used by the next task, so it is never put off. Taking executors away
moves their blocks and costs time, so after each rescale no bound is lowered until the cool-down is over; what was asked
for meanwhile is taken at its end, and only the last of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slotwise.model.ids import JobId
from slotwise.model.job import ExecutorBounds
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Event

_TIMER = "cool-down"


class RescaleCause(Enum):
    """Flink's trigger causes, and one that only Spark has."""

    INITIAL_SCHEDULE = "INITIAL_SCHEDULE"
    UPDATE_REQUIREMENT = "UPDATE_REQUIREMENT"
    NEW_RESOURCE_AVAILABLE = "NEW_RESOURCE_AVAILABLE"
    RECOVERABLE_FAILOVER = "RECOVERABLE_FAILOVER"
    DYNAMIC_ALLOCATION = "DYNAMIC_ALLOCATION"


@dataclass
class _Open:
    """A rescale under way."""

    goal: int
    began: float


class RescaleHistory:
    """The changes of a job's number of executors, or of one ``region``'s of a pipeline."""

    def __init__(self, job: JobId, region: str | None = None) -> None:
        self._job = job
        self._region = region
        self._parallelism = 0
        self._open: _Open | None = None
        self._cause: RescaleCause | None = RescaleCause.INITIAL_SCHEDULE

    def ask(self) -> None:
        """Somebody has changed the bounds."""
        self._cause = RescaleCause.UPDATE_REQUIREMENT

    def because(self, cause: RescaleCause) -> None:
        """Something has happened that may change the number of executors."""
        self._cause = self._cause or cause

    def start_again(self, cause: RescaleCause) -> None:
        """The application is over, and its executors with it; another one follows."""
        self._parallelism, self._open, self._cause = 0, None, cause

    def take_over(self, running: int) -> None:
        """An earlier leader has brought the job where it is."""
        self._parallelism, self._open, self._cause = running, None, None

    def observe(
        self, launched: int, joined: int, now: float, bounds: ExecutorBounds
    ) -> tuple[list[Event], RescaleCause | None]:
        """``launched``: executors that were started and are meant to stay; ``joined``: those of them that serve the
        driver. Returns the events of rescales that begin and end (the history is made of them), and why one begins.
        """
        events: list[Event] = []
        begun: RescaleCause | None = None
        goal = self._open.goal if self._open is not None else self._parallelism
        if launched != goal:
            if self._open is not None:
                events.append(self._event("rescaled", "SUPERSEDED", joined, now))
                self._parallelism = joined
            more = launched > self._parallelism
            implied = RescaleCause.NEW_RESOURCE_AVAILABLE if more else RescaleCause.RECOVERABLE_FAILOVER
            begun = self._cause or implied
            self._cause = None
            self._open = _Open(launched, now)
            fields: dict[str, str | int | float | None] = {
                "cause": begun.value,
                "from": self._parallelism,
                "to": launched,
                "least": bounds.least,
                "most": bounds.most,
            }
            events.append(Event("rescaling", self._job, fields=self._named(fields)))
        if self._open is not None and joined == self._open.goal:
            events.append(self._event("rescaled", "COMPLETED", joined, now))
            self._parallelism = joined
            self._open = None
        return events, begun

    def _event(self, name: str, state: str, parallelism: int, now: float) -> Event:
        assert self._open is not None
        fields: dict[str, str | int | float | None] = {
            "state": state,
            "parallelism": parallelism,
            "seconds": round(now - self._open.began, 3),
        }
        return Event(name, self._job, fields=self._named(fields))

    def _named(self, fields: dict[str, str | int | float | None]) -> dict[str, str | int | float | None]:
        return fields if self._region is None else {**fields, "region": self._region}


class Rescaling:
    """``bounds`` are those asked for; ``most`` is the upper one in force. Uses the timer ``cool-down``."""

    def __init__(self, job: JobId, bounds: ExecutorBounds, version: int, cool_down_s: float, timers: Timers) -> None:
        self.bounds = bounds
        self.version = version
        self.most = bounds.most
        self._cool_down_s = cool_down_s
        self._timers = timers
        self._cool_until = float("-inf")
        self._history = RescaleHistory(job)

    def ask(self, bounds: ExecutorBounds, version: int) -> bool:
        """Take new bounds; false if they are old ones."""
        if version <= self.version:
            return False
        self.bounds, self.version = bounds, version
        self._history.ask()
        return True

    def apply(self, now: float) -> None:
        """Bring the bound in force as near to the one asked for as the cool-down allows (B: A-03)."""
        wanted = self.bounds.most
        lower = wanted is not None and (self.most is None or wanted < self.most)
        if lower and now < self._cool_until:
            self._timers.set(_TIMER, self._cool_until)
            return
        self._timers.clear(_TIMER)
        self.most = wanted

    def because(self, cause: RescaleCause) -> None:
        """See :class:`RescaleHistory`."""
        self._history.because(cause)

    def start_again(self, cause: RescaleCause) -> None:
        """See :class:`RescaleHistory`."""
        self._history.start_again(cause)

    def take_over(self, running: int) -> None:
        """See :class:`RescaleHistory`."""
        self._history.take_over(running)

    def observe(self, launched: int, joined: int, now: float) -> list[Event]:
        """See :class:`RescaleHistory`. A rescale that somebody wanted, or new resources brought, begins a cool-down."""
        events, begun = self._history.observe(launched, joined, now, ExecutorBounds(self.bounds.least, self.most))
        if begun not in (None, RescaleCause.RECOVERABLE_FAILOVER, RescaleCause.INITIAL_SCHEDULE):
            self._cool_until = now + self._cool_down_s
        return events
