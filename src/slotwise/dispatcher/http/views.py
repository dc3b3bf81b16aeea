"""What REST clients see: plain values made from the machines, in the shapes of Flink's REST API where it has the thing.

Times are Unix milliseconds, memory is bytes, CPU is cores. What Flink's shapes lack stands beside them under names of
our own."""

from __future__ import annotations

from typing import Any

import msgspec

from slotwise.dispatcher.machine import JobRecord
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.job import UNLIMITED_EXECUTORS, JobState
from slotwise.model.requirements import Requirement, requirements_of
from slotwise.model.resources import ZERO, ResourceProfile
from slotwise.protocol.messages import Shortage
from slotwise.resourcemanager.fleet import Worker
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.runtime.events import JobTimes

# Flink's JobStatus has no names for these two phases; `phase` beside it has ours.
_FLINK_STATE = {JobState.WAITING_FOR_RESOURCES: "CREATED", JobState.DEPLOYING: "INITIALIZING"}

JsonObject = dict[str, Any]


def profile(resources: ResourceProfile) -> JsonObject:
    """Flink's ResourceProfileInfo; the exact integers stand beside it."""
    return {
        "cpuCores": resources.cpu_milli / 1000,
        "taskHeapMemory": resources.memory_bytes,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": dict(resources.extended),
        "cpu_milli": resources.cpu_milli,
        "memory_bytes": resources.memory_bytes,
    }


def worker(entry: Worker, now: float) -> JsonObject:
    """One of Flink's taskmanagers, with its slots."""
    return {
        "id": entry.worker,
        "path": f"te:{entry.worker}",
        "host": entry.host,
        "pid": entry.pid,
        "timeSinceLastHeartbeat": int((now - entry.last_heard) * 1000),
        "slotsNumber": len(entry.slots),
        "freeSlots": 0,
        "assignedTasks": len(entry.slots),
        "totalResource": profile(entry.total),
        "freeResource": profile(entry.free),
        "defaultSlotResource": profile(entry.default_profile),
        "blocked": entry.blocked,
        "leaving": entry.leaving,
        "rss_bytes": entry.rss_bytes,
        "warm": entry.warm,
        "allocatedSlots": [
            {
                "allocation": allocation,
                "jobId": slot.job,
                "resource": profile(slot.profile),
                "pending": slot.pending_since is not None,
            }
            for allocation, slot in entry.slots.items()
        ],
    }


def taskmanagers(manager: ResourceManager, now: float) -> JsonObject:
    """GET /v1/taskmanagers."""
    return {
        "taskmanagers": [worker(entry, now) for entry in manager.slots.workers.values()],
        "pending": [
            {"id": pending.worker, "totalResource": profile(pending.total), "since_s": round(now - pending.since, 3)}
            for pending in manager.slots.pending.values()
        ],
    }


def job_details(record: JobRecord, master: JobMaster | None, times: JobTimes) -> JsonObject:
    """Flink's JobDetails, and what the job has beside."""
    start, ended, last = times.start_unix_s, times.end_unix_s, times.last_unix_s
    until = ended if ended is not None else last
    # An end counts once it is recorded; until then the Dispatcher has not heard of it.
    state = record.state if master is None or record.state.is_final or master.state.is_final else master.state
    details: JsonObject = {
        "jid": record.job,
        "name": record.spec.name,
        "state": _FLINK_STATE.get(state, state.value),
        "phase": state.value,
        "start-time": int(start * 1000),
        "end-time": int(ended * 1000) if ended is not None else -1,
        "duration": int((until - start) * 1000),
        "last-modification": int(last * 1000),
        "jobType": "BATCH",
        "released": record.released,
        "min-executors": record.bounds.least,
        "max-executors": None if record.bounds.most == UNLIMITED_EXECUTORS else record.bounds.most,
        "program": record.spec.program,
        "exit-code": record.result.exit_code if record.result is not None else None,
        "reason": record.result.reason if record.result is not None else "",
        "log-tail": list(record.result.log_tail) if record.result is not None else [],
    }
    if master is not None:
        details |= _running(master)
    return details


def _running(master: JobMaster) -> JsonObject:
    report = master.executors.report
    return {
        "declared": [_requirement(requirement) for requirement in requirements_of(master.pool.required)],
        "held": [
            {
                "allocation": slot.allocation,
                "worker": slot.worker,
                "resource": profile(slot.profile),
                "use": slot.use,
            }
            for slot in master.pool.slots.values()
        ],
        "missing": [shortage(item) for item in master.shortages],
        "driver-starts": master.driver_starts,
        "restarts": master.driver.progress.restart_count,
        "latest-restarts": [
            {"attempt": restart.attempt, "reason": restart.reason} for restart in master.driver.progress.restarts
        ],
        "executors": {
            "wanted": sum(total.count for total in master.executors.wanted(master.rescaling.most)),
            "launched": len(master.executors.live),
            "registered": sum(1 for executor in master.executors.live.values() if executor.registered),
            "launched_in_all": master.executors.next_id - 1,
        },
        "app-id": report.app_id if report is not None else None,
        "spark-ui": report.ui_url if report is not None else None,
        "tasks-done": report.tasks_done if report is not None else 0,
        "stages": [
            {
                "id": stage.stage_id,
                "name": stage.name,
                "tasks": stage.tasks,
                "done": stage.done,
                "running": stage.running,
                "failed": stage.failed,
            }
            for stage in (report.stages if report is not None else ())
        ],
    }


def shortage(item: Shortage) -> JsonObject:
    """A missing requirement with its reason."""
    return {
        "resource": profile(item.profile) if item.profile is not None else None,
        "count": item.count,
        "reason": item.reason.name,
        "detail": item.detail,
    }


def explanation(manager: ResourceManager, record: JobRecord) -> JsonObject:
    """GET /v1/jobs/:jobid/explain."""
    found = manager.explain(record.job)
    ended = record.result is not None
    if record.bounds.most == UNLIMITED_EXECUTORS and found.acquired:
        held = sum(requirement.count for requirement in found.acquired)
        summary = f"it has {held} slot(s), and takes every one that comes"
        found = msgspec.structs.replace(found, required=found.acquired, unmet=())
    else:
        summary = found.summary
    return {
        "jid": record.job,
        "phase": record.state.value,
        "summary": f"the job has ended: {record.result.reason or 'finished'}" if record.result else summary,
        "required": [_requirement(requirement) for requirement in found.required],
        "acquired": [_requirement(requirement) for requirement in found.acquired],
        "pending": found.pending,
        "jobs-ahead": found.ahead,
        "missing": [] if ended else [{**shortage(unmet.shortage), "help": unmet.help} for unmet in found.unmet],
    }


def _requirement(requirement: Requirement) -> JsonObject:
    size = requirement.profile
    return {"resource": profile(size) if size is not None else None, "count": requirement.count}


def resources(manager: ResourceManager) -> JsonObject:
    """GET /v1/resources: the cluster's sums and each job's account."""
    total, free = ZERO, ZERO
    for entry in manager.slots.workers.values():
        total += entry.total
        free += entry.free
    accounts = []
    for account in manager.slots.ledger.in_order():
        accounts.append(
            {
                "job": account.job,
                "required": [_requirement(requirement) for requirement in requirements_of(account.required)],
                "acquired": [_requirement(requirement) for requirement in requirements_of(account.held)],
                "missing": [shortage(item) for item in manager.shortages(account.job)],
            }
        )
    return {
        "workers": len(manager.slots.workers),
        "pending_workers": len(manager.slots.pending),
        "total": profile(total),
        "free": profile(free),
        "used": profile(total - free),
        "jobs": accounts,
    }


def overview(manager: ResourceManager, records: list[JobRecord], version: str) -> JsonObject:
    """GET /v1/overview."""
    states = [record.state for record in records]
    return {
        "taskmanagers": len(manager.slots.workers),
        "slots-total": sum(len(entry.slots) for entry in manager.slots.workers.values()),
        "slots-available": 0,
        "jobs-running": sum(1 for state in states if not state.is_final),
        "jobs-finished": states.count(JobState.FINISHED),
        "jobs-cancelled": states.count(JobState.CANCELED),
        "jobs-failed": states.count(JobState.FAILED),
        "slotwise-version": version,
    }
