"""What answers about jobs look like: Flink's names and shapes where Flink has the thing, ours beside them.

Times are Unix milliseconds, −1 where there is none; durations are milliseconds."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from slotwise.dispatcher.http.shapes import RequirementInfo, ResourceInfo, ShortageInfo, Unmet
from slotwise.runtime.events import Happened

APPLICATION = "application"
"""The one vertex of a job whose parallelism can be bounded."""
UNBOUNDED = 2**31 - 1
_NOT_NEGATIVE = Annotated[int, msgspec.Meta(ge=0, le=UNBOUNDED)]


def _renamed(name: str) -> str:
    """Flink mixes both manners: names in camel case stay, the others have dashes."""
    return name.replace("_", "-")


class Submitted(msgspec.Struct, frozen=True):
    """An accepted job."""

    jid: str


class JobIdWithStatus(msgspec.Struct, frozen=True):
    """A job and its state, in Flink's words."""

    id: str
    status: str


class JobIds(msgspec.Struct, frozen=True):
    """All jobs, in the order of their submission."""

    jobs: list[JobIdWithStatus]


class JobStatusInfo(msgspec.Struct, frozen=True):
    """A job's state, in Flink's words."""

    status: str


class HeldSlotInfo(msgspec.Struct, frozen=True):
    """A slot that the job has; ``use`` names the process that runs in it, null while there is none."""

    allocation: str
    worker: str
    resource: ResourceInfo
    use: str | None


class RestartInfo(msgspec.Struct, frozen=True):
    """Which driver ended, and why another one followed."""

    attempt: int
    reason: str


class ExecutorCounts(msgspec.Struct, frozen=True):
    """A job's executors."""

    wanted: int
    launched: int
    registered: int
    launched_in_all: int


class StageInfo(msgspec.Struct, frozen=True):
    """An active Spark stage and its tasks."""

    id: int
    name: str
    tasks: int
    done: int
    running: int
    failed: int


class TaskCounts(msgspec.Struct, frozen=True):
    """Tasks by state: Spark's of the stages that are known, or the executions of a vertex."""

    total: int = 0
    created: int = 0
    scheduled: int = 0
    deploying: int = 0
    running: int = 0
    finished: int = 0
    canceling: int = 0
    canceled: int = 0
    failed: int = 0
    reconciling: int = 0
    initializing: int = 0


class JobSummary(msgspec.Struct, frozen=True, kw_only=True, rename=_renamed):
    """Flink's JobDetails. ``phase`` is the job's state in our words, of which Flink's ``state`` lacks two.

    What comes after ``log-tail`` is there while the job has a JobMaster.
    """

    jid: str
    name: str
    state: str
    phase: str
    start_time: int
    end_time: int
    duration: int
    last_modification: int
    tasks: TaskCounts
    released: bool
    min_executors: int
    max_executors: int | None
    program: str
    exit_code: int | None
    reason: str
    jobType: str = "BATCH"
    schedulerType: str = "Adaptive"
    pending_operators: int = 0
    log_tail: list[str]
    declared: list[RequirementInfo] | UnsetType = UNSET
    held: list[HeldSlotInfo] | UnsetType = UNSET
    missing: list[ShortageInfo] | UnsetType = UNSET
    driver_starts: int | UnsetType = UNSET
    restarts: int | UnsetType = UNSET
    latest_restarts: list[RestartInfo] | UnsetType = UNSET
    executors: ExecutorCounts | UnsetType = UNSET
    app_id: str | UnsetType | None = UNSET
    spark_ui: str | UnsetType | None = UNSET
    tasks_done: int | UnsetType = UNSET
    stages: list[StageInfo] | UnsetType = UNSET


class Jobs(msgspec.Struct, frozen=True):
    """Some jobs; ``total``: how many there are with the same filter, whichever part of them was asked for."""

    jobs: list[JobSummary]
    total: int


class IoMetrics(msgspec.Struct, frozen=True, rename=_renamed):
    """Flink's IOMetricsInfo: Spark's own are in Spark's UI, so all are unknown here."""

    read_bytes: int = 0
    read_bytes_complete: bool = False
    write_bytes: int = 0
    write_bytes_complete: bool = False
    read_records: int = 0
    read_records_complete: bool = False
    write_records: int = 0
    write_records_complete: bool = False
    accumulated_backpressured_time: int = 0
    accumulated_idle_time: int = 0
    accumulated_busy_time: float = 0.0


class Vertex(msgspec.Struct, kw_only=True, rename=_renamed):
    """A region of a pipeline, or the one vertex of an application: Flink's JobVertexDetailsInfo. ``attempt`` counts its
    tries; ``reason`` says why it is where it is.
    """

    id: str
    name: str
    parallelism: int
    status: str = "CREATED"
    start_time: int = -1
    end_time: int = -1
    duration: int = -1
    attempt: int = 0
    reason: str = ""
    slotSharingGroupId: str = ""
    maxParallelism: int = -1
    tasks: TaskCounts = TaskCounts()
    metrics: IoMetrics = IoMetrics()


class PlanInput(msgspec.Struct, frozen=True):
    """An edge of a job's graph; stored data is ``blocking``."""

    id: str
    num: int = 0
    exchange: str = ""
    ship_strategy: str = ""
    local_strategy: str = ""
    caching: str = ""


class PlanNode(msgspec.Struct):
    """A node of a job's graph."""

    id: str
    parallelism: int
    operator: str = ""
    operator_strategy: str = ""
    description: str = ""
    optimizer_properties: dict[str, Any] = {}
    inputs: list[PlanInput] = []


class Plan(msgspec.Struct):
    """A job's graph."""

    jid: str
    name: str
    type: str = "BATCH"
    nodes: list[PlanNode] = []


class PlanInfo(msgspec.Struct, frozen=True):
    """Flink's JobPlanInfo."""

    plan: Plan


class JobDetails(JobSummary, frozen=True, kw_only=True, rename=_renamed):
    """Flink's JobDetailsInfo. ``timestamps``: when the job was last in each state."""

    application_id: str | None
    now: int
    timestamps: dict[str, int]
    vertices: list[Vertex]
    status_counts: dict[str, int]
    plan: Plan
    job_type: str = "BATCH"
    isStoppable: bool = False
    maxParallelism: int = -1
    stream_graph: dict[str, Any] = {}


class Cancelled(msgspec.Struct, frozen=True):
    """The job ends, or had ended; ``state`` is the one it was in."""

    jid: str
    state: str


class Events(msgspec.Struct, frozen=True):
    """What happened to a job, oldest first."""

    events: list[Happened]


class Explanation(msgspec.Struct, frozen=True, rename=_renamed):
    """Why a job has what it has. ``jobs-ahead``: how many are served before it."""

    jid: str
    phase: str
    summary: str
    required: list[RequirementInfo]
    acquired: list[RequirementInfo]
    pending: int
    jobs_ahead: int
    missing: list[Unmet]


class LogNames(msgspec.Struct, frozen=True):
    """The names of a job's logs."""

    logs: list[str]


# ----------------------------------------------------------------------------------------------- how it ended


class FailureInfo(msgspec.Struct, frozen=True):
    """Flink's ExceptionInfo. ``endpoint`` is the host."""

    exceptionName: str
    stacktrace: str
    timestamp: int
    taskName: str
    endpoint: str
    taskManagerId: str
    failureLabels: dict[str, str] = {}


class RootFailure(FailureInfo, frozen=True):
    """Flink's RootExceptionInfo."""

    concurrentExceptions: list[FailureInfo] = []


class FailureHistory(msgspec.Struct, frozen=True):
    """Newest first; ``truncated``: there are more."""

    entries: list[RootFailure]
    truncated: bool


class Failures(msgspec.Struct, frozen=True):
    """Flink's JobExceptionsInfoWithHistory."""

    exceptionHistory: FailureHistory


class QueueStatus(msgspec.Struct, frozen=True):
    """IN_PROGRESS or COMPLETED."""

    id: str


class FailureCause(msgspec.Struct, frozen=True, rename="kebab"):
    """Why a job failed: the reason, and the last lines of its output."""

    class_: str = msgspec.field(name="class")
    stack_trace: str


class ExecutionResult(msgspec.Struct, frozen=True, rename=_renamed):
    """How a job ended, in Flink's words, with the program's own exit code. ``net-runtime`` is in milliseconds."""

    id: str
    application_status: str
    net_runtime: int
    accumulator_results: dict[str, Any]
    failure_cause: FailureCause | None
    exit_code: int | None


class ExecutionResultInfo(msgspec.Struct, frozen=True, rename=_renamed, omit_defaults=True):
    """Flink's JobExecutionResultResponseBody; the result is there once the job has ended."""

    status: QueueStatus
    job_execution_result: ExecutionResult | UnsetType = UNSET


class ExecutionConfig(msgspec.Struct, frozen=True, rename=_renamed):
    """Flink's ExecutionConfigInfo: ``user-config`` is the job's Spark configuration."""

    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool
    user_config: dict[str, str]
    execution_mode: str = "PIPELINED"


class JobConfig(msgspec.Struct, frozen=True, rename=_renamed):
    """What a job was submitted with; values that are secret by their names are hidden."""

    jid: str
    name: str
    execution_config: ExecutionConfig
    program: str
    args: list[str]
    env: dict[str, str]


# ----------------------------------------------------------------------------------------------- how many executors


class Parallelism(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At least and at most so many executors; 2,147,483,647 is no bound."""

    lowerBound: _NOT_NEGATIVE
    upperBound: _NOT_NEGATIVE


class VertexRequirements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of one vertex."""

    parallelism: Parallelism


class ResourceRequirements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Flink's JobResourceRequirementsBody. A job has one vertex, ``application``."""

    jobVertexResourceRequirements: dict[str, VertexRequirements]


class RescaleConfig(msgspec.Struct, frozen=True):
    """Flink's JobRescaleConfigInfo; −1 is no limit."""

    rescaleHistoryMax: int
    executingCooldownTimeoutInMillis: int
    executingResourceStabilizationTimeoutInMillis: int
    maximumDelayForTriggeringRescaleInMillis: int
    slotIdleTimeoutInMillis: int
    submissionResourceStabilizationTimeoutInMillis: int
    submissionResourceWaitTimeoutInMillis: int
    rescaleOnFailedCheckpointCount: int = -1
    schedulerExecutionMode: str = "REACTIVE"


class VertexRescale(msgspec.Struct, omit_defaults=True):
    """From so many executors to so many; ``post…`` once it is over."""

    preRescaleParallelism: int
    desiredParallelism: int
    postRescaleParallelism: int | UnsetType = UNSET


class Rescale(msgspec.Struct, omit_defaults=True):
    """A change of the number of executors. ``terminalState`` is missing while it is under way."""

    rescaleAttemptId: int
    triggerCause: str
    startTimestampInMillis: int
    vertices: dict[str, VertexRescale]
    terminalState: str | UnsetType = UNSET
    endTimestampInMillis: int | UnsetType = UNSET
    durationInMillis: int | UnsetType = UNSET


class Rescales(msgspec.Struct, frozen=True):
    """Oldest first."""

    rescales: list[Rescale]
