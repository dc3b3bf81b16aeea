"""Workers as classes of equals, kept up to date with every change (decision 5; B: SM-14, SM-15, SM-16).

Workers with the same total, the same free resources and the same default profile are one class; inside it they stand
in the order of their age. The classes are kept sorted in the order in which a placement mode uses them, in blocks that
know their largest free amounts, so that a reader passes over what has no room. A worker that must get nothing (it is
leaving, or blocked) is not in the index."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, KeysView, Sequence

from slotwise.model.ids import WorkerId
from slotwise.model.resources import ResourceProfile, times_fitting

_BLOCK = 64
_MANY = 1_000_000
_SCALE = 1 << 32

Key = tuple[int | tuple[object, ...], ...]


class PlacementMode(enum.Enum):
    """``PACK``: the fewest workers. ``SPREAD``: even use of all workers."""

    PACK = "pack"
    SPREAD = "spread"


class WorkerClass:
    """Workers that are alike. ``positions``: their ages, the oldest first; never empty inside an index. ``units``: how
    many whole units each of them has free."""

    __slots__ = ("cpu_milli", "default_profile", "free", "key", "memory_bytes", "positions", "total", "units")

    def __init__(
        self, total: ResourceProfile, free: ResourceProfile, default_profile: ResourceProfile, key: Key, units: int = 0
    ) -> None:
        self.total = total
        self.free = free
        self.default_profile = default_profile
        self.key = key
        self.cpu_milli = free.cpu_milli
        self.memory_bytes = free.memory_bytes
        self.positions: list[int] = []
        self.units = units


class _Block:
    """A run of neighbouring classes with the largest amounts that any of them has free."""

    __slots__ = ("classes", "cpu_milli", "keys", "memory_bytes")

    def __init__(self, classes: list[WorkerClass]) -> None:
        self.classes = classes
        self.keys = [entry.key for entry in classes]
        self.measure()

    def measure(self) -> None:
        """Find the largest amounts anew."""
        self.cpu_milli = max(entry.cpu_milli for entry in self.classes)
        self.memory_bytes = max(entry.memory_bytes for entry in self.classes)


class WorkerIndex:
    """Workers that may get slots. Each change costs at most the logarithm of the number of classes and a block.

    ``unit``: a size of slot; ``units`` is how many of it could be made of what the workers have free, each for itself,
    so that small fragments do not count (B: SZ-09).
    """

    def __init__(self, mode: PlacementMode = PlacementMode.PACK, unit: ResourceProfile | None = None) -> None:
        self.mode = mode
        self.unit = unit
        self.units = 0
        self._key = _pack_key if mode is PlacementMode.PACK else _spread_key
        self._classes: dict[tuple[ResourceProfile, ResourceProfile, ResourceProfile], WorkerClass] = {}
        self._entries: dict[WorkerId, tuple[WorkerClass, int]] = {}
        self._by_position: dict[int, WorkerId] = {}
        self._blocks: list[_Block] = []
        self._lows: list[Key] = []
        self._sums: dict[str | int, int] = {0: 0, 1: 0}
        self._defaults: dict[ResourceProfile, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._entries

    def known(self) -> KeysView[WorkerId]:
        """The workers that are in the index."""
        return self._entries.keys()

    def add(
        self,
        worker: WorkerId,
        position: int,
        total: ResourceProfile,
        free: ResourceProfile,
        default_profile: ResourceProfile,
    ) -> None:
        """Take in a worker. ``position``: its age, unlike any other's; lower came first."""
        if worker in self._entries or position in self._by_position:
            raise ValueError(f"{worker} at {position} is in the index already")
        self._by_position[position] = worker
        self._defaults[default_profile] = self._defaults.get(default_profile, 0) + 1
        self._enter(worker, position, total, free, default_profile)

    def update_free(self, worker: WorkerId, free: ResourceProfile) -> None:
        """The worker has this much free now."""
        entry, position = self._entries[worker]
        if free != entry.free:
            self._leave(entry, position)
            self._enter(worker, position, entry.total, free, entry.default_profile)

    def remove(self, worker: WorkerId) -> None:
        """Forget a worker; nothing happens when it is not there."""
        if worker not in self._entries:
            return
        entry, position = self._entries.pop(worker)
        del self._by_position[position]
        _subtract(self._defaults, entry.default_profile)
        self._leave(entry, position)

    def workers(self, entry: WorkerClass, start: int, count: int) -> list[WorkerId]:
        """``count`` workers of a class, from the one at ``start`` in the order of their age."""
        by_position = self._by_position
        return [by_position[position] for position in entry.positions[start : start + count]]

    def free(self, names: Sequence[str] = ()) -> tuple[int, ...]:
        """What is free on all workers together: milli-cores, bytes, and the named resources."""
        sums = self._sums
        return (sums[0], sums[1], *(sums.get(name, 0) for name in names))

    def resource_names(self) -> list[str]:
        """The extended resources that workers here have had, in order."""
        return sorted(name for name in self._sums if isinstance(name, str))

    def default_profiles(self) -> list[ResourceProfile]:
        """The default profiles that workers here have, in order."""
        return sorted(self._defaults)

    def classes(self, least: Sequence[int] = (0, 0)) -> Iterator[WorkerClass]:
        """The classes with at least these milli-cores and bytes free, in the order of the mode. ``least`` may rise
        while they are read; the index must not change.
        """
        for block in self._blocks:
            if block.cpu_milli < least[0] or block.memory_bytes < least[1]:
                continue
            for entry in block.classes:
                if entry.cpu_milli >= least[0] and entry.memory_bytes >= least[1]:
                    yield entry

    def snapshot(self) -> dict[tuple[ResourceProfile, ResourceProfile, ResourceProfile], list[WorkerId]]:
        """All classes with their workers, for checks."""
        return {
            (entry.total, entry.free, entry.default_profile): self.workers(entry, 0, len(entry.positions))
            for entry in self.classes()
        }

    def _enter(
        self,
        worker: WorkerId,
        position: int,
        total: ResourceProfile,
        free: ResourceProfile,
        default_profile: ResourceProfile,
    ) -> None:
        identity = (total, free, default_profile)
        entry = self._classes.get(identity)
        if entry is None:
            units = 0 if self.unit is None else times_fitting(self.unit, free, _MANY)
            entry = WorkerClass(total, free, default_profile, self._key(total, free, default_profile), units)
            for name, _ in total.extended:
                self._sums.setdefault(name, 0)
            self._classes[identity] = entry
            self._insert(entry)
        if not entry.positions or entry.positions[-1] < position:
            entry.positions.append(position)
        else:
            insort(entry.positions, position)
        self._entries[worker] = (entry, position)
        self.units += entry.units
        self._count(free, 1)

    def _leave(self, entry: WorkerClass, position: int) -> None:
        del entry.positions[bisect_left(entry.positions, position)]
        self.units -= entry.units
        self._count(entry.free, -1)
        if not entry.positions:
            del self._classes[(entry.total, entry.free, entry.default_profile)]
            self._delete(entry)

    def _count(self, free: ResourceProfile, sign: int) -> None:
        self._sums[0] += sign * free.cpu_milli
        self._sums[1] += sign * free.memory_bytes
        for name, amount in free.extended:
            self._sums[name] = self._sums.get(name, 0) + sign * amount

    def _insert(self, entry: WorkerClass) -> None:
        if not self._blocks:
            self._blocks.append(_Block([entry]))
            self._lows.append(entry.key)
            return
        number = max(0, bisect_right(self._lows, entry.key) - 1)
        block = self._blocks[number]
        place = bisect_left(block.keys, entry.key)
        block.keys.insert(place, entry.key)
        block.classes.insert(place, entry)
        block.cpu_milli = max(block.cpu_milli, entry.cpu_milli)
        block.memory_bytes = max(block.memory_bytes, entry.memory_bytes)
        if len(block.keys) > 2 * _BLOCK:
            halves = [_Block(block.classes[:_BLOCK]), _Block(block.classes[_BLOCK:])]
            self._blocks[number : number + 1] = halves
            self._lows[number : number + 1] = [half.keys[0] for half in halves]
        elif place == 0:
            self._lows[number] = entry.key

    def _delete(self, entry: WorkerClass) -> None:
        number = bisect_right(self._lows, entry.key) - 1
        block = self._blocks[number]
        place = bisect_left(block.keys, entry.key)
        del block.keys[place], block.classes[place]
        if not block.keys:
            del self._blocks[number], self._lows[number]
            return
        self._lows[number] = block.keys[0]
        if entry.cpu_milli == block.cpu_milli or entry.memory_bytes == block.memory_bytes:
            block.measure()


def _pack_key(total: ResourceProfile, free: ResourceProfile, default_profile: ResourceProfile) -> Key:
    """Workers with something rare free last; those in use before idle ones; the fullest first."""
    return (
        bool(free.extended),
        free == total,
        free.memory_bytes,
        free.cpu_milli,
        free.extended,
        *_tie(total, default_profile),
    )


def _spread_key(total: ResourceProfile, free: ResourceProfile, default_profile: ResourceProfile) -> Key:
    """The least used first, by the resource that is used most."""
    there = dict(free.extended)
    pairs = [(total.cpu_milli, free.cpu_milli), (total.memory_bytes, free.memory_bytes)]
    pairs += [(amount, there.get(name, 0)) for name, amount in total.extended]
    use = max((((amount - left) * _SCALE) // amount for amount, left in pairs if amount), default=0)
    return (use, -free.memory_bytes, -free.cpu_milli, free.extended, *_tie(total, default_profile))


def _tie(total: ResourceProfile, default: ResourceProfile) -> Key:
    return (
        (total.memory_bytes, total.cpu_milli, total.extended),
        (default.memory_bytes, default.cpu_milli, default.extended),
    )


def _subtract(counts: dict[ResourceProfile, int], profile: ResourceProfile) -> None:
    counts[profile] -= 1
    if not counts[profile]:
        del counts[profile]
