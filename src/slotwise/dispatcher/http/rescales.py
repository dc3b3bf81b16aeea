"""How many executors a job may have and has had, in the shapes of Flink's REST API (B: A-02).

Flink bounds the parallelism of each vertex. An application is one: what Spark runs in it is not known before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from slotwise.dispatcher.machine import JobRecord
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.errors import SizeError
from slotwise.model.job import ExecutorBounds
from slotwise.runtime.events import Happened

VERTEX = "application"
_UNBOUNDED = 2**31 - 1
_NOT_NEGATIVE = Annotated[int, msgspec.Meta(ge=0, le=_UNBOUNDED)]


class _Parallelism(msgspec.Struct, forbid_unknown_fields=True):
    lowerBound: _NOT_NEGATIVE
    upperBound: _NOT_NEGATIVE


class _Vertex(msgspec.Struct, forbid_unknown_fields=True):
    parallelism: _Parallelism


class _Requirements(msgspec.Struct, forbid_unknown_fields=True):
    jobVertexResourceRequirements: dict[str, _Vertex]


def requirements(record: JobRecord) -> dict[str, Any]:
    """GET /v1/jobs/:jobid/resource-requirements. An upper bound of 2,147,483,647 is none."""
    most = record.bounds.most
    bounds = {"lowerBound": record.bounds.least, "upperBound": _UNBOUNDED if most is None else most}
    return {"jobVertexResourceRequirements": {VERTEX: {"parallelism": bounds}}}


def parse_requirements(body: bytes) -> ExecutorBounds:
    """The bounds in the body of a PUT. Raises :class:`SizeError` with what is wrong."""
    try:
        found = msgspec.json.decode(body, type=_Requirements).jobVertexResourceRequirements
    except msgspec.DecodeError as error:
        raise SizeError(f"not resource requirements: {error}") from error
    if list(found) != [VERTEX]:
        names = ", ".join(found) or "none"
        raise SizeError(f"this job has one vertex, {VERTEX!r}; the requirements name {names}")
    bounds = found[VERTEX].parallelism
    return ExecutorBounds(bounds.lowerBound, None if bounds.upperBound == _UNBOUNDED else bounds.upperBound)


def config(settings: JobMasterConfig) -> dict[str, Any]:
    """GET /v1/jobs/:jobid/rescales/config."""
    wait_s = settings.resource_wait_timeout_s
    return {
        "rescaleHistoryMax": -1,
        "executingCooldownTimeoutInMillis": _millis(settings.cool_down_s),
        "executingResourceStabilizationTimeoutInMillis": 0,
        "maximumDelayForTriggeringRescaleInMillis": _millis(settings.cool_down_s),
        "slotIdleTimeoutInMillis": _millis(settings.idle_slot_timeout_s),
        "submissionResourceStabilizationTimeoutInMillis": _millis(settings.stabilisation_s),
        "submissionResourceWaitTimeoutInMillis": -1 if wait_s < 0 else _millis(wait_s),
    }


def history(events: Iterable[Happened]) -> dict[str, Any]:
    """GET /v1/jobs/:jobid/rescales/history: oldest first. ``terminalState`` is missing while one is under way; one that
    nobody saw the end of (its driver was lost) is ``IGNORED``.
    """
    found: list[dict[str, Any]] = []
    for event in events:
        if event.name == "rescaling":
            _close(found, "IGNORED", event.unix_s)
            found.append(
                {
                    "rescaleAttemptId": len(found) + 1,
                    "triggerCause": event.fields["cause"],
                    "startTimestampInMillis": _millis(event.unix_s),
                    "vertices": {
                        VERTEX: {
                            "preRescaleParallelism": event.fields["from"],
                            "desiredParallelism": event.fields["to"],
                        }
                    },
                }
            )
        elif event.name == "rescaled" and found:
            found[-1]["vertices"][VERTEX]["postRescaleParallelism"] = event.fields["parallelism"]
            _close(found, str(event.fields["state"]), event.unix_s)
    return {"rescales": found}


def _close(found: list[dict[str, Any]], state: str, unix_s: float) -> None:
    if found and "terminalState" not in found[-1]:
        last = found[-1]
        last["terminalState"] = state
        last["endTimestampInMillis"] = _millis(unix_s)
        last["durationInMillis"] = last["endTimestampInMillis"] - last["startTimestampInMillis"]


def _millis(seconds: float) -> int:
    return int(seconds * 1000)
