"""When a job may start: pure rules over the slots that it holds (FLIP-138; B: A-01, D-11)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from slotwise.jobmaster.slot_pool import HeldSlot
from slotwise.model.job import ExecutorBounds, JobSpec
from slotwise.model.requirements import Counts
from slotwise.protocol.messages import Shortage


class Admission(Enum):
    """NONE: less than the minimum. MINIMUM: the driver and its least number of executors. ALL: what was asked for."""

    NONE = "none"
    MINIMUM = "minimum"
    ALL = "all"


def executors_to_start_with(spec: JobSpec, bounds: ExecutorBounds) -> int:
    """What the job asks for at its start, within the bounds that hold now. A pipeline knows its needs only once its
    driver runs.
    """
    if spec.pipeline is not None:
        return max(1, bounds.least)
    wanted = max(spec.initial_executors, bounds.least)
    return wanted if bounds.most is None else min(wanted, bounds.most)


def initial_requirements(spec: JobSpec, bounds: ExecutorBounds) -> Counts:
    """What a job declares before it has a driver. The driver's slot is first: without it the others are useless."""
    counts: Counts = {spec.driver.profile: 1}
    executors = executors_to_start_with(spec, bounds)
    if executors:
        counts[spec.executor.profile] = counts.get(spec.executor.profile, 0) + executors
    return counts


def admission(spec: JobSpec, bounds: ExecutorBounds, slots: Iterable[HeldSlot]) -> Admission:
    """What the unused ones of ``slots`` allow. Never a driver alone: waiting drivers could block each other. Slots of
    workers that are about to go are none to begin with.
    """
    free = [slot.profile for slot in slots if not (slot.busy or slot.leaving)]
    if spec.driver.profile not in free:
        return Admission.NONE
    free.remove(spec.driver.profile)
    executors = free.count(spec.executor.profile)
    if executors < bounds.least:
        return Admission.NONE
    return Admission.ALL if executors >= executors_to_start_with(spec, bounds) else Admission.MINIMUM


def minimum_possible(spec: JobSpec, bounds: ExecutorBounds, shortages: Iterable[Shortage]) -> bool:
    """Whether waiting can still bring the minimum, going by the shortages that are final."""
    hopeless = {shortage.profile for shortage in shortages if shortage.final}
    if spec.driver.profile in hopeless:
        return False
    return bounds.least == 0 or spec.executor.profile not in hopeless
