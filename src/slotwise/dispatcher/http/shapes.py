"""What answers about the cluster look like: Flink's names and shapes where Flink has the thing, ours beside them.

Times are Unix milliseconds, memory is bytes, CPU is cores. What Flink shows of its JVMs and does not exist here is 0 or
−1, so that tools that read it find every field."""

from __future__ import annotations

from typing import Annotated

import msgspec

from slotwise.dispatcher.tokens import NAME_PATTERN, Role
from slotwise.model.warm import WarmUnits


class Empty(msgspec.Struct, frozen=True):
    """Nothing more to say."""


class Health(msgspec.Struct, frozen=True):
    """The process lives."""

    status: str
    version: str


class Ready(msgspec.Struct, frozen=True):
    """This master leads and serves."""

    status: str


class ResourceInfo(msgspec.Struct, frozen=True):
    """Flink's ResourceProfileInfo; the exact integers stand beside it."""

    cpuCores: float
    taskHeapMemory: int
    cpu_milli: int
    memory_bytes: int
    extendedResources: dict[str, int] = {}
    taskOffHeapMemory: int = 0
    managedMemory: int = 0
    networkMemory: int = 0


class RequirementInfo(msgspec.Struct, frozen=True):
    """So many slots of a size; ``resource`` is null for a worker's default slot."""

    resource: ResourceInfo | None
    count: int


class ShortageInfo(msgspec.Struct, frozen=True):
    """A missing requirement with its reason."""

    resource: ResourceInfo | None
    count: int
    reason: str
    detail: str


class Unmet(msgspec.Struct, frozen=True):
    """A missing requirement with its reason, and what would help."""

    resource: ResourceInfo | None
    count: int
    reason: str
    detail: str
    help: str


# ----------------------------------------------------------------------------------------------- workers


# There are tens of thousands of them in one answer: the garbage collector need not look at each.
class SlotInfo(msgspec.Struct, frozen=True, gc=False):
    """A slot on a worker. ``pending``: its worker has not confirmed it yet."""

    allocation: str
    jobId: str
    resource: ResourceInfo
    pending: bool
    assignedTasks: int = 1


class Hardware(msgspec.Struct, frozen=True):
    """Flink's HardwareDescription: what the worker gives to slots, since nothing else of its machine is known."""

    cpuCores: int
    physicalMemory: int
    freeMemory: int
    managedMemory: int = 0


class MemoryConfiguration(msgspec.Struct, frozen=True):
    """Flink's TaskExecutorMemoryConfiguration: a worker gives all its memory to slots of any size."""

    taskHeap: int
    totalFlinkMemory: int
    totalProcessMemory: int
    frameworkHeap: int = 0
    frameworkOffHeap: int = 0
    taskOffHeap: int = 0
    networkMemory: int = 0
    managedMemory: int = 0
    jvmMetaspace: int = 0
    jvmOverhead: int = 0


class GarbageCollector(msgspec.Struct, frozen=True):
    """Flink's GarbageCollectorInfo."""

    name: str
    count: int
    time: int


class WorkerMetrics(msgspec.Struct, frozen=True):
    """Flink's TaskManagerMetricsInfo: a worker is no JVM, so only its resident memory is there, as ``heapUsed``."""

    heapUsed: int
    heapCommitted: int
    heapMax: int = -1
    nonHeapUsed: int = 0
    nonHeapCommitted: int = 0
    nonHeapMax: int = -1
    directCount: int = 0
    directUsed: int = 0
    directMax: int = 0
    mappedCount: int = 0
    mappedUsed: int = 0
    mappedMax: int = 0
    nettyShuffleMemorySegmentsAvailable: int = 0
    nettyShuffleMemorySegmentsUsed: int = 0
    nettyShuffleMemorySegmentsTotal: int = 0
    nettyShuffleMemoryAvailable: int = 0
    nettyShuffleMemoryUsed: int = 0
    nettyShuffleMemoryTotal: int = 0
    garbageCollectors: list[GarbageCollector] = []


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker, Flink's TaskManagerInfo, with its slots. Slots are made on demand, so none is ever free. ``warm``: what
    waits there for drivers and executors to come.
    """

    id: str
    path: str
    host: str
    pid: int
    timeSinceLastHeartbeat: int
    slotsNumber: int
    assignedTasks: int
    totalResource: ResourceInfo
    freeResource: ResourceInfo
    defaultSlotResource: ResourceInfo
    hardware: Hardware
    memoryConfiguration: MemoryConfiguration
    blocked: bool
    leaving: bool
    rss_bytes: int
    allocatedSlots: list[SlotInfo]
    warm: WarmUnits | None = None
    freeSlots: int = 0
    dataPort: int = -1
    jmxPort: int = -1


class WorkerDetails(WorkerInfo, frozen=True, kw_only=True):
    """Flink's TaskManagerDetailsInfo."""

    metrics: WorkerMetrics


class PendingWorkerInfo(msgspec.Struct, frozen=True):
    """A worker that was asked for and has not come yet; ``since_s`` is how long ago that was, in seconds."""

    id: str
    totalResource: ResourceInfo
    since_s: float


class Workers(msgspec.Struct, frozen=True):
    """All workers."""

    taskmanagers: list[WorkerInfo]
    pending: list[PendingWorkerInfo]


class Blocked(msgspec.Struct, frozen=True):
    """Whether a worker may get new slots."""

    id: str
    blocked: bool


# ----------------------------------------------------------------------------------------------- the cluster


class Overview(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", "-")):
    """Flink's ClusterOverviewWithVersion. Slots are made on demand: ``slots-total`` are those that jobs have, and warm
    applications. Of these ``warm-applications-waiting`` are ready for a job.
    """

    taskmanagers: int
    taskmanagers_blocked: int
    slots_total: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    slotwise_version: str
    flink_version: str
    flink_commit: str = ""
    slots_available: int = 0
    slots_free_and_blocked: int = 0
    warm_applications: int = 0
    warm_applications_waiting: int = 0


class Account(msgspec.Struct, frozen=True):
    """What a job requires, has acquired and lacks."""

    job: str
    required: list[RequirementInfo]
    acquired: list[RequirementInfo]
    missing: list[ShortageInfo]


class Resources(msgspec.Struct, frozen=True):
    """The cluster's sums and each job's account. ``minimum`` and ``maximum`` are what the cluster is kept at and may
    grow to, null where nothing is set, as with workers that come by themselves.
    """

    workers: int
    pending_workers: int
    max_workers: int | None
    minimum: ResourceInfo | None
    maximum: ResourceInfo | None
    total: ResourceInfo
    free: ResourceInfo
    used: ResourceInfo
    jobs: list[Account]


class Features(msgspec.Struct, frozen=True, rename="kebab"):
    """Flink's DashboardConfiguration:Features."""

    web_submit: bool
    web_cancel: bool
    web_rescale: bool
    web_history: bool


class ServiceConfig(msgspec.Struct, frozen=True, rename="kebab"):
    """Flink's DashboardConfiguration. The offset of the time zone is in milliseconds."""

    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    flink_version: str
    flink_revision: str
    features: Features
    slotwise_version: str


class ConfigEntry(msgspec.Struct, frozen=True):
    """An option of this master with its value as text; secrets are hidden."""

    key: str
    value: str


class Runtime(msgspec.Struct, frozen=True):
    """Flink's JVMInfo, here of the Python interpreter."""

    version: str
    arch: str
    options: list[str]


class Environment(msgspec.Struct, frozen=True):
    """Flink's EnvironmentInfo: ``classpath`` is Python's."""

    jvm: Runtime
    classpath: list[str]


class LogFile(msgspec.Struct, frozen=True):
    """A log with its size in bytes and the time of its last line, in Unix milliseconds."""

    name: str
    size: int
    mtime: int


class LogFiles(msgspec.Struct, frozen=True):
    """The logs that there are."""

    logs: list[LogFile]


# ----------------------------------------------------------------------------------------------- who may call


class SessionInfo(msgspec.Struct, frozen=True):
    """Who calls."""

    name: str
    role: str


class NewSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a session is opened for: a person's ``token``, or a ``code`` of POST /v1/session-codes; one of the two."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    code: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None


class SessionCode(msgspec.Struct, frozen=True):
    """A code that opens one session, within ``valid_s`` seconds."""

    code: str
    valid_s: int


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be made."""

    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
    role: Role


class TokenInfo(msgspec.Struct, frozen=True):
    """A token, without its secret."""

    name: str
    role: Role
    created: int


class CreatedToken(TokenInfo, frozen=True, kw_only=True):
    """A token with its secret, which is shown this once."""

    token: str


class Tokens(msgspec.Struct, frozen=True):
    """All tokens that can be revoked."""

    tokens: list[TokenInfo]
