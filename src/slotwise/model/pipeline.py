"""A pipeline job: what is asked of it, and what its program and its JobMaster say to each other.

Both say all that holds, again whenever something of it changes; so any line may be lost, and a new leader of the job
learns all of it from the next.
"""

from __future__ import annotations

import enum

import msgspec


class PipelineOptions(msgspec.Struct, frozen=True):
    """What a run of a pipeline updates, as of ``spark-pipelines``: ``refresh`` and ``full_refresh`` name datasets, both
    empty: all of them. ``dry_run``: only check that it could run.
    """

    refresh: tuple[str, ...] = ()
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False
    dry_run: bool = False


class RegionState(enum.Enum):
    """Flink's ExecutionState names where they mean the same."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        """Whether the region does nothing more in this job."""
        return self in (RegionState.FINISHED, RegionState.CANCELED, RegionState.FAILED)


class RegionRun(msgspec.Struct, frozen=True):
    """Run a region: its dataset is refreshed, or made from nothing with ``full_refresh``, in a session with ``conf``.
    ``attempt`` (≥ 1) is never used twice for a region.
    """

    region: str
    attempt: int
    full_refresh: bool = False
    conf: dict[str, str] = msgspec.field(default_factory=dict)


class RegionStatus(msgspec.Struct, frozen=True):
    """What has become of a run: RUNNING, FINISHED, CANCELED or FAILED, and then why. ``flows`` has Spark's own states
    of its flows (QUEUED, PLANNING, RUNNING, COMPLETED, …), by name.
    """

    region: str
    attempt: int
    state: RegionState
    reason: str = ""
    flows: dict[str, str] = msgspec.field(default_factory=dict)


class PipelineReport(msgspec.Struct, frozen=True):
    """All that the program says. ``graph`` is the text of a :class:`~slotwise.model.job_graph.JobGraph`, until the
    JobMaster has it. ``failed``: why there is none. ``regions``: the latest run of each region in this driver.
    ``checked``: the outcome of a dry run, empty for a good one; None before it is known.
    """

    graph: str | None = None
    failed: str = ""
    regions: tuple[RegionStatus, ...] = ()
    checked: str | None = None


class PipelineDirectives(msgspec.Struct, frozen=True):
    """All that the program is told. Without ``graph_known`` the JobMaster wants to know the graph first, and what runs
    goes on. ``runs``: what is to run now, and nothing else. ``check``: a dry run is wanted. ``stop``: it is over.
    """

    graph_known: bool = False
    runs: tuple[RegionRun, ...] = ()
    check: bool = False
    stop: bool = False
