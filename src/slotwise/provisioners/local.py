"""Workers as processes on this machine (B: SZ-11, F-01: a worker's end is seen at once).

Unless they are bound to it, they outlive a master that is killed: the next one finds them in ``workers.json``, takes
them over and has the same hold on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import structlog

from slotwise.model.ids import WorkerId
from slotwise.protocol.effects import StartWorker, WorkerExited
from slotwise.provisioners.base import ExitListener, FromBefore
from slotwise.provisioners.worker_records import WorkerProcess, WorkerRecord, WorkerRecords, process_of
from slotwise.runtime.children import start_child, wait_exit, wait_gone
from slotwise.runtime.home import end_remains

log = structlog.get_logger(__name__)

_STOP_GRACE_S = 20.0
_KEPT_LOGS = 200
RECORDS_FILE = "workers.json"


class LocalProvisioner:
    """Starts ``python -m slotwise worker`` below ``directory``. ``bound``: the workers die with this process."""

    def __init__(
        self,
        directory: Path,
        master_url: str,
        token_file: Path,
        on_exit: ExitListener,
        *,
        bound: bool,
        worker_options: tuple[str, ...] = (),
    ) -> None:
        self._directory = directory
        self._master_url = master_url
        self._token_file = token_file
        self._on_exit = on_exit
        self._bound = bound
        self._options = worker_options
        self._processes: dict[WorkerId, subprocess.Popen[bytes]] = {}
        self._adopted: dict[WorkerId, WorkerProcess] = {}
        self._records = WorkerRecords(directory / RECORDS_FILE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._leaving = False

    def recover(self) -> FromBefore:
        """Take over the recorded workers that live and dial this master. Those that dial another address would wait in
        vain: they are ended.
        """
        living, ended = [], []
        for record in self._records.load():
            process = record.process()
            worker = record.wish.worker
            if process is None:
                self._clean_up(worker, end_remains(self._directory / worker))
                ended.append(worker)
                continue
            self._adopted[worker] = process
            self._spawn(self._watch_adopted(worker, process))
            if record.master_url == self._master_url:
                living.append(record.wish)
            else:
                log.warning("ending a worker of another address", worker=worker, url=record.master_url)
                self.stop_worker(worker)
        if living:
            log.info("took over workers", workers=[wish.worker for wish in living])
        return FromBefore(tuple(living), tuple(ended))

    def start_worker(self, wish: StartWorker) -> None:
        """Start a worker process; its output goes to ``<directory>/<worker>.log``."""
        worker, total, default_profile = wish.worker, wish.total, wish.default_profile
        if self._closing:
            # The minimum would be refilled for ever while its workers are being ended.
            return
        argv = [
            sys.executable,
            *("-m", "slotwise", "worker", "--master", self._master_url, "--token-file", str(self._token_file)),
            *("--worker-id", worker, "--cpus", _cores(total.cpu_milli), "--memory", str(total.memory_bytes)),
            *("--default-slot", f"{_cores(default_profile.cpu_milli)}:{default_profile.memory_bytes}"),
            # What a worker of this machine leaves is ended by this process at once, so nothing waits for its return.
            *("--directory", str(self._directory), "--orphan-timeout", "0", "--drain-timeout", "0"),
            *self._options,
        ]
        for name, amount in total.extended:
            argv += ["--resource", f"{name}={amount}"]
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._record(WorkerRecord(wish, self._master_url))
            with (self._directory / f"{worker}.log").open("ab") as output:
                process = start_child(
                    argv,
                    env=os.environ,
                    cwd=self._directory,
                    stdout=output,
                    stderr=output,
                    bound_to_parent=self._bound,
                )
        except OSError as error:
            self._on_exit(WorkerExited(worker, f"cannot start a process: {error}", started=False))
            return
        # Where this fails, its first entry leads to it all the same.
        with contextlib.suppress(OSError):
            self._record(WorkerRecord(wish, self._master_url, process_of(process.pid)))
        self._processes[worker] = process
        self._spawn(self._watch(worker, process))

    def _record(self, record: WorkerRecord) -> None:
        if not self._bound:
            self._records.put(record)

    def stop_worker(self, worker: WorkerId) -> None:
        """SIGTERM now, SIGKILL later. A worker that has been asked by its master is on its way already."""
        process = self._processes.get(worker)
        adopted = self._adopted.get(worker)
        if self._leaving:
            return
        if process is not None and process.poll() is None:
            self._spawn(self._stop(process))
        elif adopted is not None:
            self._spawn(self._stop_adopted(adopted))

    async def close(self, grace_s: float, *, leave: bool = False) -> None:
        """End all workers; by force after ``grace_s`` seconds. Bound ones cannot be left."""
        self._closing = True
        if leave and not self._bound:
            self._leaving = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            return
        ending = [asyncio.ensure_future(self._stop_adopted(process, grace_s)) for process in self._adopted.values()]
        processes = list(self._processes.values())
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        waits = [asyncio.ensure_future(wait_exit(process)) for process in processes]
        if waits:
            await asyncio.wait(waits, timeout=grace_s)
        for process in processes:
            if process.poll() is None:
                process.kill()
        await asyncio.gather(*waits, *ending)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(wait_exit(process), _STOP_GRACE_S)
        except TimeoutError:
            process.kill()

    async def _stop_adopted(self, process: WorkerProcess, grace_s: float = _STOP_GRACE_S) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(wait_gone(process.pid, process.born), grace_s)
        except TimeoutError:
            process.send_signal(signal.SIGKILL)

    async def _watch(self, worker: WorkerId, process: subprocess.Popen[bytes]) -> None:
        code = await wait_exit(process)
        self._processes.pop(worker, None)
        how = f"signal {-code}" if code < 0 else f"code {code}"
        await self._gone(worker, f"its process ended with {how}")

    async def _watch_adopted(self, worker: WorkerId, process: WorkerProcess) -> None:
        await wait_gone(process.pid, process.born)
        self._adopted.pop(worker, None)
        await self._gone(worker, "its process ended")

    async def _gone(self, worker: WorkerId, reason: str) -> None:
        self._clean_up(worker, await asyncio.to_thread(end_remains, self._directory / worker))
        if not self._closing:
            self._on_exit(WorkerExited(worker, reason, started=True))

    def _clean_up(self, worker: WorkerId, killed: int) -> None:
        if killed:
            log.warning("ended what a dead worker left", worker=worker, processes=killed)
        shutil.rmtree(self._directory / worker, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._records.remove(worker)
        self._drop_old_logs()

    def _drop_old_logs(self) -> None:
        """Of workers that are gone the newest logs are kept, for whoever wants to know why."""
        with contextlib.suppress(OSError):
            gone = [path for path in self._directory.glob("*.log") if not self._lives(WorkerId(path.stem))]
            for path in sorted(gone, key=lambda path: path.stat().st_mtime)[:-_KEPT_LOGS]:
                path.unlink()

    def _lives(self, worker: WorkerId) -> bool:
        return worker in self._processes or worker in self._adopted


def _cores(cpu_milli: int) -> str:
    return f"{cpu_milli / 1000:g}"
