"""What masters and workers log: lines that a program can read, bound to what they are about, without secrets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from slotwise.cli.logging import configure_logging, output_file
from slotwise.model.ids import DISPATCHER, RESOURCE_MANAGER, JobId, LeaderToken, WorkerId
from slotwise.protocol.effects import ConnectionClosed, Effects, Event
from slotwise.protocol.messages import CancelJob, Envelope
from slotwise.runtime.actor import Actor
from slotwise.runtime.events import tell
from slotwise.runtime.log_context import RecentLines, Redactor, handling, hidden, recent_lines

SECRET = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    handling(None)


def test_a_json_line_has_time_level_event_and_what_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", component="master")
    structlog.get_logger().info("something happened", job="job-ä", count=3)
    structlog.get_logger().debug("too small")
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {"level": "info", "event": "something happened", "component": "master", "job": "job-ä", "count": 3}


def test_a_text_line_is_key_value(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    structlog.get_logger().debug("a thing", job="job-a")
    assert 'level=debug event="a thing" job=job-a' in capsys.readouterr().err


def test_an_exception_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    try:
        raise ValueError("planted")
    except ValueError:
        structlog.get_logger().exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: planted" in json.loads(line)["exception"]


def test_a_line_says_which_message_it_comes_of(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")

    class Talks:
        def handle(self, stimulus: object, now: float) -> Effects:
            return Effects()

        def on_timer(self, now: float) -> Effects:
            return Effects()

        def next_timer(self) -> float | None:
            return None

    async def run() -> None:
        heard = asyncio.Event()
        left = [2]

        def carry_out(_: Effects) -> None:
            structlog.get_logger().info("carried out")
            left[0] -= 1
            if not left[0]:
                heard.set()

        actor = Actor("a", Talks(), carry_out, lambda name, error: None)
        message = CancelJob(JobId("job-7"))
        actor.post(Envelope(41, DISPATCHER, LeaderToken(1), RESOURCE_MANAGER, LeaderToken(2), message))
        actor.post(ConnectionClosed(WorkerId("worker-3")))
        actor.start()
        await asyncio.wait_for(heard.wait(), 10)
        await actor.stop()

    asyncio.run(run())
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["message"], first["message_kind"], first["message_from"]) == (41, "CancelJob", RESOURCE_MANAGER)
    assert first["job"] == "job-7"
    assert second["worker"] == "worker-3"
    assert "message" not in second


def test_events_are_told_with_what_they_are_about_and_small_ones_at_the_lowest_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", "json")
    tell(Event("worker-lost", worker=WorkerId("worker-3"), fields={"reason": "no heartbeat"}))
    tell(Event("allocated", JobId("job-7"), WorkerId("worker-3")))
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["event"], told["worker"], told["reason"]) == ("worker-lost", "worker-3", "no heartbeat")


def test_secrets_do_not_get_into_a_line_wherever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    hidden.add("a token of somebody's own")
    for log_format in ("text", "json"):
        configure_logging("info", log_format)
        structlog.get_logger().info(f"got {SECRET}", url=f"http://x/?token={SECRET}", error="a token of somebody's own")
        (line,) = capsys.readouterr().err.splitlines()
        assert SECRET not in line
        assert "somebody's own" not in line
        assert line.count("[hidden]") == 3
    assert SECRET.encode() not in recent_lines.since(0)[1]


def test_a_token_of_somebody_is_known_by_its_looks() -> None:
    token = "slw_Ff3VAMJXXVYd_AxdN_RKPAJtr1crfJWeYog-jfQhEwk"
    assert Redactor()(f'{{"error": "refused {token}"}}') == '{"error": "refused [hidden]"}'


def test_ids_and_ordinary_words_are_not_taken_for_secrets() -> None:
    line = "job-1a2b3c4d allocation-00ff00ff 20261121T000000 " + "a" * 40
    assert Redactor()(line) == line


def test_the_newest_lines_are_held_at_their_offsets() -> None:
    lines = RecentLines(limit=10)
    assert lines.since(0) == (0, b"")
    for text in ("one", "two", "three"):
        lines.add(text)
    assert lines.since(0) == (4, b"two\nthree\n")
    assert lines.since(8) == (8, b"three\n")
    assert lines.since(14) == (14, b"")
    lines.add("longer than all of it")
    assert lines.since(0) == (14, b"longer than all of it\n")


def test_a_log_that_goes_to_a_file_is_found_and_no_other(tmp_path: Path) -> None:
    script = "from slotwise.cli.logging import output_file; print(output_file())"
    target = tmp_path / "own.log"

    def found(stderr: object) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True
        )  # type: ignore[call-overload]
        return str(done.stdout.strip())

    with target.open("ab") as output:
        assert found(output) == str(target)
    assert found(subprocess.PIPE) == "None"
    assert found(subprocess.DEVNULL) == "None"
    assert os.path.exists(target)
    assert callable(output_file)
