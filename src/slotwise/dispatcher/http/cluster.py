"""REST calls about the cluster: workers, resources, the master itself."""

from __future__ import annotations

import platform
import sys
import time
from http import HTTPStatus
from pathlib import Path

from starlette.responses import Response

from slotwise import __version__
from slotwise.dispatcher.http import log_files, shapes, slot_map, views
from slotwise.dispatcher.http.calls import Ask
from slotwise.dispatcher.http.job_views import redacted
from slotwise.dispatcher.http.ports import MasterPort
from slotwise.dispatcher.http.problems import Problem, not_found
from slotwise.model.errors import ClusterError
from slotwise.model.ids import WorkerId
from slotwise.resourcemanager.fleet import Worker
from slotwise.runtime.clock import monotonic

_REFRESH_MS = 3000


class Cluster:
    """See the module's head."""

    def __init__(self, master: MasterPort) -> None:
        self._master = master

    async def health(self, _: Ask) -> shapes.Health:
        """GET /healthz."""
        return shapes.Health("ok", __version__)

    async def overview(self, _: Ask) -> shapes.Overview:
        """GET /v1/overview."""
        return views.overview(self._master.resource_manager, self._master.dispatcher, __version__)

    async def config(self, _: Ask) -> shapes.ServiceConfig:
        """GET /v1/config."""
        zone = time.localtime()
        return shapes.ServiceConfig(
            refresh_interval=_REFRESH_MS,
            timezone_name=zone.tm_zone,
            timezone_offset=zone.tm_gmtoff * 1000,
            flink_version=__version__,
            flink_revision="",
            features=shapes.Features(web_submit=False, web_cancel=True, web_rescale=True, web_history=True),
            slotwise_version=__version__,
        )

    async def shut_down(self, _: Ask) -> shapes.Empty:
        """DELETE /v1/cluster."""
        try:
            self._master.shut_down()
        except ClusterError as error:
            raise Problem(HTTPStatus.CONFLICT, str(error)) from error
        return shapes.Empty()

    async def resources(self, _: Ask) -> shapes.Resources:
        """GET /v1/resources."""
        return views.resources(self._master.resource_manager)

    async def slots(self, _: Ask) -> slot_map.SlotMap:
        """GET /v1/slots."""
        return slot_map.slot_map(self._master.resource_manager, self._master.dispatcher.jobs, monotonic())

    # ------------------------------------------------------------------------------------------- the master itself

    async def master_config(self, _: Ask) -> list[shapes.ConfigEntry]:
        """GET /v1/jobmanager/config."""
        settings = redacted(dict(self._master.options.settings))
        return [shapes.ConfigEntry(key, value) for key, value in settings.items()]

    async def master_environment(self, _: Ask) -> shapes.Environment:
        """GET /v1/jobmanager/environment."""
        version = f"{platform.python_implementation()} {platform.python_version()}"
        options = [f"-X{name}" for name in sys._xoptions]
        return shapes.Environment(shapes.Runtime(version, platform.machine(), options), list(sys.path))

    async def master_logs(self, _: Ask) -> shapes.LogFiles:
        """GET /v1/jobmanager/logs."""
        return log_files.listing(self._master.own_logs())

    async def master_log(self, ask: Ask) -> Response:
        """GET /v1/jobmanager/logs/:name."""
        return log_files.serve(ask, log_files.one_of(self._master.own_logs(), ask["name"], "the master"))

    # ------------------------------------------------------------------------------------------- workers

    def _worker(self, ask: Ask) -> Worker:
        entry = self._master.resource_manager.slots.workers.get(WorkerId(ask["worker"]))
        if entry is None:
            raise not_found(f"there is no worker {ask['worker'][:200]}")
        return entry

    async def workers(self, _: Ask) -> shapes.Workers:
        """GET /v1/taskmanagers."""
        return views.taskmanagers(self._master.resource_manager, monotonic())

    async def worker(self, ask: Ask) -> shapes.WorkerDetails:
        """GET /v1/taskmanagers/:taskmanagerid."""
        return views.worker_details(self._worker(ask), monotonic())

    async def block(self, ask: Ask) -> shapes.Blocked:
        """PATCH /v1/taskmanagers/:taskmanagerid?blocked=true|false: whether it may get new slots."""
        worker = self._worker(ask).worker
        try:
            await self._master.block(worker, ask["blocked"])
        except ClusterError as error:
            raise not_found(str(error)) from error
        return shapes.Blocked(worker, ask["blocked"])

    async def worker_logs(self, ask: Ask) -> shapes.LogFiles:
        """GET /v1/taskmanagers/:taskmanagerid/logs: also of one that is gone, as long as its log is kept."""
        return log_files.listing(self._logs_of(ask))

    async def worker_log(self, ask: Ask) -> Response:
        """GET /v1/taskmanagers/:taskmanagerid/logs/:name."""
        return log_files.serve(ask, log_files.one_of(self._logs_of(ask), ask["name"], f"worker {ask['worker'][:200]}"))

    def _logs_of(self, ask: Ask) -> list[Path]:
        found = self._master.worker_logs(WorkerId(ask["worker"]))
        if not found:
            self._worker(ask)
        return found
