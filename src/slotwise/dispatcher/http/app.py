"""The master's one HTTP port: REST under ``/v1`` and the workers' stream (design decision 8).

Every call but ``/healthz`` needs the cluster's token (``Authorization: Bearer …``). Errors are
``application/problem+json`` with what is wrong in ``detail``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from slotwise import __version__
from slotwise.dispatcher.http import graphs, rescales, views
from slotwise.dispatcher.http.operations import Operations, OperationsPort
from slotwise.dispatcher.http.problems import Problem
from slotwise.dispatcher.http.worker_stream import StreamPort, WorkerStream, allowed
from slotwise.dispatcher.machine import Dispatcher, JobRecord
from slotwise.jobmaster.machine import JobMaster
from slotwise.model.errors import ClusterError, SizeError
from slotwise.model.ids import JobId, WorkerId
from slotwise.model.job import ExecutorBounds, JobSpec, JobState
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.runtime.clock import monotonic
from slotwise.runtime.events import EventLog

_MAX_BODY_BYTES = 4 * 1024 * 1024


class MasterPort(StreamPort, OperationsPort, Protocol):
    """What the HTTP side needs of the master."""

    job_masters: dict[JobId, JobMaster]
    dispatcher: Dispatcher
    resource_manager: ResourceManager
    events: EventLog

    async def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Submit a job."""
        ...

    async def cancel(self, job: JobId) -> JobState:
        """Cancel a job."""
        ...

    async def scale(self, job: JobId, bounds: ExecutorBounds) -> ExecutorBounds:
        """Change how many executors a job may have."""
        ...

    async def block(self, worker: WorkerId, blocked: bool) -> None:
        """Block or unblock a worker."""
        ...


def json_response(value: Any, status: int = 200) -> Response:
    """``value`` as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def build_app(master: MasterPort) -> Starlette:
    """The ASGI application."""
    api = Api(master)
    stream = WorkerStream(master)
    operations = Operations(master, api.open, api.guarded)
    return Starlette(
        routes=[
            Route("/healthz", api.open(api.health)),
            Route("/v1/overview", api.guarded(api.overview)),
            Route("/v1/jobs", api.guarded(api.submit), methods=["POST"]),
            Route("/v1/jobs/overview", api.guarded(api.jobs)),
            Route("/v1/jobs/{job}", api.guarded(api.job)),
            Route("/v1/jobs/{job}", api.guarded(api.cancel), methods=["PATCH"]),
            Route("/v1/jobs/{job}/plan", api.guarded(api.plan)),
            Route("/v1/jobs/{job}/events", api.guarded(api.job_events)),
            Route("/v1/jobs/{job}/resource-requirements", api.guarded(api.requirements), methods=["GET", "PUT"]),
            Route("/v1/jobs/{job}/rescales/config", api.guarded(api.rescale_config)),
            Route("/v1/jobs/{job}/rescales/history", api.guarded(api.rescale_history)),
            Route("/v1/jobs/{job}/explain", api.guarded(api.explain)),
            Route("/v1/jobs/{job}/logs", api.guarded(api.log_names)),
            Route("/v1/jobs/{job}/logs/{name}", api.guarded(api.log)),
            Route("/v1/taskmanagers", api.guarded(api.taskmanagers)),
            Route("/v1/taskmanagers/{worker}", api.guarded(api.block), methods=["PATCH"]),
            Route("/v1/resources", api.guarded(api.resources)),
            *operations.routes(),
            WebSocketRoute("/v1/workers/stream", stream.serve),
        ]
    )


Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The REST calls."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master

    def open(self, endpoint: Endpoint) -> Endpoint:
        """Turn problems into answers."""

        async def call(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Problem as problem:
                return problem.response()

        return call

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """Ask for the token first."""

        async def call(request: Request) -> Response:
            if not allowed(request.headers.get("authorization"), self._master.options.token):
                raise Problem(HTTPStatus.UNAUTHORIZED, "this call needs the cluster's token (Authorization: Bearer …)")
            return await endpoint(request)

        return self.open(call)

    def _record(self, request: Request) -> JobRecord:
        job = JobId(request.path_params["job"])
        record = self._master.dispatcher.jobs.get(job)
        if record is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no job {job}")
        return record

    async def health(self, _: Request) -> Response:
        """GET /healthz."""
        return json_response({"status": "ok", "version": __version__})

    async def overview(self, _: Request) -> Response:
        """GET /v1/overview."""
        records = list(self._master.dispatcher.jobs.values())
        return json_response(views.overview(self._master.resource_manager, records, __version__))

    async def submit(self, request: Request) -> Response:
        """POST /v1/jobs: a JobSpec as JSON; the Idempotency-Key header makes repeating it safe."""
        try:
            spec = msgspec.json.decode(await _body(request), type=JobSpec)
        except msgspec.DecodeError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, f"not a job specification: {error}") from error
        try:
            job = await self._master.submit(spec, request.headers.get("idempotency-key"))
        except ClusterError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        return json_response({"jid": job}, HTTPStatus.ACCEPTED)

    def _details(self, record: JobRecord) -> views.JsonObject:
        master = self._master.job_masters.get(record.job)
        return views.job_details(record, master, self._master.events.times(record.job))

    async def jobs(self, _: Request) -> Response:
        """GET /v1/jobs/overview."""
        records = self._master.dispatcher.jobs.values()
        return json_response({"jobs": [self._details(record) for record in records]})

    async def job(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid."""
        record = self._record(request)
        vertices = graphs.vertices(self._master.events.of_job(record.job)) if record.spec.pipeline is not None else []
        return json_response({**self._details(record), "vertices": vertices})

    async def plan(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/plan: the job's graph."""
        record = self._record(request)
        return json_response(graphs.plan(record, self._master.events.of_job(record.job)))

    async def cancel(self, request: Request) -> Response:
        """PATCH /v1/jobs/:jobid?mode=cancel."""
        record = self._record(request)
        if request.query_params.get("mode", "cancel") != "cancel":
            raise Problem(HTTPStatus.BAD_REQUEST, "the only mode is 'cancel'")
        try:
            state = await self._master.cancel(record.job)
        except ClusterError as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        return json_response({"jid": record.job, "state": state.value}, HTTPStatus.ACCEPTED)

    async def job_events(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/events?after=N."""
        record = self._record(request)
        after = _integer(request, "after", 0)
        return json_response({"events": self._master.events.of_job(record.job, after)})

    async def requirements(self, request: Request) -> Response:
        """GET and PUT /v1/jobs/:jobid/resource-requirements: how many executors the job may have."""
        record = self._record(request)
        if request.method == "PUT":
            try:
                await self._master.scale(record.job, rescales.parse_requirements(await _body(request)))
            except SizeError as error:
                raise Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
            except ClusterError as error:
                raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        return json_response(rescales.requirements(record))

    async def rescale_config(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/rescales/config."""
        self._record(request)
        return json_response(rescales.config(self._master.options.job_master))

    async def rescale_history(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/rescales/history."""
        return json_response(rescales.history(self._master.events.of_job(self._record(request).job)))

    async def explain(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/explain: why the job has what it has."""
        return json_response(views.explanation(self._master.resource_manager, self._record(request)))

    async def log_names(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/logs."""
        record = self._record(request)
        return json_response({"logs": self._master.logs.names(record.job)})

    async def log(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/logs/:name?offset=N&follow=1: the bytes; with ``follow`` until the job has ended."""
        record = self._record(request)
        name = request.path_params["name"]
        logs = self._master.logs
        path = logs.path(record.job, name)
        follow = request.query_params.get("follow") in ("1", "true")
        if path is None or (not path.is_file() and not follow):
            removed = logs.removed(record.job)
            raise Problem(
                HTTPStatus.NOT_FOUND, f"job {record.job} has no log {name!r}" + (f": {removed}" if removed else "")
            )
        offset = _integer(request, "offset", 0)

        async def pieces() -> AsyncIterator[bytes]:
            position = offset
            while True:
                over = record.released or (record.state.is_final and not follow)
                data, position = await asyncio.to_thread(logs.read, record.job, name, position)
                while data:
                    yield data
                    data, position = await asyncio.to_thread(logs.read, record.job, name, position)
                if over or not follow:
                    return
                await asyncio.sleep(0.2)

        return StreamingResponse(pieces(), media_type="text/plain; charset=utf-8")

    async def taskmanagers(self, _: Request) -> Response:
        """GET /v1/taskmanagers."""
        return json_response(views.taskmanagers(self._master.resource_manager, monotonic()))

    async def block(self, request: Request) -> Response:
        """PATCH /v1/taskmanagers/:taskmanagerid?blocked=true|false: whether it may get new slots."""
        word = request.query_params.get("blocked", "")
        if word not in ("true", "false"):
            raise Problem(HTTPStatus.BAD_REQUEST, "say blocked=true or blocked=false")
        try:
            await self._master.block(WorkerId(request.path_params["worker"]), word == "true")
        except ClusterError as error:
            raise Problem(HTTPStatus.NOT_FOUND, str(error)) from error
        return json_response({"id": request.path_params["worker"], "blocked": word == "true"})

    async def resources(self, _: Request) -> Response:
        """GET /v1/resources."""
        return json_response(views.resources(self._master.resource_manager))


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"over {_MAX_BODY_BYTES} bytes")
    return bytes(body)


def _integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise Problem(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number, not {text!r}")
    return int(text)
