"""What those who run a cluster ask for: whether the master is ready, its metrics, and logs: of a job as a whole, and of
masters and workers."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from slotwise.dispatcher.http.problems import Problem, not_found
from slotwise.dispatcher.machine import Dispatcher
from slotwise.metrics.master import MasterMetrics
from slotwise.model.ids import JobId, WorkerId
from slotwise.runtime.cut_log import CutLog
from slotwise.runtime.log_archive import job_archive
from slotwise.runtime.logs import LogStore

_PIECE_BYTES = 256 * 1024

Endpoint = Callable[[Request], Awaitable[Response]]


class OperationsPort(Protocol):
    """What these calls need of the master."""

    metrics: MasterMetrics
    logs: LogStore

    @property
    def dispatcher(self) -> Dispatcher:
        """Knows the jobs."""
        ...

    def own_logs(self) -> list[Path]:
        """The files of the master's own log."""
        ...

    def worker_logs(self, worker: WorkerId) -> list[Path]:
        """What is kept of a worker's own log."""
        ...

    def knows_worker(self, worker: WorkerId) -> bool:
        """Whether the worker is registered."""
        ...

    def not_ready(self) -> str:
        """Why this master does not serve, in words; empty when it does."""
        ...


class Operations:
    """The calls. ``open`` and ``guarded`` wrap endpoints for everybody, and for those who may look."""

    def __init__(
        self, master: OperationsPort, open: Callable[[Endpoint], Endpoint], guarded: Callable[[Endpoint], Endpoint]
    ) -> None:
        self._master = master
        self._open = open
        self._guarded = guarded

    def routes(self) -> list[Route]:
        """Their routes."""
        return [
            Route("/readyz", self._open(self.ready)),
            Route("/metrics", self._guarded(self.metrics)),
            Route("/v1/jobs/{job}/logs.zip", self._guarded(self.job_archive)),
            Route("/v1/jobmanager/logs", self._guarded(self.master_logs)),
            Route("/v1/jobmanager/logs/{name}", self._guarded(self.master_log)),
            Route("/v1/taskmanagers/{worker}/logs", self._guarded(self.worker_logs)),
            Route("/v1/taskmanagers/{worker}/logs/{name}", self._guarded(self.worker_log)),
        ]

    async def ready(self, _: Request) -> Response:
        """GET /readyz: 200 while this master leads and serves."""
        if reason := self._master.not_ready():
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return Response(msgspec.json.encode({"status": "ready"}), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, in the format that the scraper accepts."""
        body, media_type = self._master.metrics.exposition(request.headers.get("accept"))
        return Response(body, headers={"content-type": media_type})

    async def job_archive(self, request: Request) -> Response:
        """GET /v1/jobs/:jobid/logs.zip: every log of the job, and what happened to it."""
        job = JobId(request.path_params["job"])
        if job not in self._master.dispatcher.jobs:
            raise not_found(f"there is no job {job}")
        if not self._master.logs.names(job):
            raise not_found(f"job {job} has no logs" + _because(self._master.logs.removed(job)))
        events = self._master.logs.folder(job) / "events.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{job}-logs.zip"', "Cache-Control": "no-store"}
        pieces = job_archive(self._master.logs, job, [events])
        return StreamingResponse(pieces, headers=headers, media_type="application/zip")

    async def master_logs(self, _: Request) -> Response:
        """GET /v1/jobmanager/logs."""
        return _listing(self._master.own_logs())

    async def master_log(self, request: Request) -> Response:
        """GET /v1/jobmanager/logs/:name."""
        return _text(self._master.own_logs(), request.path_params["name"], "the master")

    async def worker_logs(self, request: Request) -> Response:
        """GET /v1/taskmanagers/:taskmanagerid/logs: also of one that is gone, as long as its log is kept."""
        return _listing(self._logs_of_worker(request)[1])

    async def worker_log(self, request: Request) -> Response:
        """GET /v1/taskmanagers/:taskmanagerid/logs/:name."""
        worker, paths = self._logs_of_worker(request)
        return _text(paths, request.path_params["name"], f"worker {worker}")

    def _logs_of_worker(self, request: Request) -> tuple[WorkerId, list[Path]]:
        worker = WorkerId(request.path_params["worker"])
        paths = self._master.worker_logs(worker)
        if not paths and not self._master.knows_worker(worker):
            raise not_found(f"there is no worker {worker}, and nothing is kept of one")
        return worker, paths


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _listing(paths: list[Path]) -> Response:
    """Flink's LogListInfo."""
    logs = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            logs.append({"name": path.name, "size": CutLog(path).stored, "mtime": int(status.st_mtime * 1000)})
    return Response(msgspec.json.encode({"logs": logs}), media_type="application/json")


def _text(paths: list[Path], name: str, whose: str) -> Response:
    """What is there now of the log of that name, and of no other file, whatever the name looks like."""
    path = next((path for path in paths if path.name == name and path.is_file()), None)
    if path is None:
        raise not_found(f"{whose} has no log {name[:200]!r}")
    source = CutLog(path)

    def pieces() -> Iterator[bytes]:
        position, end = 0, source.size
        while position < end:
            data, position = source.read(position, min(_PIECE_BYTES, end - position))
            if not data:
                return
            yield data

    return StreamingResponse(pieces(), headers={"Cache-Control": "no-store"}, media_type="text/plain; charset=utf-8")
