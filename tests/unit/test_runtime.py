"""The runtime's small parts: log positions, abandoned folders, crashes that are seen."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.model.ids import JobId
from slotwise.protocol.codec import LogData, LogPosition
from slotwise.protocol.effects import Effects
from slotwise.runtime.actor import Actor
from slotwise.runtime.children import kill_marked
from slotwise.runtime.clock import monotonic
from slotwise.runtime.logs import LogStore, tail_lines
from slotwise.runtime.ownership import claim, is_abandoned
from slotwise.simulation.world import World
from tests.unit.worlds import spec


def test_chunks_that_come_twice_or_too_early_neither_double_nor_lose_a_byte(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert store.write(LogData("job-1", "driver-1.out", 0, b"abc")) is None
    assert store.write(LogData("job-1", "driver-1.out", 0, b"abcd")) is None
    assert store.write(LogData("job-1", "driver-1.out", 9, b"x")) == LogPosition("job-1", "driver-1.out", 4)
    path = store.path(JobId("job-1"), "driver-1.out")
    assert path is not None
    assert path.read_bytes() == b"abcd"


@pytest.mark.parametrize("name", ["../token", "a/b", "", ".hidden", "x" * 200])
def test_names_that_no_log_can_have_lead_nowhere(tmp_path: Path, name: str) -> None:
    assert LogStore(tmp_path).path(JobId("job-1"), name) is None


def test_a_log_that_cannot_be_written_does_not_break_the_stream(tmp_path: Path) -> None:
    (tmp_path / "job-1").write_text("a file where a folder should be")
    assert LogStore(tmp_path).write(LogData("job-1", "driver-1.out", 0, b"abc")) is None


def test_the_tail_is_of_the_last_file_that_says_anything(tmp_path: Path) -> None:
    for name, text in (("out", "to be ignored\n"), ("err", "one\n\ntwo\n"), ("log", "")):
        (tmp_path / name).write_text(text)
    assert tail_lines([tmp_path / "out", tmp_path / "err", tmp_path / "log"]) == ("one", "two")


def test_a_long_java_stack_does_not_push_its_cause_out_of_the_last_lines(tmp_path: Path) -> None:
    def stack(depth: int) -> list[str]:
        return [f"\tat org.example.Deep.call{number}(Deep.java:{number})" for number in range(depth)]

    outer, inner = (
        "java.lang.IllegalStateException: outer",
        "Caused by: java.lang.ClassNotFoundException: no.such.Class",
    )
    (tmp_path / "out").write_text("\n".join(["before", outer, *stack(70), inner, *stack(4), "after"]))
    assert tail_lines([tmp_path / "out"]) == (
        *("before", outer, *stack(3), "\t... 67 frames more"),
        *(inner, *stack(4), "after"),
    )


def test_a_folder_is_abandoned_only_when_its_process_ran_here_and_is_gone(tmp_path: Path) -> None:
    claim(tmp_path)
    assert not is_abandoned(tmp_path)
    owner = tmp_path / "owner.json"
    mine = json.loads(owner.read_text())
    owner.write_text(json.dumps({**mine, "born": mine["born"] - 100}))
    assert is_abandoned(tmp_path)
    owner.write_text(json.dumps({**mine, "born": 0, "host": "another"}))
    assert not is_abandoned(tmp_path)
    owner.unlink()
    assert not is_abandoned(tmp_path)


def test_a_detached_process_is_found_by_its_mark() -> None:
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
        env={**os.environ, "SLOT_ALLOCATION": "slot-of-this-test"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    assert kill_marked("SLOT_ALLOCATION", ("slot-of-this-test",)) == 1
    assert sleeper.wait(10) == -9


def test_a_machine_that_raises_is_told_at_once() -> None:
    class Broken:
        def handle(self, stimulus: object, now: float) -> Effects:
            raise RuntimeError("planted")

        def on_timer(self, now: float) -> Effects:
            return Effects()

        def next_timer(self) -> float | None:
            return None

    async def run() -> str:
        crashed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        actor = Actor("a", Broken(), lambda _: None, lambda name, error: crashed.set_result(f"{name}: {error}"))
        actor.start()
        actor.post("anything")
        return await asyncio.wait_for(crashed, 10)

    assert asyncio.run(run()) == "a: planted"


@pytest.mark.parametrize("ticks", range(4))
def test_an_actor_that_gets_a_stimulus_as_it_is_stopped_stops(ticks: int) -> None:
    class Idle:
        def handle(self, stimulus: object, now: float) -> Effects:
            return Effects()

        def on_timer(self, now: float) -> Effects:
            return Effects()

        def next_timer(self) -> float | None:
            return monotonic() + 60

    async def run() -> None:
        actor = Actor("a", Idle(), lambda _: None, lambda name, error: None)
        actor.start()
        for _ in range(3):
            await asyncio.sleep(0)
        actor.post("anything")
        for _ in range(ticks):
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(actor.stop())
        done, _ = await asyncio.wait([stopping], timeout=2)
        assert done

    asyncio.run(run())


def test_f_06_a_job_whose_record_could_not_be_written_leaves_no_trace() -> None:
    world = World()
    job = world.submit(spec(), key="key")
    world.dispatcher.forget(job)
    assert world.dispatcher.jobs == {}
    world.dispatcher.check_invariants()
    assert world.submit(spec(), key="key") != job
