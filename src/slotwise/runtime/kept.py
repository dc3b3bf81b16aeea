"""The worker's end of a keeper (:mod:`slotwise.runtime.keeper`): starts one, takes over one that an earlier process of
the worker has started, waits for its command's end, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from slotwise.model.errors import EnvironmentProblem
from slotwise.runtime.children import birth, signal_group, start_child, wait_exit, wait_gone, wait_group_gone

log = structlog.get_logger(__name__)

MARK = "SLOT_DIRECTORY"
"""The variable that every process of a slot finds in its environment; its value is the slot's directory, which no other
cluster of this user has."""

NAME = "SLOT_ID"
"""The variable in which every process of a slot finds the slot's allocation id."""


def mark_of(directory: Path) -> str:
    """The mark of the slot whose directory this is."""
    return os.path.realpath(directory)


_SCRIPT = Path(__file__).with_name("keeper.py")
_KILLED = -int(signal.SIGKILL)


@dataclass(frozen=True)
class KeeperSettings:
    """What all keepers of a worker have in common. ``lock``: the file that the worker holds locked.

    ``orphan_timeout_s``: what is kept ends when the lock has been free for so long; 0: at once and without grace.
    ``grace_s``: between SIGTERM and SIGKILL then.
    """

    lock: Path
    orphan_timeout_s: float = 15.0
    grace_s: float = 10.0


class Kept:
    """A command in a slot. ``keeper`` leads its group; ``pid`` is the command's own, 0 while there is none."""

    def __init__(
        self,
        directory: Path,
        name: str,
        keeper: int,
        keeper_birth: float | None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.name = name
        self.keeper = keeper
        self.keeper_birth = keeper_birth
        self._directory = directory
        self._process = process

    @property
    def pid(self) -> int:
        """The command's process id; 0 if it never started."""
        return self._read("pid") or 0

    @property
    def alive(self) -> bool:
        """Whether the keeper lives; it does for a while longer than its command when no worker is there."""
        if self._process is not None:
            return self._process.poll() is None
        return self.keeper_birth is not None and birth(self.keeper) == self.keeper_birth

    @property
    def exit_code(self) -> int | None:
        """The code with which the command has ended, if that was seen by its keeper."""
        return self._read("exit")

    def _read(self, kind: str) -> int | None:
        try:
            return int((self._directory / f"{self.name}.{kind}").read_text())
        except (OSError, ValueError):
            return None

    async def wait(self) -> int:
        """The command's exit code (minus a signal's number). −9 when its keeper was killed, since it dies with it."""
        if self._process is not None:
            code = await wait_exit(self._process)
            noted = self.exit_code
            if noted is not None:
                return noted
            if code >= 0:
                log.error("a keeper ended without a word on its command", name=self.name, code=code)
                return _KILLED
            return code
        noted = self.exit_code
        if noted is None and self.keeper_birth is not None:
            await wait_gone(self.keeper, self.keeper_birth)
            noted = self.exit_code
        return _KILLED if noted is None else noted

    async def end(self, grace_s: float) -> None:
        """SIGTERM to the group, SIGKILL after ``grace_s``; in the end nobody is left in it."""
        if self.alive:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_s)
        # Whatever the command left behind in its group goes with it.
        self.kill()
        if self._process is not None:
            await wait_exit(self._process)
        elif self.keeper_birth is not None:
            await wait_gone(self.keeper, self.keeper_birth)
        # The keeper, a small process, is gone before a JVM that was killed with it.
        if not await wait_group_gone(self.keeper):
            log.warning("what a slot has started does not end", name=self.name, group=self.keeper)

    def kill(self) -> None:
        """SIGKILL to the group: the keeper, the command, and what is left of what it started."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the group; the keeper itself heeds none but SIGKILL."""
        # Otherwise the id may be another's by now.
        if self.alive or self._left_behind():
            signal_group(self.keeper, number)

    def _left_behind(self) -> bool:
        """Whether the leader is gone and its group is not: then the id has not been given to another."""
        if birth(self.keeper) is not None:
            return False
        try:
            os.killpg(self.keeper, 0)
        except OSError:
            return False
        return True


async def start_kept(
    argv: Sequence[str],
    *,
    name: str,
    directory: Path,
    settings: KeeperSettings,
    env: Mapping[str, str],
    cwd: str,
    stdout: Path,
    stderr: Path,
    keep_stdin: bool,
    made: Callable[[Kept], None],
) -> Kept:
    """Start ``argv`` with a keeper in the slot's ``directory``, which is named after the allocation.

    ``made`` is called when the keeper is there and before it knows what to run, so that it can be recorded first.
    Raises :class:`EnvironmentProblem` when the command cannot be started.
    """
    # Not by the name of a link, which may be gone before the keeper.
    directory = Path(mark_of(directory))
    for kind in ("pid", "exit"):
        (directory / f"{name}.{kind}").unlink(missing_ok=True)
    order = marshal.dumps(
        {
            "argv": list(argv),
            "env": {**env, MARK: mark_of(directory)},
            "cwd": cwd,
            "stdout": str(stdout),
            "stderr": str(stderr),
            "keep_stdin": keep_stdin,
            "name": name,
            "directory": str(directory),
            "lock": str(settings.lock),
            "mark": mark_of(directory),
            "owner": os.getpid(),
            "timeout_s": float(settings.orphan_timeout_s),
            "grace_s": float(settings.grace_s),
        }
    )
    # A keeper runs in the worker's environment, so that a job's libraries and Python settings cannot disturb it.
    with (directory / "keepers.log").open("ab") as errors:
        process = start_child(
            (sys.executable, "-I", "-S", str(_SCRIPT), f"{directory.name}/{name}"),
            env=os.environ,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bound_to_parent=False,
        )
    kept = Kept(directory, name, process.pid, birth(process.pid), process)
    made(kept)
    answer = await asyncio.to_thread(_tell, process, order)
    kind, _, text = answer.partition(" ")
    if kind != "pid":
        await wait_exit(process)
        raise EnvironmentProblem(text or f"the keeper of {argv[0]} ended before it could start it; see keepers.log")
    return kept


def _tell(process: subprocess.Popen[bytes], order: bytes) -> str:
    """Give a keeper its order and read its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(order)
    with process.stdout:
        return process.stdout.read().decode(errors="replace").strip()
