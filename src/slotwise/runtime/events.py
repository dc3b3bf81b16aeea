"""What happened, for people: kept per job and for the cluster (B: F-07).

A job's events are in a file of its own, where the next master finds them. They are reading matter: a full disk or a
damaged line never stops anything."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.model.job import JobState
from slotwise.protocol.effects import Event
from slotwise.runtime.clock import unix_time

log = structlog.get_logger(__name__)

_KEPT_CLUSTER = 2000
_KEPT_JOB = 5000
_KEPT_JOBS = 500
# Room for more events than one leadership of years has; the numbers stay below 2**53, which JSON readers need.
_SEQS_AN_EPOCH = 1_000_000_000
# Those that come once a slot, or hold a whole graph.
_SMALL = frozenset({"allocated", "acquired", "deployed", "released", "executor-registered", "job-graph"})
_FINAL = frozenset(state.value for state in JobState if state.is_final)


class Happened(msgspec.Struct, frozen=True):
    """An event with its number (it rises, also from one master to the next) and wall-clock time in seconds."""

    seq: int
    unix_s: float
    name: str
    job: JobId | None
    worker: WorkerId | None
    allocation: AllocationId | None
    fields: dict[str, str | int | float | None]


class JobTimes(msgspec.Struct, frozen=True):
    """When a job was submitted, when it ended (None: not yet) and when something last happened, in Unix seconds. Zero
    where its events are not there.
    """

    start_unix_s: float = 0.0
    end_unix_s: float | None = None
    last_unix_s: float = 0.0

    def with_event(self, event: Happened) -> JobTimes:
        """The times after one more event."""
        ended = event.name == "job-state" and event.fields.get("state") in _FINAL
        end = event.unix_s if ended and self.end_unix_s is None else self.end_unix_s
        return JobTimes(self.start_unix_s or event.unix_s, end, event.unix_s)


class EventLog:
    """Newest events in memory; each job's own also in ``<directory>/<job>/events.jsonl``, from where they are read
    when somebody asks for a job that is not in memory. ``epoch``: the leadership's, above that of all masters before.
    """

    def __init__(self, directory: Path, epoch: int = 1) -> None:
        self._directory = directory
        self._seq = (epoch - 1) * _SEQS_AN_EPOCH
        self._cluster: deque[Happened] = deque(maxlen=_KEPT_CLUSTER)
        self._jobs: OrderedDict[JobId, deque[Happened]] = OrderedDict()
        self._times: dict[JobId, JobTimes] = {}
        self._whole_last_line: set[JobId] = set()
        self.write_errors = 0
        """Events that could not be written to their job's file."""

    def add(self, events: Iterable[Event]) -> None:
        """Record events that happened now."""
        for event in events:
            self._seq += 1
            happened = Happened(
                self._seq, unix_time(), event.name, event.job, event.worker, event.allocation, event.fields
            )
            self._cluster.append(happened)
            if event.job is not None:
                times = self.times(event.job)
                self._of(event.job).append(happened)
                self._times[event.job] = times.with_event(happened)
                try:
                    self._append(event.job, happened)
                except OSError:
                    self.write_errors += 1

    def _append(self, job: JobId, happened: Happened) -> None:
        path = self._path(job)
        # The folder is the record's: where that has gone, nothing must be made in its place.
        path.parent.mkdir(mode=0o700, exist_ok=True)
        line = msgspec.json.encode(happened) + b"\n"
        with path.open("ab") as file:
            if job not in self._whole_last_line:
                if file.tell() and not _ends_with_newline(path):
                    line = b"\n" + line
                self._whole_last_line.add(job)
            file.write(line)

    def _path(self, job: JobId) -> Path:
        return self._directory / job / "events.jsonl"

    def _of(self, job: JobId) -> deque[Happened]:
        """The events of a job, from its file if they are not in memory; the jobs not asked for lately go."""
        events = self._jobs.get(job)
        if events is None:
            events = self._jobs[job] = deque(_read(self._path(job)), maxlen=_KEPT_JOB)
            while len(self._jobs) > _KEPT_JOBS:
                gone, _ = self._jobs.popitem(last=False)
                self._whole_last_line.discard(gone)
        self._jobs.move_to_end(job)
        return events

    def of_job(self, job: JobId, after: int = 0) -> list[Happened]:
        """The newest 5,000 events of a job, those with a number above ``after``, whichever master saw them."""
        return [event for event in self._of(job) if event.seq > after]

    def times(self, job: JobId) -> JobTimes:
        """When the job began and ended: kept for every job, because every listing has them."""
        times = self._times.get(job)
        if times is None:
            times = JobTimes()
            for event in self._of(job):
                times = times.with_event(event)
            self._times[job] = times
        return times

    def of_cluster(self, after: int = 0) -> list[Happened]:
        """The newest events of this master with a number above ``after``."""
        return [event for event in self._cluster if event.seq > after]


def tell(event: Event) -> None:
    """A line in this process's log; of what comes many times, at the lowest level."""
    about = {"job": event.job, "worker": event.worker, "allocation": event.allocation}
    told = {**{name: value for name, value in about.items() if value is not None}, **event.fields}
    told.pop("plan", None)
    (log.debug if event.name in _SMALL else log.info)(event.name, **told)


def _read(path: Path) -> Iterable[Happened]:
    """What can be read of a job's file: a crash leaves half a line, a damaged disk any."""
    decoder = msgspec.json.Decoder(Happened)
    with contextlib.suppress(OSError), path.open("rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield decoder.decode(line)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
