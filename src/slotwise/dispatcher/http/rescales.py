"""How many executors a job may have and has had, in the shapes of Flink's REST API (B: A-02).

Flink bounds the parallelism of each vertex. An application is one: what Spark runs in it is not known before."""

from __future__ import annotations

from collections.abc import Iterable

from slotwise.dispatcher.http.job_shapes import (
    APPLICATION,
    UNBOUNDED,
    Parallelism,
    Rescale,
    RescaleConfig,
    Rescales,
    ResourceRequirements,
    VertexRequirements,
    VertexRescale,
)
from slotwise.dispatcher.machine import JobRecord
from slotwise.jobmaster.config import JobMasterConfig
from slotwise.model.errors import SizeError
from slotwise.model.job import ExecutorBounds
from slotwise.runtime.events import Happened


def requirements(record: JobRecord) -> ResourceRequirements:
    """GET /v1/jobs/:jobid/resource-requirements. An upper bound of 2,147,483,647 is none."""
    most = record.bounds.most
    bounds = Parallelism(record.bounds.least, UNBOUNDED if most is None else most)
    return ResourceRequirements({APPLICATION: VertexRequirements(bounds)})


def bounds_of(wanted: ResourceRequirements) -> ExecutorBounds:
    """The bounds that a PUT asks for. Raises :class:`SizeError` for other vertices."""
    found = wanted.jobVertexResourceRequirements
    if list(found) != [APPLICATION]:
        names = ", ".join(found)[:200] or "none"
        raise SizeError(f"this job has one vertex, {APPLICATION!r}; the requirements name {names}")
    bounds = found[APPLICATION].parallelism
    return ExecutorBounds(bounds.lowerBound, None if bounds.upperBound == UNBOUNDED else bounds.upperBound)


def config(settings: JobMasterConfig) -> RescaleConfig:
    """GET /v1/jobs/:jobid/rescales/config."""
    wait_s = settings.resource_wait_timeout_s
    return RescaleConfig(
        rescaleHistoryMax=-1,
        executingCooldownTimeoutInMillis=_millis(settings.cool_down_s),
        executingResourceStabilizationTimeoutInMillis=0,
        maximumDelayForTriggeringRescaleInMillis=_millis(settings.cool_down_s),
        slotIdleTimeoutInMillis=_millis(settings.idle_slot_timeout_s),
        submissionResourceStabilizationTimeoutInMillis=_millis(settings.stabilisation_s),
        submissionResourceWaitTimeoutInMillis=-1 if wait_s < 0 else _millis(wait_s),
    )


def history(events: Iterable[Happened]) -> Rescales:
    """GET /v1/jobs/:jobid/rescales/history: oldest first, of an application or of each region of a pipeline.
    ``terminalState`` is missing while one is under way; one that nobody saw the end of (its driver was lost) is
    ``IGNORED``.
    """
    found: list[Rescale] = []
    latest: dict[str, Rescale] = {}
    for event in events:
        fields = event.fields
        vertex = str(fields.get("region") or APPLICATION)
        if event.name == "rescaling":
            _close(latest.get(vertex), "IGNORED", event.unix_s)
            change = VertexRescale(int(fields["from"] or 0), int(fields["to"] or 0))
            latest[vertex] = Rescale(len(found) + 1, str(fields["cause"]), _millis(event.unix_s), {vertex: change})
            found.append(latest[vertex])
        elif event.name == "rescaled" and vertex in latest:
            latest[vertex].vertices[vertex].postRescaleParallelism = int(fields["parallelism"] or 0)
            _close(latest[vertex], str(fields["state"]), event.unix_s)
    return Rescales(found)


def _close(last: Rescale | None, state: str, unix_s: float) -> None:
    if last is not None and not isinstance(last.terminalState, str):
        last.terminalState = state
        last.endTimestampInMillis = _millis(unix_s)
        last.durationInMillis = last.endTimestampInMillis - last.startTimestampInMillis


def _millis(seconds: float) -> int:
    return int(seconds * 1000)
