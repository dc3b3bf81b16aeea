"""The command line against a real master in this process: beginnings of ids, the live view, shells. No Spark."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise.async_client import AsyncClient
from slotwise.client import Client
from slotwise.master import Master
from slotwise.model.errors import ClusterError
from slotwise.model.ids import JobId
from slotwise.protocol.codec import encode
from slotwise.resourcemanager.machine import ResourceManagerConfig
from tests.integration.test_master import TOKEN, options
from tests.integration.test_stream_edges import HELLO, WORKER, dial, register
from tests.unit.worlds import spec

LIMIT_S = 30.0


class Running:
    """A master in a thread of its own, with three jobs and a worker; ``env`` is that of commands for it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.jobs: list[JobId] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        (directory / "token").write_text(TOKEN)
        wrapper = directory / "bin" / "slotwise"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m slotwise "$@"\n')
        wrapper.chmod(0o755)
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLOTWISE_", "NO_COLOR"))},
            "SLOTWISE_STATE_DIR": str(directory),
            "SLOTWISE_MASTER": self.master.url,
            "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
        }

    async def _serve(self) -> None:
        # The worker says nothing more: what is looked at must not depend on how long the tests take.
        patient = ResourceManagerConfig(heartbeat_timeout_s=3600.0)
        self.master = Master(options(self._directory / "master", resource_manager=patient))
        await self.master.start()
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        for name in ("alpha", "beta", "gamma"):
            self.jobs.append(await self.master.submit(spec(name=name)))
        async with dial(self.master) as worker:
            await worker.send(encode(HELLO))
            await worker.send(encode(register()))
            while not self.master.knows_worker(WORKER):
                await asyncio.sleep(0.01)
            self._ready.set()
            await self._over.wait()
            worker.close_timeout = 0.1
        await self.master.close(leave=True)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(LIMIT_S)

    def slotwise(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "slotwise", *argv],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("running"))
    yield running
    running.close()


# ----------------------------------------------------------------------------------------------- ids


def test_a_unique_beginning_of_an_id_is_enough_and_others_are_refused_with_a_hint(running: Running) -> None:
    with Client(running.master.url, TOKEN) as client:
        for job in running.jobs:
            assert client.find_job(job) == job
            assert client.find_job(job[:-1]) == job
            assert client.find_job(job.removeprefix("job-")[:-1]) == job
        with pytest.raises(ClusterError, match="3 jobs begin with 'job-'"):
            client.find_job("job-")
        with pytest.raises(ClusterError, match=rf"did you mean {running.jobs[1]} \(beta\)"):
            client.find_job("beta")
        with pytest.raises(ClusterError, match=r"there is no job x/\.\./y"):
            client.find_job("x/../y")
        assert client.find_worker("raw") == client.find_worker("worker-r") == WORKER


def test_the_async_client_finds_the_same(running: Running) -> None:
    async def find() -> None:
        async with AsyncClient(running.master.url, TOKEN) as client:
            assert await client.find_job(running.jobs[0][:-1]) == running.jobs[0]
            assert await client.find_worker("raw") == WORKER
            with pytest.raises(ClusterError, match="has no logs"):
                [piece async for piece in client.archive(running.jobs[0])]

    asyncio.run(find())


def test_every_command_takes_a_beginning_and_says_json_where_it_lists(running: Running) -> None:
    job = running.jobs[0]
    short = job.removeprefix("job-")[:-1]
    for argv in (["job"], ["explain"], ["scale"]):
        done = running.slotwise(*argv, short, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["jid"] == job
    assert json.loads(running.slotwise("logs", short, "--list", "--json").stdout) == []
    assert {found["jid"] for found in json.loads(running.slotwise("jobs", "--json").stdout)} >= {job}
    assert json.loads(running.slotwise("workers", "--json").stdout)["taskmanagers"][0]["id"] == WORKER
    assert json.loads(running.slotwise("resources", "--json").stdout)["workers"] == 1
    done = running.slotwise("explain", "job-zzz")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_a_cluster_command_that_is_not_there_has_its_nearest_name(running: Running) -> None:
    done = running.slotwise("cluster", "strat")
    assert (done.returncode, "Did you mean 'start'?" in done.stderr) == (2, True)


# ----------------------------------------------------------------------------------------------- top


def test_top_prints_once_where_there_is_no_terminal(running: Running) -> None:
    done = running.slotwise("top", "--sort", "name")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("job-")]
    assert names == ["alpha", "beta", "gamma"]
    assert WORKER in done.stdout
    seen = json.loads(running.slotwise("top", "--json").stdout)
    assert [job["jid"] for job in seen["jobs"]] == running.jobs
    assert seen["overview"]["taskmanagers"] == 1


def test_top_without_a_master_is_one_clear_line(running: Running) -> None:
    done = running.slotwise("top", "--master", "http://127.0.0.1:9", "--once")
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (1, 1, "")


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, env: dict[str, str], *argv: str, columns: int = 110, lines: int = 40) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slotwise", *argv],
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )

    def until(self, condition: Callable[[str], bool]) -> str:
        """Read until what has come since the last call satisfies ``condition``."""
        fresh, deadline = "", time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.master], [], [], 0.2)
            if ready:
                with contextlib.suppress(OSError):
                    fresh += os.read(self.master, 65536).decode("utf-8", "replace")
            if condition(fresh):
                return fresh
            if self.process.poll() is not None and not ready:
                break
        raise AssertionError(f"it did not show (exit code {self.process.poll()}):\n{fresh[-3000:]}")

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def test_top_is_live_in_a_terminal_and_leaves_it_as_it_was(running: Running) -> None:
    terminal = Terminal(running.env, "top", "--interval", "0.2")
    try:
        text = terminal.until(lambda seen: "gamma" in seen and WORKER in seen and "sort (by start)" in seen)
        # In the alternate screen, so that the shell's own lines are there afterwards.
        assert "\x1b[?1049h" in text
        terminal.press("s")
        terminal.until(lambda seen: "sort (by slots)" in seen)
        terminal.press("p")
        terminal.until(lambda seen: "PAUSED" in seen)
        terminal.press("p")
        terminal.until(lambda seen: "pause" in seen and "PAUSED" not in seen.rpartition("slotwise")[2])
        terminal.press("q")
        terminal.until(lambda seen: "\x1b[?1049l" in seen)
        assert terminal.process.wait(LIMIT_S) == 0
        assert termios.tcgetattr(terminal.slave) == terminal.before
    finally:
        terminal.close()


# ----------------------------------------------------------------------------------------------- shells


def in_bash(running: Running, line: str, **env: str) -> tuple[set[str], str]:
    """What bash completes at the end of ``line``, and what appears on the terminal meanwhile."""
    words = line.split(" ")
    script = (
        'eval "$(slotwise completion bash)"\n'
        f"COMP_WORDS=({' '.join(shlex.quote(word) for word in words)})\n"
        f"COMP_CWORD={len(words) - 1}\n"
        "_slotwise_completion slotwise\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**running.env, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split()), done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_ids(running: Running) -> None:
    assert in_bash(running, "slotwise ca") == ({"cancel", "cache"}, "")
    assert in_bash(running, "slotwise cluster st") == ({"start", "stop", "status"}, "")
    assert "--num-executors" in in_bash(running, "slotwise run --num")[0]
    assert in_bash(running, "slotwise explain ") == (set(running.jobs), "")
    job = running.jobs[0]
    assert in_bash(running, f"slotwise logs {job[:-1]}") == ({job}, "")
    assert in_bash(running, "slotwise workers --block ") == ({WORKER}, "")
    assert in_bash(running, "slotwise completion ") == ({"bash", "zsh", "fish"}, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_nothing_and_says_nothing_when_no_master_answers(running: Running) -> None:
    assert in_bash(running, "slotwise explain ", SLOTWISE_MASTER="http://127.0.0.1:9") == (set(), "")
    assert in_bash(running, "slotwise explain ", SLOTWISE_STATE_DIR="/nonexistent") == (set(), "")
    with contextlib.closing(Mute()) as mute:
        # One that takes the connection and never answers costs a moment, no more.
        assert in_bash(running, "slotwise explain ", SLOTWISE_MASTER=mute.url) == (set(), "")


class Mute:
    """A port that is open and silent."""

    def __init__(self) -> None:
        import socket

        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_script(running: Running, shell: str) -> None:
    script = running.slotwise("completion", shell).stdout
    assert "_SLOTWISE_COMPLETE" in script
    # What the script asks of the command, as that shell does.
    env = {
        **running.env,
        "_SLOTWISE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "slotwise explain ",
        "COMP_CWORD": "2",
    }
    if shell == "fish":
        env["COMP_CWORD"] = ""
    done = subprocess.run(
        [running.env["PATH"].split(":")[0] + "/slotwise"], env=env, capture_output=True, text=True, check=False
    )
    assert all(job in done.stdout for job in running.jobs), done
    if shutil.which(shell) is None:
        return
    checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
