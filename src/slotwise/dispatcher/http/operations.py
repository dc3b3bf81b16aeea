"""What those who run a cluster ask for: whether the master is ready, its metrics, and all logs of a job at once."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response, StreamingResponse

from slotwise.dispatcher.http import shapes
from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import Problem, not_found
from slotwise.model.ids import JobId
from slotwise.runtime.log_archive import job_archive

ZIP = "application/zip"
METRICS = "text/plain"


class Operations:
    """See the module's head."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master

    async def ready(self, _: Ask) -> shapes.Ready:
        """GET /readyz: 200 while this master leads and serves."""
        if reason := self._master.not_ready():
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return shapes.Ready("ready")

    async def metrics(self, ask: Ask) -> Response:
        """GET /metrics, in the format that the scraper accepts."""
        body, media_type = self._master.metrics.exposition(ask.request.headers.get("accept"))
        return Response(body, headers={"content-type": media_type})

    async def job_archive(self, ask: Ask) -> Response:
        """GET /v1/jobs/:jobid/logs.zip: every log of the job, and what happened to it."""
        job = JobId(ask["job"])
        if job not in self._master.dispatcher.jobs:
            raise not_found(f"there is no job {job[:200]}")
        if not self._master.logs.names(job):
            removed = self._master.logs.removed(job)
            raise not_found(f"job {job} has no logs" + (f": {removed}" if removed else ""))
        events = self._master.logs.folder(job) / "events.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{job}-logs.zip"', "Cache-Control": "no-store"}
        return StreamingResponse(job_archive(self._master.logs, job, [events]), headers=headers, media_type=ZIP)
