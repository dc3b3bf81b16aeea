"""What a job is: its specification, the sizes of its processes, its states and its result."""

from __future__ import annotations

import enum

import msgspec

from slotwise.model.errors import SizeError, UsageError
from slotwise.model.pipeline import PipelineOptions
from slotwise.model.requirements import check_all_or_none_stated
from slotwise.model.resources import ResourceProfile
from slotwise.model.restart import RestartStrategy, check_strategy
from slotwise.model.uploads import Uploads, check_name, is_sha256


class DriverSize(msgspec.Struct, frozen=True):
    """The Spark driver: cores ≥ 1, JVM heap and everything beside it (Python program, native memory) in bytes."""

    cores: int
    heap_bytes: int
    overhead_bytes: int

    @property
    def profile(self) -> ResourceProfile:
        """The size of the driver's slot."""
        return ResourceProfile(self.cores * 1000, self.heap_bytes + self.overhead_bytes)


class ExecutorSize(msgspec.Struct, frozen=True):
    """A Spark executor: cores ≥ 1; bytes of JVM heap, overhead, off-heap and PySpark memory; others by name."""

    cores: int
    heap_bytes: int
    overhead_bytes: int
    off_heap_bytes: int = 0
    python_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()

    @property
    def profile(self) -> ResourceProfile:
        """The size of such an executor's slot: the sum of its memories, to the byte."""
        memory = self.heap_bytes + self.overhead_bytes + self.off_heap_bytes + self.python_bytes
        return ResourceProfile(self.cores * 1000, memory, self.extended)


UNLIMITED_EXECUTORS = 100_000
"""The upper bound of a job that takes every slot there is: more than any cluster has."""


class ExecutorBounds(msgspec.Struct, frozen=True):
    """How many executors a job may have: ``least`` of them before its driver starts, never more than ``most`` (None:
    as many as Spark's dynamic allocation asks for). Without dynamic allocation ``most`` is how many it wants, of each
    Spark resource profile that it uses.
    """

    least: int
    most: int | None


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is submitted: an unmodified PySpark program and what it may use.

    ``program``, ``working_dir`` and all files are absolute paths that workers can read, or, with ``uploads``, relative
    ones: names of uploaded files, which a worker puts into a folder of the slot (``.`` is that folder). ``conf`` is
    Spark configuration (``spark.*`` keys). ``min_executors`` is what must be held before the driver starts;
    ``initial_executors`` is what the job asks for at its start; ``max_executors`` bounds what it grows to (None: what
    Spark's dynamic allocation asks for, and without that no more than at the start). ``python`` is the driver's
    interpreter (None: the worker's own). ``restart`` says what follows when the program fails (None: the job fails; the
    cluster's own strategy covers the loss of the driver's worker or JVM). With ``pipeline`` the ``program`` is the
    specification file of a Spark Declarative Pipelines project; its bounds on executors are those of each region that
    states none, and ``executor`` the size for all that state none.
    """

    name: str
    program: str
    args: tuple[str, ...] = ()
    working_dir: str = "/"
    python: str | None = None
    conf: dict[str, str] = msgspec.field(default_factory=dict)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    driver: DriverSize
    executor: ExecutorSize
    min_executors: int = 1
    initial_executors: int = 2
    max_executors: int | None = None
    dynamic_allocation: bool = False
    restart: RestartStrategy | None = None
    pipeline: PipelineOptions | None = None
    uploads: Uploads | None = None

    @property
    def uploaded_names(self) -> tuple[str, ...]:
        """The names that must be in the list of uploaded files."""
        paths = (self.program, *self.py_files, *self.files, *self.archives, *self.jars)
        return tuple(path.partition("#")[0] for path in paths if _is_relative(path))

    @property
    def bounds(self) -> ExecutorBounds:
        """The bounds that hold until somebody changes them."""
        most = self.max_executors
        if most is None and not self.dynamic_allocation:
            most = self.initial_executors
        return ExecutorBounds(self.min_executors, most)


def placed(spec: JobSpec, folder: str, python: str | None = None) -> JobSpec:
    """The specification as it is on a worker that has put the uploaded files into ``folder``, with absolute paths
    alone. ``python``: the interpreter of the job's own environment, where it has one.
    """

    def here(path: str) -> str:
        return f"{folder}/{path}" if _is_relative(path) else path

    return msgspec.structs.replace(
        spec,
        program=here(spec.program),
        working_dir=folder if spec.working_dir == "." else spec.working_dir,
        py_files=tuple(here(path) for path in spec.py_files),
        files=tuple(here(path) for path in spec.files),
        archives=tuple(here(path) for path in spec.archives),
        jars=tuple(here(path) for path in spec.jars),
        python=python or spec.python,
    )


def _is_relative(path: str) -> bool:
    return not path.startswith("/") and "://" not in path


def check_bounds(spec: JobSpec, bounds: ExecutorBounds) -> None:
    """Raise :class:`SizeError` for bounds that the job cannot have."""
    if bounds.least < 0:
        raise SizeError(f"the least number of executors cannot be negative: {bounds.least}")
    if bounds.most is None:
        if not spec.dynamic_allocation:
            raise SizeError("a job without Spark's dynamic allocation needs a greatest number of executors")
        return
    if bounds.most < bounds.least:
        raise SizeError(f"at most {bounds.most} executors is below the least number, {bounds.least}")
    if bounds.most == 0:
        raise SizeError("a job without executors does nothing: the greatest number must be at least 1")


def check_spec(spec: JobSpec) -> None:
    """Raise :class:`SizeError` for a specification that no cluster can run: a client is not to be trusted."""
    if not spec.name or len(spec.name) > 1000:
        raise SizeError("a job's name must have 1 to 1,000 characters")
    _check_paths(spec)
    sizes = (spec.driver.heap_bytes, spec.driver.overhead_bytes, spec.executor.heap_bytes, spec.executor.overhead_bytes)
    if min(*sizes, spec.executor.off_heap_bytes, spec.executor.python_bytes) < 0:
        raise SizeError("memory sizes of driver and executor cannot be negative")
    if spec.driver.cores < 1 or spec.executor.cores < 1:
        raise SizeError("driver and executor need at least one core each")
    if not 0 <= spec.min_executors <= spec.initial_executors:
        raise SizeError(
            f"the number of executors to start with ({spec.initial_executors}) is below the minimum "
            f"({spec.min_executors}), or one of them is negative"
        )
    if spec.max_executors is not None and spec.max_executors < spec.initial_executors:
        raise SizeError(f"at most {spec.max_executors} executors is below the {spec.initial_executors} to start with")
    if spec.restart is not None:
        check_strategy(spec.restart)
    if spec.pipeline is not None and spec.dynamic_allocation:
        raise SizeError("a pipeline's executors follow its regions: it cannot have Spark's dynamic allocation too")
    # Builds both profiles, which checks the extended resources.
    check_all_or_none_stated((spec.driver.profile, spec.executor.profile))


def _check_paths(spec: JobSpec) -> None:
    if spec.uploads is None:
        if not spec.program.startswith("/") or not spec.working_dir.startswith("/"):
            raise SizeError("a job's program and working directory must be absolute paths")
        return
    if not is_sha256(spec.uploads.manifest):
        raise SizeError("the list of uploaded files must be named by its SHA-256 (64 hexadecimal digits)")
    if spec.working_dir != "." and not spec.working_dir.startswith("/"):
        raise SizeError("a job's working directory must be an absolute path, or . for the folder of its uploaded files")
    try:
        for name in spec.uploaded_names:
            check_name(name)
    except UsageError as error:
        raise SizeError(str(error)) from error


class JobState(enum.Enum):
    """Flink's JobStatus names where they mean the same."""

    CREATED = "CREATED"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    DEPLOYING = "DEPLOYING"
    RUNNING = "RUNNING"
    RECONCILING = "RECONCILING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    FAILING = "FAILING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def is_final(self) -> bool:
        """Whether the job can never leave this state."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELED)


class JobResult(msgspec.Struct, frozen=True):
    """How a job ended. ``exit_code`` is the program's own, where it ran; ``reason`` is for people."""

    state: JobState
    exit_code: int | None = None
    reason: str = ""
    log_tail: tuple[str, ...] = ()
