"""Which warm applications are kept, and for which jobs."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.dispatcher.warm_applications import WarmApplicationPolicy, WarmApplications, kind_of
from slotwise.model.ids import JobId
from slotwise.model.job import DriverSize, ExecutorSize, JobSpec
from slotwise.model.pipeline import PipelineOptions
from slotwise.model.resources import GIB, MIB
from slotwise.model.restart import RestartKind, RestartStrategy
from tests.unit.worlds import spec

OTHER = {"conf": {"spark.sql.shuffle.partitions": "7"}}
THIRD = {"conf": {"spark.sql.shuffle.partitions": "8"}}

# ----------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"},
        {"program": "/another.py"},
        {"args": ("--day", "3")},
        {"restart": RestartStrategy(RestartKind.NONE)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_jobs_that_differ_in_what_runs_only_are_of_one_kind(changes: dict[str, Any]) -> None:
    assert kind_of(spec(**changes)) == kind_of(spec())
    assert kind_of(spec()) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"conf": {"spark.sql.shuffle.partitions": "7"}},
        {"env": {"TZ": "UTC"}},
        {"working_dir": "/data"},
        {"python": "/usr/bin/python3"},
        {"driver": DriverSize(2, GIB, 384 * MIB)},
        {"executor": ExecutorSize(1, GIB, 384 * MIB)},
        {"min_executors": 2},
        {"initial_executors": 1},
        {"max_executors": 5},
        {"dynamic_allocation": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_jobs_whose_driver_or_executors_are_started_otherwise_are_of_another_kind(changes: dict[str, Any]) -> None:
    assert kind_of(spec(**changes)) not in (None, kind_of(spec()))


@pytest.mark.parametrize(
    "changes",
    [
        {"py_files": ("/a.py",)},
        {"files": ("/a.csv",)},
        {"archives": ("/a.zip",)},
        {"jars": ("/a.jar",)},
        {"pipeline": PipelineOptions()},
        *(
            {"conf": {key: "something"}}
            for key in (
                "spark.archives",
                "spark.driver.extraClassPath",
                "spark.executor.extraClassPath",
                "spark.extraListeners",
                "spark.files",
                "spark.jars",
                "spark.jars.packages",
                "spark.plugins",
                "spark.sql.extensions",
                "spark.sql.queryExecutionListeners",
                "spark.submit.pyFiles",
            )
        ),
        {"conf": {"spark.eventLog.enabled": "true"}},
    ],
    ids=lambda changes: " ".join(changes.get("conf", changes)),
)
def test_jobs_that_bring_something_of_their_own_have_no_kind(changes: dict[str, Any]) -> None:
    assert kind_of(spec(**changes)) is None


@pytest.mark.parametrize("value", ["false", "False"])
def test_what_is_switched_off_does_not_count(value: str) -> None:
    assert kind_of(spec(conf={"spark.eventLog.enabled": value})) is not None


# ----------------------------------------------------------------------------------------------- policy


def kind(**changes: Any) -> JobSpec:
    found = kind_of(spec(**changes))
    assert found is not None
    return found


class Kept:
    """What a policy wants, with those that it wants begun one after the other."""

    def __init__(self, **policy: Any) -> None:
        self.warm = WarmApplications(WarmApplicationPolicy(**policy))
        self.count = 0

    def begin(self, now: float, *, waits: bool = True) -> JobSpec | None:
        """Begin what is wanted; it waits at once, or never."""
        wanted = self.warm.wanted(now)
        if wanted is not None:
            self.count += 1
            job = JobId(f"warm-{self.count}")
            self.warm.begun(job, wanted)
            self.warm.heard(job, 1, waits=waits)
        return wanted

    def ending(self) -> list[JobId]:
        return [entry.job for entry in self.warm.entries.values() if entry.ending]


def test_none_is_kept_when_none_may_be() -> None:
    kept = Kept(most=0)
    assert kept.warm.take(spec(), 0.0) is None
    assert not kept.warm.active
    assert kept.warm.wanted(100.0) is None


def test_none_is_begun_before_anything_was_submitted() -> None:
    kept = Kept(most=2)
    assert not kept.warm.active
    assert kept.warm.wanted(100.0) is None


def test_none_is_begun_for_a_job_without_a_kind() -> None:
    kept = Kept(most=1, quiet_s=0.0)
    assert kept.warm.take(spec(jars=("/a.jar",)), 0.0) is None
    assert kept.warm.wanted(100.0) is None


def test_none_is_begun_before_submissions_have_ceased_for_a_while() -> None:
    kept = Kept(most=1, quiet_s=3.0)
    kept.warm.take(spec(), 0.0)
    kept.warm.take(spec(), 2.0)
    assert kept.warm.wanted(4.9) is None
    assert kept.warm.wanted(5.0) == kind()


def test_the_next_is_begun_when_the_one_before_waits() -> None:
    kept = Kept(most=2, quiet_s=0.0)
    kept.warm.take(spec(), 0.0)
    kept.warm.begun(JobId("a"), kind())
    assert kept.warm.wanted(1.0) is None
    kept.warm.heard(JobId("a"), 1, waits=True)
    assert kept.warm.wanted(2.0) == kind()
    kept.warm.heard(JobId("a"), 2, waits=False)
    assert kept.warm.wanted(3.0) is None


def test_an_old_word_of_one_changes_nothing() -> None:
    kept = Kept(most=1, quiet_s=0.0)
    kept.warm.begun(JobId("a"), kind())
    kept.warm.heard(JobId("a"), 3, waits=False)
    kept.warm.heard(JobId("a"), 2, waits=True)
    assert kept.warm.take(spec(), 0.0) is None


def test_as_many_are_kept_as_may_be_and_no_more() -> None:
    kept = Kept(most=3, quiet_s=0.0)
    kept.warm.take(spec(), 0.0)
    assert [kept.begin(1.0) for _ in range(5)] == [kind()] * 3 + [None] * 2
    assert kept.ending() == []


def test_they_are_shared_out_among_the_kinds_used_last() -> None:
    kept = Kept(most=3, quiet_s=0.0)
    kept.warm.take(spec(**OTHER), 0.0)
    kept.warm.take(spec(), 1.0)
    begun = [kept.begin(2.0) for _ in range(4)]
    assert begun[3] is None
    assert (begun.count(kind()), begun.count(kind(**OTHER))) == (2, 1)


def test_the_kind_used_last_wins_and_an_older_one_makes_room_first() -> None:
    kept = Kept(most=1, quiet_s=0.0)
    kept.warm.take(spec(), 0.0)
    kept.begin(1.0)
    kept.warm.take(spec(**OTHER), 2.0)
    assert kept.begin(3.0) is None
    assert kept.ending() == ["warm-1"]
    kept.warm.gone(JobId("warm-1"), 4.0)
    assert kept.begin(5.0) == kind(**OTHER)


def test_a_kind_that_is_used_again_is_the_last_again() -> None:
    kept = Kept(most=2, quiet_s=0.0)
    for changes in ({}, OTHER, {}, THIRD):
        kept.warm.take(spec(**changes), 0.0)
    assert [kept.begin(1.0) for _ in range(3)] == [kind(**THIRD), kind(), None]


def test_one_ends_when_no_job_of_its_kind_was_submitted_for_long() -> None:
    kept = Kept(most=1, quiet_s=0.0, idle_s=600.0)
    kept.warm.take(spec(), 0.0)
    kept.begin(1.0)
    kept.begin(599.0)
    assert kept.ending() == []
    assert kept.begin(600.0) is None
    assert kept.ending() == ["warm-1"]


def test_after_one_that_ended_by_itself_none_is_begun_for_a_while() -> None:
    kept = Kept(most=1, quiet_s=0.0)
    kept.warm.take(spec(), 0.0)
    kept.begin(1.0)
    kept.warm.gone(JobId("warm-1"), 2.0)
    assert kept.warm.wanted(31.0) is None
    assert kept.warm.wanted(32.0) == kind()


def test_a_kind_whose_applications_fail_is_tried_ever_more_seldom_until_one_waits() -> None:
    kept = Kept(most=1, quiet_s=0.0, idle_s=10_000.0)
    kept.warm.take(spec(), 0.0)
    now, pauses = 1.0, []
    for attempt in range(1, 8):
        assert kept.begin(now, waits=False) == kind()
        kept.warm.gone(JobId(f"warm-{attempt}"), now, failed=True)
        ended = now
        # Another job of the kind changes nothing.
        kept.warm.take(spec(), now)
        while kept.warm.wanted(now) is None:
            now += 1.0
        pauses.append(now - ended)
    assert kept.warm.outcomes == {"hit": 0, "miss": 8, "failed": 7}
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    kept.begin(now)
    kept.warm.gone(JobId("warm-8"), now, failed=True)
    assert kept.warm.wanted(now + 29.0) is None
    assert kept.warm.wanted(now + 30.0) == kind()
    assert kept.warm.outcomes["failed"] == 7


def test_a_kind_whose_applications_fail_does_not_keep_others_from_theirs() -> None:
    kept = Kept(most=2, quiet_s=0.0)
    kept.warm.take(spec(), 0.0)
    kept.warm.take(spec(**OTHER), 0.0)
    assert kept.begin(1.0, waits=False) == kind(**OTHER)
    kept.warm.gone(JobId("warm-1"), 2.0, failed=True)
    assert kept.begin(3.0) == kind()


def test_only_one_that_waits_and_is_not_to_end_is_taken_and_only_once() -> None:
    kept = Kept(most=1, quiet_s=0.0)
    kept.warm.begun(JobId("a"), kind())
    assert kept.warm.take(spec(), 0.0) is None
    kept.warm.heard(JobId("a"), 1, waits=True)
    assert kept.warm.take(spec(**OTHER), 0.0) is None
    kept.warm.entries[JobId("a")].ending = True
    assert kept.warm.take(spec(), 0.0) is None
    kept.warm.entries[JobId("a")].ending = False
    taken = kept.warm.take(spec(name="another", program="/b.py"), 0.0)
    assert taken is not None
    assert taken.job == "a"
    assert kept.warm.outcomes == {"hit": 1, "miss": 3, "failed": 0}
    assert kept.warm.take(spec(), 0.0) is None


def test_once_stopped_all_end_and_none_is_begun() -> None:
    kept = Kept(most=2, quiet_s=0.0)
    kept.warm.take(spec(), 0.0)
    kept.begin(1.0)
    kept.warm.stop()
    assert kept.warm.wanted(100.0) is None
    assert kept.ending() == ["warm-1"]
    kept.warm.gone(JobId("warm-1"), 100.0)
    assert not kept.warm.active
    assert kept.warm.take(spec(), 100.0) is None
    assert kept.warm.wanted(200.0) is None
