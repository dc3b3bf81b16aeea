"""Which missing slot goes to which worker: a pure function over counts (FLIP-56; B: D-07, SM-03, SM-04, SM-05, SM-13,
SM-16, SZ-01).

A plan is made in steps: (1) what is free on registered workers is given out, first come first served; (2) what is
still missing is laid out on workers that are on their way; (3) only what finds no room there is laid out on workers
that would have to be started, in the same order. The counts are then written out as assignments. The manager applies
the plan; nothing here changes anything.

Giving out is by :class:`_Service`: it looks for as many jobs from the head of the queue as fit completely when they
are packed together, and packs them together; it serves the next job as far as it goes, profile by profile in the
order in which the job named them; it goes on with the jobs behind it, with what is left. So a job never gets anything
that one before it lacks and could have used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import overload

import msgspec

from slotwise.model.ids import JobId, WorkerId
from slotwise.model.requirements import Counts
from slotwise.model.resources import ResourceProfile, fits
from slotwise.resourcemanager.packing import NEVER, Bins, Packed, Pool, Vector
from slotwise.resourcemanager.worker_index import PlacementMode, WorkerClass, WorkerIndex


class Need(msgspec.Struct, frozen=True, gc=False):
    """What a job lacks, every count at least 1. Needs are given in the order in which jobs are served."""

    job: JobId
    missing: Counts


@dataclass(frozen=True)
class Template:
    """The worker that the provisioner would start, and how many more of them it may."""

    total: ResourceProfile
    default_profile: ResourceProfile
    at_most: int


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """``count`` slots of ``profile`` for ``job`` on ``worker``."""

    job: JobId
    worker: WorkerId
    profile: ResourceProfile
    count: int


@dataclass
class Plan:
    """``assignments``: on registered workers. ``on_pending``: the workers on their way that something is planned on.
    ``new_workers``: how many more to ask for. ``waiting``: per job what will be served once workers come.
    ``unserved``: per job what no worker may be asked for. ``too_large``: the profiles that would not fit even an
    empty new worker.
    """

    assignments: list[Assignment] = field(default_factory=list)
    on_pending: set[WorkerId] = field(default_factory=set)
    new_workers: int = 0
    waiting: dict[JobId, Counts] = field(default_factory=dict)
    unserved: dict[JobId, Counts] = field(default_factory=dict)
    too_large: set[ResourceProfile] = field(default_factory=set)


_Want = list[tuple[int, int]]
"""What one job wants: (number of the profile, count), in the job's order."""


def plan(
    needs: Sequence[Need],
    registered: WorkerIndex,
    pending: WorkerIndex,
    template: Template | None,
) -> Plan:
    """Serve ``needs`` from ``registered``, then from ``pending``, then from new workers made after ``template``.

    ``registered`` is used in the order of its own mode; workers that are not there yet are always packed, so that few
    are asked for. Nothing depends on hashes. A job that gets nothing has its own mapping in ``Plan.unserved``: such
    jobs, of which a full cluster may have many, cost next to nothing."""
    result = Plan()
    profiles = list(dict.fromkeys(chain.from_iterable(need.missing for need in needs)))
    if not profiles:
        return result
    wants = _Wants(needs, {profile: number for number, profile in enumerate(profiles)})
    service = _Service(_Yard(profiles, registered, None), wants, range(len(profiles)))
    given = service.serve()
    result.assignments = _write_out(service, registered, needs, profiles, given)

    planned: dict[int, dict[int, int]] = {}
    left: list[_Want] = []
    more = template is not None and template.at_most > 0
    if len(pending) or more:
        left = [_minus(wants[position], given.get(position, [])) for position in range(len(wants))]
    if len(pending) and any(left):
        service = _Service(_Yard(profiles, pending, None), left, _numbers(left))
        left = _promise(planned, left, service.serve())
        filled = service.pool.filled()
        if sum(bins.count for bins in filled) == len(pending):
            # Nearly always: none is asked for before those that are coming are full.
            result.on_pending = set(pending.known())
        else:
            for bins in filled:
                assert isinstance(bins.source, WorkerClass)
                result.on_pending.update(pending.workers(bins.source, bins.start, bins.count))
    if more and any(left):
        service = _Service(_Yard(profiles, WorkerIndex(), template), left, _numbers(left))
        left = _promise(planned, left, service.serve())
        result.new_workers = sum(bins.count for bins in service.pool.filled())

    for position, need in enumerate(needs):
        got, promised = given.get(position, ()), planned.get(position)
        if not got and promised is None:
            result.unserved[need.job] = need.missing
            continue
        if promised is not None:
            result.waiting[need.job] = {
                profiles[number]: promised[number] for number, _ in wants[position] if number in promised
            }
        lacking = _minus(wants[position], [*got, *(promised or {}).items()])
        if lacking:
            result.unserved[need.job] = {profiles[number]: count for number, count in lacking}
    if template is not None:
        lacked = dict.fromkeys(chain.from_iterable(result.unserved.values()))
        result.too_large = {profile for profile in lacked if profile is not None and not fits(profile, template.total)}
    return result


class _Wants(Sequence[_Want]):
    """What each job wants, by the numbers of the profiles; worked out when it is looked at."""

    def __init__(self, needs: Sequence[Need], numbers: Mapping[ResourceProfile | None, int]) -> None:
        self._needs = needs
        self._numbers = numbers
        self._known: list[_Want | None] = [None] * len(needs)

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, position: int) -> _Want: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[_Want]: ...

    def __getitem__(self, position: int | slice) -> _Want | Sequence[_Want]:
        if isinstance(position, slice):
            return [self[one] for one in range(*position.indices(len(self)))]
        known = self._known[position]
        if known is None:
            numbers = self._numbers
            known = [(numbers[profile], count) for profile, count in self._needs[position].missing.items()]
            self._known[position] = known
        return known


def _numbers(wants: Sequence[_Want]) -> list[int]:
    """The profiles that somebody wants."""
    return sorted({number for want in wants for number, _ in want})


def _promise(planned: dict[int, dict[int, int]], wants: list[_Want], given: dict[int, _Want]) -> list[_Want]:
    """Add what was given to what is planned for each job; returns what is still wanted."""
    for position, got in given.items():
        if got:
            promised = planned.setdefault(position, {})
            for number, count in got:
                promised[number] = promised.get(number, 0) + count
    return [_minus(want, given.get(position, [])) for position, want in enumerate(wants)]


_COUNTED_CLASSES = 64
_SEARCHES = 8


class _Yard:
    """Workers as bins, with vectors of what is asked: the classes of an index, and workers that may be started."""

    def __init__(self, profiles: Sequence[ResourceProfile | None], index: WorkerIndex, template: Template | None):
        self._index = index
        self._template = template if template is not None and template.at_most > 0 else None
        self._profiles = profiles
        defaults = []
        if None in profiles:
            defaults = index.default_profiles()
            if self._template is not None:
                defaults.append(self._template.default_profile)
        asked = [*(profile for profile in profiles if profile is not None), *defaults]
        names = {name for profile in asked for name, _ in profile.extended}
        if index.mode is PlacementMode.SPREAD:
            names.update(index.resource_names())
        self._names = sorted(names)
        self._never = (NEVER,) * (2 + len(self._names))
        self._sizes: dict[ResourceProfile, list[Vector]] = {}
        self._known = [self._size(profile) for profile in profiles]
        of_default = [self._size(profile) for profile in defaults]
        least = tuple(min(amounts) for amounts in zip(*of_default, strict=True)) if of_default else self._never
        self.smallest = [least if profile is None else self._known[p] for p, profile in enumerate(profiles)]
        """Each profile's smallest size on any worker here."""

    def pool(self) -> Pool:
        """The bins, all untouched."""
        return Pool(self._supply, spread=self._index.mode is PlacementMode.SPREAD)

    def capacity(self, least: Sequence[int]) -> list[int]:
        """At least what is free on workers that have ``least`` of everything: exact when they are of few classes."""
        free = [0] * (2 + len(self._names))
        for number, entry in enumerate(self._index.classes(least)):
            if number == _COUNTED_CLASSES:
                free = list(self._index.free(self._names))
                break
            for r, amount in enumerate(self._vector(entry.free)):
                free[r] += amount * len(entry.positions)
        if self._template is not None:
            total = self._vector(self._template.total)
            free = [amount + self._template.at_most * each for amount, each in zip(free, total, strict=True)]
        return free

    def _supply(self, least: list[int]) -> Iterator[Bins]:
        plain = not self._names
        for entry in self._index.classes(least):
            free = (entry.cpu_milli, entry.memory_bytes) if plain else self._vector(entry.free)
            yield Bins(
                entry,
                0,
                len(entry.positions),
                self._vector(entry.total),
                free,
                self._sizes_on(entry.default_profile),
            )
        template = self._template
        if template is not None:
            total = self._vector(template.total)
            yield Bins(template, 0, template.at_most, total, total, self._sizes_on(template.default_profile))

    def _sizes_on(self, default_profile: ResourceProfile) -> list[Vector]:
        """The size of each profile on a worker with this default profile (B: SM-04)."""
        sizes = self._sizes.get(default_profile)
        if sizes is None:
            sizes = self._known
            if None in self._profiles:
                default = self._size(default_profile)
                sizes = [
                    default if profile is None else size
                    for profile, size in zip(self._profiles, self._known, strict=True)
                ]
            self._sizes[default_profile] = sizes
        return sizes

    def _size(self, profile: ResourceProfile | None) -> Vector:
        """The vector of a slot; one of nothing is never made."""
        return self._never if profile is None or profile.is_zero else self._vector(profile)

    def _vector(self, profile: ResourceProfile) -> Vector:
        if not self._names:
            return (profile.cpu_milli, profile.memory_bytes)
        there = dict(profile.extended)
        return (profile.cpu_milli, profile.memory_bytes, *(there.get(name, 0) for name in self._names))


class _Service:
    """Gives out a pool, first come first served."""

    def __init__(self, yard: _Yard, wants: Sequence[_Want], asked: Iterable[int]) -> None:
        self.pool = yard.pool()
        self._smallest = yard.smallest
        self._wants = wants
        self._given: dict[int, _Want] = {}
        self._opened: dict[int, _Want] = {}
        self._live = [number for number in asked if self.pool.has_room(number, self._smallest[number])]
        live = [self._smallest[number] for number in self._live]
        self._capacity = yard.capacity([min(amounts) for amounts in zip(*live, strict=True)]) if live else []

    def serve(self) -> dict[int, _Want]:
        """What each job gets, by its place in the queue. Once a size fits nowhere it never fits again, and is not
        looked at any more.
        """
        first = 0
        searches = 0
        while first < len(self._wants) and self._live:
            if searches < _SEARCHES:
                searches += 1
                first = self._serve_together(first)
            live = len(self._live)
            while first < len(self._wants) and len(self._live) == live:
                self._serve_one(first)
                first += 1
        return self._given

    def _serve_together(self, first: int) -> int:
        """Serve the most jobs from ``first`` on that fit completely when packed together; returns the next one.

        The sums of what is asked and what is free bound their number, and packing is tried there. What an attempt with
        too many leaves over says where to try next; from there on the steps grow until some fit and one more do not."""
        demand, last = self._bounded(first)
        fits, tried, fails = first, last, last + 1
        best: tuple[list[int], Packed] | None = None
        step = 1
        while fits < tried < fails:
            packed = self.pool.attempt(demand, self._smallest)
            if not any(packed.left):
                fits, best = tried, (demand, packed)
                tried = min(fits + step, fails - 1)
                step *= 2
            elif best is not None:
                fails = tried
                tried = (fits + fails) // 2
            elif tried == last:
                fails = tried
                guess = first + int((tried - first) * self._placed(demand, packed.left))
                tried = max(fits + 1, min(guess, fails - 1))
            else:
                fails = tried
                tried = max(fits + 1, tried - step)
                step *= 2
            if fits < tried < fails:
                demand = self._sum(first, tried)
        return first if best is None else self._take(first, fits, *best)

    def _placed(self, demand: list[int], left: list[int]) -> float:
        """The share of a demand that was placed, going by the resource of which the most is left over."""
        shares = [1.0]
        for r in range(len(self._capacity)):
            asked = sum([count * size[r] for count, size in zip(demand, self._smallest, strict=True) if count])
            over = sum([count * size[r] for count, size in zip(left, self._smallest, strict=True) if count])
            if asked:
                shares.append(1 - over / asked)
        return min(shares)

    def _bounded(self, first: int) -> tuple[list[int], int]:
        """The demand of the jobs from ``first`` up to, not including, the first one that exceeds what is free."""
        demand = [0] * len(self._smallest)
        left = self._capacity.copy()
        dimensions = range(len(left))
        for position in range(first, len(self._wants)):
            want = self._open(position)
            if not want:
                continue
            for number, count in want:
                size = self._smallest[number]
                for r in dimensions:
                    left[r] -= count * size[r]
            if min(left) < 0:
                return demand, position
            for number, count in want:
                demand[number] += count
        return demand, len(self._wants)

    def _take(self, first: int, last: int, demand: list[int], packed: Packed) -> int:
        self._commit(demand, packed)
        for position in range(first, last):
            if want := self._open(position):
                self._given[position] = want
        return last

    def _serve_one(self, position: int) -> None:
        """Serve one job as far as it goes, in the order in which it names its profiles."""
        given: _Want = []
        for number, count in self._wants[position]:
            if number not in self._live:
                continue
            demand = [0] * len(self._smallest)
            demand[number] = count
            packed = self.pool.attempt(demand, self._smallest, partly=True)
            placed = count - packed.left[number]
            if placed < count:
                self._live.remove(number)
                self._opened.clear()
            if placed:
                given.append((number, placed))
                demand[number] = placed
                self._commit(demand, packed)
        self._given[position] = given

    def _commit(self, demand: list[int], packed: Packed) -> None:
        self.pool.commit(packed, self._live)
        for number, count in enumerate(demand):
            if count:
                for r, amount in enumerate(self._smallest[number]):
                    self._capacity[r] -= count * amount

    def _open(self, position: int) -> _Want:
        """What a job wants of sizes that still fit somewhere; kept until one of them fits nowhere any more."""
        found = self._opened.get(position)
        if found is None:
            want, live = self._wants[position], self._live
            still = [item for item in want if item[0] in live]
            found = self._opened[position] = want if len(still) == len(want) else still
        return found

    def _sum(self, first: int, last: int) -> list[int]:
        demand = [0] * len(self._smallest)
        for position in range(first, last):
            for number, count in self._open(position):
                demand[number] += count
        return demand


def _minus(want: _Want, got: _Want) -> _Want:
    """What of ``want`` is not in ``got``."""
    if got is want:
        return []
    if not got:
        return want
    served: dict[int, int] = {}
    for number, count in got:
        served[number] = served.get(number, 0) + count
    return [(number, count - served.get(number, 0)) for number, count in want if count > served.get(number, 0)]


def _write_out(
    service: _Service,
    index: WorkerIndex,
    needs: Sequence[Need],
    profiles: Sequence[ResourceProfile | None],
    given: Mapping[int, _Want],
) -> list[Assignment]:
    """Counts as assignments: slots of one profile are alike, so each worker's go to the first job that is owed any."""
    owed: list[list[tuple[JobId, int]]] = [[] for _ in profiles]
    for position in sorted(given):
        for number, count in given[position]:
            owed[number].append((needs[position].job, count))
    for queue in owed:
        queue.reverse()
    written: list[Assignment] = []
    for bins in service.pool.filled():
        entry = bins.source
        assert isinstance(entry, WorkerClass)
        workers = index.workers(entry, bins.start, bins.count)
        for number, each in bins.contents.items():
            profile = profiles[number] or entry.default_profile
            queue = owed[number]
            at = 0
            while at < len(workers):
                job, count = queue.pop()
                whole = count // each
                if whole:
                    chosen = workers[at : at + whole]
                    written += [Assignment(job, worker, profile, each) for worker in chosen]
                    at += len(chosen)
                    count -= each * len(chosen)
                    if count:
                        queue.append((job, count))
                    continue
                # The job's last few do not fill this worker's share: it is split among several jobs.
                worker, share = workers[at], each
                while True:
                    part = min(share, count)
                    written.append(Assignment(job, worker, profile, part))
                    share -= part
                    if count > part:
                        queue.append((job, count - part))
                    if not share:
                        break
                    job, count = queue.pop()
                at += 1
    return written
