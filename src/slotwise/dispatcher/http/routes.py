"""The route table: every REST call of the master, in one place."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from slotwise.dispatcher.http import job_shapes, openapi, shapes, slot_map
from slotwise.dispatcher.http.auth import Access
from slotwise.dispatcher.http.blobs import BYTES, BlobNames, Blobs, KeptBlob, MissingBlobs
from slotwise.dispatcher.http.calls import Ask, Call, Place, choice, flag, hash_in_path, in_path, integer, some_of, text
from slotwise.dispatcher.http.cluster import Cluster
from slotwise.dispatcher.http.event_stream import MEDIA, EventStream
from slotwise.dispatcher.http.job_views import ORDERS, STATES
from slotwise.dispatcher.http.jobs import Jobs
from slotwise.dispatcher.http.log_files import PLAIN
from slotwise.dispatcher.http.operations import METRICS, ZIP, Operations
from slotwise.dispatcher.http.people import People
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.proxy import SparkUi
from slotwise.model.job import JobSpec

_OPEN, _VIEWER, _SUBMITTER, _ADMIN = Access.OPEN, Access.VIEWER, Access.SUBMITTER, Access.ADMIN
_JOIN = Access.JOIN
_NONE, _BUSY, _REFUSED = (HTTPStatus.NOT_FOUND,), (HTTPStatus.SERVICE_UNAVAILABLE,), (HTTPStatus.CONFLICT,)
_PAGE_CSP = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

_JOB = in_path("job", "The job's id.")
_WORKER = in_path("worker", "The worker's id.")
_LOG = in_path("name", "The log's name.")
_OFFSET = integer("offset", "Bytes to leave out.", 0)
_TAIL = integer("tail", "Instead of an offset: begin so many bytes before the end. X-Log-Offset says where that is.")
_DOWNLOAD = flag("download", "Have browsers save it.")


def table(master: MasterPort, spark_ui: SparkUi) -> tuple[Call, ...]:
    """All calls, in the order in which people read them."""
    calls = (
        *_jobs(Jobs(master), spark_ui),
        *_blobs(Blobs(master)),
        *_operations(Operations(master)),
        *_cluster(Cluster(master), EventStream(master)),
        *_people(master),
    )
    described: list[Call] = []

    async def document(_: Ask) -> Response:
        body = msgspec.json.encode(openapi.document(described))
        return Response(body, media_type="application/json")

    async def page(_: Ask) -> Response:
        return HTMLResponse(openapi.page(described), headers={"Content-Security-Policy": _PAGE_CSP})

    described += [
        *(replace(call, name=call.name or f"{call.topic}_{call.handle.__name__}") for call in calls),
        Call(
            *("GET", "/v1/openapi.json", _VIEWER, "This description, for machines.", document),
            answer=dict[str, Any],
            topic="service",
            name="openapi",
        ),
        Call(
            *("GET", "/v1/docs", _VIEWER, "This description, for people.", page),
            media="text/html; charset=utf-8",
            topic="service",
            name="docs",
        ),
    ]
    return tuple(described)


def _jobs(jobs: Jobs, spark_ui: SparkUi) -> tuple[Call, ...]:
    path = "/v1/jobs/{job}"
    calls = (
        Call(
            *("POST", "/v1/jobs", _SUBMITTER, "Submit a job.", jobs.submit),
            answer=job_shapes.Submitted,
            status=HTTPStatus.ACCEPTED,
            parameters=(text("Idempotency-Key", "Makes repeating the call safe.", Place.HEADER),),
            body=JobSpec,
            problems=_REFUSED,
        ),
        Call(*("GET", "/v1/jobs", _VIEWER, "All jobs with their states.", jobs.ids), answer=job_shapes.JobIds),
        Call(
            *("GET", "/v1/jobs/overview", _VIEWER, "Jobs, filtered, in order, in parts.", jobs.overview),
            answer=job_shapes.Jobs,
            parameters=(
                some_of("state", "Those in one of these states or phases.", STATES),
                text("name", "Those whose name or id has this in it, in whatever case."),
                integer("offset", "Jobs to leave out.", 0),
                integer("limit", "Jobs at most; all without it."),
                choice("order", "A minus sign begins with the greatest; submission without it.", ORDERS),
            ),
        ),
        Call("GET", path, _VIEWER, "All about a job.", jobs.job, job_shapes.JobDetails, problems=_NONE),
        Call(
            *("PATCH", path, _SUBMITTER, "Cancel a job; once more does no harm.", jobs.cancel),
            answer=job_shapes.Cancelled,
            status=HTTPStatus.ACCEPTED,
            parameters=(choice("mode", "There is no other.", ("cancel",)),),
            problems=(*_NONE, *_BUSY),
        ),
        Call("GET", f"{path}/status", _VIEWER, "Its state.", jobs.status, job_shapes.JobStatusInfo, problems=_NONE),
        Call(
            *("GET", f"{path}/config", _VIEWER, "What it was submitted with.", jobs.config),
            answer=job_shapes.JobConfig,
            problems=_NONE,
        ),
        Call("GET", f"{path}/plan", _VIEWER, "Its graph.", jobs.plan, job_shapes.PlanInfo, problems=_NONE),
        Call(
            *("GET", f"{path}/events", _VIEWER, "What happened to it.", jobs.events),
            answer=job_shapes.Events,
            parameters=(integer("after", "Only events with a greater number.", 0),),
            problems=_NONE,
        ),
        Call(
            *("GET", f"{path}/exceptions", _VIEWER, "What it failed of, newest first.", jobs.exceptions),
            answer=job_shapes.Failures,
            parameters=(
                integer("maxExceptions", "So many at most.", 20),
                text("failureLabelFilter", "As in Flink; failures have no labels here."),
            ),
            problems=_NONE,
        ),
        Call(
            *("GET", f"{path}/execution-result", _VIEWER, "How it ended.", jobs.execution_result),
            answer=job_shapes.ExecutionResultInfo,
            problems=_NONE,
        ),
        Call(
            *("GET", f"{path}/explain", _VIEWER, "Why it has the slots that it has.", jobs.explain),
            answer=job_shapes.Explanation,
            problems=_NONE,
        ),
        Call(
            *("GET", f"{path}/resource-requirements", _VIEWER, "How many executors it may have.", jobs.requirements),
            answer=job_shapes.ResourceRequirements,
            problems=_NONE,
        ),
        Call(
            *("PUT", f"{path}/resource-requirements", _SUBMITTER, "Change how many it may have.", jobs.require),
            answer=job_shapes.ResourceRequirements,
            body=job_shapes.ResourceRequirements,
            problems=(*_NONE, *_REFUSED),
        ),
        Call(
            *("GET", f"{path}/rescales/config", _VIEWER, "How changes are made.", jobs.rescale_config),
            answer=job_shapes.RescaleConfig,
            problems=_NONE,
        ),
        Call(
            *("GET", f"{path}/rescales/history", _VIEWER, "The changes there were.", jobs.rescale_history),
            answer=job_shapes.Rescales,
            problems=_NONE,
        ),
        Call("GET", f"{path}/logs", _VIEWER, "Its logs' names.", jobs.log_names, job_shapes.LogNames, problems=_NONE),
        Call(
            *("GET", f"{path}/logs/{{name}}", _VIEWER, "The bytes of a log.", jobs.log),
            parameters=(_LOG, _OFFSET, _TAIL, flag("follow", "Go on until the job is over."), _DOWNLOAD),
            media=PLAIN,
            problems=_NONE,
        ),
        Call(
            *("GET", f"{path}/spark-ui", _VIEWER, "To Spark's own pages of the job.", spark_ui.root),
            status=HTTPStatus.TEMPORARY_REDIRECT,
            media="text/plain",
            problems=_NONE,
            name="jobs_spark_ui",
        ),
        Call(
            *("GET", f"{path}/spark-ui/{{page:path}}", _VIEWER, "Spark's own pages of the job.", spark_ui.page),
            parameters=(in_path("page", "The page's path."),),
            media="text/html",
            any_media=True,
            problems=(*_NONE, HTTPStatus.BAD_GATEWAY),
            name="jobs_spark_ui_page",
        ),
    )
    return tuple(
        replace(call, topic="jobs", parameters=(*([_JOB] if "{job}" in call.path else []), *call.parameters))
        for call in calls
    )


def _blobs(blobs: Blobs) -> tuple[Call, ...]:
    path, sha256 = "/v1/blobs/{sha256}", hash_in_path("sha256", "The file's SHA-256 in hexadecimal: its name.")
    calls = (
        Call(
            *("POST", "/v1/blobs/missing", _SUBMITTER, "Which files must be uploaded.", blobs.missing),
            answer=MissingBlobs,
            body=BlobNames,
        ),
        Call(
            *("PUT", path, _SUBMITTER, "Upload a file; once more does no harm.", blobs.upload),
            answer=KeptBlob,
            status=HTTPStatus.CREATED,
            parameters=(sha256,),
            takes_bytes=True,
            problems=(
                HTTPStatus.REQUEST_TIMEOUT,
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                HTTPStatus.INSUFFICIENT_STORAGE,
            ),
        ),
        Call(
            *("GET", path, _JOIN, "The bytes of an uploaded file, for workers.", blobs.blob),
            parameters=(sha256,),
            media=BYTES,
            problems=_NONE,
        ),
    )
    return tuple(replace(call, topic="blobs") for call in calls)


def _cluster(cluster: Cluster, stream: EventStream) -> tuple[Call, ...]:
    worker = "/v1/taskmanagers/{worker}"
    return (
        Call("GET", "/healthz", _OPEN, "Whether the process lives.", cluster.health, shapes.Health),
        Call("GET", "/v1/overview", _VIEWER, "The cluster in figures.", cluster.overview, shapes.Overview),
        Call("GET", "/v1/config", _VIEWER, "What a dashboard must know.", cluster.config, shapes.ServiceConfig),
        Call(
            *("GET", "/v1/resources", _VIEWER, "What there is, and what each job requires and has.", cluster.resources),
            answer=shapes.Resources,
        ),
        Call(
            *("GET", "/v1/events", _VIEWER, "Server-sent events: what to fetch again.", stream.watch),
            parameters=(
                text("job", "Only changes of this job."),
                text("Last-Event-ID", "Resume after this message.", Place.HEADER),
            ),
            media=MEDIA,
            problems=_NONE,
        ),
        Call(
            *("DELETE", "/v1/cluster", _ADMIN, "Cancel all jobs and end the cluster.", cluster.shut_down),
            answer=shapes.Empty,
            problems=_REFUSED,
        ),
        Call(
            *("GET", "/v1/slots", _VIEWER, "The workers with their slots in few bytes, to be drawn.", cluster.slots),
            answer=slot_map.SlotMap,
        ),
        Call("GET", "/v1/taskmanagers", _VIEWER, "The workers with their slots.", cluster.workers, shapes.Workers),
        Call(
            *("GET", worker, _VIEWER, "One worker.", cluster.worker),
            answer=shapes.WorkerDetails,
            parameters=(_WORKER,),
            problems=_NONE,
        ),
        Call(
            *("PATCH", worker, _ADMIN, "Whether a worker gets new slots.", cluster.block),
            answer=shapes.Blocked,
            parameters=(_WORKER, flag("blocked", "true: it keeps what it has, and gets no more.", required=True)),
            problems=_NONE,
        ),
        Call(
            *("GET", f"{worker}/logs", _VIEWER, "What is kept of a worker's own log.", cluster.worker_logs),
            answer=shapes.LogFiles,
            parameters=(_WORKER,),
            problems=_NONE,
        ),
        Call(
            *("GET", f"{worker}/logs/{{name}}", _VIEWER, "The bytes of such a log.", cluster.worker_log),
            parameters=(_WORKER, _LOG, _OFFSET, _TAIL, _DOWNLOAD),
            media=PLAIN,
            problems=_NONE,
        ),
        Call(
            *("GET", "/v1/jobmanager/config", _VIEWER, "The master's options.", cluster.master_config),
            answer=list[shapes.ConfigEntry],
        ),
        Call(
            *("GET", "/v1/jobmanager/environment", _VIEWER, "What the master runs on.", cluster.master_environment),
            answer=shapes.Environment,
        ),
        Call("GET", "/v1/jobmanager/logs", _VIEWER, "The master's logs.", cluster.master_logs, shapes.LogFiles),
        Call(
            *("GET", "/v1/jobmanager/logs/{name}", _VIEWER, "The bytes of such a log.", cluster.master_log),
            parameters=(_LOG, _OFFSET, _TAIL, _DOWNLOAD),
            media=PLAIN,
            problems=_NONE,
        ),
    )


def _operations(operations: Operations) -> tuple[Call, ...]:
    return (
        Call(
            *("GET", "/readyz", _OPEN, "Whether this master leads and serves.", operations.ready),
            answer=shapes.Ready,
            problems=_BUSY,
        ),
        Call(
            *("GET", "/metrics", _VIEWER, "Metrics for Prometheus, or as OpenMetrics.", operations.metrics),
            media=METRICS,
            any_media=True,
        ),
        Call(
            *("GET", "/v1/jobs/{job}/logs.zip", _VIEWER, "All logs of a job as a zip.", operations.job_archive),
            parameters=(_JOB,),
            media=ZIP,
            problems=_NONE,
            topic="jobs",
        ),
    )


def _people(master: MasterPort) -> tuple[Call, ...]:
    people = People(master.auth)
    calls = (
        Call(
            *(
                "POST",
                "/v1/session",
                _OPEN,
                "Log a browser in, by token or code: the answer sets a cookie.",
                people.log_in,
            ),
            answer=shapes.SessionInfo,
            body=shapes.NewSession,
            problems=(HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN),
        ),
        Call(
            *("POST", "/v1/session-codes", _VIEWER, "A code that logs a browser in once, for a minute.", people.code),
            answer=shapes.SessionCode,
            status=HTTPStatus.CREATED,
            problems=(HTTPStatus.FORBIDDEN,),
        ),
        Call("GET", "/v1/session", _VIEWER, "Who calls.", people.who, shapes.SessionInfo),
        Call("DELETE", "/v1/session", _VIEWER, "Log the browser out.", people.log_out, shapes.Empty),
        Call("GET", "/v1/tokens", _ADMIN, "The tokens, without their secrets.", people.tokens, shapes.Tokens),
        Call(
            *("POST", "/v1/tokens", _ADMIN, "Make a token; it is shown this once.", people.create),
            answer=shapes.CreatedToken,
            status=HTTPStatus.CREATED,
            body=shapes.NewToken,
            problems=(*_REFUSED, *_BUSY),
        ),
        Call(
            *("DELETE", "/v1/tokens/{name}", _ADMIN, "Revoke a token; what it has opened ends.", people.revoke),
            answer=shapes.TokenInfo,
            parameters=(in_path("name", "The token's name."),),
            problems=(*_NONE, *_REFUSED, *_BUSY),
        ),
    )
    return tuple(replace(call, topic="people") for call in calls)
