"""Keepers of commands, with real small processes (B: ST-09, F-01: no orphan)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.model.errors import EnvironmentProblem
from slotwise.runtime.kept import KeeperSettings, Kept, start_kept
from slotwise.runtime.ownership import LOCK_FILE, Hold, hold
from tests.unit.slot_owner import alive, owner_process, wait_for

# Leaves a process behind in a session of its own that heeds no SIGTERM, and says its id.
DETACHES = "setsid sh -c 'trap \"\" TERM; echo $$ > detached; exec sleep 600' & "


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[Path, Hold]]:
    """A worker's directory, held by this process."""
    held = hold(tmp_path / "worker")
    assert held is not None
    yield tmp_path / "worker", held
    held.release()


def start(
    worker_dir: Path,
    *argv: str,
    slot: str = "slot-1",
    timeout_s: float = 60.0,
    grace_s: float = 0.5,
    keep_stdin: bool = False,
    env: dict[str, str] | None = None,
    cwd: str = "",
) -> Kept:
    """Start a command with a keeper."""
    directory = worker_dir / "slots" / slot
    directory.mkdir(parents=True, exist_ok=True)

    async def run() -> Kept:
        return await start_kept(
            argv,
            name="executor-1.0",
            directory=directory,
            settings=KeeperSettings(worker_dir / LOCK_FILE, timeout_s, grace_s),
            env={"PATH": os.environ["PATH"], **(env or {})},
            cwd=cwd or str(directory),
            stdout=directory / "out",
            stderr=directory / "out",
            keep_stdin=keep_stdin,
            made=lambda _: None,
        )

    return asyncio.run(run())


def read_pid(file: Path) -> int:
    """The process id in a file, once it is there."""
    return int(wait_for(lambda: file.exists() and file.read_text().strip()))


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15)])
def test_the_exit_code_or_signal_is_reported_and_noted(worker: tuple[Path, Hold], script: str, code: int) -> None:
    kept = start(worker[0], "/bin/sh", "-c", f"echo $$; {script}")
    assert asyncio.run(kept.wait()) == code
    assert kept.exit_code == code
    assert (worker[0] / "slots/slot-1/out").read_text() == f"{kept.pid}\n"
    assert kept.pid != kept.keeper


def test_what_cannot_be_started_is_named(worker: tuple[Path, Hold]) -> None:
    with pytest.raises(EnvironmentProblem, match="No such file or directory: '/no/such/program'"):
        start(worker[0], "/no/such/program")
    with pytest.raises(EnvironmentProblem, match="No such file or directory: '/no/such/folder'"):
        start(worker[0], "/bin/true", cwd="/no/such/folder")


@pytest.mark.parametrize(("keep", "seen"), [(True, "[]"), (False, "[0]")])
def test_standard_input_is_held_open_where_that_is_wanted(worker: tuple[Path, Hold], keep: bool, seen: str) -> None:
    program = "import select; print(select.select([0], [], [], 0.3)[0])"
    kept = start(worker[0], sys.executable, "-c", program, keep_stdin=keep)
    assert asyncio.run(kept.wait()) == 0
    assert (worker[0] / "slots/slot-1/out").read_text() == f"{seen}\n"


def test_sigterm_reaches_the_command_and_not_the_keeper(worker: tuple[Path, Hold]) -> None:
    kept = start(worker[0], "/bin/sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done")
    wait_for(lambda: (worker[0] / "slots/slot-1/out").read_text() == "up\n")
    asyncio.run(kept.end(20))
    assert kept.exit_code == 3


def test_who_does_not_heed_sigterm_is_killed_after_the_grace_and_gone_when_that_is_said(
    worker: tuple[Path, Hold],
) -> None:
    # It takes a while to die, as a JVM does: its memory is not free until it has.
    large = "import signal, time; signal.signal(15, signal.SIG_IGN); m = b'm' * 300_000_000; print('up', flush=True)"
    kept = start(worker[0], sys.executable, "-I", "-S", "-c", f"{large}; time.sleep(600)")
    wait_for(lambda: (worker[0] / "slots/slot-1/out").read_text() == "up\n")
    asyncio.run(kept.end(0.2))
    assert not alive(kept.pid)
    assert asyncio.run(kept.wait()) == -9


def test_kill_9_of_the_keeper_takes_the_command_along(worker: tuple[Path, Hold]) -> None:
    kept = start(worker[0], "sleep", "600")
    os.kill(kept.keeper, signal.SIGKILL)
    assert asyncio.run(kept.wait()) == -9
    wait_for(lambda: not alive(kept.pid))


def test_no_secret_is_on_a_command_line_in_the_keepers_environment_or_on_disk(worker: tuple[Path, Hold]) -> None:
    kept = start(worker[0], "sleep", "600", env={"PASSWORD": "hunter2"})
    assert b"hunter2" in Path(f"/proc/{kept.pid}/environ").read_bytes()
    for place in ("cmdline", "environ"):
        assert b"hunter2" not in Path(f"/proc/{kept.keeper}/{place}").read_bytes()
    files = [path for path in worker[0].rglob("*") if path.is_file()]
    assert files
    assert not any(b"hunter2" in path.read_bytes() for path in files)
    asyncio.run(kept.end(5))


def test_orphans_end_after_the_timeout_with_all_that_they_have_detached(worker: tuple[Path, Hold]) -> None:
    directory, held = worker
    main = start(directory, "/bin/sh", "-c", f"{DETACHES} trap '' TERM; while :; do sleep 0.05; done", timeout_s=0.5)
    detached = read_pid(directory / "slots/slot-1/detached")
    assert os.getsid(detached) != os.getsid(main.pid)
    other = start(directory, "sleep", "600", slot="slot-2", timeout_s=0.5)
    held.release()
    wait_for(lambda: not any(alive(pid) for pid in (main.pid, detached, main.keeper, other.pid, other.keeper)))
    # The last one takes the worker's directory with it: shuffle data and secrets do not stay either.
    wait_for(lambda: not directory.exists())


def test_a_command_that_ended_while_nobody_was_there_is_cleaned_up_after_too(worker: tuple[Path, Hold]) -> None:
    directory, held = worker
    kept = start(directory, "/bin/sh", "-c", f"{DETACHES} while [ ! -e go ]; do sleep 0.05; done", timeout_s=3.0)
    detached = read_pid(directory / "slots/slot-1/detached")
    held.release()
    (directory / "slots/slot-1/go").touch()
    wait_for(lambda: kept.exit_code == 0)
    # Its keeper stays: somebody may come and want to know, or nobody comes and the detached one must end.
    assert alive(kept.keeper)
    assert alive(detached)
    wait_for(lambda: not alive(detached) and not alive(kept.keeper) and not directory.exists())


def test_a_new_owner_within_the_time_keeps_what_runs(tmp_path: Path) -> None:
    helds = {name: hold(tmp_path / name) for name in ("kept", "lost")}
    commands = {name: start(tmp_path / name, "sleep", "600", timeout_s=1.5) for name in helds}
    for held in helds.values():
        assert held is not None
        held.release()
    again = hold(tmp_path / "kept")
    assert again is not None
    wait_for(lambda: not alive(commands["lost"].pid))
    assert alive(commands["kept"].pid)
    again.release()
    wait_for(lambda: not alive(commands["kept"].pid))


def test_a_worker_that_is_stopped_keeps_its_processes_and_one_that_is_killed_does_not(tmp_path: Path) -> None:
    with (
        owner_process(tmp_path / "base", "stopped", 1.0, "sleep 600") as stopped,
        owner_process(tmp_path / "base", "killed", 1.0, "sleep 600") as killed,
    ):
        stopped.process.send_signal(signal.SIGSTOP)
        killed.kill()
        wait_for(lambda: not alive(killed.pids[0]))
        assert alive(stopped.pids[0])
    wait_for(lambda: not alive(stopped.pids[0]))


def test_without_an_orphan_timeout_everything_ends_with_the_worker(tmp_path: Path) -> None:
    command = f"{DETACHES} trap '' TERM; while :; do sleep 0.05; done"
    with owner_process(tmp_path / "base", "bound", 0, command) as owner:
        slot = tmp_path / "base/bound/slots/slot-0"
        detached = read_pid(slot / "detached")
        owner.kill()
        wait_for(lambda: not alive(owner.pids[0]) and not alive(detached), 5)
        wait_for(lambda: not slot.exists())


def test_a_keeper_at_rest_costs_next_to_nothing(worker: tuple[Path, Hold]) -> None:
    kept = start(worker[0], "sleep", "600")
    stat = Path(f"/proc/{kept.keeper}/status").read_text()
    resident_kib = int(next(line.split()[1] for line in stat.splitlines() if line.startswith("VmRSS")))
    assert resident_kib < 16 * 1024
    assert "Threads:\t1\n" in stat
    asyncio.run(kept.end(5))
