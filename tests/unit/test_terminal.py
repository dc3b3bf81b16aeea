"""What commands draw: tables that fit and are in colour only where that is wanted, and the live view."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from slotwise.cli.main import _COMMANDS, main
from slotwise.cli.tables import build_table, fit, print_table
from slotwise.cli.top import SORTS, Screen, View, human_bytes, human_time, render, sorted_jobs
from slotwise.model.resources import GIB

ROWS = [
    ("job-1a2b3c4d", "a long name of a job that somebody has given", "RUNNING", 12),
    ("job-2", "short", "FAILED", 3),
]
HEADERS = ("JOB", "NAME", "STATE", "SLOTS")


def drawn(what: Any, width: int = 200, *, colour: bool = False) -> str:
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=colour, color_system="standard" if colour else None).print(what)
    return output.getvalue()


def test_columns_are_aligned_and_numbers_stand_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADERS, ROWS)
    head, first, second = capsys.readouterr().out.splitlines()
    assert first.index("RUNNING") == second.index("FAILED") == head.index("STATE")
    assert len(head) == len(first) == len(second)
    assert second.endswith("    3")


def test_where_there_is_no_terminal_nothing_is_cut_and_nothing_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("x" * 300, "y" * 300)])
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "y" * 300 in out
    assert "\x1b" not in out
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_on_a_narrow_terminal_words_are_cut_and_ids_and_numbers_are_not() -> None:
    text = drawn(build_table(HEADERS, ROWS, 40), width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert "job-1a2b3c4d" in text
    assert "…" in text
    assert re.search(r"12\s*$", text, re.MULTILINE)


def test_the_widest_texts_are_cut_first() -> None:
    widths = [12, 5, 40, 20]
    fit(widths, [1, 2, 3], 60)
    assert widths == [12, 5, 18, 19]
    fit(widths, [1, 2, 3], 10)
    assert widths == [12, 4, 4, 4]
    assert "x  127.0.0.1  " in drawn(build_table(("A", "HOST"), [("x", "127.0.0.1"), ("y", "a-long-host")]))


def test_colours_are_for_terminals_and_not_against_the_users_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in drawn(build_table(HEADERS, ROWS), colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn(build_table(HEADERS, ROWS), colour=True)


def test_a_name_cannot_move_the_cursor_nor_be_taken_for_markup() -> None:
    text = drawn(build_table(HEADERS, [("job-1", "[red]evil[/red]\x1b[2J", "RUNNING", 1)]))
    assert "[red]evil[/red]?[2J" in text


@pytest.mark.parametrize(
    "name",
    [*_COMMANDS, "cluster start", "cluster stop", "cluster status", "token create", "token list", "token revoke"],
)
def test_every_commands_help_has_examples_that_begin_with_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert re.search(r"^  Examples?:$", text, re.MULTILINE), name
    assert f"    slotwise {name}" in text


# ----------------------------------------------------------------------------------------------- the live view


def profile(cpu: int, memory: int) -> dict[str, Any]:
    return {"cpu_milli": cpu, "memory_bytes": memory, "extendedResources": {}}


def job(number: int, **changes: Any) -> dict[str, Any]:
    missing = changes.pop("lacks", 0)
    details = {
        "jid": f"job-{number}",
        "name": f"name-{number}",
        "phase": "RUNNING",
        "start-time": number * 1000,
        "end-time": -1,
        "duration": 1000 * number,
        "declared": [{"count": 3}],
        "held": [{}] * (3 - missing),
        "missing": [{"count": missing, "detail": "2 worker(s) are all that is allowed"}] if missing else [],
        "executors": {"registered": 2 - missing, "wanted": 2},
        "reason": "",
    }
    return details | changes


def view(jobs: list[dict[str, Any]], workers: int = 1) -> View:
    total = profile(4000 * workers, 8 * GIB * workers)
    return View(
        url="http://127.0.0.1:1",
        at_unix_s=4.0,
        overview={"slots-total": 3, "jobs-running": 1, "jobs-finished": 0, "jobs-failed": 0, "jobs-cancelled": 0},
        resources={"total": total, "used": profile(3000 * workers, 2 * GIB * workers)},
        taskmanagers=[
            {
                "id": f"worker-{number}",
                "host": "host",
                "leaving": False,
                "blocked": number == 0,
                "slotsNumber": 1,
                "timeSinceLastHeartbeat": 2000,
                "totalResource": profile(4000, 8 * GIB),
                "freeResource": profile(1000, 6 * GIB),
            }
            for number in range(workers)
        ],
        pending=[{"id": "worker-new", "since_s": 3.2}],
        jobs=jobs,
    )


def test_the_view_shows_totals_jobs_with_what_they_lack_and_why_and_workers() -> None:
    text = drawn(render(view([job(1, lacks=1)]), Screen()))
    assert re.search(r"cores +█+░+ +75 %  3 of 4", text)
    assert re.search(r"memory +█+░+ +25 %  2 GiB of 8 GiB", text)
    assert re.search(r"job-1 +name-1 +RUNNING +2/3 +1/2 +1 +3 s +2 worker\(s\) are all that is allowed", text)
    assert re.search(r"worker-0 +host +blocked +1 +3/4 +2 GiB of 8 GiB +2 s", text)
    assert re.search(r"worker-new +– +starting", text)
    assert "q quit" not in text


def test_ended_jobs_are_behind_the_others_and_few() -> None:
    jobs = [job(number, phase="FINISHED", reason="done") for number in range(10, 30)] + [job(1)]
    text = drawn(render(view(jobs), Screen(sort="start")))
    found = re.findall(r"^job-\d+", text, re.MULTILINE)
    assert found == ["job-1", "job-29", "job-28", "job-27", "job-26", "job-25"]


def test_no_more_lines_than_there_are_and_it_says_how_many_are_left_out() -> None:
    text = drawn(render(view([job(number) for number in range(40)], workers=40), Screen(height=24, live=True)))
    assert len(text.splitlines()) <= 24
    assert len(re.findall(r"… \d+ more", text)) == 2
    few = drawn(render(view([job(1)], workers=40), Screen(height=24)))
    assert len(few.splitlines()) <= 24
    assert few.count("worker-") > 8


def test_jobs_are_sorted_by_what_was_asked_for() -> None:
    jobs = [job(1, name="b"), job(2, name="a", lacks=2), job(3, name="c", phase="DEPLOYING", lacks=1)]
    orders = {sort: [found["jid"][-1] for found in sorted_jobs(jobs, sort)] for sort in SORTS}
    assert orders == {
        "start": ["3", "2", "1"],
        "slots": ["1", "3", "2"],
        "missing": ["2", "3", "1"],
        "duration": ["3", "2", "1"],
        "name": ["2", "1", "3"],
        "state": ["3", "1", "2"],
    }


def test_an_empty_cluster_and_a_master_that_is_away_can_be_shown() -> None:
    empty = view([], workers=0)
    text = drawn(render(empty, Screen(problem="no master answers\x1b[2J", live=True, paused=True)))
    assert "no jobs" in text
    assert "no master answers?[2J" in text
    assert "PAUSED" in text


def test_sizes_and_times_are_short() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1536, 3 * GIB // 2, 5000 * GIB)] == [
        "0 B",
        "1.02e+03 B",
        "1.5 KiB",
        "1.5 GiB",
        "4.883 TiB",
    ]
    assert [human_time(seconds * 1000) for seconds in (3, 99, 600, 9000)] == ["3 s", "99 s", "10 min", "2.5 h"]
