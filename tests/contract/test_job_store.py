"""What every job store and blob store must do; run on each implementation (B: F-06, F-07)."""

from __future__ import annotations

import io
import itertools
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from slotwise.dispatcher import job_store
from slotwise.dispatcher.blob_store import FileBlobStore
from slotwise.dispatcher.files import Files, LocalFiles, ObjectFiles, open_files
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.model.errors import StaleLeader, StoreError
from slotwise.model.ids import AllocationId, JobId, LeaderToken, WorkerId
from slotwise.model.job import ExecutorBounds, JobResult, JobState
from slotwise.model.progress import JobProgress, RecoveredJob, Restart
from slotwise.protocol.effects import PersistBounds, PersistCancel, PersistJob, PersistProgress, PersistResult
from tests.unit.said import capture
from tests.unit.worlds import spec

JOB = JobId("job-a")
PROGRESS = JobProgress(
    LeaderToken(2_000_000),
    attempt=1,
    driver_worker=WorkerId("worker-a"),
    driver_allocation=AllocationId("slot-a"),
    secret="s" * 64,
    executor_ids_below=9,
    restarts=(Restart(1, "lost"),),
)
Reopen = Callable[[], Files]


@pytest.fixture(params=["local", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Opens the same place, as a new master would."""
    url = str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return lambda: open_files(url)


@pytest.fixture
def files(reopen: Reopen) -> Files:
    return reopen()


def accept(store: FileJobStore, *jobs: str) -> None:
    for job in jobs:
        store.persist(PersistJob(JobId(job), f"key-{job}", spec(name=job, args=("a b", "ü"))))


def test_f_06_what_was_recorded_is_there_for_the_next_master(reopen: Reopen) -> None:
    store = FileJobStore(reopen())
    assert store.recover() == ()
    accept(store, JOB)
    store.persist(PersistProgress(JOB, PROGRESS))
    store.persist(PersistCancel(JOB))
    result = JobResult(JobState.CANCELED, 143, "cancelled", ("last", "words"))
    store.persist(PersistResult(JOB, result, PROGRESS.token))
    expected = RecoveredJob(JOB, "key-job-a", spec(name=JOB, args=("a b", "ü")), PROGRESS, True, result)
    assert FileJobStore(reopen()).recover() == (expected,)
    assert FileJobStore(reopen()).recover() == (expected,)


def test_f_06_jobs_come_back_in_the_order_in_which_they_were_accepted(reopen: Reopen) -> None:
    accept(FileJobStore(reopen()), "job-z", "job-m")
    accept(FileJobStore(reopen()), "job-a", "job-n")
    assert [job.job for job in FileJobStore(reopen()).recover()] == ["job-z", "job-m", "job-a", "job-n"]


def test_the_last_progress_counts_and_that_of_an_older_leader_is_refused(reopen: Reopen) -> None:
    store = FileJobStore(reopen())
    accept(store, JOB)
    store.persist(PersistProgress(JOB, JobProgress(LeaderToken(5))))
    store.persist(PersistProgress(JOB, JobProgress(LeaderToken(5), attempt=1)))
    store.persist(PersistProgress(JOB, JobProgress(LeaderToken(7), attempt=2)))
    with pytest.raises(StaleLeader, match="7"):
        FileJobStore(reopen()).persist(PersistProgress(JOB, JobProgress(LeaderToken(6), attempt=9)))
    (job,) = store.recover()
    assert job.progress == JobProgress(LeaderToken(7), attempt=2)


def test_f_06_the_first_result_stays_and_that_of_an_older_leader_is_refused(reopen: Reopen) -> None:
    store = FileJobStore(reopen())
    accept(store, JOB)
    store.persist(PersistProgress(JOB, JobProgress(LeaderToken(7))))
    with pytest.raises(StaleLeader, match="7"):
        store.persist(PersistResult(JOB, JobResult(JobState.FAILED), LeaderToken(6)))
    store.persist(PersistResult(JOB, JobResult(JobState.FINISHED, 0), LeaderToken(7)))
    store.persist(PersistResult(JOB, JobResult(JobState.FAILED), LeaderToken(8)))
    assert FileJobStore(reopen()).recover()[0].result == JobResult(JobState.FINISHED, 0)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_specification_is_set_aside_and_the_job_is_not_run(
    reopen: Reopen, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileJobStore(reopen())
    accept(store, "job-1", "job-2", "job-3")
    spoil(reopen(), "jobs/job-2/job.json", damage)
    said = capture(monkeypatch, job_store)
    assert [job.job for job in FileJobStore(reopen()).recover()] == ["job-1", "job-3"]
    assert [(entry["log_level"], entry["path"].endswith("jobs/job-2/job.json")) for entry in said] == [("error", True)]
    assert reopen().names("damaged") == ["job-2-job.json"]
    assert [job.job for job in FileJobStore(reopen()).recover()] == ["job-1", "job-3"]
    accept(store, "job-2")
    assert [job.job for job in FileJobStore(reopen()).recover()] == ["job-1", "job-3", "job-2"]


@pytest.mark.parametrize("record", ["progress", "result"])
def test_a_job_that_may_have_run_and_whose_record_is_damaged_has_failed(reopen: Reopen, record: str) -> None:
    store = FileJobStore(reopen())
    accept(store, JOB, "job-b")
    store.persist(PersistProgress(JOB, PROGRESS))
    store.persist(PersistResult(JOB, JobResult(JobState.FINISHED, 0), PROGRESS.token)) if record == "result" else None
    spoil(reopen(), f"jobs/{JOB}/{record}.json", "flipped")
    for _ in range(2):
        job, other = FileJobStore(reopen()).recover()
        assert job.result is not None
        assert job.result.state is JobState.FAILED
        assert f"damaged/{JOB}-{record}.json" in job.result.reason
        assert other.result is None


def test_a_damaged_cancel_is_a_cancel(reopen: Reopen) -> None:
    store = FileJobStore(reopen())
    accept(store, JOB)
    store.persist(PersistCancel(JOB))
    spoil(reopen(), f"jobs/{JOB}/cancel.json", "cut")
    assert FileJobStore(reopen()).recover()[0].cancelled


def test_the_last_bounds_are_recovered_and_damaged_ones_leave_the_job_as_it_was_submitted(reopen: Reopen) -> None:
    store = FileJobStore(reopen())
    accept(store, JOB)
    store.persist(PersistBounds(JOB, ExecutorBounds(1, 3), 1))
    store.persist(PersistBounds(JOB, ExecutorBounds(2, 8), 2))
    (job,) = FileJobStore(reopen()).recover()
    assert (job.bounds, job.bounds_version) == (ExecutorBounds(2, 8), 2)
    spoil(reopen(), f"jobs/{JOB}/bounds.json", "cut")
    (job,) = FileJobStore(reopen()).recover()
    assert (job.bounds, job.bounds_version, job.result) == (None, 0, None)


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(reopen: Reopen) -> None:
    accept(FileJobStore(reopen()), JOB)
    files = reopen()
    data = files.read(f"jobs/{JOB}/job.json")
    assert data is not None
    files.write(f"jobs/{JOB}/job.json", data.replace(b'"format":1', b'"format":2'))
    with pytest.raises(StoreError, match=r"format 2 .* reads up to 1"):
        FileJobStore(reopen()).recover()
    assert reopen().names("damaged") == []


def test_a_record_beside_a_specification_that_is_gone_is_refused(reopen: Reopen) -> None:
    with pytest.raises(StoreError, match="is gone"):
        FileJobStore(reopen()).persist(PersistResult(JOB, JobResult(JobState.FINISHED), PROGRESS.token))


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden"])
def test_a_job_cannot_lead_out_of_its_folder(files: Files, name: str) -> None:
    with pytest.raises(StoreError, match="folder"):
        accept(FileJobStore(files), name)


# ----------------------------------------------------------------------------------------------- uploaded files


def test_a_blob_is_named_by_its_content_and_kept_once(reopen: Reopen) -> None:
    blobs = FileBlobStore(reopen())
    content = os.urandom(3_000_000)
    name = blobs.put_blob(io.BytesIO(content))
    assert blobs.put_blob(io.BytesIO(content)) == name
    assert FileBlobStore(reopen()).open_blob(name).read() == content
    assert reopen().names(f"blobs/{name[:2]}") == [name]
    empty = blobs.put_blob(io.BytesIO())
    assert blobs.open_blob(empty).read() == b""


def test_a_damaged_blob_is_refused_and_can_be_put_again(reopen: Reopen) -> None:
    blobs = FileBlobStore(reopen())
    name = blobs.put_blob(io.BytesIO(b"precious"))
    reopen().write(f"blobs/{name[:2]}/{name}", b"worthles")
    with pytest.raises(StoreError, match="damaged"):
        blobs.open_blob(name)
    with pytest.raises(StoreError, match="no uploaded file"):
        blobs.open_blob(name)
    assert blobs.put_blob(io.BytesIO(b"precious")) == name
    assert blobs.open_blob(name).read() == b"precious"


@pytest.mark.parametrize("name", ["../job", "A" * 64, "abc"])
def test_a_name_that_no_blob_can_have_is_refused(files: Files, name: str) -> None:
    with pytest.raises(StoreError, match="64"):
        FileBlobStore(files).open_blob(name)


def test_an_upload_that_breaks_off_leaves_nothing(reopen: Reopen) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 2_000_000:
                raise ConnectionError("planted")
            return super().read(size)

    blobs = FileBlobStore(reopen())
    stream: BinaryIO = Broken(b"x" * 4_000_000)
    with pytest.raises((ConnectionError, StoreError), match="planted"):
        blobs.put_blob(stream)
    assert reopen().names("blobs") == []
    assert [name for name in reopen().names() if name.endswith(".partial")] == []


# ----------------------------------------------------------------------------------------------- local directories


def test_what_a_crash_has_half_written_is_ignored_and_removed(tmp_path: Path) -> None:
    store = FileJobStore(LocalFiles(tmp_path))
    accept(store, JOB)
    (tmp_path / "jobs" / JOB / "result.json.partial").write_bytes(b'{"format":1,"sha')
    (tmp_path / "jobs" / "job-half").mkdir()
    (tmp_path / "jobs" / "job-half" / "job.json.partial").write_bytes(b"{")
    (tmp_path / "incoming-1.partial").write_bytes(b"half an upload")
    assert [(job.job, job.result) for job in FileJobStore(LocalFiles(tmp_path)).recover()] == [(JOB, None)]
    FileBlobStore(LocalFiles(tmp_path))
    assert list(tmp_path.rglob("*.partial")) == []


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("steps", range(8))
def test_f_06_a_crash_at_any_system_call_leaves_the_old_record_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    store = FileJobStore(LocalFiles(tmp_path))
    accept(store, JOB)
    store.persist(PersistProgress(JOB, JobProgress(LeaderToken(1), attempt=1)))
    calls = itertools.count()

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            if next(calls) == steps:
                raise Crash
            return function(*given, **named)

        return call

    for name in ("open", "fsync", "replace"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    try:
        store.persist(PersistProgress(JOB, JobProgress(LeaderToken(1), attempt=2)))
        done = True
    except Crash:
        done = False
    monkeypatch.undo()
    (job,) = FileJobStore(LocalFiles(tmp_path)).recover()
    assert job.progress is not None
    assert job.progress.attempt in ((2,) if done else (1, 2))
    assert reopen_is_clean(tmp_path)


def reopen_is_clean(directory: Path) -> bool:
    return list(directory.rglob("*.partial")) == [] and not (directory / "damaged").exists()


@pytest.mark.parametrize("kind", ["job", "progress"])
def test_a_full_disk_is_one_clear_error_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store = FileJobStore(LocalFiles(tmp_path))
    accept(store, JOB)
    store.persist(PersistProgress(JOB, PROGRESS))
    before = store.recover()

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    record = PersistJob(JobId("job-b"), "k", spec()) if kind == "job" else PersistProgress(JOB, PROGRESS)
    with pytest.raises(StoreError, match=r"cannot write .*\.json: No space left on device"):
        store.persist(record)
    monkeypatch.undo()
    assert FileJobStore(LocalFiles(tmp_path)).recover() == before
    assert reopen_is_clean(tmp_path)


def test_a_directory_that_has_gone_is_not_made_anew(tmp_path: Path) -> None:
    store = FileJobStore(LocalFiles(tmp_path / "store"))
    accept(store, JOB)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for record in (PersistJob(JobId("job-b"), "k", spec()), PersistCancel(JOB)):
        with pytest.raises(StoreError):
            store.persist(record)
    assert not (tmp_path / "store").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    store.persist(PersistCancel(JOB))


def test_a_place_that_cannot_be_used_is_one_clear_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot make"):
        LocalFiles(tmp_path / "file" / "store")
    for url in ("ftp://host/path", "sftp://host/path", "https://host/path"):
        with pytest.raises(StoreError, match="whole"):
            open_files(url)
    assert isinstance(open_files(f"file://{tmp_path}/store"), LocalFiles)
    assert isinstance(open_files("memory://x"), ObjectFiles)


def test_records_and_blobs_are_their_owners_alone(tmp_path: Path) -> None:
    accept(FileJobStore(LocalFiles(tmp_path / "store")), JOB)
    FileBlobStore(LocalFiles(tmp_path / "store")).put_blob(io.BytesIO(b"x"))
    for path in (tmp_path / "store").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def spoil(files: Files, name: str, how: str) -> None:
    """Damage a record as disks and people do."""
    data = files.read(name)
    assert data is not None
    match how:
        case "cut":
            data = data[: len(data) // 2]
        case "flipped":
            middle = data.index(b'"record":') + 20
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        case "empty":
            data = b""
        case _:
            data = b'{"format":1,"sha256":"00","record":{}}'
    files.write(name, data)
