"""Requirements as multisets of (profile, count), and the one rule for 'matches' (FLIP-138; B: D-01, D-14, SM-13,
SP-03).

A profile of None stands for 'unknown': such a requirement takes the default slot profile of the worker it lands on.

The order in which a job names its profiles is the order in which it wants them when there is not enough for all: the
driver before the executors, or a job could hold executors only and never start. Mappings keep that order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from slotwise.model.errors import SizeError
from slotwise.model.resources import ResourceProfile

Counts = dict[ResourceProfile | None, int]
"""A multiset of profiles: how many slots of each, in the order in which they are wanted."""


class Requirement(msgspec.Struct, frozen=True):
    """``count`` slots (≥ 1) of size ``profile``; None means the worker's default slot profile."""

    profile: ResourceProfile | None
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SizeError(f"a requirement's count must be at least 1, not {self.count}")


Requirements = tuple[Requirement, ...]


def sort_key(profile: ResourceProfile | None) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    """Unknown last, large before small: the order in which requirements are matched to held slots. Never a hash
    order.
    """
    if profile is None:
        return (1, 0, 0, ())
    return (0, -profile.memory_bytes, -profile.cpu_milli, profile.extended)


def requirements_of(counts: Mapping[ResourceProfile | None, int] | Mapping[ResourceProfile, int]) -> Requirements:
    """The requirements of a multiset, in its order; zero counts vanish. Raises :class:`SizeError` for negative
    counts.
    """
    return tuple(Requirement(profile, count) for profile, count in counts.items() if count)


def counts_of(requirements: Iterable[Requirement]) -> Counts:
    """The multiset of ``requirements``; equal profiles add up."""
    counts: Counts = {}
    for requirement in requirements:
        counts[requirement.profile] = counts.get(requirement.profile, 0) + requirement.count
    return counts


def check_all_or_none_stated(profiles: Iterable[ResourceProfile | None]) -> None:
    """Raise :class:`SizeError` when some of one job's profiles are stated and some are unknown (FLIP-56, 'Unknown
    Resource Requirements': "tasks will either all have specified resource requirements, or all have unknown resource
    requirements"; B: D-14). Otherwise a slot made for a stated profile could be taken by an unknown one.
    """
    stated = unknown = None
    for profile in profiles:
        if profile is None:
            unknown = "default slots"
        else:
            stated = stated or f"slots of {profile}"
        if stated is not None and unknown is not None:
            raise SizeError(
                f"a job must state the resources of all its steps or of none: this one asks for {stated} "
                f"and for {unknown}"
            )


def matches(required: ResourceProfile | None, slot: ResourceProfile) -> bool:
    """Whether a slot of size ``slot`` serves a requirement: the same size, or any size when it is unknown."""
    return required is None or required == slot


def match_slots(
    required: Mapping[ResourceProfile | None, int], held: Mapping[ResourceProfile, int]
) -> tuple[Counts, dict[ResourceProfile, int]]:
    """Match the held slots to the requirements, whatever the order in which they came (B: SP-02, SP-03).

    Exact profiles are served first, then unknown ones from what is left, so that the result depends on the counts
    alone. Returns (missing, surplus) as multisets; the missing ones are in the order of ``required``.
    """
    missing: Counts = {}
    surplus = dict(held)
    for profile in sorted(required, key=sort_key):
        wanted = required[profile]
        for candidate in sorted(surplus, key=sort_key):
            if wanted == 0:
                break
            if matches(profile, candidate):
                taken = min(wanted, surplus[candidate])
                wanted -= taken
                surplus[candidate] -= taken
        if wanted:
            missing[profile] = wanted
    ordered = {profile: missing[profile] for profile in required if profile in missing}
    return ordered, {profile: count for profile, count in surplus.items() if count}
