"""Events outlive the master that saw them (B: F-07)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.model.ids import JobId
from slotwise.protocol.effects import Event
from slotwise.runtime import events as module
from slotwise.runtime.events import EventLog

JOB = JobId("job-1")


def names(log: EventLog, job: JobId = JOB) -> list[str]:
    return [event.name for event in log.of_job(job)]


def test_f_07_a_jobs_events_are_there_for_the_next_master_and_numbers_rise(tmp_path: Path) -> None:
    first = EventLog(tmp_path, epoch=1)
    first.add([Event("submitted", JOB, fields={"name": "ü"}), Event("worker-lost"), Event("declared", JOB)])
    before = first.of_job(JOB)
    assert [event.seq for event in before] == [1, 3]
    second = EventLog(tmp_path, epoch=2)
    assert second.of_job(JOB) == before
    second.add([Event("job-state", JOB, fields={"state": "FINISHED"})])
    assert names(second) == ["submitted", "declared", "job-state"]
    assert second.of_job(JOB)[-1].seq > before[-1].seq
    assert [event.name for event in second.of_job(JOB, after=before[-1].seq)] == ["job-state"]
    assert names(EventLog(tmp_path, epoch=3)) == names(second)


def test_f_07_half_a_last_line_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    EventLog(tmp_path).add([Event("one", JOB), Event("two", JOB)])
    path = tmp_path / JOB / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'\xff\xfe garbage\n{"seq":3,"unix_s":1.0,"name":"thr')
    log = EventLog(tmp_path, epoch=2)
    assert names(log) == ["one", "two"]
    log.add([Event("four", JOB), Event("five", JOB)])
    assert names(EventLog(tmp_path, epoch=3)) == ["one", "two", "four", "five"]


def test_an_event_before_anybody_asked_does_not_hide_the_earlier_ones(tmp_path: Path) -> None:
    EventLog(tmp_path).add([Event("one", JOB)])
    log = EventLog(tmp_path, epoch=2)
    log.add([Event("two", JOB)])
    assert names(log) == ["one", "two"]


def test_a_job_that_nobody_asks_for_leaves_memory_but_not_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT_JOBS", 2)
    log = EventLog(tmp_path)
    for number in range(5):
        log.add([Event(f"of-{number}", JobId(f"job-{number}"))])
    assert [names(log, JobId(f"job-{number}")) for number in range(5)] == [[f"of-{number}"] for number in range(5)]


def test_events_make_no_new_directory_where_the_jobs_have_gone(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "jobs")
    log.add([Event("one", JOB)])
    assert names(log) == ["one"]
    assert not (tmp_path / "jobs").exists()
