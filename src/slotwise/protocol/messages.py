"""Every message between components (design, 'Messages').

All messages are one-way and may be lost, doubled, delayed or reordered (decision 2). What they say is absolute:
totals and whole reports, never differences, so that repeating one is harmless and a later one makes good for an
earlier one. Reports carry a ``seq`` that rises with each report of the same sender; a receiver ignores one that is
not newer than the last it saw.

Each travels in an :class:`Envelope` with both fencing tokens (decision 3): ``to_token`` is the token of the leader it
is meant for, ``sender_token`` that of the leader that sent it (0 for TaskExecutors and clients, which are no
leaders). Only the first message to a leader (registration, submission) may carry ``to_token`` 0."""

from __future__ import annotations

import enum

import msgspec

from slotwise.model.ids import Address, AllocationId, JobId, LeaderToken, WorkerId
from slotwise.model.job import ExecutorBounds, JobResult, JobSpec, JobState
from slotwise.model.process import DriverDirectives, DriverReport, ExecutorIdentity, ProcessSpec
from slotwise.model.requirements import Requirements
from slotwise.model.resources import ResourceProfile
from slotwise.model.warm import WarmUnits

# ----------------------------------------------------------------------------------------------- shared values


class SlotStatus(msgspec.Struct, frozen=True):
    """One slot as its worker sees it (FLIP-56: SlotStatus). There are no free slots."""

    allocation: AllocationId
    job: JobId
    profile: ResourceProfile


class SlotReport(msgspec.Struct, frozen=True):
    """The truth about a worker: its slots and what is free beside them (FLIP-56). ``seq`` rises with each report."""

    seq: int
    slots: tuple[SlotStatus, ...]
    available: ResourceProfile


class ProcessPhase(enum.Enum):
    """How far the process in a slot is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


class ProcessStatus(msgspec.Struct, frozen=True):
    """The process in a slot. ``exit_code`` and ``reason`` are there once it has exited; a code below zero is minus
    the signal that ended it. ``stopped`` is true when it ended because somebody here asked it to, ``killed`` when a
    signal from elsewhere ended it or a helper of it. ``log_tail`` holds the last lines that matter.
    """

    process: str
    phase: ProcessPhase
    pid: int | None = None
    exit_code: int | None = None
    reason: str = ""
    stopped: bool = False
    killed: bool = False
    log_tail: tuple[str, ...] = ()


class SlotAllocation(msgspec.Struct, frozen=True):
    """A slot that a worker is to make for a job."""

    allocation: AllocationId
    job: JobId
    profile: ResourceProfile
    job_master: Address
    job_master_token: LeaderToken


class SlotOffer(msgspec.Struct, frozen=True):
    """A slot that a worker has made and offers to the job it was made for."""

    allocation: AllocationId
    profile: ResourceProfile


class JobSlotStatus(msgspec.Struct, frozen=True):
    """A slot of a job as its worker tells the JobMaster: what runs in it, the driver's words when it is the driver's,
    and which executor it is when it is one (for a new leader of the job, who did not start it).
    """

    allocation: AllocationId
    profile: ResourceProfile
    process: ProcessStatus | None = None
    driver: DriverReport | None = None
    executor: ExecutorIdentity | None = None


class ShortageReason(enum.Enum):
    """Why a requirement is not met (B: D-10)."""

    CLUSTER_FULL = "no free capacity and the cluster is at its maximum"
    TOO_LARGE = "larger than any worker"
    WORKERS_COMING = "workers are on their way"
    PROVISIONER_FAILING = "the provisioner cannot start workers"
    NO_WORKERS = "no free capacity, and this cluster does not start workers by itself"
    BLOCKED = "free capacity is on blocked workers"


class Shortage(msgspec.Struct, frozen=True):
    """``count`` slots of ``profile`` are missing for ``reason``; ``detail`` has the figures in words. ``final``: it
    cannot change by waiting.
    """

    profile: ResourceProfile | None
    count: int
    reason: ShortageReason
    detail: str
    final: bool = False


# ----------------------------------------------------------------------------------------------- any -> any


class Fenced(msgspec.Struct, frozen=True, tag=True):
    """The answer to a message with a stale token. ``current`` is the token of the leader at ``address`` as known to
    the answerer.
    """

    address: Address
    current: LeaderToken


# ----------------------------------------------------------------------------------------------- TaskExecutor ->
# ResourceManager


class RegisterWorker(msgspec.Struct, frozen=True, tag=True):
    """Repeated with back-off until answered. ``worker`` tells doubles apart (B: ML-02). ``version`` is the
    software's.
    """

    worker: WorkerId
    host: str
    pid: int
    version: str
    total: ResourceProfile
    default_profile: ResourceProfile
    report: SlotReport


class WorkerReport(msgspec.Struct, frozen=True, tag=True):
    """A worker's heartbeat; sent at once, too, when a slot was made or freed. ``draining``: it is about to go.
    ``warm``: what it has waiting for drivers and executors (None: nothing waits there, ever).
    """

    report: SlotReport
    rss_bytes: int = 0
    draining: bool = False
    warm: WarmUnits | None = None


class AllocationsRefused(msgspec.Struct, frozen=True, tag=True):
    """These allocations will not be made (B: SM-07); ``report`` says what is there instead."""

    allocations: tuple[AllocationId, ...]
    reason: str
    report: SlotReport


class WorkerLeaving(msgspec.Struct, frozen=True, tag=True):
    """The worker was told to stop by its host and takes itself down."""

    reason: str


# ----------------------------------------------------------------------------------------------- ResourceManager ->
# TaskExecutor


class WorkerRegistered(msgspec.Struct, frozen=True, tag=True):
    """Registration is accepted; heartbeats are due every ``heartbeat_interval_s``."""

    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class RegistrationRefused(msgspec.Struct, frozen=True, tag=True):
    """The worker (or job) cannot join, and trying again will not help."""

    reason: str


class RegisterAgain(msgspec.Struct, frozen=True, tag=True):
    """A report came from somebody who is not registered here (B: SM-10)."""


class AllocateSlots(msgspec.Struct, frozen=True, tag=True):
    """All slots that a check gives on this worker: one message a worker a check. Repeated until reported or refused."""

    slots: tuple[SlotAllocation, ...]


class ResourceManagerHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """The answer to a worker's report or a job's declaration: the RM is alive and saw it."""


class ShutdownWorker(msgspec.Struct, frozen=True, tag=True):
    """End the worker process, after its slots (B: ST-10)."""

    reason: str


# ----------------------------------------------------------------------------------------------- JobMaster ->
# ResourceManager


class RegisterJobMaster(msgspec.Struct, frozen=True, tag=True):
    """Repeated with back-off until answered."""

    job: JobId


class DeclareRequirements(msgspec.Struct, frozen=True, tag=True):
    """The absolute requirements of a job (FLIP-138). Also the JM's heartbeat: repeated every heartbeat interval (B:
    ML-01). ``yields``: it is a warm application, which takes what nobody else wants, and gives it back when asked.
    """

    job: JobId
    version: int
    requirements: Requirements
    yields: bool = False


class JobDone(msgspec.Struct, frozen=True, tag=True):
    """The job is over: forget its requirements."""

    job: JobId


# ----------------------------------------------------------------------------------------------- ResourceManager ->
# JobMaster


class JobMasterRegistered(msgspec.Struct, frozen=True, tag=True):
    """Registration is accepted; declarations are due every ``heartbeat_interval_s``."""

    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class DeclarationRefused(msgspec.Struct, frozen=True, tag=True):
    """The declaration ``version`` cannot be taken and has changed nothing. Declaring it again will not help (B:
    D-14).
    """

    job: JobId
    version: int
    reason: str


class NotEnoughResources(msgspec.Struct, frozen=True, tag=True):
    """What the job has and what it lacks, with the reasons (B: D-10). An empty ``missing`` says that all is there."""

    acquired: Requirements
    missing: tuple[Shortage, ...]


class GiveWay(msgspec.Struct, frozen=True, tag=True):
    """Somebody waits for what the job holds, which has said that it yields."""

    job: JobId


class WorkerLost(msgspec.Struct, frozen=True, tag=True):
    """A worker on which the job had slots is gone. ``dead``: what ran there is known to have ended; otherwise it may
    go on unseen until the worker's own time-outs end it.
    """

    worker: WorkerId
    allocations: tuple[AllocationId, ...]
    reason: str
    dead: bool = False


# ----------------------------------------------------------------------------------------------- TaskExecutor ->
# JobMaster


class OfferSlots(msgspec.Struct, frozen=True, tag=True):
    """Slots made for this job and not yet accepted; repeated until answered (B: ML-05)."""

    worker: WorkerId
    host: str
    slots: tuple[SlotOffer, ...]


class JobSlotsReport(msgspec.Struct, frozen=True, tag=True):
    """All accepted slots of the job on this worker; a heartbeat, and sent at once on every change.

    ``gone``: allocations that the JobMaster has just named and that are no longer here; ids never come back.
    ``draining``: the worker is about to go, and executors had better leave it.
    """

    worker: WorkerId
    host: str
    seq: int
    slots: tuple[JobSlotStatus, ...]
    gone: tuple[AllocationId, ...] = ()
    draining: bool = False


# ----------------------------------------------------------------------------------------------- JobMaster ->
# TaskExecutor


class AcceptSlots(msgspec.Struct, frozen=True, tag=True):
    """The answer to an offer: these are the job's now."""

    job: JobId
    allocations: tuple[AllocationId, ...]


class RejectSlots(msgspec.Struct, frozen=True, tag=True):
    """The answer to an offer: these are not wanted."""

    job: JobId
    allocations: tuple[AllocationId, ...]


class Deploy(msgspec.Struct, frozen=True, tag=True):
    """Start ``spec`` in the slot under the name ``process``. Idempotent by that name."""

    job: JobId
    allocation: AllocationId
    process: str
    spec: ProcessSpec


class StopProcess(msgspec.Struct, frozen=True, tag=True):
    """End the process named ``process`` in the slot; the slot stays the job's."""

    job: JobId
    allocation: AllocationId
    process: str


class FreeSlots(msgspec.Struct, frozen=True, tag=True):
    """End what runs in these slots and destroy them. ``cause`` is for people."""

    job: JobId
    allocations: tuple[AllocationId, ...]
    cause: str


class DirectDriver(msgspec.Struct, frozen=True, tag=True):
    """Words for the driver's JVM in this slot; repeated until its report says that it has seen them."""

    job: JobId
    allocation: AllocationId
    directives: DriverDirectives


class JobMasterHeartbeat(msgspec.Struct, frozen=True, tag=True):
    """The JM is alive; answered with a report."""

    job: JobId


# ----------------------------------------------------------------------------------------------- client <->
# Dispatcher <-> JobMaster


class SubmitJob(msgspec.Struct, frozen=True, tag=True):
    """From a client. ``key`` is its idempotency key: a second submission with the same key is the same job."""

    key: str
    spec: JobSpec


class JobAccepted(msgspec.Struct, frozen=True, tag=True):
    """The job is recorded and has a JobMaster."""

    job: JobId


class JobRefused(msgspec.Struct, frozen=True, tag=True):
    """The submission cannot be taken; nothing was changed."""

    reason: str


class CancelJob(msgspec.Struct, frozen=True, tag=True):
    """End the job as CANCELED. From a client to the Dispatcher, and on to the JobMaster until it reports a final
    state.
    """

    job: JobId


class CancelAccepted(msgspec.Struct, frozen=True, tag=True):
    """The job will be cancelled, or had ended before (``state`` tells)."""

    job: JobId
    state: JobState


class ScaleJob(msgspec.Struct, frozen=True, tag=True):
    """Change how many executors a job may have (B: A-02). From a client to the Dispatcher (``version`` 0), and on to
    the JobMaster with a version that rises with each change, until it says that it has it.
    """

    job: JobId
    bounds: ExecutorBounds
    version: int = 0


class ScaleAccepted(msgspec.Struct, frozen=True, tag=True):
    """To the client: the bounds are recorded and will be followed."""

    job: JobId
    bounds: ExecutorBounds


class ScaleTaken(msgspec.Struct, frozen=True, tag=True):
    """From the JobMaster: it has the bounds of this version, or newer ones."""

    job: JobId
    version: int


class RunProgram(msgspec.Struct, frozen=True, tag=True):
    """From the Dispatcher to the JobMaster of a warm application: it is this job's now. Repeated until taken."""

    job: JobId
    spec: JobSpec


class ProgramTaken(msgspec.Struct, frozen=True, tag=True):
    """From the JobMaster: it is recorded that its driver runs the program."""

    job: JobId


class BlockWorker(msgspec.Struct, frozen=True, tag=True):
    """From a client to the ResourceManager: give the worker no new slots (or again). It keeps those that it has."""

    worker: WorkerId
    blocked: bool


class WorkerBlocked(msgspec.Struct, frozen=True, tag=True):
    """The answer to a :class:`BlockWorker`; ``known`` is false when there is no such worker."""

    worker: WorkerId
    blocked: bool
    known: bool


class JobStatus(msgspec.Struct, frozen=True, tag=True):
    """From the JobMaster to the Dispatcher on every change, and repeated until acknowledged when it is final.

    ``released``: all slots are back (or given up on), the JobMaster has nothing left to do. ``warm``: it is for a warm
    application, nobody's job; ``waits``: that is ready for its program.
    """

    job: JobId
    seq: int
    state: JobState
    result: JobResult | None = None
    released: bool = False
    warm: bool = False
    waits: bool = False


class JobStatusAcknowledged(msgspec.Struct, frozen=True, tag=True):
    """The Dispatcher has recorded the status ``seq``."""

    job: JobId
    seq: int


Message = (
    Fenced
    | RegisterWorker
    | WorkerReport
    | AllocationsRefused
    | WorkerLeaving
    | WorkerRegistered
    | RegistrationRefused
    | RegisterAgain
    | AllocateSlots
    | ResourceManagerHeartbeat
    | ShutdownWorker
    | RegisterJobMaster
    | DeclareRequirements
    | JobDone
    | JobMasterRegistered
    | DeclarationRefused
    | NotEnoughResources
    | GiveWay
    | WorkerLost
    | OfferSlots
    | JobSlotsReport
    | AcceptSlots
    | RejectSlots
    | Deploy
    | StopProcess
    | FreeSlots
    | DirectDriver
    | JobMasterHeartbeat
    | SubmitJob
    | JobAccepted
    | JobRefused
    | CancelJob
    | ScaleJob
    | ScaleAccepted
    | ScaleTaken
    | CancelAccepted
    | RunProgram
    | ProgramTaken
    | BlockWorker
    | WorkerBlocked
    | JobStatus
    | JobStatusAcknowledged
)


class Envelope(msgspec.Struct, frozen=True):
    """A message on its way. ``id`` is unique among the messages of ``sender``'s present incarnation."""

    id: int
    to: Address
    to_token: LeaderToken
    sender: Address
    sender_token: LeaderToken
    payload: Message
