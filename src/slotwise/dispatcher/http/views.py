"""What REST clients see of the cluster: values made from the machines (see :mod:`slotwise.dispatcher.http.shapes`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from slotwise.dispatcher.http import job_shapes, shapes
from slotwise.dispatcher.machine import Dispatcher, JobRecord
from slotwise.model.job import UNLIMITED_EXECUTORS, JobState
from slotwise.model.requirements import Requirement, requirements_of
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.messages import Shortage
from slotwise.resourcemanager.fleet import Worker
from slotwise.resourcemanager.machine import ResourceManager


# A cluster has thousands of slots of a few sizes.
@lru_cache(maxsize=4096)
def profile(resources: ResourceProfile) -> shapes.ResourceInfo:
    """Flink's ResourceProfileInfo; the exact integers stand beside it."""
    return shapes.ResourceInfo(
        cpuCores=resources.cpu_milli / 1000,
        taskHeapMemory=resources.memory_bytes,
        cpu_milli=resources.cpu_milli,
        memory_bytes=resources.memory_bytes,
        extendedResources=dict(resources.extended),
    )


def _common(entry: Worker, now: float) -> dict[str, object]:
    total, memory = entry.total, entry.total.memory_bytes
    return {
        "id": entry.worker,
        "path": f"te:{entry.worker}",
        "host": entry.host,
        "pid": entry.pid,
        "timeSinceLastHeartbeat": int((now - entry.last_heard) * 1000),
        "slotsNumber": len(entry.slots),
        "assignedTasks": len(entry.slots),
        "totalResource": profile(total),
        "freeResource": profile(entry.free),
        "defaultSlotResource": profile(entry.default_profile),
        "hardware": shapes.Hardware(total.cpu_milli // 1000, memory, entry.free.memory_bytes),
        "memoryConfiguration": shapes.MemoryConfiguration(memory, memory, memory),
        "blocked": entry.blocked,
        "leaving": entry.leaving,
        "rss_bytes": entry.rss_bytes,
        "warm": entry.warm,
        "allocatedSlots": [
            shapes.SlotInfo(allocation, slot.job, profile(slot.profile), slot.pending_since is not None)
            for allocation, slot in entry.slots.items()
        ],
    }


def worker(entry: Worker, now: float) -> shapes.WorkerInfo:
    """One of Flink's taskmanagers, with its slots."""
    return shapes.WorkerInfo(**_common(entry, now))  # type: ignore[arg-type]


def worker_details(entry: Worker, now: float) -> shapes.WorkerDetails:
    """GET /v1/taskmanagers/:taskmanagerid."""
    metrics = shapes.WorkerMetrics(heapUsed=entry.rss_bytes, heapCommitted=entry.rss_bytes)
    return shapes.WorkerDetails(**_common(entry, now), metrics=metrics)  # type: ignore[arg-type]


def taskmanagers(manager: ResourceManager, now: float) -> shapes.Workers:
    """GET /v1/taskmanagers."""
    return shapes.Workers(
        taskmanagers=[worker(entry, now) for entry in manager.slots.workers.values()],
        pending=[
            shapes.PendingWorkerInfo(pending.worker, profile(pending.total), round(now - pending.since, 3))
            for pending in manager.slots.pending.values()
        ],
    )


def requirement(one: Requirement) -> shapes.RequirementInfo:
    """So many slots of a size."""
    return shapes.RequirementInfo(profile(one.profile) if one.profile is not None else None, one.count)


def shortage(item: Shortage) -> shapes.ShortageInfo:
    """A missing requirement with its reason."""
    size = profile(item.profile) if item.profile is not None else None
    return shapes.ShortageInfo(size, item.count, item.reason.name, item.detail)


def explanation(manager: ResourceManager, record: JobRecord) -> job_shapes.Explanation:
    """GET /v1/jobs/:jobid/explain."""
    found = manager.explain(record.job)
    if record.bounds.most == UNLIMITED_EXECUTORS and found.acquired:
        held = sum(requirement.count for requirement in found.acquired)
        summary = f"it has {held} slot(s), and takes every one that comes"
        found = msgspec.structs.replace(found, required=found.acquired, unmet=())
    else:
        summary = found.summary
    if record.result is not None:
        summary = f"the job has ended: {record.result.reason or 'finished'}"
        found = msgspec.structs.replace(found, unmet=())
    missing = []
    for unmet in found.unmet:
        said = shortage(unmet.shortage)
        missing.append(shapes.Unmet(said.resource, said.count, said.reason, said.detail, unmet.help))
    return job_shapes.Explanation(
        jid=record.job,
        phase=record.state.value,
        summary=summary,
        required=[requirement(one) for one in found.required],
        acquired=[requirement(one) for one in found.acquired],
        pending=found.pending,
        jobs_ahead=found.ahead,
        missing=missing,
    )


def resources(manager: ResourceManager) -> shapes.Resources:
    """GET /v1/resources: the cluster's sums and each job's account."""
    workers = manager.slots.workers.values()
    total = _sum(entry.total for entry in workers)
    free = _sum(entry.free for entry in workers)
    sizing = manager.config.sizing
    bounded = sizing.worker is not None
    accounts = [
        shapes.Account(
            job=account.job,
            required=[requirement(one) for one in requirements_of(account.required)],
            acquired=[requirement(one) for one in requirements_of(account.held)],
            missing=[shortage(item) for item in manager.shortages(account.job)],
        )
        for account in manager.slots.ledger.in_order()
    ]
    return shapes.Resources(
        workers=len(workers),
        pending_workers=len(manager.slots.pending),
        max_workers=sizing.max_workers if bounded else None,
        minimum=profile(sizing.min_total) if bounded and sizing.min_total is not None else None,
        maximum=profile(sizing.max_total) if bounded and sizing.max_total is not None else None,
        total=profile(total),
        free=profile(free),
        used=profile(total - free),
        jobs=accounts,
    )


def _sum(profiles: Iterable[ResourceProfile]) -> ResourceProfile:
    """The sum, without a profile for each step of it."""
    cpu = memory = 0
    extended: Counter[str] = Counter()
    for size in profiles:
        cpu += size.cpu_milli
        memory += size.memory_bytes
        for name, amount in size.extended:
            extended[name] += amount
    return ResourceProfile.of(cpu, memory, extended)


def overview(manager: ResourceManager, dispatcher: Dispatcher, version: str) -> shapes.Overview:
    """GET /v1/overview."""
    states = Counter(record.state for record in dispatcher.jobs.values())
    warm = dispatcher.warm.entries.values()
    workers = manager.slots.workers.values()
    return shapes.Overview(
        taskmanagers=len(workers),
        taskmanagers_blocked=sum(1 for entry in workers if entry.blocked),
        slots_total=sum(len(entry.slots) for entry in workers),
        jobs_running=sum(count for state, count in states.items() if not state.is_final),
        jobs_finished=states[JobState.FINISHED],
        jobs_cancelled=states[JobState.CANCELED],
        jobs_failed=states[JobState.FAILED],
        slotwise_version=version,
        flink_version=version,
        warm_applications=len(warm),
        warm_applications_waiting=sum(1 for entry in warm if entry.waits and not entry.ending),
    )
