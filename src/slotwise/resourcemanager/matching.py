"""Which missing slot goes to which worker: a pure function over counts (FLIP-56; B: D-07, SM-03, SM-04, SM-05, SM-13,
SZ-01).

A plan is made in steps: (1) the jobs first come first; (2) within a job in the order in which it named them; (3)
registered workers, the fullest that still fits first (``pack``); (4) workers that are on their way; (5) workers that
would have to be started. The manager applies the plan; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slotwise.model.ids import JobId, WorkerId
from slotwise.model.requirements import Counts
from slotwise.model.resources import ResourceProfile, fits, times_fitting


@dataclass(frozen=True)
class Need:
    """What a job lacks. Needs are given in the order in which jobs are served."""

    job: JobId
    missing: Counts


@dataclass(frozen=True)
class Room:
    """What is free on a worker, registered or pending. ``position`` is its age: lower came first."""

    worker: WorkerId
    position: int
    free: ResourceProfile
    default_profile: ResourceProfile


@dataclass(frozen=True)
class Template:
    """The worker that the provisioner would start, and how many more of them it may."""

    total: ResourceProfile
    default_profile: ResourceProfile
    at_most: int


@dataclass(frozen=True)
class Assignment:
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


@dataclass
class _Bin:
    worker: WorkerId | None
    position: int
    free: ResourceProfile
    default_profile: ResourceProfile
    registered: bool


def plan(needs: Sequence[Need], workers: Sequence[Room], pending: Sequence[Room], template: Template | None) -> Plan:
    """Serve ``needs`` from ``workers``, then from ``pending``, then from new workers made after ``template``."""
    result = Plan()
    registered = [_Bin(room.worker, room.position, room.free, room.default_profile, True) for room in workers]
    coming = [_Bin(room.worker, room.position, room.free, room.default_profile, False) for room in pending]
    for need in needs:
        for profile in need.missing:
            wanted = _take(result, need.job, profile, need.missing[profile], registered)
            before = wanted
            wanted = _take(result, need.job, profile, wanted, coming)
            while wanted and template is not None and result.new_workers < template.at_most:
                size = template.default_profile if profile is None else profile
                if not fits(size, template.total):
                    break
                fresh = _Bin(None, len(coming), template.total, template.default_profile, False)
                coming.append(fresh)
                result.new_workers += 1
                wanted = _take(result, need.job, profile, wanted, [fresh])
            if before > wanted:
                result.waiting.setdefault(need.job, {})[profile] = before - wanted
            if wanted:
                result.unserved.setdefault(need.job, {})[profile] = wanted
                if template is not None and profile is not None and not fits(profile, template.total):
                    result.too_large.add(profile)
    return result


def _take(result: Plan, job: JobId, profile: ResourceProfile | None, wanted: int, bins: list[_Bin]) -> int:
    """Place up to ``wanted`` slots into ``bins`` and return how many are left over."""
    if not wanted:
        return 0
    # The fullest first keeps whole workers free for large profiles and for being released when idle.
    for room in sorted(bins, key=lambda room: (room.free.memory_bytes, room.free.cpu_milli, room.position)):
        size = room.default_profile if profile is None else profile
        if size.is_zero:
            continue
        count = times_fitting(size, room.free, wanted)
        if not count:
            continue
        room.free -= size * count
        wanted -= count
        if room.worker is not None:
            if room.registered:
                result.assignments.append(Assignment(job, room.worker, size, count))
            else:
                result.on_pending.add(room.worker)
        if not wanted:
            break
    return wanted
