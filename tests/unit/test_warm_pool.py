"""Processes that wait for slots: who gets them, what they leave, when they go. Small Pythons in place of JVMs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from slotwise.model.ids import AllocationId, JobId
from slotwise.model.process import ProcessSpec
from slotwise.model.resources import GIB, ResourceProfile
from slotwise.protocol.effects import CleanSlot, EndProcess
from slotwise.protocol.messages import ProcessPhase
from slotwise.runtime.home import slot_records
from slotwise.runtime.kept import KeeperSettings
from slotwise.runtime.slots import SlotCommand
from slotwise.spark import warm_pool, warm_unit
from slotwise.spark.launch import Command, Handover
from slotwise.spark.warm_pool import WarmPolicy, WarmPool
from slotwise.spark.warm_unit import DRIVER, EXECUTOR, Commands, Shape
from tests.unit.slot_owner import PROFILE, TOTAL, Owner, ShellLauncher, alive, make_home, make_store

SMALL = Shape(EXECUTOR, GIB, 1, PROFILE)
LARGE = Shape(EXECUTOR, 2 * GIB, 1, ResourceProfile(1000, 2 * GIB))
DRIVERS = Shape(DRIVER, GIB, 1, PROFILE)
AT_ONCE = WarmPolicy(drivers=0, quiet_s=0.0)

# What a waiting process does, and then a shell command: the first word of its order.
WAITER = """
import json, os, sys
folder = sys.argv[-1]
if os.environ.get("TIDY"):
    def tidy(*_):
        open(os.environ["TIDY"], "x").close()
        sys.exit()
    __import__("signal").signal(15, tidy)
print("getting ready", flush=True)
if os.environ.get("HELPED"):
    if os.fork() == 0:
        __import__("time").sleep(1000)
if os.environ.get("NEVER_READY"):
    sys.stdin.read()
    __import__("time").sleep(1000)
open(folder + "/ready", "x").close()
text = open(folder + "/order").read()
if os.environ.get("DEAF") == "1":
    __import__("time").sleep(1000)
order = json.loads(text)
open(folder + "/taken", "x").close()
os.execve("/bin/sh", ["/bin/sh", "-c", *order["args"]], order["env"])
"""


class PoolLauncher(ShellLauncher):
    """Shell commands, by what waits in a pool where it can."""

    pool: WarmPool
    shape = SMALL
    env: dict[str, str] = {}  # noqa: RUF012 - replaced, never changed
    staged: tuple[str, ...] = ()

    async def commands(
        self,
        allocation: AllocationId,
        job: JobId,
        process: str,
        spec: ProcessSpec,
        slot_dir: Path,
        on_log: Callable[[Path], None],
    ) -> list[SlotCommand]:
        """One command."""
        (plain,) = await super().commands(allocation, job, process, spec, slot_dir, on_log)
        for name in self.staged:
            (slot_dir / name).mkdir()
            (slot_dir / name / "inside").write_text("staged\n")
        env = {**plain.env, **self.env}
        handover = Handover((str(self.shape.heap_bytes),), ("sh",), {})
        unit = self.pool.take(self.shape, Command(plain.argv, env, {}, plain.cwd, handover), slot_dir, self.staged)
        # Time for others.
        await asyncio.sleep(0.05)
        order = {"args": plain.argv[2:]}
        return [changed(plain, env=env, waiting=unit.jvm if unit else None, order=order)]

    def in_use(self, used: ResourceProfile) -> None:
        """Passed on."""
        self.pool.in_use(used)


def changed(command: SlotCommand, **changes: object) -> SlotCommand:
    return dataclasses.replace(command, **changes)  # type: ignore[arg-type]


class Setting:
    """An owner of slots with a pool. ``env``: of what is started to wait."""

    def __init__(
        self, tmp_path: Path, policy: WarmPolicy, first: tuple[Shape, ...], orphan_timeout_s: float = 0.0
    ) -> None:
        self.owner = Owner(make_home(tmp_path / "base", "w"), orphan_timeout_s, make_store(tmp_path))
        self.launcher = PoolLauncher()
        self.owner.runner._launcher = self.launcher
        self.env: dict[str, str] = {}
        self.slots = self.owner.home.directory / "slots"
        self.keepers = KeeperSettings(self.owner.home.lock, orphan_timeout_s, 0.5)
        self.pool = self.launcher.pool = WarmPool(
            self.slots,
            TOTAL,
            policy,
            self.keepers,
            self.commands,
            first,
            self.owner.runner.note_keeper,
        )
        self.pool.start()

    async def commands(self, shape: Shape, directory: Path) -> Commands:
        command = Command(
            (sys.executable, "-c", WAITER),
            {"PATH": os.environ["PATH"], **self.env},
            {},
            str(directory),
            Handover((str(shape.heap_bytes),), (), {}),
        )
        return Commands(command, command if shape.role == DRIVER else None)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(what)

    async def until_ready(self, count: int = 1) -> None:
        def ready() -> bool:
            report = self.pool.report()
            return report.drivers + report.executors == count and report.warming == 0

        await self.until(ready, f"{count} ready: {self.pool.report()}")

    def pids(self) -> list[int]:
        return [one.kept.pid for unit in self.pool.units for one in unit.processes]


@contextlib.asynccontextmanager
async def setting(
    tmp_path: Path, policy: WarmPolicy = AT_ONCE, first: tuple[Shape, ...] = (SMALL,), /, **env: str
) -> AsyncIterator[Setting]:
    made = Setting(tmp_path, policy, first)
    made.env = env
    try:
        yield made
    finally:
        await made.pool.close()
        left = [pid for pid in made.pids() if alive(pid)]
        await made.owner.stop()
        assert not left


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_pool, "_LOOK_S", 0.05)


def test_a_slots_process_becomes_one_that_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path, OLD_SECRET="of another") as made:
            await made.until_ready()
            (pid,) = made.pids()
            made.owner.start("s-1", "echo it is $$ $PASSWORD $OLD_SECRET in $(basename $PWD); exit 3")
            ended = await made.owner.until("s-1", ProcessPhase.EXITED)
            assert (ended.pid, ended.exit_code) == (pid, 3)
            assert ended.log_tail[0].startswith(f"it is {pid} secret in .warm-")
            folder = (made.slots / "s-1").resolve()
            assert (folder.parent, folder.name.startswith(".warm-")) == (made.slots, True)
            assert made.pool.report().hits == 1
            made.owner.runner.carry_out(CleanSlot(AllocationId("s-1")))
            await made.until(lambda: not list(made.slots.glob("s-1")), "the slot's end")
            assert not folder.exists()
            # Another takes its place.
            await made.until_ready()
            assert made.pids() != [pid]

    asyncio.run(scenario())


def test_what_was_put_into_the_slot_before_is_there_for_what_waited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            (pid,) = made.pids()
            made.launcher.staged = ("job",)
            made.owner.start("s-1", "cat job/inside; exit 3")
            ended = await made.owner.until("s-1", ProcessPhase.EXITED)
            assert (ended.pid, ended.log_tail) == (pid, ("staged",))
            assert (made.slots / "s-1" / "job" / "inside").read_text() == "staged\n"

    asyncio.run(scenario())


def test_none_is_used_twice_and_the_next_process_starts_as_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            for slot in ("s-1", "s-2"):
                made.owner.start(slot, "exec sleep 1000")
            first = await made.owner.until("s-1", ProcessPhase.RUNNING)
            second = await made.owner.until("s-2", ProcessPhase.RUNNING)
            assert first.pid != second.pid
            report = made.pool.report()
            assert (report.hits, report.misses) == (1, 1)
            made.owner.runner.carry_out(EndProcess(AllocationId("s-1"), "executor-s-1"))
            assert (await made.owner.until("s-1", ProcessPhase.EXITED)).killed is False

    asyncio.run(scenario())


@pytest.mark.parametrize("other", [{"TZ": "Asia/Tokyo"}, {"LD_LIBRARY_PATH": "/x"}, {"JDK_JAVA_OPTIONS": "-Xint"}])
def test_what_was_read_at_the_start_must_be_the_same(tmp_path: Path, other: dict[str, str]) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            made.launcher.env = other
            made.owner.start("s-1", "true")
            assert (await made.owner.until("s-1", ProcessPhase.EXITED)).exit_code == 0
            assert made.pool.report().misses == 1

    asyncio.run(scenario())


def test_one_that_was_taken_for_a_slot_that_ends_before_it_began_is_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            (pid,) = made.pids()
            made.owner.start("s-1", "exec sleep 1000")
            await made.until(lambda: made.pool.report().hits == 1, "that it is taken")
            made.owner.runner.carry_out(EndProcess(AllocationId("s-1"), "executor-s-1"))
            assert (await made.owner.until("s-1", ProcessPhase.EXITED)).exit_code is None
            assert not alive(pid)

    asyncio.run(scenario())


def test_the_next_process_of_the_same_slot_starts_in_what_the_first_has_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            for number in range(3):
                await made.until_ready()
                made.owner.changes.clear()
                made.owner.start("s-1", f"echo {number} >> seen; exec cat seen")
                assert (await made.owner.until("s-1", ProcessPhase.EXITED)).exit_code == 0
            assert (made.slots / "s-1" / "seen").read_text().split() == ["0", "1", "2"]
            report = made.pool.report()
            assert (report.hits, report.misses) == (1, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("deaf", ["no", "1"])
def test_a_slot_that_ends_while_its_process_is_being_told_is_over(tmp_path: Path, deaf: str) -> None:
    async def scenario() -> None:
        async with setting(tmp_path, DEAF=deaf) as made:
            await made.until_ready()
            (pid,) = made.pids()
            made.owner.start("s-1", "exec sleep 1000")
            await made.until(lambda: list(made.slots.glob("s-1/slot.json")), "the hand-over")
            made.owner.runner.carry_out(EndProcess(AllocationId("s-1"), "executor-s-1"))
            await made.owner.until("s-1", ProcessPhase.EXITED)
            assert not alive(pid)
            assert made.owner.runner._running == {}

    asyncio.run(scenario())


def test_an_order_larger_than_a_pipe_holds_arrives_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            made.launcher.env = {f"VARIABLE_{number}": "x" * 1000 for number in range(200)}
            made.owner.start("s-1", "echo $VARIABLE_199 | wc -c")
            ended = await made.owner.until("s-1", ProcessPhase.EXITED)
            assert (ended.exit_code, made.pool.report().hits) == (0, 1)

    asyncio.run(scenario())


def test_one_of_another_size_is_not_taken_and_gives_way_to_those_that_are_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            made.launcher.shape = LARGE
            made.owner.start("s-1", "true")
            await made.owner.until("s-1", ProcessPhase.EXITED)
            await made.until(lambda: [unit.shape for unit in made.pool.units] == [LARGE], "one of the new size")
            await made.until_ready()

    asyncio.run(scenario())


def test_one_that_died_while_it_waited_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with setting(tmp_path) as made:
            await made.until_ready()
            (pid,) = made.pids()
            os.kill(pid, signal.SIGKILL)
            await made.until(lambda: made.pids() and pid not in made.pids(), "another")
            await made.until_ready()

    asyncio.run(scenario())


def test_one_that_does_not_answer_is_ended_and_the_process_started_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_unit, "_TAKEN_LIMIT_S", 0.3)

    async def scenario() -> None:
        async with setting(tmp_path, DEAF="1") as made:
            await made.until_ready()
            (pid,) = made.pids()
            made.owner.start("s-1", "echo fine")
            ended = await made.owner.until("s-1", ProcessPhase.EXITED)
            assert (ended.exit_code, alive(pid)) == (0, False)
            assert ended.pid != pid

    asyncio.run(scenario())


def test_one_that_never_gets_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_pool, "_READY_LIMIT_S", 0.3)

    async def scenario() -> None:
        async with setting(tmp_path, NEVER_READY="1") as made:
            await made.until(lambda: made.pool.report().failed == 1, "a failure")
            await made.until(lambda: not list(made.slots.iterdir()), "an end of it")
            # Not again at once.
            assert made.pool.units == []

    asyncio.run(scenario())


def test_they_only_have_what_the_slots_leave_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = WarmPolicy(drivers=1, executors=100, quiet_s=0.0)
        async with setting(tmp_path, policy, (SMALL, DRIVERS)) as made:
            await made.until_ready(8)
            assert made.pool.report().drivers == 1
            made.pool.in_use(ResourceProfile(6000, GIB))
            assert len(made.pool.units) == 2
            assert made.pool.report().drivers == 1
            made.pool.in_use(TOTAL)
            assert made.pool.units == []
            made.pool.in_use(ResourceProfile(0, 7 * GIB))
            await made.until_ready(1)

    asyncio.run(scenario())


def test_what_is_getting_ready_is_halted_while_a_slots_process_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = WarmPolicy(drivers=0, quiet_s=0.5, busy_percent=101.0, least_memory_bytes=0)
        async with setting(tmp_path, policy, NEVER_READY="1") as made:
            await made.until(lambda: made.pids() and made.pids()[0], "one that gets ready")
            (pid,) = made.pids()
            made.owner.start("s-1", "true")
            await made.owner.until("s-1", ProcessPhase.EXITED)
            assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
            await made.until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED, "it going on")

    asyncio.run(scenario())


@pytest.mark.parametrize("halted", [False, True])
def test_one_that_goes_has_time_to_tidy_up(tmp_path: Path, halted: bool) -> None:
    async def scenario() -> None:
        # Nothing goes on for the time of this test once a slot's process has started.
        policy = WarmPolicy(drivers=0, quiet_s=30.0 if halted else 0.0, busy_percent=101.0, least_memory_bytes=0)
        env = {"TIDY": str(tmp_path / "tidied"), "NEVER_READY": "1"}
        async with setting(tmp_path, policy, **env) as made:
            await made.until(lambda: made.pids() and made.pids()[0], "one that gets ready")
            (pid,) = made.pids()
            said = made.pool.units[0].directory / "jvm.log"
            await made.until(lambda: "getting ready" in said.read_text(), "it being under way")
            if halted:
                made.owner.start("s-1", "true")
                await made.owner.until("s-1", ProcessPhase.EXITED)
                assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        assert (tmp_path / "tidied").exists()
        assert not alive(pid)

    asyncio.run(scenario())


def test_whoever_helps_it_to_get_ready_is_halted_with_it_and_ends_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = WarmPolicy(drivers=0, quiet_s=0.5, busy_percent=101.0, least_memory_bytes=0)
        async with setting(tmp_path, policy, NEVER_READY="1", HELPED="1") as made:
            await made.until(lambda: made.pids() and psutil.Process(made.pids()[0]).children(), "its helper")
            (helper,) = psutil.Process(made.pids()[0]).children()
            made.owner.start("s-1", "true")
            await made.owner.until("s-1", ProcessPhase.EXITED)
            assert helper.status() == psutil.STATUS_STOPPED
            await made.until(lambda: helper.status() != psutil.STATUS_STOPPED, "it going on")
        await made.until(lambda: not alive(helper.pid), "its end")

    asyncio.run(scenario())


def test_a_restarted_worker_takes_over_what_one_that_waited_has_become(tmp_path: Path) -> None:
    async def scenario() -> None:
        made = Setting(tmp_path, AT_ONCE, (SMALL,))
        await made.until_ready()
        made.owner.start("s-1", "echo before; while [ ! -e stop ]; do sleep 0.05; done; echo after; exit 4")
        running = await made.owner.until("s-1", ProcessPhase.RUNNING)
        # As if the worker were killed: nothing is ended in order, but its lock is free.
        made.pool._task.cancel()  # type: ignore[union-attr]
        await made.owner.shipper.stop()
        made.owner.home._hold.release()
        waiting = made.pids()
        again = Owner(make_home(tmp_path / "base", "w"), 5.0, make_store(tmp_path))
        # It has a pool too, which disturbs nothing of what there is.
        pool = WarmPool(made.slots, TOTAL, AT_ONCE, made.keepers, made.commands, (SMALL,), again.runner.note_keeper)
        pool.start()
        await made.until(lambda: pool.report().executors == 1, "one that waits")
        assert (made.slots / "s-1" / "slot.json").exists()
        assert [slot.process.pid for slot in again.adopted] == [running.pid]
        assert not any(alive(pid) for pid in waiting)
        (made.slots / "s-1" / "stop").touch()
        ended = await again.until("s-1", ProcessPhase.EXITED)
        assert ended.exit_code == 4
        await pool.close()
        await again.stop()

    asyncio.run(scenario())


def test_one_whose_worker_died_before_it_was_told_is_not_taken_for_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        """What the dead do."""

    async def scenario() -> None:
        # What is kept must live until the next worker is there.
        made = Setting(tmp_path, AT_ONCE, (SMALL,), orphan_timeout_s=5.0)
        made.env = {"DEAF": "1"}
        await made.until_ready()
        (pid,) = made.pids()
        made.owner.start("s-1", "true")
        await made.until(lambda: list(made.slots.glob("s-1/slot.json")), "the hand-over")
        made.pool._task.cancel()  # type: ignore[union-attr]
        monkeypatch.setattr(made.owner.runner, "_end_all", nothing)
        for task in made.owner.runner._tasks:
            task.cancel()
        await made.owner.shipper.stop()
        left = slot_records(made.owner.home.directory)
        made.owner.home._hold.release()
        assert [[command.ordered for command in record.commands] for record in left] == [[False]]
        again = Owner(make_home(tmp_path / "base", "w"), 5.0, make_store(tmp_path))
        ended = await again.until("s-1", ProcessPhase.EXITED)
        assert (ended.killed, ended.reason) == (True, "its worker ended while it was being started")
        assert not alive(pid)
        await again.stop()

    asyncio.run(scenario())
