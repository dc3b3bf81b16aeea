"""Amounts of resources as integers: CPU in milli-cores, memory in bytes, others by name (design decision 5).

The same type, :class:`ResourceProfile`, is used for the size of a slot, the total of a worker and what is free on it.
:func:`fits` is the project's only notion of 'fits' (decision 6).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from slotwise.model.errors import SizeError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_UNITS = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB, "p": 1024 * 1024 * GIB}
_SIZE = re.compile(r"^\s*(\d+)\s*([kmgtp]?)(?:i?b)?\s*$", re.IGNORECASE)
_CPU = re.compile(r"^\s*(\d+)(?:\.(\d{1,3}))?\s*$")


class ResourceProfile(msgspec.Struct, frozen=True, order=True):
    """An amount of resources.

    ``cpu_milli``: thousandths of a core, ≥ 0. ``memory_bytes``: ≥ 0. ``extended``: (name, amount > 0) pairs in the
    order of their names, for GPUs and the like; build profiles that have them with :meth:`of`.
    Raises :class:`SizeError` for negative amounts or unordered names.
    """

    cpu_milli: int
    memory_bytes: int
    extended: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise SizeError(f"resources cannot be negative: {self.cpu_milli} milli-cores, {self.memory_bytes} bytes")
        if self.extended:
            names = [name for name, _ in self.extended]
            if names != sorted(set(names)) or any(amount <= 0 for _, amount in self.extended):
                raise SizeError(f"extended resources must be named once each, in order, above zero: {self.extended}")

    @classmethod
    def of(cls, cpu_milli: int, memory_bytes: int, extended: Mapping[str, int] | None = None) -> ResourceProfile:
        """A profile from a mapping of extended resources; zero amounts are left out."""
        pairs = tuple(sorted((name, amount) for name, amount in (extended or {}).items() if amount != 0))
        return cls(cpu_milli, memory_bytes, pairs)

    def __add__(self, other: ResourceProfile) -> ResourceProfile:
        extended: Mapping[str, int] | None = None
        if self.extended or other.extended:
            extended = dict(self.extended)
            for name, amount in other.extended:
                extended[name] = extended.get(name, 0) + amount
        return ResourceProfile.of(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes, extended)

    def __sub__(self, other: ResourceProfile) -> ResourceProfile:
        """What is left; raises :class:`SizeError` when ``other`` does not fit."""
        extended: Mapping[str, int] | None = None
        if self.extended or other.extended:
            extended = dict(self.extended)
            for name, amount in other.extended:
                extended[name] = extended.get(name, 0) - amount
        return ResourceProfile.of(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes, extended)

    def __mul__(self, count: int) -> ResourceProfile:
        return ResourceProfile.of(
            self.cpu_milli * count,
            self.memory_bytes * count,
            {name: amount * count for name, amount in self.extended} if self.extended else None,
        )

    @property
    def is_zero(self) -> bool:
        """True when there is nothing of anything."""
        return self.cpu_milli == 0 and self.memory_bytes == 0 and not self.extended

    def __str__(self) -> str:
        parts = [format_cpu(self.cpu_milli), format_bytes(self.memory_bytes)]
        parts += [f"{amount} {name}" for name, amount in self.extended]
        return ", ".join(parts)


ZERO = ResourceProfile(0, 0)


def fits(profile: ResourceProfile, available: ResourceProfile) -> bool:
    """Whether a slot of size ``profile`` can be made out of ``available``."""
    if profile.cpu_milli > available.cpu_milli or profile.memory_bytes > available.memory_bytes:
        return False
    if not profile.extended:
        return True
    there = dict(available.extended)
    return all(there.get(name, 0) >= amount for name, amount in profile.extended)


def times_fitting(profile: ResourceProfile, available: ResourceProfile, limit: int) -> int:
    """How many slots of size ``profile`` can be made out of ``available``: 0 … ``limit``."""
    count = limit
    if profile.cpu_milli:
        count = min(count, available.cpu_milli // profile.cpu_milli)
    if profile.memory_bytes:
        count = min(count, available.memory_bytes // profile.memory_bytes)
    if profile.extended:
        there = dict(available.extended)
        for name, amount in profile.extended:
            count = min(count, there.get(name, 0) // amount)
    return count


def parse_bytes(text: str, what: str, *, default_unit: str = "") -> int:
    """Bytes of a size as Spark writes it: ``512m``, ``4g``, ``1t`` (powers of 1024, case does not matter).

    ``what`` names the setting in the error; ``default_unit`` is taken where the text has none ('m' for Spark's
    memoryOverhead). Raises :class:`SizeError`.
    """
    match = _SIZE.match(text)
    if match is None:
        raise SizeError(f"{what}: {text!r} is not a memory size; write a whole number and a unit, as in 512m or 4g")
    number, unit = int(match.group(1)), match.group(2).lower()
    bare = text.strip()[-1:].isdigit()
    return number * _UNITS[default_unit if bare else unit]


def parse_cpu(text: str, what: str) -> int:
    """Milli-cores of a core number such as ``2`` or ``0.5``. Raises :class:`SizeError`."""
    match = _CPU.match(text)
    if match is None:
        raise SizeError(f"{what}: {text!r} is not a number of cores; write 1, 2 or 0.5 (three decimals at most)")
    return int(match.group(1)) * 1000 + int((match.group(2) or "0").ljust(3, "0"))


def format_bytes(amount: int) -> str:
    """``amount`` bytes for people, exact where it is a whole number of MiB or less."""
    units = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
    size, unit = next(((size, unit) for size, unit in units if amount >= size and amount % size == 0), (1, "B"))
    if size >= MIB or amount < MIB:
        return f"{amount // size} {unit}"
    size, unit = next((size, unit) for size, unit in units if amount >= size)
    return f"{amount / size:.1f} {unit}"


def format_cpu(cpu_milli: int) -> str:
    """``cpu_milli`` for people: '2 CPU', '0.5 CPU'."""
    whole, part = divmod(cpu_milli, 1000)
    return f"{whole} CPU" if part == 0 else f"{whole}.{part:03d}".rstrip("0") + " CPU"
