"""``slotwise run``: one program on an embedded cluster, from nothing to nothing."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import signal
from pathlib import Path
from typing import Any

import click

from slotwise.cli.console import Screen
from slotwise.cli.follow import JobFollower, exit_code_of
from slotwise.cli.logging import configure_logging
from slotwise.cli.options import config_options, job_options, job_spec, local_options
from slotwise.client import state_directory
from slotwise.config import Configuration, load
from slotwise.embedded import EmbeddedCluster, local_shape
from slotwise.model.errors import SlotwiseError
from slotwise.model.ids import JobId
from slotwise.model.job import JobResult, JobState
from slotwise.model.resources import parse_bytes, parse_cpu
from slotwise.resourcemanager.sizing import WorkerShape
from slotwise.runtime.events import Happened
from slotwise.runtime.ownership import claim, is_abandoned
from slotwise.spark.home import find_spark
from slotwise.spark.java import find_java
from slotwise.uploading import UploadPlan, plan_upload

_KEPT_RUNS = 20


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@job_options
@local_options
@config_options
@click.option("--quiet", "-q", is_flag=True, help="Only the program's own output.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], **given: Any) -> int:
    """Run one PySpark PROGRAM with ARGS, or a pipeline project, on an embedded cluster on this machine.

    PROGRAM is a .py file, or the directory of a Spark Declarative Pipelines project (with a spark-pipeline.yml), which
    runs unmodified: each dataset in executors of its own size, where its spark_conf states one.

    Master and workers are started for it and taken down after it. The program's output is passed through; the exit
    code is the program's own (130 after Ctrl-C).

    \b
    Examples:
      slotwise run job.py --date 2013-01-01
      slotwise run --num-executors 3 --executor-memory 2g job.py
      slotwise run --conf spark.dynamicAllocation.enabled=true --max-executors 4 job.py
      slotwise run --max-executors 4 --refresh carriers,airports pipelines/flights
    """
    configuration = load(given["config_file"], given["settings"])
    shape = shape_from(configuration, given)
    spec = job_spec(program, args, given)
    plan = plan_upload(spec, given["requirements"], files=False)
    outcome = EmbeddedRun(plan, configuration, shape, given["workers"], Screen(given["quiet"])).execute()
    return outcome.exit_code


def shape_from(configuration: Configuration, given: dict[str, Any]) -> WorkerShape:
    """The workers' size from --worker-cpus and --worker-memory."""
    cpu = parse_cpu(given["worker_cpus"], "--worker-cpus") if given["worker_cpus"] else None
    memory = parse_bytes(given["worker_memory"], "--worker-memory") if given["worker_memory"] else None
    return local_shape(configuration, cpu, memory)


def run_directory() -> Path:
    """A fresh directory for a run's records and logs; the oldest runs are dropped."""
    base = state_directory() / "runs"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(path for path in base.iterdir() if path.is_dir())[: -_KEPT_RUNS + 1]:
        if is_abandoned(old):
            shutil.rmtree(old, ignore_errors=True)
    stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")
    directory = base / stamp
    directory.mkdir(mode=0o700)
    claim(directory)
    return directory


class Outcome:
    """How an embedded run ended: the result, its events and where its logs are."""

    def __init__(self, result: JobResult, events: list[Happened], logs: Path) -> None:
        self.result = result
        self.events = events
        self.logs = logs

    @property
    def exit_code(self) -> int:
        """As of :func:`~slotwise.cli.follow.exit_code_of`."""
        return exit_code_of(self.result)


class EmbeddedRun:
    """One job on one embedded cluster. Ctrl-C cancels it in order; a second one ends everything at once."""

    def __init__(
        self, plan: UploadPlan, configuration: Configuration, shape: WorkerShape, max_workers: int, screen: Screen
    ) -> None:
        self._spec = plan.spec
        self._plan = plan
        self._configuration = configuration
        self._shape = shape
        self._max_workers = max_workers
        self._screen = screen
        self._interrupts = 0

    def execute(self) -> Outcome:
        """Run to the end. Raises :class:`SlotwiseError` when this machine lacks something or the cluster fails."""
        configure_logging("warning")
        # Before anything is started: the workers run on this machine, so what is missing here is missing there.
        find_java(spark_version=find_spark().version)
        return asyncio.run(self._execute())

    async def _execute(self) -> Outcome:
        loop = asyncio.get_running_loop()
        interrupted = asyncio.Event()
        hurried = asyncio.Event()

        def on_signal() -> None:
            self._interrupts += 1
            (interrupted if self._interrupts == 1 else hurried).set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        directory = run_directory()
        cluster = EmbeddedCluster(directory, self._configuration, shape=self._shape, max_workers=self._max_workers)
        async with cluster:
            for name, source in self._plan.sources.items():
                await cluster.master.uploads.add(name, source)
            job = await cluster.master.submit(self._spec)
            follower = JobFollower(cluster.master, job, self._screen)
            following = loop.create_task(follower.until_over(lambda: self._interrupts > 1))
            try:
                await self._until_over(cluster, job, following, interrupted, hurried)
            finally:
                following.cancel()
                if hurried.is_set():
                    cluster.grace_s = 0.0
        follower.pass_output()
        self._screen.end()
        record = cluster.master.dispatcher.jobs[job]
        result = record.result or JobResult(JobState.CANCELED, reason="ended at once")
        follower.tell(self._spec.name, result)
        return Outcome(result, cluster.master.events.of_cluster(), follower.logs)

    async def _until_over(
        self,
        cluster: EmbeddedCluster,
        job: JobId,
        following: asyncio.Future[JobResult],
        interrupted: asyncio.Event,
        hurried: asyncio.Event,
    ) -> None:
        assert cluster.master.crashed is not None
        crashed: asyncio.Future[Any] = cluster.master.crashed
        first: asyncio.Future[Any] = asyncio.ensure_future(interrupted.wait())
        second: asyncio.Future[Any] = asyncio.ensure_future(hurried.wait())
        try:
            await asyncio.wait([following, first, crashed], return_when=asyncio.FIRST_COMPLETED)
            if interrupted.is_set() and not following.done():
                self._screen.say("cancelling (Ctrl-C again to end at once)")
                await cluster.master.cancel(job)
                await asyncio.wait([following, second, crashed], return_when=asyncio.FIRST_COMPLETED)
            if crashed.done():
                raise SlotwiseError(f"internal error: {crashed.result()}")
            if following.done():
                await following
        finally:
            first.cancel()
            second.cancel()
