"""Requirements as multisets of (profile, count), and the one rule for 'matches' (FLIP-138; B: D-01, SM-13, SP-03).

A profile of None stands for 'unknown': such a requirement takes the default slot profile of the worker it lands on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from slotwise.model.errors import SizeError
from slotwise.model.resources import ResourceProfile

Counts = dict[ResourceProfile | None, int]
"""A multiset of profiles: how many slots of each."""


class Requirement(msgspec.Struct, frozen=True):
    """``count`` slots (≥ 1) of size ``profile``; None means the worker's default slot profile."""

    profile: ResourceProfile | None
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SizeError(f"a requirement's count must be at least 1, not {self.count}")


Requirements = tuple[Requirement, ...]


def sort_key(profile: ResourceProfile | None) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    """Large before small, unknown last: the order in which requirements of one job are served. Never a hash order."""
    if profile is None:
        return (1, 0, 0, ())
    return (0, -profile.memory_bytes, -profile.cpu_milli, profile.extended)


def requirements_of(counts: Mapping[ResourceProfile | None, int] | Mapping[ResourceProfile, int]) -> Requirements:
    """The ordered requirements of a multiset; zero counts vanish. Raises :class:`SizeError` for negative counts."""
    return tuple(Requirement(profile, count) for profile, count in sorted(counts.items(), key=_by_profile) if count)


def _by_profile(item: tuple[ResourceProfile | None, int]) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    return sort_key(item[0])


def counts_of(requirements: Iterable[Requirement]) -> Counts:
    """The multiset of ``requirements``; equal profiles add up."""
    counts: Counts = {}
    for requirement in requirements:
        counts[requirement.profile] = counts.get(requirement.profile, 0) + requirement.count
    return counts


def matches(required: ResourceProfile | None, slot: ResourceProfile) -> bool:
    """Whether a slot of size ``slot`` serves a requirement: the same size, or any size when it is unknown."""
    return required is None or required == slot


def match_slots(
    required: Mapping[ResourceProfile | None, int], held: Mapping[ResourceProfile, int]
) -> tuple[Counts, dict[ResourceProfile, int]]:
    """Match the held slots to the requirements, whatever the order in which they came (B: SP-02, SP-03).

    Exact profiles are served first, then unknown ones from what is left, so that the result depends on the counts
    alone. Returns (missing, surplus) as multisets.
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
    return missing, {profile: count for profile, count in surplus.items() if count}
