from __future__ import annotations

import re

import pytest

from slotwise.cli.timeline import MIN_WIDTH, timeline
from slotwise.model.ids import AllocationId, JobId, WorkerId
from slotwise.runtime.events import Happened

SIZE = "1 CPU, 1408 MiB"
START = 1_700_000_000.0


class Story:
    """Events in the order in which they are told, at seconds after the submission."""

    def __init__(self) -> None:
        self.events: list[Happened] = []
        self.add(0, "submitted")

    def add(
        self,
        at_s: float,
        name: str,
        worker: str | None = None,
        slot: str | None = None,
        of_job: bool = True,
        **fields: str | int | float | None,
    ) -> Story:
        self.events.append(
            Happened(
                len(self.events) + 1,
                START + at_s,
                name,
                JobId("job-1") if of_job else None,
                WorkerId(worker) if worker else None,
                AllocationId(slot) if slot else None,
                fields,
            )
        )
        return self

    def worker(self, asked_s: float, there_s: float, name: str) -> Story:
        self.add(asked_s, "worker-requested", name, of_job=False, total="2 CPU, 4 GiB")
        return self.add(there_s, "worker-registered", name, of_job=False, total="2 CPU, 4 GiB")

    def lines(self, width: int = 100) -> list[str]:
        return timeline(self.events, width)

    def bars(self, width: int = 100) -> dict[str, str]:
        """Label -> the bar, for each row of the chart."""
        _, rule, *rows = self.lines(width)
        start = rule.index("┌")
        return {re.split(r"\s{2,}", row.strip())[0]: row[start:] for row in rows[: rows.index("")]}


def usual() -> Story:
    """One worker; a driver and an executor in ten seconds."""
    story = Story().add(0, "declared", requirements=f"2 × ({SIZE})", version=1).worker(0, 1, "worker-a")
    for slot in ("s1", "s2"):
        story.add(2, "acquired", "worker-a", slot, profile=SIZE)
    story.add(2, "deployed", "worker-a", "s1", process="driver-1").add(2, "job-state", state="RUNNING")
    story.add(4, "deployed", "worker-a", "s2", process="executor-1")
    story.add(6, "executor-registered", executor="1")
    story.add(7, "first-task", unix_s=START + 6.5)
    return story


def finished() -> Story:
    story = usual()
    story.add(9, "declared", requirements=f"1 × ({SIZE})", version=2)
    story.add(9, "executor-ended", slot="s2", executor="1", exit_code=0, asked=1)
    story.add(10, "job-state", state="FINISHED")
    for slot in ("s1", "s2"):
        story.add(10, "released", "worker-a", slot, cause="the job is over")
    return story.add(10, "declared", requirements="", version=3)


def shares(bar: str) -> dict[str, int]:
    """How many tenths of the bar each glyph has."""
    length = len(bar)
    return {glyph: round(bar.count(glyph) * 10 / length) for glyph in dict.fromkeys(bar)}


def test_each_phase_of_a_slot_has_its_share_of_the_bar() -> None:
    bars = finished().bars()
    assert list(bars) == ["worker-a", "driver", "executor 1"]
    assert shares(bars["worker-a"]) == {"·": 1, "─": 9}
    assert shares(bars["driver"]) == {"·": 2, "█": 8}
    assert shares(bars["executor 1"]) == {"·": 2, "░": 3, "▒": 2, "█": 3}
    assert re.fullmatch("·+░+▒+█+░+", bars["executor 1"])


def test_the_turning_points_are_told_in_their_order() -> None:
    notes = [line.split("s  ", 1)[1] for line in finished().lines() if re.match(r"\s+\d+\.\d s  ", line)]
    assert notes == [
        f"declared 2 × ({SIZE})",
        "first task started",
        f"declared 1 × ({SIZE})",
        "job is finished",
        "declared nothing",
    ]


def test_the_legend_names_the_glyphs_that_are_drawn_and_no_others() -> None:
    text = "\n".join(finished().lines())
    assert "▒ process starting" in text
    assert "lost" not in text


@pytest.mark.parametrize("width", [1, MIN_WIDTH, 80, 100, 173])
def test_no_line_is_wider_than_asked_for(width: int) -> None:
    lines = finished().lines(width)
    assert max(map(len, lines)) <= max(width, MIN_WIDTH)
    assert len(finished().bars(width)["driver"]) >= 20


def test_sizes_give_way_to_bars_where_names_are_long() -> None:
    story = Story().worker(0, 1, "worker-with-a-name-of-many-words").add(5, "job-state", state="FINISHED")
    line = next(line for line in story.lines(MIN_WIDTH) if line.startswith("worker-with"))
    assert "CPU" not in line
    assert line.count("─") > 15
    assert len(line) <= MIN_WIDTH


def test_a_lost_slot_ends_with_a_mark_and_its_successor_is_missing_from_then_on() -> None:
    story = usual()
    story.add(8, "slot-lost", "worker-a", "s2", reason="worker lost")
    story.add(12, "acquired", "worker-a", "s3", profile=SIZE)
    story.add(12, "deployed", "worker-a", "s3", process="executor-2").add(14, "executor-registered", executor="2")
    story.add(16, "job-state", state="FINISHED")
    bars = story.bars()
    assert bars["executor 1"].endswith("✗")
    assert len(bars["executor 1"]) < len(bars["executor 2"])
    # Declared by the loss of the first at 8 s, there at 12 s, of 16 s in all.
    blank, asked = re.match(r"( *)(·+)", bars["executor 2"]).groups()  # type: ignore[union-attr]
    assert len(blank) == pytest.approx(len(bars["executor 2"]) / 2, abs=1)
    assert len(asked) == pytest.approx(len(bars["executor 2"]) / 4, abs=1)
    assert "slot lost on worker-a: worker lost" in "\n".join(story.lines())


def test_a_slot_used_again_names_both_executors() -> None:
    story = usual()
    story.add(7, "executor-ended", slot="s2", executor="1", exit_code=137, asked=0)
    story.add(8, "deployed", "worker-a", "s2", process="executor-2").add(9, "executor-registered", executor="2")
    story.add(10, "job-state", state="FINISHED")
    assert re.fullmatch("·+░+▒+█+░+▒+█+", story.bars()["executor 1, 2"])
    assert "executor 1 ended with code 137" in "\n".join(story.lines())


def test_what_was_declared_and_never_came_is_shown() -> None:
    story = Story().add(0, "declared", requirements=f"1 × ({SIZE}); 1 × (4 CPU, 64 GiB)", version=1)
    story.worker(0, 1, "worker-a").add(2, "acquired", "worker-a", "s1", profile=SIZE)
    story.add(10, "job-state", state="FAILED", reason="no worker is that large")
    story.add(10, "released", "worker-a", "s1", cause="the job is over").add(10, "declared", requirements="")
    bars = story.bars()
    assert list(bars) == ["worker-a", "unused", "never came"]
    assert set(bars["never came"]) == {"·"}
    assert shares(bars["unused"]) == {"·": 2, "░": 8}
    assert "job is failed: no worker is that large" in "\n".join(story.lines())


def test_cancelling_gives_slots_back_and_leaves_none_missing() -> None:
    story = usual().add(8, "job-state", state="CANCELLING")
    for slot in ("s1", "s2"):
        story.add(8, "released", "worker-a", slot, cause="the job is cancelled")
    story.add(12, "declared", requirements="").add(12, "job-state", state="CANCELED")
    assert list(story.bars()) == ["worker-a", "driver", "executor 1"]


def test_the_end_of_the_cluster_after_the_job_is_not_a_loss() -> None:
    before = finished().lines()
    story = finished().add(10.5, "worker-lost", "worker-a", of_job=False, reason="stopped")
    assert story.lines() == before
    during = usual().add(8, "worker-lost", "worker-a", of_job=False, reason="gone").add(10, "job-state", state="FAILED")
    assert during.bars()["worker-a"].endswith("✗")
    assert "worker lost: worker-a: gone" in "\n".join(during.lines())


def test_another_job_on_the_cluster_is_left_out() -> None:
    story = finished()
    expected = story.lines()
    other = Happened(99, START + 3, "declared", JobId("job-2"), None, None, {"requirements": f"9 × ({SIZE})"})
    assert timeline([*story.events[:5], other, *story.events[5:]]) == expected


def test_many_turning_points_are_cut_in_the_middle() -> None:
    story = usual()
    for second in range(40):
        story.add(8 + second, "declared", requirements=f"{second} × ({SIZE})")
    lines = story.lines()
    assert len(lines) < 40
    assert any("more" in line for line in lines)


def test_colour_changes_nothing_but_colour() -> None:
    events = finished().events
    plain, coloured = timeline(events, 100), timeline(events, 100, colour=True)
    assert "\x1b[" in "".join(coloured)
    assert [re.sub("\x1b\\[\\d+m", "", line) for line in coloured] == plain
    assert "\x1b" not in "".join(plain)


@pytest.mark.parametrize("seconds", [0.01, 0.7, 9.0, 33.0, 615.0, 90_000.0])
def test_the_axis_has_readable_ticks_at_any_length(seconds: float) -> None:
    lines = Story().worker(0, 0.001, "worker-a").add(seconds, "job-state", state="FINISHED").lines()
    ticks = lines[0].split()
    assert ticks[:2] == ["0", "s"]
    numbers = [float(tick) for tick in ticks[2:]]
    assert numbers == sorted(numbers)
    assert len(numbers) <= 12
    assert all(number <= max(seconds, 0.1) for number in numbers)


def test_without_a_submission_there_is_nothing_to_draw() -> None:
    assert timeline([]) == []
    assert timeline(finished().events[1:]) == []
