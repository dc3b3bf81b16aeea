"""A JobMaster's side of its talk with the ResourceManager (B: D-01, ML-01, SP-05)."""

from __future__ import annotations

from slotwise.jobmaster.slot_pool import SlotPool
from slotwise.model.ids import RESOURCE_MANAGER, JobId, LeaderToken
from slotwise.model.requirements import Counts, requirements_of
from slotwise.model.timers import Timers
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import DeclareRequirements, JobDone, RegisterJobMaster
from slotwise.protocol.outbox import Outbox


class ResourceLink:
    """Registers, declares what ``pool`` requires, and repeats it. Uses the timers ``register`` and ``declare``.

    ``heartbeat_interval_s``: how often the declaration is repeated; ``heartbeat_timeout_s``: silence after which the
    job registers again; ``retry_s`` … ``retry_max_s``: the back-off of registration.
    """

    def __init__(
        self,
        job: JobId,
        pool: SlotPool,
        out: Outbox,
        timers: Timers,
        now: float,
        *,
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
        retry_s: float,
        retry_max_s: float,
    ) -> None:
        self.yields = False
        """Whether the job gives back what it holds when somebody else waits for it."""
        self._job = job
        self._pool = pool
        self._out = out
        self._timers = timers
        self._interval_s = heartbeat_interval_s
        self._timeout_s = heartbeat_timeout_s
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._backoff_s = retry_s
        self._version = 0
        self._registered = False
        self._over = False
        self._heard_at = now

    def heard(self, token: LeaderToken, now: float) -> None:
        """A message of the ResourceManager came; a newer leader must be told all again."""
        self._heard_at = now
        if self._out.learn(RESOURCE_MANAGER, token) and self._registered:
            self.register_again(now)

    def registered(self, now: float, effects: Effects) -> None:
        """The ResourceManager has accepted the registration."""
        self._registered = True
        self._backoff_s = self._retry_s
        self._timers.clear("register")
        self._declare(now, effects)

    def register_again(self, now: float) -> None:
        """The ResourceManager does not know this job (any more)."""
        self._registered = False
        self._timers.set_once("register", now)

    def require(self, counts: Counts, now: float, effects: Effects) -> None:
        """Declare new absolute totals, unless they are the same in the same order."""
        if list(counts.items()) != list(self._pool.required.items()):
            self._pool.required = dict(counts)
            self._version += 1
            self._declare(now, effects)

    def keep(self, now: float, effects: Effects) -> None:
        """The job does not yield any more."""
        self.yields = False
        self._version += 1
        self._declare(now, effects)

    def over(self, now: float, effects: Effects) -> None:
        """The job has ended: nothing is required any more, and nothing is repeated."""
        self.require({}, now, effects)
        if self._registered:
            self._out.send(effects, RESOURCE_MANAGER, JobDone(self._job))
        self._over = True
        self._timers.clear("register")
        self._timers.clear("declare")

    def on_register_due(self, now: float, effects: Effects) -> None:
        """The timer ``register``."""
        if not self._registered and not self._over:
            self._out.send(effects, RESOURCE_MANAGER, RegisterJobMaster(self._job))
            self._timers.set("register", now + self._backoff_s)
            self._backoff_s = min(self._backoff_s * 2, self._retry_max_s)

    def on_declare_due(self, now: float, effects: Effects) -> None:
        """The timer ``declare``: the declaration is the heartbeat."""
        if self._heard_at + self._timeout_s < now:
            self.register_again(now)
        self._declare(now, effects)

    def _declare(self, now: float, effects: Effects) -> None:
        if self._over:
            return
        self._timers.set("declare", now + self._interval_s)
        if self._registered:
            required = requirements_of(self._pool.required)
            message = DeclareRequirements(self._job, self._version, required, self.yields)
            self._out.send(effects, RESOURCE_MANAGER, message)
