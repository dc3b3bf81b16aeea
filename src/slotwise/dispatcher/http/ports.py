"""What the HTTP side needs of the master."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from slotwise.dispatcher.audit import AuditLog
from slotwise.dispatcher.http.auth import Authenticator
from slotwise.dispatcher.http.worker_stream import StreamPort
from slotwise.dispatcher.machine import Dispatcher
from slotwise.dispatcher.uploads import UploadedFiles
from slotwise.jobmaster.machine import JobMaster
from slotwise.metrics.master import MasterMetrics
from slotwise.model.ids import JobId, WorkerId
from slotwise.model.job import ExecutorBounds, JobSpec, JobState
from slotwise.resourcemanager.machine import ResourceManager
from slotwise.runtime.changes import Changes
from slotwise.runtime.events import EventLog


class MasterPort(StreamPort, Protocol):
    """The master, as REST calls see it."""

    job_masters: dict[JobId, JobMaster]
    dispatcher: Dispatcher
    resource_manager: ResourceManager
    events: EventLog
    changes: Changes
    auth: Authenticator
    audit: AuditLog
    uploads: UploadedFiles
    metrics: MasterMetrics

    def not_ready(self) -> str:
        """Why this master does not lead and serve now, in words; empty when it does."""
        ...

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

    def shut_down(self) -> None:
        """Ask for the end of the cluster. Raises :class:`~slotwise.model.errors.ClusterError` where it has another
        owner.
        """
        ...

    def own_logs(self) -> list[Path]:
        """The files of the master's own log, where it has any."""
        ...

    def worker_logs(self, worker: WorkerId) -> list[Path]:
        """The files of the log of a worker that this master has started."""
        ...
