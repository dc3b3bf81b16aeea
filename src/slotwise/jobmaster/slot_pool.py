"""The slots that a job holds (FLIP-6 'SlotPool', FLIP-138; B: SP-01, SP-02, SP-03, SP-04, D-13).

The pool follows the same matching rule as the slot manager (:func:`slotwise.model.requirements.match_slots`). It
works while the ResourceManager is away: what it holds stays usable."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise.model.ids import AllocationId, WorkerId
from slotwise.model.requirements import Counts, match_slots, matches
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.messages import ProcessPhase, ProcessStatus, SlotOffer


@dataclass
class HeldSlot:
    """An accepted slot. ``use`` names the process that is meant to run in it; ``process`` is what its worker last
    said of it. ``confirmed``: a report of the worker has named the slot as the job's. ``idle_since``: when it became
    unused. ``stop_sent`` names the process that its worker was asked to end. ``leaving``: its worker is about to go.
    """

    allocation: AllocationId
    worker: WorkerId
    host: str
    profile: ResourceProfile
    idle_since: float | None
    confirmed: bool = False
    use: str | None = None
    process: ProcessStatus | None = None
    stop_sent: str | None = None
    leaving: bool = False

    @property
    def busy(self) -> bool:
        """Whether something runs or is meant to run in it."""
        return self.use is not None or (self.process is not None and self.process.phase is not ProcessPhase.EXITED)


class SlotPool:
    """All slots of one job. ``required`` is what the job has declared."""

    def __init__(self) -> None:
        self.required: Counts = {}
        self.slots: dict[AllocationId, HeldSlot] = {}

    def held(self) -> dict[ResourceProfile, int]:
        """The held slots as counts."""
        counts: dict[ResourceProfile, int] = {}
        for slot in self.slots.values():
            counts[slot.profile] = counts.get(slot.profile, 0) + 1
        return counts

    def missing(self) -> Counts:
        """What is declared and not held."""
        return match_slots(self.required, self.held())[0]

    def offer(
        self, worker: WorkerId, host: str, offers: tuple[SlotOffer, ...], now: float
    ) -> tuple[tuple[AllocationId, ...], tuple[AllocationId, ...]]:
        """Take what is needed; returns (accepted, rejected). A repeated offer of a held slot is accepted again (B:
        SP-01).
        """
        accepted, rejected = [], []
        for offer in offers:
            if offer.allocation in self.slots:
                accepted.append(offer.allocation)
            elif any(matches(profile, offer.profile) for profile in self.missing()):
                slot = HeldSlot(offer.allocation, worker, host, offer.profile, idle_since=now)
                self.slots[offer.allocation] = slot
                accepted.append(offer.allocation)
            else:
                rejected.append(offer.allocation)
        return tuple(accepted), tuple(rejected)

    def adopt(
        self, worker: WorkerId, host: str, allocation: AllocationId, profile: ResourceProfile, now: float
    ) -> HeldSlot:
        """Hold a slot that an earlier leader of the job held."""
        slot = self.slots[allocation] = HeldSlot(allocation, worker, host, profile, idle_since=now, confirmed=True)
        return slot

    def unused(self, profile: ResourceProfile) -> HeldSlot | None:
        """A confirmed or accepted slot of this size in which nothing runs, or None. The one held longest first."""
        for slot in self.slots.values():
            if slot.profile == profile and not slot.busy and not slot.leaving:
                return slot
        return None

    def mark_idle(self, slot: HeldSlot, now: float) -> None:
        """Nothing is meant to run in the slot any more."""
        slot.use = None
        slot.idle_since = now

    def surplus(self, now: float, idle_timeout_s: float) -> list[HeldSlot]:
        """Unused slots beyond the requirements that have been idle for the time-out: what to give back (B: D-13,
        A-04).
        """
        return [slot for slot, since in self._excess() if since + idle_timeout_s <= now]

    def next_surplus(self, idle_timeout_s: float) -> float | None:
        """When :meth:`surplus` may next have something, or None."""
        return min((since + idle_timeout_s for _, since in self._excess()), default=None)

    def _excess(self) -> list[tuple[HeldSlot, float]]:
        """Unused slots beyond the requirements, the one held for the shortest time first, and since when they are
        idle.
        """
        excess = match_slots(self.required, self.held())[1]
        found = []
        for slot in reversed(list(self.slots.values())) if excess else ():
            if excess.get(slot.profile, 0) and not slot.busy and slot.idle_since is not None:
                found.append((slot, slot.idle_since))
                excess[slot.profile] -= 1
        return found

    def on_worker(self, worker: WorkerId) -> list[HeldSlot]:
        """The slots on ``worker``."""
        return [slot for slot in self.slots.values() if slot.worker == worker]

    def remove(self, allocation: AllocationId) -> HeldSlot | None:
        """The slot is no longer the job's."""
        return self.slots.pop(allocation, None)
