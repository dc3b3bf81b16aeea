"""A worker that is started again takes over what a killed one has left (B: ST-09), with shell commands for Spark."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from slotwise.model.errors import UsageError
from slotwise.model.ids import AllocationId, LeaderToken, job_master_address
from slotwise.model.process import ExecutorIdentity
from slotwise.model.resources import ResourceProfile
from slotwise.protocol.effects import CleanSlot, EndProcess
from slotwise.protocol.messages import ProcessPhase
from slotwise.runtime.home import sweep_stale
from tests.unit.slot_owner import JOB, PROFILE, Owner, alive, make_home, make_store, owner_process, wait_for

# Counts until a file is there, then leaves with 7.
COUNTS = "i=0; while [ ! -e go ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo last; exit 7"


@contextlib.asynccontextmanager
async def restarted(base: Path, worker: str | None) -> AsyncIterator[Owner]:
    """The next process of a worker: this one."""
    owner = Owner(make_home(base, worker), 30.0, make_store(base.parent))
    try:
        yield owner
    finally:
        await owner.stop()


def slot_dir(base: Path, slot: str = "slot-0") -> Path:
    return base / "w" / "slots" / slot


def test_st_09_a_restarted_worker_goes_on_with_the_same_processes(tmp_path: Path) -> None:
    base = tmp_path / "base"

    async def run() -> None:
        async with restarted(base, "w") as owner:
            assert owner.home.record.incarnation == 2
            adopted = owner.adopted[0]
            assert [slot.process.pid for slot in owner.adopted] == first.pids
            assert (adopted.allocation, adopted.job, adopted.profile) == ("slot-0", JOB, PROFILE)
            assert (adopted.job_master, adopted.job_master_token) == (job_master_address(JOB), LeaderToken(5))
            assert adopted.process.process == "executor-slot-0"
            assert adopted.process.phase is ProcessPhase.RUNNING
            assert adopted.executor == ExecutorIdentity("7", "ticket-7", "app-1", 0)
            assert owner.launcher.adopted == {"slot-0": {"of": "slot-0"}, "slot-1": {"of": "slot-1"}}
            # One ends by itself, the other because it is told to.
            (slot_dir(base) / "go").touch()
            ended = await owner.until("slot-0", ProcessPhase.EXITED)
            assert (ended.process, ended.exit_code) == ("executor-slot-0", 7)
            assert ended.log_tail[-1] == "last"
            owner.runner.carry_out(EndProcess(AllocationId("slot-1"), "executor-slot-1"))
            assert (await owner.until("slot-1", ProcessPhase.EXITED)).exit_code == -15
            assert set(owner.launcher.ended_slots) == {"slot-0", "slot-1"}
            said = slot_dir(base) / "executor-slot-0.log"
            assert (tmp_path / "master/job-1/logs/executor-slot-0.log").read_bytes() == said.read_bytes()
            owner.runner.carry_out(CleanSlot(AllocationId("slot-0")))
            await owner.runner.settle()
            assert not slot_dir(base).exists()
        assert not (base / "w").exists()

    with owner_process(base, "w", 30, COUNTS, "exec sleep 600") as first:
        log = tmp_path / "master/job-1/logs/executor-slot-0.log"
        wait_for(lambda: log.exists() and log.read_text().count("\n") > 3)
        first.kill()
        assert all(alive(pid) for pid in first.pids)
        asyncio.run(run())
        assert not any(alive(pid) for pid in first.pids)


def test_how_a_process_ended_while_no_worker_was_there_is_told_after_its_output(tmp_path: Path) -> None:
    base = tmp_path / "base"

    async def run() -> None:
        async with restarted(base, None) as owner:
            assert owner.home.directory == base / "w"
            assert (await owner.until("slot-0", ProcessPhase.EXITED)).exit_code == 7
            logs = tmp_path / "master/job-1/logs"
            assert (logs / "executor-slot-0.log").read_text().endswith("last\n")
            # Killed with its keeper: nobody has seen its code.
            assert (await owner.until("slot-1", ProcessPhase.EXITED)).exit_code == -9

    with owner_process(base, "w", 30, COUNTS, "exec sleep 600") as first:
        keeper = json.loads((slot_dir(base, "slot-1") / "slot.json").read_text())["commands"][0]["keeper"]
        first.kill()
        (slot_dir(base) / "go").touch()
        os.kill(keeper, signal.SIGKILL)
        wait_for(lambda: not any(alive(pid) for pid in first.pids))
        asyncio.run(run())


def test_a_helper_that_ends_is_noticed_after_a_restart_as_before(tmp_path: Path) -> None:
    base = tmp_path / "base"

    async def run() -> None:
        async with restarted(base, "w") as owner:
            helper = owner.home.left[0].kept(slot_dir(base))[0]
            os.kill(helper.pid, signal.SIGKILL)
            wait_for(lambda: helper.exit_code == -9)
            (slot_dir(base) / "go").touch()
            status = await owner.until("slot-0", ProcessPhase.EXITED)
            assert status.exit_code == 7
            assert "JVM ended with code -9" in status.reason

    with owner_process(base, "w", 30, f"exec sleep 600 ;; {COUNTS}") as first:
        first.kill()
        asyncio.run(run())


def test_a_process_that_cannot_go_on_is_ended_with_the_reason(tmp_path: Path) -> None:
    base = tmp_path / "base"

    async def run() -> None:
        home = make_home(base, "w")
        # The worker died after it had begun the first of two commands of the second slot.
        second = home.left[1]
        home.left = (home.left[0], msgspec.structs.replace(second, expected=2))
        owner = Owner(home, 30.0, make_store(tmp_path))
        status = await owner.until("slot-1", ProcessPhase.EXITED)
        assert "while it was being started" in status.reason
        assert status.killed
        assert alive(first.pids[0])
        await owner.stop()

    with owner_process(base, "w", 30, "exec sleep 600", "exec sleep 600") as first:
        first.kill()
        asyncio.run(run())


def test_two_workers_never_have_the_same_directory(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with owner_process(base, "w", 30, "exec sleep 600") as first:
        with pytest.raises(UsageError, match="a worker w runs already"):
            make_home(base, "w")
        unnamed = make_home(base, None)
        assert unnamed.directory.name == "worker-fresh"
        unnamed.remove()
        first.kill()
        with owner_process(base, "w", 30) as second:
            wait_for(lambda: json.loads((base / "w/worker.json").read_text())["incarnation"] == 2)
            assert make_home(base, None).directory.name == "worker-fresh"
            assert alive(first.pids[0])
            second.kill()
        make_home(base, "w").remove()


def test_slots_that_do_not_fit_are_left_to_their_keepers_by_a_stranger_and_ended_by_their_own_worker(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    small = ResourceProfile(500, PROFILE.memory_bytes)
    with owner_process(base, "w", 30, "exec sleep 600") as first:
        first.kill()
        assert make_home(base, None, small).directory.name == "worker-fresh"
        sweep_stale(base)
        assert alive(first.pids[0])
        home = make_home(base, "w", small)
        assert home.left == ()
        assert home.record.incarnation == 2
        wait_for(lambda: not alive(first.pids[0]))
        assert not slot_dir(base).exists()


def test_what_dead_workers_left_without_a_living_keeper_is_removed(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with owner_process(base, "w", 30, "exec sleep 600", "exec sleep 600") as first:
        (base / "w/slots/never-started").mkdir()
        first.kill()
        home = make_home(base, "w")
        # A slot in which nothing was started is forgotten.
        assert sorted(path.name for path in (base / "w/slots").iterdir()) == ["slot-0", "slot-1"]
        for slot in home.left:
            for kept in slot.kept(slot_dir(base, slot.allocation)):
                kept.kill()
        wait_for(lambda: not any(alive(pid) for pid in first.pids))
        home._hold.release()
    # This process has claimed it and lives: not abandoned, although nobody holds the lock.
    sweep_stale(base)
    assert (base / "w").exists()
    owner = base / "w" / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "born": 1.0}))

    def swept() -> bool:
        # The keepers of what was killed live a moment longer.
        sweep_stale(base)
        return not (base / "w").exists()

    wait_for(swept)


def test_a_cluster_that_is_gone_leaves_nothing_to_keepers(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with owner_process(base, "w", 30, "exec setsid sleep 600") as first:
        first.kill()
        sweep_stale(base, spare_kept=False)
        wait_for(lambda: not any(alive(pid) for pid in first.pids))
        assert not (base / "w").exists()


def test_f_04_a_program_that_fails_because_its_jvm_was_killed_counts_as_killed(tmp_path: Path) -> None:
    """The program may be quicker to end than the news of what ended it."""

    async def run() -> None:
        async with restarted(tmp_path / "base", "w") as owner:
            # The keeper, which brings the news, is slow.
            late = "kill -STOP $keeper; (sleep 0.5; kill -CONT $keeper) > /dev/null 2>&1 &"
            killer = f"while ! read keeper jvm < pids; do sleep 0.01; done; {late} kill -9 $jvm; exit 1"
            owner.start("slot-0", f"echo $PPID $$ > pids; exec sleep 600 ;; {killer}")
            owner.start("slot-1", "exec sleep 600 ;; exit 1")
            first = await owner.until("slot-0", ProcessPhase.EXITED)
            second = await owner.until("slot-1", ProcessPhase.EXITED)
        assert (first.exit_code, first.killed) == (1, True)
        assert "JVM" in first.reason
        assert (second.exit_code, second.killed) == (1, False)

    asyncio.run(run())
