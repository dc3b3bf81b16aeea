"""Shows a job of a master in this process: what happens to it, its output, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import msgspec

from slotwise.cli.console import Screen, event_line, job_line
from slotwise.dispatcher.http.job_views import job_summary
from slotwise.master import Master
from slotwise.model.ids import JobId
from slotwise.model.job import JobResult, JobState

_POLL_S = 0.1


def exit_code_of(result: JobResult) -> int:
    """0 finished, the program's code or 1 failed, 130 cancelled."""
    if result.state is JobState.FINISHED:
        return 0
    if result.state is JobState.CANCELED:
        return 130
    code = result.exit_code
    if code is None:
        return 1
    return code if 0 < code < 256 else 128 - code if code < 0 else 1


class JobFollower:
    """Follows ``job`` of ``master`` on ``screen``. ``logs`` is the folder of its logs."""

    def __init__(self, master: Master, job: JobId, screen: Screen) -> None:
        self.logs = master.options.directory / "jobs" / job / "logs"
        self._master = master
        self._job = job
        self._screen = screen
        self._reader_gone = False
        self._positions: dict[str, int] = {}

    async def until_over(self, hurried: Callable[[], bool] = lambda: False) -> JobResult:
        """Show what happens until the job is over and its slots are back, or until it is over if ``hurried``."""
        seen = 0
        record = self._master.dispatcher.jobs[self._job]
        while True:
            over = record.state.is_final and (record.released or hurried())
            for event in self._master.events.of_cluster(seen):
                seen = event.seq
                line = event_line(event)
                if line is not None:
                    self._screen.say(line)
            self.pass_output()
            if over:
                return record.result or JobResult(record.state)
            job_master = self._master.job_masters.get(self._job)
            summary = job_summary(record, job_master, self._master.events.times(self._job))
            self._screen.status(job_line(msgspec.to_builtins(summary)))
            await asyncio.sleep(_POLL_S)

    def pass_output(self) -> None:
        """Pass on what the program has written since the last time."""
        store = self._master.logs
        for name in store.names(self._job):
            if name.startswith("driver-") and name.endswith((".out", ".err", ".setup.log")):
                while True:
                    data, self._positions[name] = store.read(self._job, name, self._positions.get(name, 0))
                    if not data:
                        break
                    self._show(data, error=not name.endswith(".out"))

    def _show(self, data: bytes, *, error: bool) -> None:
        """Pass output through. When nobody reads it any more (as in `| head`), the job is cancelled as by Ctrl-C."""
        if self._reader_gone:
            return
        try:
            self._screen.passthrough(data, error=error)
        except BrokenPipeError:
            self._reader_gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.kill(os.getpid(), signal.SIGINT)

    def tell(self, name: str, result: JobResult) -> None:
        """Say how it ended, and where its logs are."""
        if result.state is not JobState.FINISHED:
            self._screen.say(f"{name} {result.state.value.lower()}: {result.reason}")
            if result.exit_code is None and result.state is JobState.FAILED:
                # The program's own last words were passed through already; these are a JVM's or an executor's.
                for line in result.log_tail:
                    self._screen.say(f"  {line}")
        self._screen.say(f"logs: {self.logs}")
