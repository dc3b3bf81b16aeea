"""Logs of jobs and workers at the master: what is kept of them, and what is said of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.model.ids import JobId, WorkerId
from slotwise.protocol.codec import LogData, LogPosition
from slotwise.runtime.cut_log import CutLog
from slotwise.runtime.log_retention import outlived
from slotwise.runtime.logs import LogLimits, LogStore, WorkerLogStore

JOB = JobId("job-1")
NOTICE = re.compile(rb"\n\[slotwise: ([\d,]+) bytes are cut out here \(from byte ([\d,]+) to byte ([\d,]+)\)[^\n]*\]\n")


def whole(log: CutLog, piece: int = 64) -> bytes:
    position, found = 0, b""
    while True:
        data, position = log.read(position, piece)
        if not data:
            return found
        found += data


def store_whole(store: LogStore, name: str = "a.out", job: JobId = JOB) -> bytes:
    path = store.path(job, name)
    assert path is not None
    return whole(CutLog(path), 4096)


def numbers(count: int) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(count))


def send(store: LogStore, data: bytes, name: str = "a.out", job: str = JOB, piece: int = 500) -> None:
    """As a worker sends: in pieces, each where the last ended."""
    path = store.path(JobId(job), name)
    assert path is not None
    for offset in range(0, len(data), piece):
        assert store.write(LogData(job, name, offset, data[offset : offset + piece])) is None


def test_a_log_over_its_limit_keeps_its_beginning_and_its_end_and_says_what_is_missing(tmp_path: Path) -> None:
    store = LogStore(tmp_path, LogLimits(file_bytes=8000))
    data = numbers(5000)
    send(store, data)
    text = store_whole(store)
    found = NOTICE.search(text)
    assert found is not None
    count, start, end = (int(group.replace(b",", b"")) for group in found.groups())
    assert count == end - start == store.cut_bytes
    assert text[: found.start()] == data[:start]
    assert text[found.end() :] == data[end:]
    assert start == 4000
    assert len(data) - end >= 2000
    path = store.path(JOB, "a.out")
    assert path is not None
    assert CutLog(path).stored <= 8000
    assert CutLog(path).size == len(data)


def test_a_log_under_its_limit_is_whole(tmp_path: Path) -> None:
    store = LogStore(tmp_path, LogLimits(file_bytes=8000))
    send(store, numbers(1000))
    assert store_whole(store) == numbers(1000)
    assert store.cut_bytes == 0


def test_the_next_master_goes_on_with_a_log_that_was_cut(tmp_path: Path) -> None:
    data = numbers(5000)
    send(LogStore(tmp_path, LogLimits(file_bytes=8000)), data)
    second = LogStore(tmp_path, LogLimits(file_bytes=8000))
    # What was lost on the way is asked for by the length of the whole log.
    late = LogData(JOB, "a.out", len(data) + 8, b"")
    assert second.write(late) == LogPosition(JOB, "a.out", len(data))
    assert second.write(LogData(JOB, "a.out", len(data) - 8, data[-8:] + b"0005000\n")) is None
    assert store_whole(second).endswith(b"0004999\n0005000\n")


def test_who_reads_along_sees_every_byte_of_a_log_that_is_being_cut(tmp_path: Path) -> None:
    store = LogStore(tmp_path, LogLimits(file_bytes=8000))
    data, position, seen = numbers(5000), 0, b""
    for offset in range(0, len(data), 500):
        store.write(LogData(JOB, "a.out", offset, data[offset : offset + 500]))
        while True:
            fresh, position = store.read(JOB, "a.out", position)
            if not fresh:
                break
            seen += fresh
    assert seen == data


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.integers(1, 700), max_size=40),
    limit=st.integers(1024, 4000),
    trims=st.dictionaries(st.integers(0, 40), st.integers(0, 1500), max_size=4),
)
def test_what_is_kept_is_true_however_it_came(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], limit: int, trims: dict[int, int]
) -> None:
    log = CutLog(tmp_path_factory.mktemp("cut") / "a.out")
    data = b""
    for step, size in enumerate(pieces):
        fresh = (numbers(200) * 2)[:size]
        log.append(fresh, limit)
        data += fresh
        assert log.stored <= limit
        if step in trims:
            log.trim(trims[step])
            assert log.stored <= max(trims[step], 0)
    assert log.size == len(data)
    assert log.stored + log.cut == len(data)
    text = whole(log, 37)
    parts = NOTICE.split(text)
    if log.cut:
        assert len(parts) == 5
        start, end = (int(part.replace(b",", b"")) for part in parts[2:4])
        assert (parts[0], parts[4]) == (data[:start], data[end:])
        assert end - start == log.cut
    else:
        assert text == data


def test_a_log_stays_within_its_limit_after_it_was_trimmed(tmp_path: Path) -> None:
    log = CutLog(tmp_path / "a.out")
    log.append(numbers(200)[:1020], 1024)
    log.trim(770)
    for _ in range(8):
        log.append(b"x" * 64, 1024)
        assert log.stored <= 1024


def test_a_job_over_its_limit_loses_the_middle_of_its_largest_logs(tmp_path: Path) -> None:
    store = LogStore(tmp_path, LogLimits(file_bytes=40_000, job_bytes=50_000))
    send(store, numbers(100), "driver-1.out")
    for number in range(1, 5):
        send(store, numbers(4000), f"executor-{number}.log")
    logs = {name: store.path(JOB, name) for name in store.names(JOB)}
    stored = {name: CutLog(path).stored for name, path in logs.items() if path is not None}
    assert sum(stored.values()) <= 50_000
    assert store_whole(store, "driver-1.out") == numbers(100)
    for number in range(1, 5):
        text = store_whole(store, f"executor-{number}.log")
        assert NOTICE.search(text)
        assert text.startswith(b"0000000\n")
        assert text.endswith(b"0003999\n")


def test_the_limit_of_a_job_holds_with_any_number_of_logs_and_for_the_next_master(tmp_path: Path) -> None:
    limits = LogLimits(file_bytes=4096, job_bytes=8192)
    for turn in range(2):
        store = LogStore(tmp_path, limits)
        for number in range(60):
            send(store, numbers(60), f"executor-{turn}-{number}.log")
    store = LogStore(tmp_path, limits)
    logs = [store.path(JOB, name) for name in store.names(JOB)]
    assert len(logs) == 120
    assert sum(CutLog(path).stored for path in logs if path is not None) <= 8192


def test_other_jobs_do_not_suffer_for_one(tmp_path: Path) -> None:
    store = LogStore(tmp_path, LogLimits(file_bytes=4096, job_bytes=4096))
    send(store, numbers(200), job="job-2")
    send(store, numbers(9000))
    assert store_whole(store, job=JobId("job-2")) == numbers(200)


def test_logs_of_ended_jobs_go_by_count_and_by_age(tmp_path: Path) -> None:
    ended = [(JobId(f"job-{day}"), 86400.0 * day) for day in range(10)]
    gone = outlived(ended, LogLimits(ended_jobs=4, ended_s=86400.0 * 100), 86400.0 * 10)
    assert set(gone) == {f"job-{day}" for day in range(6)}
    assert "job.logs.retention.max-jobs" in gone[JobId("job-0")]
    gone = outlived(ended, LogLimits(ended_jobs=9, ended_s=86400.0 * 3), 86400.0 * 10)
    assert set(gone) == {f"job-{day}" for day in range(7)}
    assert "for 3 days" in gone[JobId("job-6")]
    assert outlived(ended, LogLimits(ended_jobs=100, ended_s=-1), 1e12) == {}


def test_of_logs_that_were_removed_the_reason_stays(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    send(store, numbers(10))
    (tmp_path / JOB / "events.jsonl").write_text("")
    assert store.removed(JOB) == ""
    store.remove(JOB, "because")
    assert (store.names(JOB), store.removed(JOB), store.has_logs(JOB)) == ([], "because", False)
    assert (tmp_path / JOB / "events.jsonl").exists()
    store.remove(JobId("job-never"), "because")
    assert not (tmp_path / "job-never").exists()


def test_a_workers_own_log_is_kept_with_a_word_for_what_was_not_received(tmp_path: Path) -> None:
    store, worker = WorkerLogStore(tmp_path / "worker-logs"), WorkerId("worker-a")
    store.write(worker, LogData("", "worker-1.log", 0, b"one\n"))
    store.write(worker, LogData("", "worker-1.log", 0, b"one\ntwo\n"))
    store.write(worker, LogData("", "worker-1.log", 100, b"three\n"))
    (path,) = store.paths(worker)
    text = whole(CutLog(path))
    assert text.startswith(b"one\ntwo\n\n[slotwise: 92 bytes are cut out here")
    assert text.endswith(b"]\nthree\n")
    store.write(WorkerId("../x"), LogData("", "worker-1.log", 0, b"bad"))
    store.write(worker, LogData("", "../x", 0, b"bad"))
    assert [path.name for path in tmp_path.iterdir()] == ["worker-logs"]
    assert store.paths(WorkerId("..")) == []


def test_a_first_piece_from_the_middle_of_a_workers_log_is_there_too(tmp_path: Path) -> None:
    store, worker = WorkerLogStore(tmp_path), WorkerId("worker-a")
    store.write(worker, LogData("", "worker-1.log", 50, b"late\n"))
    (path,) = store.paths(worker)
    assert whole(CutLog(path)).endswith(b"]\nlate\n")


def test_only_so_many_workers_logs_are_kept(tmp_path: Path) -> None:
    store = WorkerLogStore(tmp_path, most_workers=3)
    for number in range(6):
        store.write(WorkerId(f"worker-{number}"), LogData("", "worker-1.log", 0, b"here\n"))
    assert len(list(tmp_path.iterdir())) == 3
    assert store.paths(WorkerId("worker-5"))
