"""Packing a multiset of slot sizes into classes of equal bins, by patterns that repeat (decision 5; B: SM-03, SM-16).

A *pattern* says how many slots of each size go into one bin; a *fill* is a pattern and how many bins are filled alike.
Work is on fills, so that it grows with the number of sizes and of classes, never with the number of slots or of bins.
First-fit is not good enough: a pattern takes the sizes in the proportion in which they are still wanted, so that the
resource that runs out first is used up evenly to the end, and the number of bins stays near :func:`lower_bound`.

Amounts are vectors of integers, one place a resource; shares are compared as exact fractions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

Vector = tuple[int, ...]
Fill = tuple[int, dict[int, int]]
"""(how many bins, how many slots of each size in one of them); sizes are named by their index."""

NEVER = 1 << 80
"""An amount that fits nowhere, for a slot that must not be placed."""

_GOOD_ENOUGH = 1.01
"""A packing this close to the lower bound is taken as it is; otherwise a second one is tried."""

_SCARCE = 0.9
"""Resources of which nearly as much is wanted as of the scarcest, going by their shares, are scarce too."""

_WASTE = 0.01
"""A pattern that leaves this share of a bin's scarce resources unused is worth improving."""

_WORTH_IMPROVING = 16
"""With at least so many bins to fill alike, patterns are improved."""

_EXCHANGES = 4
_TINY = 1e-12


def lower_bound(sizes: Sequence[Vector], demand: Sequence[int], total: Vector) -> int:
    """The least number of bins of ``total`` that any packing needs: the largest sum per resource, rounded up."""
    needed = [sum(count * size[r] for size, count in zip(sizes, demand, strict=True)) for r in range(len(total))]
    return max((-(-need // have) for need, have in zip(needed, total, strict=True) if have), default=0)


def fill(sizes: Sequence[Vector], demand: Sequence[int], free: Vector, at_most: int) -> tuple[list[Fill], list[int]]:
    """Fill up to ``at_most`` bins of ``free`` and return (fills, what is left of ``demand``).

    Stops when nothing that is wanted fits any more. No bin is left with room for something that stays over."""
    first = _fill(sizes, demand, free, at_most, 1)
    if at_most == 1 or len(first[0]) <= 1:
        return first
    live = _live(sizes, demand, free)
    bound = _bins(sizes, demand, free, live)
    cost = _cost(first, sizes, free, live)
    if cost <= bound * _GOOD_ENOUGH + 1:
        return first
    # Repeating each pattern half as often as it could be keeps the rest better mixed, with more patterns.
    second = _fill(sizes, demand, free, at_most, 2)
    return second if _cost(second, sizes, free, live) < cost else first


def _fill(
    sizes: Sequence[Vector], demand: Sequence[int], free: Vector, at_most: int, pace: int
) -> tuple[list[Fill], list[int]]:
    left = list(demand)
    fills: list[Fill] = []
    live = _live(sizes, left, free)
    while at_most and live:
        # The search for a better pattern pays where it is repeated.
        pattern = make_pattern(sizes, left, free, live, improve=at_most >= _WORTH_IMPROVING)
        repeat = min([left[p] // count for p, count in pattern.items()])
        repeat = min(at_most, max(1, repeat // pace))
        for p, count in pattern.items():
            left[p] -= repeat * count
        fills.append((repeat, pattern))
        at_most -= repeat
        live = [p for p in live if left[p]]
    return fills, left


def _live(sizes: Sequence[Vector], demand: Sequence[int], free: Vector) -> list[int]:
    """The sizes that are wanted and fit."""
    if len(free) == 2:
        cpu, memory = free
        return [p for p, size in enumerate(sizes) if demand[p] and size[0] <= cpu and size[1] <= memory]
    return [p for p, size in enumerate(sizes) if demand[p] and within(size, free)]


def within(size: Vector, free: Vector) -> bool:
    """Whether ``size`` fits into ``free``: the same rule as :func:`slotwise.model.resources.fits`."""
    for need, have in zip(size, free, strict=True):  # noqa: SIM110 - this is the innermost loop
        if need > have:
            return False
    return True


def _bins(sizes: Sequence[Vector], demand: Sequence[int], free: Vector, live: Sequence[int]) -> float:
    """How many bins the ``live`` part of the demand needs at least, as a fraction."""
    return max(
        [sum([demand[p] * sizes[p][r] for p in live]) / have for r, have in enumerate(free) if have], default=0.0
    )


def _cost(done: tuple[list[Fill], list[int]], sizes: Sequence[Vector], free: Vector, live: Sequence[int]) -> float:
    """Bins used, and those that what is left will need at least."""
    fills, left = done
    return sum([repeat for repeat, _ in fills]) + _bins(sizes, left, free, live)


def make_pattern(
    sizes: Sequence[Vector], demand: Sequence[int], free: Vector, live: Sequence[int], *, improve: bool = True
) -> dict[int, int]:
    """What one bin of ``free`` takes of the ``live`` sizes, each of which fits and is wanted.

    Steps: 1. the share of the demand that a bin gets when the scarcest resource is used up, rounded down; 2. the sizes
    that the rounding cut most, the large ones first, as far as they fit; 3. whatever else fits, until nothing does;
    4. to ``improve`` it, where scarce resources are left over, exchanges of one slot for another that uses more."""
    dimensions = range(len(free))
    needs = [sum([demand[p] * sizes[p][r] for p in live]) for r in dimensions]
    if within(tuple(needs), free):
        return {p: demand[p] for p in live}
    scarce = 0
    for r in dimensions:
        if needs[r] * free[scarce] > needs[scarce] * free[r]:
            scarce = r
    need, have = needs[scarce], free[scarce]
    left = list(free)
    counts: dict[int, int] = {}
    cut: list[tuple[float, int]] = []
    more: list[tuple[float, int]] = []
    for p in live:
        count, rest = divmod(demand[p] * have, need)
        size = sizes[p]
        if count:
            counts[p] = count
            for r in dimensions:
                left[r] -= count * size[r]
        if demand[p] > count:
            weight = 0.0
            for r in dimensions:
                if size[r]:
                    weight += size[r] / free[r]
            share = rest / need
            cut.append((-share * weight, p))
            more.append(((1 - share) * weight, p))
    cut.sort()
    candidates = [p for _, p in cut]
    while candidates:
        for p in candidates:
            size = sizes[p]
            for r in dimensions:
                if size[r] > left[r]:
                    break
            else:
                counts[p] = counts.get(p, 0) + 1
                for r in dimensions:
                    left[r] -= size[r]
        more = [
            item for item in more if demand[item[1]] > counts.get(item[1], 0) and within(sizes[item[1]], tuple(left))
        ]
        more.sort()
        candidates = [p for _, p in more]
    if not improve:
        return counts
    shares = [need / have if have else 0.0 for need, have in zip(needs, free, strict=True)]
    most = max(shares)
    weights = [
        share / most / have if share >= _SCARCE * most and have else 0.0
        for share, have in zip(shares, free, strict=True)
    ]
    if sum([amount * weight for amount, weight in zip(left, weights, strict=True)]) > _WASTE:
        _exchange(sizes, demand, live, counts, left, weights)
    return counts


def _exchange(
    sizes: Sequence[Vector],
    demand: Sequence[int],
    live: Sequence[int],
    counts: dict[int, int],
    left: list[int],
    weights: Sequence[float],
) -> None:
    """Replace slots of a pattern, one at a time, by others that use more of what is ``left`` by weight; then add what
    fits, so that nothing that does stays over. Changes ``counts`` and ``left``."""
    dimensions = range(len(left))
    worth = {p: sum([sizes[p][r] * weights[r] for r in dimensions]) for p in live}
    by_worth = sorted(live, key=worth.__getitem__, reverse=True)
    for _ in range(_EXCHANGES):
        best = 0.0
        pair = None
        slack = sum([left[r] * weights[r] for r in dimensions]) + _TINY
        spare = [p for p in by_worth if demand[p] > counts.get(p, 0)]
        for old in counts:
            given_back = sizes[old]
            room = tuple([left[r] + given_back[r] for r in dimensions])
            least, most = worth[old] + best + _TINY, worth[old] + slack
            for new in spare:
                if worth[new] <= least:
                    break
                if worth[new] <= most and within(sizes[new], room):
                    best = worth[new] - worth[old]
                    pair = (old, new)
                    break
        if pair is None:
            break
        old, new = pair
        counts[old] -= 1
        if not counts[old]:
            del counts[old]
        counts[new] = counts.get(new, 0) + 1
        for r in dimensions:
            left[r] += sizes[old][r] - sizes[new][r]
    for p in live:
        while demand[p] > counts.get(p, 0) and within(sizes[p], tuple(left)):
            counts[p] = counts.get(p, 0) + 1
            for r in dimensions:
                left[r] -= sizes[p][r]


@dataclass(slots=True)
class Bins:
    """``count`` bins that are alike: number ``start`` and the following of ``source``. ``contents``: what was put into
    each of them, by size. ``total`` is what an empty one holds; ``sizes`` are the sizes' vectors in these bins."""

    source: object
    start: int
    count: int
    total: Vector
    free: Vector
    sizes: Sequence[Vector]
    contents: dict[int, int] = field(default_factory=dict)

    def taking(self, start: int, count: int, pattern: dict[int, int]) -> Bins:
        """``count`` of these bins with ``pattern`` put into each."""
        free = list(self.free)
        contents = self.contents.copy()
        for p, number in pattern.items():
            contents[p] = contents.get(p, 0) + number
            for r, amount in enumerate(self.sizes[p]):
                free[r] -= number * amount
        return Bins(self.source, start, count, self.total, tuple(free), self.sizes, contents)

    def use(self) -> float:
        """The share of the resource that is used most: 0 … 1."""
        return max([1 - have / total for have, total in zip(self.free, self.total, strict=True) if total], default=0.0)


Supply = Callable[[list[int]], Iterator[Bins]]
"""Gives the untouched bins in the order in which they should be used. Those that are below the given amounts in some
resource may be left out; the list may rise while the iterator is read."""


@dataclass(slots=True)
class Packed:
    """What an attempt would lead to; nothing has changed until :meth:`Pool.commit`."""

    parts: list[Bins]
    taken: dict[object, int]
    left: list[int]


class Pool:
    """Bins that are being filled: the untouched ones of a supply, and the parts of it that something was put into."""

    def __init__(self, supply: Supply, *, spread: bool = False) -> None:
        self.parts: list[Bins] = []
        self.full: list[Bins] = []
        self._supply = supply
        self._taken: dict[object, int] = {}
        self._spread = spread

    def filled(self) -> list[Bins]:
        """All bins that something was put into."""
        return self.full + self.parts

    def has_room(self, p: int, least: Vector) -> bool:
        """Whether a slot of size ``p`` fits anywhere. ``least``: its smallest size in any bin."""
        if any(within(part.sizes[p], part.free) for part in self.parts):
            return True
        return any(within(bins.sizes[p], bins.free) for bins in self._untouched(list(least)))

    def attempt(self, demand: list[int], smallest: Sequence[Vector], *, partly: bool = False) -> Packed:
        """Try to place all of ``demand``, or as much as goes when ``partly``: what did not fit is ``left`` over.

        ``smallest``: each size's smallest vector in any bin."""
        if not any(demand):
            return Packed(self.parts, self._taken, demand)
        if self._spread:
            packed = self._attempt_spread(demand, smallest)
            if partly or not any(packed.left):
                return packed
        return self._attempt_pack(demand, smallest)

    def commit(self, packed: Packed, live: Sequence[int]) -> None:
        """Make an attempt real. Parts without room for any of the ``live`` sizes are not looked at again."""
        self._taken = packed.taken
        self.parts = []
        for part in packed.parts:
            usable = any(within(part.sizes[p], part.free) for p in live)
            (self.parts if usable else self.full).append(part)
        self.parts.sort(key=lambda part: (part.free[1], part.free))

    def _untouched(self, least: list[int]) -> Iterator[Bins]:
        for bins in self._supply(least):
            gone = self._taken.get(bins.source, 0)
            if gone < bins.count:
                bins.start += gone
                bins.count -= gone
                yield bins

    def _attempt_pack(self, demand: list[int], smallest: Sequence[Vector]) -> Packed:
        left = demand
        wanted = any(left)
        parts: list[Bins] = []
        for part in self.parts:
            if not wanted:
                parts.append(part)
                continue
            fills, left = fill(part.sizes, left, part.free, part.count)
            start = part.start
            for repeat, pattern in fills:
                parts.append(part.taking(start, repeat, pattern))
                start += repeat
            if start < part.start + part.count:
                rest = part.taking(start, part.start + part.count - start, {})
                parts.append(rest if fills else part)
            wanted = any(left)
        taken = self._taken.copy()
        if wanted:
            least = _least(smallest, left)
            for bins in self._untouched(least):
                fills, left = fill(bins.sizes, left, bins.free, bins.count)
                if not fills:
                    continue
                start = bins.start
                for repeat, pattern in fills:
                    parts.append(bins.taking(start, repeat, pattern))
                    start += repeat
                taken[bins.source] = start
                if not any(left):
                    break
                least[:] = _least(smallest, left)
        return Packed(parts, taken, left)

    def _attempt_spread(self, demand: list[int], smallest: Sequence[Vector]) -> Packed:
        """One slot at a time into each of the least used bins, the largest sizes first."""
        left = demand.copy()
        taken = self._taken.copy()
        queue = [(part.use(), number, part) for number, part in enumerate(self.parts)]
        heapify(queue)
        number = len(queue)
        untouched = self._untouched(_least(smallest, left))
        fresh = next(untouched, None)
        order = sorted((p for p, count in enumerate(left) if count), key=lambda p: (smallest[p][::-1], p), reverse=True)
        for p in order:
            aside = []
            while left[p]:
                if fresh is not None and (not queue or fresh.use() <= queue[0][0]):
                    bins, fresh = fresh, next(untouched, None)
                    use = bins.use()
                elif queue:
                    use, _, bins = heappop(queue)
                else:
                    break
                number += 1
                if not within(bins.sizes[p], bins.free):
                    aside.append((use, number, bins))
                    continue
                count = min(bins.count, left[p])
                left[p] -= count
                fuller = bins.taking(bins.start, count, {p: 1})
                heappush(queue, (fuller.use(), number, fuller))
                if count < bins.count:
                    number += 1
                    rest = bins.taking(bins.start + count, bins.count - count, {})
                    heappush(queue, (use, number, rest))
            for item in aside:
                heappush(queue, item)
        parts = []
        for _, _, bins in sorted(queue):
            if bins.contents:
                parts.append(bins)
                taken[bins.source] = max(taken.get(bins.source, 0), bins.start + bins.count)
        return Packed(parts, taken, left)


def _least(smallest: Sequence[Vector], demand: Sequence[int]) -> list[int]:
    """Per resource, the smallest amount that anything wanted needs: below it, nothing fits."""
    wanted = [size for size, count in zip(smallest, demand, strict=True) if count]
    return [min([size[r] for size in wanted]) for r in range(len(wanted[0]))] if wanted else []
