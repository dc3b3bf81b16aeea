"""The slots of one worker: the ground truth (FLIP-56; B: ST-01, ST-02, ST-03).

A slot exists from its allocation to its release; there is no free slot, only what is available.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from slotwise.model.ids import Address, AllocationId, JobId
from slotwise.model.process import DriverDirectives, DriverReport, ExecutorIdentity
from slotwise.model.resources import ZERO, ResourceProfile, fits
from slotwise.protocol.messages import JobSlotStatus, ProcessPhase, ProcessStatus, SlotStatus


class SlotState(Enum):
    """OFFERED: made, not accepted yet. ACTIVE: the job's. RELEASING: gone once its process has ended."""

    OFFERED = "offered"
    ACTIVE = "active"
    RELEASING = "releasing"


class Refusal(Exception):
    """The allocation cannot be made; the text says why. Nothing was changed."""


@dataclass
class TableSlot:
    """One slot and what runs in it. ``started``: the names of all processes that were ever deployed into it."""

    allocation: AllocationId
    job: JobId
    profile: ResourceProfile
    job_master: Address
    made_at: float
    state: SlotState = SlotState.OFFERED
    process: ProcessStatus | None = None
    started: set[str] = field(default_factory=set)
    driver: DriverReport | None = None
    directives: DriverDirectives | None = None
    executor: ExecutorIdentity | None = None

    @property
    def busy(self) -> bool:
        """Whether a process is there that has not ended."""
        return self.process is not None and self.process.phase is not ProcessPhase.EXITED


class SlotTable:
    """All slots of a worker of size ``total``."""

    def __init__(self, total: ResourceProfile) -> None:
        self.total = total
        self.available = total
        self.slots: dict[AllocationId, TableSlot] = {}

    def allocate(
        self, allocation: AllocationId, job: JobId, profile: ResourceProfile, job_master: Address, now: float
    ) -> bool:
        """Make a slot. False when it is there already with the same job and profile.

        Raises :class:`Refusal` when the id is taken by another job or profile, or the profile does not fit.
        """
        known = self.slots.get(allocation)
        if known is not None:
            if known.job == job and known.profile == profile:
                return False
            raise Refusal(f"{allocation} is a slot of {known.profile} for {known.job}")
        if not fits(profile, self.available):
            raise Refusal(f"a slot of {profile} does not fit into the {self.available} available")
        self.available -= profile
        self.slots[allocation] = TableSlot(allocation, job, profile, job_master, now)
        return True

    def free(self, allocation: AllocationId) -> TableSlot:
        """Destroy a slot in which nothing runs; its resources are back at once."""
        slot = self.slots[allocation]
        assert not slot.busy, f"{allocation} still runs {slot.process}"
        del self.slots[allocation]
        self.available += slot.profile
        return slot

    def of_job(self, job: JobId) -> list[TableSlot]:
        """The slots of ``job``, oldest first."""
        return [slot for slot in self.slots.values() if slot.job == job]

    def statuses(self) -> tuple[SlotStatus, ...]:
        """All slots, for the ResourceManager."""
        return tuple(SlotStatus(slot.allocation, slot.job, slot.profile) for slot in self.slots.values())

    def job_statuses(self, job: JobId) -> tuple[JobSlotStatus, ...]:
        """The accepted slots of ``job`` with what runs in them, for its JobMaster."""
        return tuple(
            JobSlotStatus(slot.allocation, slot.profile, slot.process, slot.driver, slot.executor)
            for slot in self.of_job(job)
            if slot.state is SlotState.ACTIVE
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless available + slots = total."""
        used = ZERO
        for slot in self.slots.values():
            used += slot.profile
        assert used + self.available == self.total, f"{used} used + {self.available} available of {self.total}"
