"""The jobs' records: what must survive a master (B: F-06, F-07). One folder a job, up to four records in it.

``job.json`` is written before a submission is acknowledged, ``progress.json`` before what it says is done,
``cancel.json`` before a cancel is acknowledged, ``result.json`` when the job has ended. A record is a JSON object with
the format's version and the SHA-256 of its content; one that does not agree with it is set aside in ``damaged/`` and
reported, and never stops the others. A write blocks its caller until the disk has it: about ten milliseconds,
and a job has a handful of them in its life."""

from __future__ import annotations

import hashlib
import re
from typing import Protocol, TypeVar

import msgspec
import structlog

from slotwise.dispatcher.files import Files
from slotwise.model.errors import StaleLeader, StoreError
from slotwise.model.ids import JobId, LeaderToken
from slotwise.model.job import JobResult, JobState
from slotwise.model.progress import JobProgress, RecoveredJob
from slotwise.protocol.effects import (
    PersistBounds,
    PersistCancel,
    PersistJob,
    PersistProgress,
    PersistRecord,
    PersistResult,
)

log = structlog.get_logger(__name__)

FORMAT = 1
_SAFE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")
_JOB, _PROGRESS, _CANCEL, _RESULT, _BOUNDS = "job.json", "progress.json", "cancel.json", "result.json", "bounds.json"


class JobStore(Protocol):
    """What a master needs of the place where jobs are recorded. One master at a time writes to it."""

    def persist(self, record: PersistRecord) -> None:
        """Write a record; it is durable on return. Raises :class:`StoreError` with the cause, and then nothing was
        changed; :class:`StaleLeader` for progress or a result with a smaller token than that of the stored
        progress. A job's first result stays.
        """
        ...

    def recover(self) -> tuple[RecoveredJob, ...]:
        """All jobs, in the order in which they were accepted. Damaged records are set aside: a job without its
        specification is none; one whose progress or result cannot be read has failed with that as its reason, since
        it may have run. Raises :class:`StoreError` when the place cannot be read, or a newer version has written it.
        """
        ...


class _Stored(msgspec.Struct, frozen=True):
    """The frame of every record: ``sha256`` is that of the bytes of ``record``."""

    format: int
    sha256: str
    record: msgspec.Raw


class _Accepted(msgspec.Struct, frozen=True):
    """``job.json``: ``order`` rises with each accepted job."""

    order: int
    job: PersistJob


class _Damaged(Exception):
    """A record is not what was written."""


Record = TypeVar("Record")


class FileJobStore:
    """A :class:`JobStore` on :class:`~slotwise.dispatcher.files.Files`, below ``jobs/``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._next_order: int | None = None

    # ------------------------------------------------------------------------------------------- writing

    def persist(self, record: PersistRecord) -> None:
        """See the port."""
        if not _SAFE_ID.match(record.job):
            raise StoreError(f"{record.job!r} cannot be the name of a job's folder")
        match record:
            case PersistJob():
                if self._next_order is None:
                    self.recover()
                assert self._next_order is not None
                self._persist_job(record, self._next_order)
                self._next_order += 1
            case PersistProgress(job, progress):
                self._require(job)
                self._refuse_stale(job, progress.token)
                self._write(_name(job, _PROGRESS), progress)
            case PersistCancel(job):
                self._require(job)
                self._write(_name(job, _CANCEL), record)
            case PersistBounds(job):
                self._require(job)
                self._write(_name(job, _BOUNDS), record)
            case PersistResult(job, result, token):
                self._require(job)
                # The first stays: it may have been told to somebody.
                if self._files.size(_name(job, _RESULT)) is None:
                    self._refuse_stale(job, token)
                    self._write(_name(job, _RESULT), result)

    def _persist_job(self, record: PersistJob, order: int) -> None:
        name = _name(record.job, _JOB)
        try:
            self._write(name, _Accepted(order, record))
        except StoreError:
            # It may have got its name before the error: a refused job must not turn up again after a restart.
            try:
                self._files.remove(name)
            except StoreError as error:
                log.error("a refused job's record may be left", path=self._files.where(name), error=str(error))
            raise

    def _require(self, job: JobId) -> None:
        """The directory may have been taken away, and records beside a missing specification are worth nothing."""
        if self._files.size(_name(job, _JOB)) is None:
            raise StoreError(f"{self._files.where(_name(job, _JOB))} is gone")

    def _refuse_stale(self, job: JobId, token: LeaderToken) -> None:
        try:
            stored = self._read(_name(job, _PROGRESS), JobProgress)
        except _Damaged as error:
            self._set_aside(_name(job, _PROGRESS), error)
            return
        if stored is not None and stored.token > token:
            raise StaleLeader(f"the record of {job} is that of leader {stored.token}; {token} leads no more")

    def _write(self, name: str, record: msgspec.Struct) -> None:
        raw = msgspec.json.encode(record)
        stored = _Stored(FORMAT, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw))
        self._files.write(name, msgspec.json.encode(stored) + b"\n")

    # ------------------------------------------------------------------------------------------- reading

    def recover(self) -> tuple[RecoveredJob, ...]:
        """See the port."""
        found: list[tuple[int, RecoveredJob]] = []
        highest = 0
        for folder in self._files.names("jobs"):
            if self._files.remove_partial(f"jobs/{folder}"):
                log.warning("removed a half-written record", path=self._files.where(f"jobs/{folder}"))
            job = JobId(folder)
            try:
                accepted = self._read(_name(job, _JOB), _Accepted)
                if accepted is None:
                    continue
                if accepted.job.job != job:
                    raise _Damaged(f"it is the record of {accepted.job.job}")
            except _Damaged as error:
                self._set_aside(_name(job, _JOB), error)
                continue
            highest = max(highest, accepted.order)
            found.append((accepted.order, self._recover_job(accepted.job)))
        self._next_order = highest + 1
        found.sort(key=lambda entry: (entry[0], entry[1].job))
        return tuple(job for _, job in found)

    def _recover_job(self, accepted: PersistJob) -> RecoveredJob:
        job = accepted.job
        broken = ""
        result: JobResult | None = None
        progress: JobProgress | None = None
        try:
            result = self._read(_name(job, _RESULT), JobResult)
            if result is not None and not result.state.is_final:
                raise _Damaged(f"{result.state.value} is no result")
        except _Damaged as error:
            where = self._set_aside(_name(job, _RESULT), error)
            broken = f"the job has ended, but the record of how is damaged (now at {where}); its logs are there"
        try:
            progress = self._read(_name(job, _PROGRESS), JobProgress)
        except _Damaged as error:
            where = self._set_aside(_name(job, _PROGRESS), error)
            if result is None and not broken:
                broken = (
                    f"the record of how far the job was is damaged (now at {where}), and it must not run twice; "
                    "submit it again"
                )
        try:
            cancelled = self._read(_name(job, _CANCEL), PersistCancel) is not None
        except _Damaged as error:
            # That it is there says all.
            self._set_aside(_name(job, _CANCEL), error)
            cancelled = True
        bounds: PersistBounds | None = None
        try:
            bounds = self._read(_name(job, _BOUNDS), PersistBounds)
        except _Damaged as error:
            # The job goes on with what it was submitted with.
            self._set_aside(_name(job, _BOUNDS), error)
        if broken:
            result = JobResult(JobState.FAILED, reason=broken)
            # The damaged one is out of the way now, so this must take its place before anybody could run the job.
            self._write(_name(job, _RESULT), result)
        given = (bounds.bounds, bounds.version) if bounds is not None else (None, 0)
        return RecoveredJob(job, accepted.key, accepted.spec, progress, cancelled, result, *given)

    def _read(self, name: str, kind: type[Record]) -> Record | None:
        data = self._files.read(name)
        if data is None:
            return None
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            raw = bytes(stored.record)
            if stored.format > FORMAT:
                raise StoreError(
                    f"{self._files.where(name)} has format {stored.format} and this slotwise reads up to {FORMAT}: "
                    "a newer version wrote it; run that one"
                )
            if hashlib.sha256(raw).hexdigest() != stored.sha256:
                raise _Damaged("its checksum is wrong")
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise _Damaged(str(error)) from error

    def _set_aside(self, name: str, error: Exception) -> str:
        """Keep a damaged record for people, where nothing reads it; returns where it is now."""
        where = self._files.where(name)
        to = "damaged/" + name.removeprefix("jobs/").replace("/", "-")
        try:
            self._files.move(name, to)
        except StoreError as problem:
            log.error("a damaged record cannot be moved aside", path=where, error=str(error), why=str(problem))
            return where
        log.error("a damaged record was moved aside", path=where, to=self._files.where(to), error=str(error))
        return self._files.where(to)


def _name(job: JobId, record: str) -> str:
    return f"jobs/{job}/{record}"
