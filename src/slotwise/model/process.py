"""What a TaskExecutor is asked to start in a slot, and what the driver's JVM says and is told.

These values travel inside messages between JobMaster and TaskExecutor; ``slotwise.spark`` turns them into command
lines. They hold secrets, so they are never logged whole.
"""

from __future__ import annotations

import msgspec

from slotwise.model.job import DriverSize, ExecutorSize, JobSpec
from slotwise.model.pipeline import PipelineDirectives, PipelineReport
from slotwise.model.uploads import Uploads


class Program(msgspec.Struct, frozen=True):
    """What a warm application is to run: the fields of its job's specification that were not known before."""

    name: str
    program: str
    args: tuple[str, ...] = ()


class DriverProcess(msgspec.Struct, frozen=True, tag="driver"):
    """A Spark driver: a JVM gateway and the Python program attached to it. ``secret`` is the job's spark.authenticate
    secret; ``attempt`` counts the job's drivers from 1. ``warm``: it makes its SparkContext and waits for directives
    with its :class:`Program`; that of ``spec`` does not count."""

    spec: JobSpec
    secret: str
    attempt: int = 1
    warm: bool = False

    @property
    def size(self) -> DriverSize:
        """The driver's size."""
        return self.spec.driver


class ExecutorProcess(msgspec.Struct, frozen=True, tag="executor"):
    """A Spark executor of ``size`` for the application ``app_id`` whose driver listens at ``driver_url``.

    ``executor_id`` is an integer ≥ 1 in text, unique in the job. ``ticket`` is a one-time word that the driver checks
    when the executor registers. ``launch`` comes from the driver (see :class:`ExecutorLaunch`). ``task_slots`` is how
    many tasks it runs at once, where that is not its number of cores (``RegionSize``). ``uploads`` are the job's: an
    executor needs its Python environment and the files that it shares. ``python`` is the job's interpreter, which that
    environment is made with (None: the worker's own). ``warm``: it is a
    warm application's, and has time to get ready.
    """

    executor_id: str
    ticket: str
    app_id: str
    driver_url: str
    profile_id: int
    size: ExecutorSize
    secret: str
    working_dir: str
    launch: ExecutorLaunch
    task_slots: int | None = None
    uploads: Uploads | None = None
    python: str | None = None
    warm: bool = False


class ExecutorIdentity(msgspec.Struct, frozen=True):
    """What a JobMaster must know of an executor that it finds in a slot: the same fields as in its process."""

    executor_id: str
    ticket: str
    app_id: str
    profile_id: int


class ExecutorLaunch(msgspec.Struct, frozen=True):
    """What every executor of an application must be started with, as the driver's SparkConf has it.

    ``startup_conf``: spark.* keys an executor needs before it can ask the driver (never a secret); ``java_options``:
    spark.executor.extraJavaOptions, split into words; ``class_path`` and ``library_path``: extra entries; ``env``:
    environment of executors.
    """

    startup_conf: dict[str, str] = msgspec.field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    class_path: tuple[str, ...] = ()
    library_path: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)


ProcessSpec = DriverProcess | ExecutorProcess


class ExecutorTotal(msgspec.Struct, frozen=True):
    """The driver wants ``count`` executors of Spark resource profile ``profile_id``, each of ``size``; in a pipeline
    the JobMaster wants them for a ``region``, each with ``task_slots`` tasks at once.
    """

    profile_id: int
    size: ExecutorSize
    count: int
    region: str = ""
    task_slots: int | None = None


class StageProgress(msgspec.Struct, frozen=True):
    """An active Spark stage and its tasks. ``region`` is the pipeline region that it belongs to, if any."""

    stage_id: int
    name: str
    tasks: int
    done: int
    running: int
    failed: int = 0
    region: str = ""


class DriverReport(msgspec.Struct, frozen=True):
    """All that a Spark driver's JVM says of itself: absolute, repeated, told apart by ``version`` (rises from 1).

    ``app_id`` is Spark's application id; a program may have several applications one after the other. ``ended`` says
    that this application's SparkContext was stopped. ``totals`` is what it wants now; ``kills`` are the executors
    that it gives back; ``registered`` those that have joined and live; ``directives_seen`` is the version of the last
    :class:`DriverDirectives` it has carried out. ``first_task_unix_s`` is the launch time of the first task.
    ``tasks_done`` counts tasks that ended well. ``regions`` and ``pipeline`` are those of a pipeline job: the region
    of each executor that has one, and the word of the program. ``waits``: it is a warm application that is ready for
    its program."""

    version: int
    app_id: str
    driver_url: str = ""
    ui_url: str = ""
    launch: ExecutorLaunch = ExecutorLaunch()
    totals: tuple[ExecutorTotal, ...] = ()
    kills: tuple[str, ...] = ()
    registered: tuple[str, ...] = ()
    directives_seen: int = 0
    ended: bool = False
    stages: tuple[StageProgress, ...] = ()
    tasks_done: int = 0
    first_task_unix_s: float | None = None
    regions: dict[str, str] = msgspec.field(default_factory=dict)
    pipeline: PipelineReport | None = None
    waits: bool = False


class LostExecutor(msgspec.Struct, frozen=True):
    """An executor that is gone. ``caused_by_program`` is false when its slot or worker was lost, so that Spark does
    not count it as a failure of the tasks that ran there."""

    executor_id: str
    exit_code: int
    caused_by_program: bool
    reason: str


class DriverDirectives(msgspec.Struct, frozen=True):
    """All that the JobMaster tells a driver's JVM: absolute, repeated until seen.

    ``launched``: every executor that was started for ``app_id`` and is not known to be gone, with its ticket. An
    executor that is not in it may not register. ``lost``: executors of ``app_id`` that are gone. ``decommission``:
    executors that are to get no more tasks, to move their blocks to others and to end. ``regions``: the region of each
    executor that belongs to one; it may change while the executor lives, which then finishes its tasks and gets those
    of its new region. ``pipeline`` is passed on to the program of a pipeline job; ``program`` is what a warm
    application is to run."""

    version: int
    app_id: str
    launched: dict[str, str] = msgspec.field(default_factory=dict)
    lost: tuple[LostExecutor, ...] = ()
    decommission: tuple[str, ...] = ()
    regions: dict[str, str] = msgspec.field(default_factory=dict)
    pipeline: PipelineDirectives | None = None
    program: Program | None = None
