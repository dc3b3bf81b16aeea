"""A whole cluster for one process: a master in this event loop, workers as child processes that end with it."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

import psutil

from slotwise.config import Configuration
from slotwise.master import Master, MasterOptions
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.provisioners.local import LocalProvisioner
from slotwise.resourcemanager.sizing import WorkerShape
from slotwise.runtime.home import sweep_stale
from slotwise.runtime.ownership import claim, is_abandoned

DEFAULT_WORKERS = 2
_PREFIX = "slotwise-"
# A cluster for one job is gone before anything could be ready for the next.
_NOTHING_WAITS = ("-D", "taskmanager.warm.mode=off")


def sweep_scratch() -> None:
    """Remove the temporary directories of clusters of this user whose process was killed, with what is left of their
    workers' processes."""
    for scratch in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if is_abandoned(scratch):
            sweep_stale(scratch / "workers", spare_kept=False)
            shutil.rmtree(scratch, ignore_errors=True)


def local_shape(configuration: Configuration, cpu_milli: int | None = None, memory: int | None = None) -> WorkerShape:
    """The size of a worker on this machine: what was asked for, else the configuration's, else all cores (at least 2)
    and 45 % of the memory. CPU is a count for placing, not a fence, so two workers of all cores each are allowed."""
    cpu = cpu_milli or configuration.get("taskmanager.cpu.cores") or max(2, os.cpu_count() or 1) * 1000
    size = memory or configuration.get("taskmanager.memory.process.size")
    if size is None:
        size = max(4 * GIB, int(psutil.virtual_memory().total * 0.45) // GIB * GIB)
    return configuration.worker_shape(ResourceProfile(cpu, size))


class EmbeddedCluster:
    """Master and local workers, as an async context manager. What jobs leave (records, logs, events) stays in
    ``directory``; all else is temporary and removed.
    """

    def __init__(
        self,
        directory: Path,
        configuration: Configuration | None = None,
        *,
        shape: WorkerShape | None = None,
        max_workers: int = DEFAULT_WORKERS,
    ) -> None:
        configuration = configuration or Configuration()
        self.shape = shape or local_shape(configuration)
        self.max_workers = max_workers
        self.grace_s = 15.0
        sweep_scratch()
        self._scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
        claim(self._scratch)
        options = MasterOptions(
            directory=directory,
            token=secrets.token_hex(32),
            resource_manager=configuration.resource_manager(self.shape, max_workers),
            job_master=configuration.job_master(),
            log_limits=configuration.job_logs(),
            blob_limits=configuration.blobs(),
            settings=configuration.effective(),
            worker_logs=self._scratch / "workers",
        )
        self.master = Master(options)
        self._configuration = configuration

    async def __aenter__(self) -> EmbeddedCluster:
        token_file = self._scratch / "token"
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(self.master.options.token)
        try:
            await self.master.start(
                lambda master: LocalProvisioner(
                    self._scratch / "workers",
                    master.url,
                    token_file,
                    master.worker_exited,
                    bound=True,
                    worker_options=(*self._configuration.as_flags(), *_NOTHING_WAITS),
                )
            )
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.master.close(self.grace_s)
        finally:
            logs = self.master.options.directory / "workers"
            for log_file in (self._scratch / "workers").glob("*.log"):
                logs.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log_file, logs / log_file.name)
            shutil.rmtree(self._scratch, ignore_errors=True)
