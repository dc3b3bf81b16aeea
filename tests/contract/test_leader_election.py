"""What every election of a leading master must do; a new implementation is one more entry in ``ELECTIONS``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwise.ha.base import Grant, LeaderElection, NotLeader
from slotwise.ha.embedded import EmbeddedLeaderElection
from slotwise.model.errors import EnvironmentProblem

Elect = Callable[[], LeaderElection]
ELECTIONS: dict[str, Callable[[Path], LeaderElection]] = {"embedded": EmbeddedLeaderElection}
_SOON_S = 10.0


@pytest.fixture(params=ELECTIONS)
def elect(request: pytest.FixtureRequest, tmp_path: Path) -> Elect:
    """Makes one more candidate for the same leadership."""
    make = ELECTIONS[request.param]
    return lambda: make(tmp_path / "store")


def test_ml_07_every_grant_has_a_higher_epoch(elect: Elect) -> None:
    async def run() -> list[int]:
        epochs = []
        candidate = elect()
        for _ in range(3):
            epochs.append((await candidate.acquire()).epoch)
            await candidate.release()
        other = elect()
        epochs.append((await other.acquire()).epoch)
        await other.release()
        return epochs

    epochs = asyncio.run(run())
    assert epochs[0] >= 1
    assert epochs == sorted(set(epochs))


def test_a_second_candidate_is_refused_and_told_who_leads(elect: Elect) -> None:
    async def run() -> str:
        leader, second = elect(), elect()
        await leader.acquire()
        leader.announce("http://127.0.0.1:8090")
        with pytest.raises(NotLeader) as refused:
            await second.acquire()
        await leader.release()
        await second.acquire()
        await second.release()
        return str(refused.value)

    said = asyncio.run(run())
    assert f"pid {os.getpid()} on" in said
    assert "http://127.0.0.1:8090" in said
    assert "--standby" in said
    assert "\n" not in said


def test_one_that_waits_leads_when_the_other_ends(elect: Elect) -> None:
    async def run() -> tuple[Grant, Grant, list[str]]:
        leader, second, said = elect(), elect(), list[str]()
        waited = asyncio.Event()

        def on_wait(holder: str) -> None:
            said.append(holder)
            waited.set()

        first = await leader.acquire()
        leader.announce("http://127.0.0.1:8090")
        waiting = asyncio.ensure_future(second.acquire(wait=True, on_wait=on_wait))
        await asyncio.wait_for(waited.wait(), _SOON_S)
        assert not waiting.done()
        await leader.release()
        grant = await asyncio.wait_for(waiting, _SOON_S)
        await second.release()
        return first, grant, said

    first, second, said = asyncio.run(run())
    assert second.epoch > first.epoch
    assert second.previous_url == "http://127.0.0.1:8090"
    assert not second.lost.done()
    assert len(said) == 1


def test_one_that_gives_up_waiting_leaves_the_leadership_free(elect: Elect) -> None:
    async def run() -> None:
        leader, second, third = elect(), elect(), elect()
        await leader.acquire()
        waiting = asyncio.ensure_future(second.acquire(wait=True))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await leader.release()
        await leader.release()
        await third.acquire()
        await third.release()

    asyncio.run(run())


# ----------------------------------------------------------------------------------------------- embedded only


def test_the_kernel_frees_the_leadership_of_one_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom slotwise.ha.embedded import EmbeddedLeaderElection\n"
        "async def run():\n election = EmbeddedLeaderElection(Path(sys.argv[1]))\n"
        " grant = await election.acquire()\n election.announce('http://127.0.0.1:7')\n"
        " print(grant.epoch, flush=True)\n await asyncio.sleep(600)\nasyncio.run(run())"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = int(process.stdout.readline())

    async def run() -> Grant:
        election = EmbeddedLeaderElection(tmp_path)
        with pytest.raises(NotLeader, match=f"pid {process.pid} "):
            await election.acquire()
        process.send_signal(signal.SIGKILL)
        grant = await asyncio.wait_for(election.acquire(wait=True), _SOON_S)
        await election.release()
        return grant

    grant = asyncio.run(run())
    process.wait()
    process.stdout.close()
    assert (grant.epoch, grant.previous_url) == (first + 1, "http://127.0.0.1:7")


def test_a_leader_learns_that_its_lock_was_replaced(tmp_path: Path) -> None:
    async def run() -> str:
        first, second = EmbeddedLeaderElection(tmp_path), EmbeddedLeaderElection(tmp_path)
        grant = await first.acquire()
        (tmp_path / "lock").unlink()
        await second.acquire()
        reason = await asyncio.wait_for(grant.lost, _SOON_S)
        await first.release()
        await second.release()
        return reason

    assert "replaced" in asyncio.run(run())


@pytest.mark.parametrize("text", ["", "0\n", "-3", "one", "7 8", "1" * 30])
def test_a_damaged_epoch_is_never_taken_for_a_new_beginning(tmp_path: Path, text: str) -> None:
    (tmp_path / "epoch").write_text(text)

    async def run() -> None:
        election = EmbeddedLeaderElection(tmp_path)
        with pytest.raises(EnvironmentProblem, match=r"damaged .* above every epoch .*echo 1000 > "):
            await election.acquire()
        # The lock is free again for the one that starts after the repair.
        (tmp_path / "epoch").write_text("1000\n")
        assert (await election.acquire()).epoch == 1001
        await election.release()

    asyncio.run(run())


def test_a_missing_epoch_beside_jobs_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(EnvironmentProblem, match=r"missing, but there are jobs .*echo 1000 > "):
            await EmbeddedLeaderElection(tmp_path, lambda: True).acquire()

    asyncio.run(run())


def test_a_half_written_epoch_beside_the_whole_one_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("41\n")
    (tmp_path / "epoch.partial").write_text("4")

    async def run() -> None:
        election = EmbeddedLeaderElection(tmp_path)
        assert (await election.acquire()).epoch == 42
        await election.release()

    asyncio.run(run())
    assert not (tmp_path / "epoch.partial").exists()


def test_an_epoch_that_cannot_be_kept_is_not_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    async def run() -> None:
        election = EmbeddedLeaderElection(tmp_path)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentProblem, match=r"cannot write .*epoch: No space left"):
            await election.acquire()
        monkeypatch.undo()
        assert (await election.acquire()).epoch == 1
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
        await election.release()

    asyncio.run(run())


def test_a_directory_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def run() -> None:
        with pytest.raises(EnvironmentProblem, match="cannot use"):
            await EmbeddedLeaderElection(tmp_path / "file" / "store").acquire()

    asyncio.run(run())
