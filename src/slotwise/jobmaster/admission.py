"""When a job may start: pure rules over the slots that it holds (FLIP-138; B: A-01, D-11)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from slotwise.jobmaster.slot_pool import HeldSlot
from slotwise.model.job import JobSpec
from slotwise.model.requirements import Counts
from slotwise.protocol.messages import Shortage


class Admission(Enum):
    """NONE: less than the minimum. MINIMUM: the driver and its least number of executors. ALL: what was asked for."""

    NONE = "none"
    MINIMUM = "minimum"
    ALL = "all"


def initial_requirements(spec: JobSpec) -> Counts:
    """What a job declares before it has a driver. The driver's slot is first: without it the others are useless."""
    counts: Counts = {spec.driver.profile: 1}
    if spec.initial_executors:
        counts[spec.executor.profile] = counts.get(spec.executor.profile, 0) + spec.initial_executors
    return counts


def admission(spec: JobSpec, slots: Iterable[HeldSlot]) -> Admission:
    """What the unused ones of ``slots`` allow. Never a driver alone: waiting drivers could block each other."""
    free = [slot.profile for slot in slots if not slot.busy]
    if spec.driver.profile not in free:
        return Admission.NONE
    free.remove(spec.driver.profile)
    executors = free.count(spec.executor.profile)
    if executors < spec.min_executors:
        return Admission.NONE
    return Admission.ALL if executors >= spec.initial_executors else Admission.MINIMUM


def minimum_possible(spec: JobSpec, shortages: Iterable[Shortage]) -> bool:
    """Whether waiting can still bring the minimum, going by the shortages that are final."""
    hopeless = {shortage.profile for shortage in shortages if shortage.final}
    if spec.driver.profile in hopeless:
        return False
    return spec.min_executors == 0 or spec.executor.profile not in hopeless
