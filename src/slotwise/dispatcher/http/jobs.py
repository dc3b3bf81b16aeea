"""REST calls about jobs."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from slotwise.dispatcher.http import graphs, job_shapes, job_views, log_files, rescales, views
from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import Problem, bad_request, not_found
from slotwise.dispatcher.machine import JobRecord
from slotwise.model.errors import ClusterError, SizeError
from slotwise.model.ids import JobId
from slotwise.runtime.clock import unix_time
from slotwise.runtime.events import Happened

_MAX_KEY = 200


class Jobs:
    """See the module's head."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master

    def _record(self, ask: Ask) -> JobRecord:
        record = self._master.dispatcher.jobs.get(JobId(ask["job"]))
        if record is None:
            raise not_found(f"there is no job {ask['job'][:200]}")
        return record

    def _events(self, record: JobRecord) -> list[Happened]:
        return self._master.events.of_job(record.job)

    def _summary(self, record: JobRecord) -> job_shapes.JobSummary:
        job_master = self._master.job_masters.get(record.job)
        return job_views.job_summary(record, job_master, self._master.events.times(record.job))

    def _state(self, record: JobRecord) -> str:
        """In our words."""
        return job_views.state_of(record, self._master.job_masters.get(record.job)).value

    def _flink_state(self, record: JobRecord) -> str:
        return job_views.flink_state(job_views.state_of(record, self._master.job_masters.get(record.job)))

    # ------------------------------------------------------------------------------------------- all jobs

    async def submit(self, ask: Ask) -> job_shapes.Submitted:
        """POST /v1/jobs: the Idempotency-Key header makes repeating it safe."""
        key = ask["Idempotency-Key"]
        if key is not None and not 0 < len(key) <= _MAX_KEY:
            raise bad_request(f"an Idempotency-Key has 1 to {_MAX_KEY} characters")
        try:
            return job_shapes.Submitted(await self._master.submit(ask.body, key))
        except ClusterError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error

    async def ids(self, _: Ask) -> job_shapes.JobIds:
        """GET /v1/jobs."""
        records = self._master.dispatcher.jobs.values()
        return job_shapes.JobIds(
            [job_shapes.JobIdWithStatus(record.job, self._flink_state(record)) for record in records]
        )

    async def overview(self, ask: Ask) -> job_shapes.Jobs:
        """GET /v1/jobs/overview: only what is shown is made."""
        records = list(self._master.dispatcher.jobs.values())
        wanted, name = ask["state"], ask["name"]
        if wanted:
            records = [r for r in records if self._state(r) in wanted or self._flink_state(r) in wanted]
        if name:
            part = name.casefold()
            records = [r for r in records if part in r.spec.name.casefold() or part in r.job]
        order = ask["order"]
        if order is not None:
            records.sort(key=self._order(order.removeprefix("-")), reverse=order.startswith("-"))
        offset, limit = ask["offset"], ask["limit"]
        page = records[offset:] if limit is None else records[offset : offset + limit]
        return job_shapes.Jobs([self._summary(record) for record in page], len(records))

    def _order(self, key: str) -> Callable[[JobRecord], Any]:
        times = self._master.events.times
        if key == "name":
            return lambda record: (record.spec.name.casefold(), record.spec.name)
        if key == "state":
            return self._state
        if key == "start":
            return lambda record: times(record.job).start_unix_s
        if key == "end":
            # Those that have not ended come after all that have.
            return lambda record: times(record.job).end_unix_s or float("inf")
        return lambda record: self._summary(record).duration

    # ------------------------------------------------------------------------------------------- one job

    async def job(self, ask: Ask) -> job_shapes.JobDetails:
        """GET /v1/jobs/:jobid."""
        record = self._record(ask)
        times = self._master.events.times(record.job)
        job_master = self._master.job_masters.get(record.job)
        return job_views.job_details(record, job_master, times, self._events(record), unix_time())

    async def cancel(self, ask: Ask) -> job_shapes.Cancelled:
        """PATCH /v1/jobs/:jobid?mode=cancel."""
        record = self._record(ask)
        try:
            state = await self._master.cancel(record.job)
        except ClusterError as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        return job_shapes.Cancelled(record.job, state.value)

    async def status(self, ask: Ask) -> job_shapes.JobStatusInfo:
        """GET /v1/jobs/:jobid/status."""
        return job_shapes.JobStatusInfo(self._flink_state(self._record(ask)))

    async def config(self, ask: Ask) -> job_shapes.JobConfig:
        """GET /v1/jobs/:jobid/config."""
        return job_views.job_config(self._record(ask))

    async def plan(self, ask: Ask) -> job_shapes.PlanInfo:
        """GET /v1/jobs/:jobid/plan: the job's graph."""
        record = self._record(ask)
        return graphs.plan(record, self._events(record))

    async def events(self, ask: Ask) -> job_shapes.Events:
        """GET /v1/jobs/:jobid/events?after=N."""
        return job_shapes.Events(self._master.events.of_job(self._record(ask).job, ask["after"]))

    async def exceptions(self, ask: Ask) -> job_shapes.Failures:
        """GET /v1/jobs/:jobid/exceptions. Our failures have no labels, so a filter by them leaves none."""
        record = self._record(ask)
        if ask["failureLabelFilter"]:
            return job_shapes.Failures(job_shapes.FailureHistory([], truncated=False))
        return job_views.failures(record, self._events(record), ask["maxExceptions"])

    async def execution_result(self, ask: Ask) -> job_shapes.ExecutionResultInfo:
        """GET /v1/jobs/:jobid/execution-result."""
        record = self._record(ask)
        return job_views.execution_result(record, self._master.events.times(record.job))

    async def explain(self, ask: Ask) -> job_shapes.Explanation:
        """GET /v1/jobs/:jobid/explain: why the job has what it has."""
        return views.explanation(self._master.resource_manager, self._record(ask))

    # ------------------------------------------------------------------------------------------- executors

    async def requirements(self, ask: Ask) -> job_shapes.ResourceRequirements:
        """GET /v1/jobs/:jobid/resource-requirements: how many executors the job may have."""
        return rescales.requirements(self._record(ask))

    async def require(self, ask: Ask) -> job_shapes.ResourceRequirements:
        """PUT /v1/jobs/:jobid/resource-requirements."""
        record = self._record(ask)
        try:
            await self._master.scale(record.job, rescales.bounds_of(ask.body))
        except SizeError as error:
            raise bad_request(str(error)) from error
        except ClusterError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        return rescales.requirements(record)

    async def rescale_config(self, ask: Ask) -> job_shapes.RescaleConfig:
        """GET /v1/jobs/:jobid/rescales/config."""
        self._record(ask)
        return rescales.config(self._master.options.job_master)

    async def rescale_history(self, ask: Ask) -> job_shapes.Rescales:
        """GET /v1/jobs/:jobid/rescales/history."""
        return rescales.history(self._events(self._record(ask)))

    # ------------------------------------------------------------------------------------------- logs

    async def log_names(self, ask: Ask) -> job_shapes.LogNames:
        """GET /v1/jobs/:jobid/logs."""
        return job_shapes.LogNames(self._master.logs.names(self._record(ask).job))

    async def log(self, ask: Ask) -> Response:
        """GET /v1/jobs/:jobid/logs/:name: the bytes; with ``follow`` until the job has ended."""
        record, name = self._record(ask), ask["name"]
        path = self._master.logs.path(record.job, name)
        follow = ask["follow"]
        if path is None or (not path.is_file() and not follow):
            removed = self._master.logs.removed(record.job)
            raise not_found(f"job {record.job} has no log {name[:200]!r}" + (f": {removed}" if removed else ""))

        def go_on() -> bool:
            open_still = self._master.auth.is_valid(ask.principal) and not self._master.changes.closed
            return open_still and not record.released

        return log_files.serve(ask, path, go_on if follow else None)
