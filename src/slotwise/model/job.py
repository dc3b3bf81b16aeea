"""What a job is: its specification, the sizes of its processes, its states and its result."""

from __future__ import annotations

import enum

import msgspec

from slotwise.model.resources import ResourceProfile


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


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is submitted: an unmodified PySpark program and what it may use.

    ``program``, ``working_dir`` and all files are absolute paths that workers can read. ``conf`` is Spark
    configuration (``spark.*`` keys). ``min_executors`` is what must be held before the driver starts;
    ``initial_executors`` is what the job asks for at its start; ``max_executors`` bounds what Spark's dynamic
    allocation may ask for (None: no bound). ``python`` is the driver's interpreter (None: the worker's own).
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


class JobState(enum.Enum):
    """Flink's JobStatus names where they mean the same."""

    CREATED = "CREATED"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    DEPLOYING = "DEPLOYING"
    RUNNING = "RUNNING"
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
