"""What a machine wants done, as a value (design decision 1).

The runtime carries an :class:`Effects` out in this order, each part before the next: ``persist`` (durable before
anybody is told), ``send``, ``processes`` and ``workers`` and ``job_masters`` (start and stop), ``events`` (for
people), and last ``shutdown``."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from slotwise.model.ids import UNKNOWN_TOKEN, Address, AllocationId, JobId, LeaderToken, WorkerId
from slotwise.model.job import ExecutorBounds, JobResult, JobSpec
from slotwise.model.process import DriverDirectives, DriverReport, ExecutorIdentity, ProcessSpec
from slotwise.model.progress import JobProgress
from slotwise.model.resources import ZERO, ResourceProfile
from slotwise.protocol.messages import Envelope, ProcessStatus

# ----------------------------------------------------------------------------------------------- effects


class PersistJob(msgspec.Struct, frozen=True, tag=True):
    """Record an accepted job before its submission is acknowledged."""

    job: JobId
    key: str
    spec: JobSpec


class PersistResult(msgspec.Struct, frozen=True, tag=True):
    """Record how a job ended. The first result stays; ``token`` is the job's leader that says so, and a store that
    holds the record of a newer one refuses it.
    """

    job: JobId
    result: JobResult
    token: LeaderToken


class PersistProgress(msgspec.Struct, frozen=True, tag=True):
    """Record how far a running job is, before what it says is done. A store that holds the record of a newer leader
    refuses it, and nothing else of the same effects may be done then.
    """

    job: JobId
    progress: JobProgress


class PersistCancel(msgspec.Struct, frozen=True, tag=True):
    """Record that the job's end was asked for, before that is acknowledged."""

    job: JobId


class PersistBounds(msgspec.Struct, frozen=True, tag=True):
    """Record how many executors the job may have from now on, before that is acknowledged. ``version`` rises."""

    job: JobId
    bounds: ExecutorBounds
    version: int


PersistRecord = PersistBounds | PersistJob | PersistResult | PersistProgress | PersistCancel


class StartProcess(msgspec.Struct, frozen=True):
    """Start ``spec`` in the slot; the runtime answers with ProcessChanged. The rest is what a later process of this
    worker must know to take the slot over: its size, and which leader of its job has this started.
    """

    allocation: AllocationId
    job: JobId
    process: str
    spec: ProcessSpec
    profile: ResourceProfile = ZERO
    job_master: Address = Address("")
    job_master_token: LeaderToken = UNKNOWN_TOKEN


class EndProcess(msgspec.Struct, frozen=True):
    """End the process in the slot, gracefully and then by force; the runtime answers with ProcessChanged."""

    allocation: AllocationId
    process: str


class TellDriver(msgspec.Struct, frozen=True):
    """Pass directives on to the driver's JVM in this slot."""

    allocation: AllocationId
    directives: DriverDirectives


class CleanSlot(msgspec.Struct, frozen=True):
    """Nothing runs in the slot any more and it is gone: remove its directory."""

    allocation: AllocationId


class StartWorker(msgspec.Struct, frozen=True):
    """Have the provisioner start a worker of this size under this id."""

    worker: WorkerId
    total: ResourceProfile
    default_profile: ResourceProfile


class StopWorker(msgspec.Struct, frozen=True):
    """Have the provisioner make sure that this worker ends (it was asked to already, or never came)."""

    worker: WorkerId


class StartJobMaster(msgspec.Struct, frozen=True):
    """Start a JobMaster for the job under this leader token, in place of any that there is. With ``progress`` it takes
    over what an earlier one left; ``bounds`` are those that its specification does not have any more. ``warm``: it is
    for a warm application, nobody's job yet.
    """

    job: JobId
    spec: JobSpec
    token: LeaderToken
    progress: JobProgress | None = None
    bounds: ExecutorBounds | None = None
    bounds_version: int = 0
    warm: bool = False


class StopJobMaster(msgspec.Struct, frozen=True):
    """The job is over and recorded: end its JobMaster. ``failure``: why a warm application has failed, which is on no
    record.
    """

    job: JobId
    failure: JobResult | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that people may want to read: ``name`` is one of a small vocabulary, ``fields`` are short values."""

    name: str
    job: JobId | None = None
    worker: WorkerId | None = None
    allocation: AllocationId | None = None
    fields: dict[str, str | int | float | None] = msgspec.field(default_factory=dict)


@dataclass
class Effects:
    """See the module's head for the order in which these are carried out."""

    persist: list[PersistRecord] = field(default_factory=list)
    send: list[Envelope] = field(default_factory=list)
    processes: list[StartProcess | EndProcess | TellDriver | CleanSlot] = field(default_factory=list)
    workers: list[StartWorker | StopWorker] = field(default_factory=list)
    job_masters: list[StartJobMaster | StopJobMaster] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    shutdown: str | None = None


# ----------------------------------------------------------------------------------------------- what the runtime
# tells machines


class ProcessChanged(msgspec.Struct, frozen=True):
    """To a TaskExecutor: the process in the slot started, or ended."""

    allocation: AllocationId
    status: ProcessStatus


class DriverSaid(msgspec.Struct, frozen=True):
    """To a TaskExecutor: the driver's JVM in the slot has reported."""

    allocation: AllocationId
    report: DriverReport


class StopRequested(msgspec.Struct, frozen=True):
    """To a TaskExecutor: its host wants it to end; with ``drain`` executors may first move what they hold elsewhere."""

    reason: str
    drain: bool = False


class AdoptedSlot(msgspec.Struct, frozen=True):
    """To a new TaskExecutor: a slot that an earlier process of this worker made and whose process still lives, or has
    ended meanwhile (B: ST-09). ``job_master_token``: the job's leader that had the process started.
    """

    allocation: AllocationId
    job: JobId
    profile: ResourceProfile
    job_master: Address
    job_master_token: LeaderToken
    process: ProcessStatus
    executor: ExecutorIdentity | None = None


class JobMasterExited(msgspec.Struct, frozen=True):
    """To the Dispatcher: the JobMaster of a job failed and is gone. ``progress``: the job's record."""

    job: JobId
    reason: str
    progress: JobProgress | None = None
    result: JobResult | None = None


class ConnectionClosed(msgspec.Struct, frozen=True):
    """To the ResourceManager: the stream of this worker has closed."""

    worker: WorkerId


class WorkerExited(msgspec.Struct, frozen=True):
    """To the ResourceManager, from the provisioner: the worker's process is gone, or could not be started."""

    worker: WorkerId
    reason: str
    started: bool
