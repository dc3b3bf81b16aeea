"""GET /v1/slots: all workers with their slots in few bytes, for whoever draws them.

A cluster has thousands of slots of a few sizes and jobs: those are written once, and a slot names them by their
number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from slotwise.dispatcher.machine import JobRecord
from slotwise.model.ids import JobId
from slotwise.model.resources import ResourceProfile
from slotwise.resourcemanager.machine import ResourceManager


class Size(msgspec.Struct, frozen=True):
    """An amount of resources: milli-cores, bytes, and others by name."""

    cpu_milli: int
    memory_bytes: int
    extendedResources: dict[str, int] = {}


class MapJob(msgspec.Struct, frozen=True):
    """A job that has slots."""

    id: str
    name: str


class MapSlot(msgspec.Struct, frozen=True, array_like=True):
    """``job`` and ``profile`` are numbers in the lists of those; ``pending``: its worker has not confirmed it yet."""

    allocation: str
    job: int
    profile: int
    pending: bool


class MapWorker(msgspec.Struct, frozen=True):
    """A worker. ``heartbeat_ms``: how long ago it was heard of."""

    id: str
    host: str
    total: Size
    free: Size
    blocked: bool
    leaving: bool
    rss_bytes: int
    heartbeat_ms: int
    slots: list[MapSlot]


class MapPending(msgspec.Struct, frozen=True):
    """A worker that was asked for ``since_s`` seconds ago and has not come yet."""

    id: str
    total: Size
    since_s: float


class SlotMap(msgspec.Struct, frozen=True):
    """All workers, with the jobs and the sizes that their slots name."""

    jobs: list[MapJob]
    profiles: list[Size]
    workers: list[MapWorker]
    pending: list[MapPending]


def slot_map(manager: ResourceManager, records: Mapping[JobId, JobRecord], now: float) -> SlotMap:
    """The map as the ResourceManager sees it at ``now`` (its own clock, in seconds)."""
    jobs: dict[JobId, int] = {}
    profiles: dict[ResourceProfile, int] = {}
    workers = []
    for entry in manager.slots.workers.values():
        slots = [
            MapSlot(
                allocation,
                jobs.setdefault(slot.job, len(jobs)),
                profiles.setdefault(slot.profile, len(profiles)),
                slot.pending_since is not None,
            )
            for allocation, slot in entry.slots.items()
        ]
        workers.append(
            MapWorker(
                id=entry.worker,
                host=entry.host,
                total=_size(entry.total),
                free=_size(entry.free),
                blocked=entry.blocked,
                leaving=entry.leaving,
                rss_bytes=entry.rss_bytes,
                heartbeat_ms=int((now - entry.last_heard) * 1000),
                slots=slots,
            )
        )
    return SlotMap(
        jobs=[MapJob(job, _name(records.get, job)) for job in jobs],
        profiles=[_size(profile) for profile in profiles],
        workers=workers,
        pending=[
            MapPending(pending.worker, _size(pending.total), round(now - pending.since, 3))
            for pending in manager.slots.pending.values()
        ],
    )


def _size(profile: ResourceProfile) -> Size:
    return Size(profile.cpu_milli, profile.memory_bytes, dict(profile.extended))


def _name(record_of: Callable[[JobId], JobRecord | None], job: JobId) -> str:
    """A slot may be older than what the Dispatcher knows of: it is shown under its job's id."""
    record = record_of(job)
    return record.spec.name if record is not None else job
