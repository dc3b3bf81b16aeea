"""``slotwise top``: the cluster live in a terminal; one plain table where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slotwise.cli.options import json_option, master_options
from slotwise.cli.submit import connect
from slotwise.cli.tables import build_table, console, plain
from slotwise.client import Client
from slotwise.model.errors import ClusterError
from slotwise.model.resources import format_cpu

if TYPE_CHECKING:
    from rich.console import Group

_FINAL = ("FINISHED", "FAILED", "CANCELED")
SORTS = ("start", "slots", "missing", "duration", "name", "state")
_BAR = 30
_ENDED_SHOWN = 5
_KEYS_POLL_S = 0.2


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown: the answers of the master's calls, as they came. ``at_unix_s``: when."""

    url: str
    at_unix_s: float
    overview: dict[str, Any]
    resources: dict[str, Any]
    taskmanagers: list[dict[str, Any]]
    pending: list[dict[str, Any]]
    jobs: list[dict[str, Any]]


def look(client: Client) -> View:
    """Ask the master. Raises :class:`ClusterError`."""
    workers = client.call("GET", "/v1/taskmanagers")
    return View(
        url=client.url,
        at_unix_s=time.time(),
        overview=client.call("GET", "/v1/overview"),
        resources=client.call("GET", "/v1/resources"),
        taskmanagers=workers["taskmanagers"],
        pending=workers["pending"],
        jobs=client.call("GET", "/v1/jobs/overview")["jobs"],
    )


def human_bytes(amount: int) -> str:
    """``amount`` to three digits or so, as in 1.5 GiB."""
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def human_time(milliseconds: int) -> str:
    """As in 12 s, 3 min, 2.5 h."""
    seconds = milliseconds / 1000
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _missing(job: dict[str, Any]) -> int:
    return sum(int(item["count"]) for item in job.get("missing", ()))


def sorted_jobs(jobs: list[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """By one of :data:`SORTS`: what is large or new first, names and states by the alphabet."""
    keys: dict[str, Callable[[dict[str, Any]], Any]] = {
        "start": lambda job: -job["start-time"],
        "slots": lambda job: -len(job.get("held", ())),
        "missing": lambda job: -_missing(job),
        "duration": lambda job: -job["duration"],
        "name": lambda job: job["name"],
        "state": lambda job: job["phase"],
    }
    return sorted(jobs, key=lambda job: (keys[sort](job), job["jid"]))


def _job_row(job: dict[str, Any], now_unix_s: float) -> tuple[object, ...]:
    declared = sum(int(item["count"]) for item in job.get("declared", ()))
    executors = job.get("executors")
    why = "; ".join(dict.fromkeys(str(item["detail"]) for item in job.get("missing", ()))) or job.get("reason", "")
    return (
        job["jid"],
        job["name"],
        job["phase"],
        f"{len(job.get('held', ()))}/{declared}" if "declared" in job else "–",
        f"{executors['registered']}/{executors['wanted']}" if executors else "–",
        _missing(job) or "–",
        human_time(job["duration"] if job["end-time"] >= 0 else max(0, int(now_unix_s * 1000) - job["start-time"])),
        why,
    )


def _worker_row(worker: dict[str, Any]) -> tuple[object, ...]:
    total, free = worker["totalResource"], worker["freeResource"]
    state = "leaving" if worker["leaving"] else "blocked" if worker["blocked"] else "busy"
    return (
        worker["id"],
        worker["host"],
        state if worker["slotsNumber"] or state != "busy" else "idle",
        worker["slotsNumber"],
        f"{(total['cpu_milli'] - free['cpu_milli']) / 1000:g}/{total['cpu_milli'] / 1000:g}",
        f"{human_bytes(total['memory_bytes'] - free['memory_bytes'])} of {human_bytes(total['memory_bytes'])}",
        human_time(worker["timeSinceLastHeartbeat"]),
    )


def _bar(label: str, used: int, total: int, text: str) -> Any:
    from rich.text import Text

    filled = round(_BAR * used / total) if total else 0
    share = f"{100 * used / total:3.0f} %" if total else "   – "
    colour = "red" if total and used / total > 0.9 else "yellow" if total and used / total > 0.7 else "green"
    return Text.assemble(f"{label:<8}", ("█" * filled, colour), ("░" * (_BAR - filled), "dim"), f" {share}  {text}")


@dataclass
class Screen:
    """How a view is shown, on so many columns and lines (``height`` None: as many as it takes)."""

    sort: str = "start"
    paused: bool = False
    problem: str = ""
    width: int = 100_000
    height: int | None = None
    live: bool = False


def render(view: View, screen: Screen) -> Group:
    """Totals, jobs, workers; when lines are few, the last of the longer list go."""
    from rich.console import Group
    from rich.text import Text

    total, used, overview = view.resources["total"], view.resources["used"], view.overview
    stamp = time.strftime("%H:%M:%S", time.localtime(view.at_unix_s))
    lines: list[Any] = [
        Text.assemble(
            ("slotwise ", "bold"),
            f"{view.url}  {stamp}  {len(view.taskmanagers)} worker(s), {len(view.pending)} starting, "
            f"{overview['slots-total']} slot(s); jobs: {overview['jobs-running']} running, "
            f"{overview['jobs-finished']} finished, {overview['jobs-failed']} failed, "
            f"{overview['jobs-cancelled']} cancelled",
        ),
        _bar(
            "cores",
            used["cpu_milli"],
            total["cpu_milli"],
            f"{used['cpu_milli'] / 1000:g} of {format_cpu(total['cpu_milli'])}",
        ),
        _bar(
            "memory",
            used["memory_bytes"],
            total["memory_bytes"],
            f"{human_bytes(used['memory_bytes'])} of {human_bytes(total['memory_bytes'])}",
        ),
    ]
    for name, amount in total["extendedResources"].items():
        mine = used["extendedResources"].get(name, 0)
        lines.append(_bar(plain(name)[:7], mine, amount, f"{mine} of {amount}"))
    if screen.live:
        keys = f"q quit   s sort (by {screen.sort})   p {'go on' if screen.paused else 'pause'}"
        state: list[Any] = [("  PAUSED", "bold yellow")] if screen.paused else []
        lines.append(Text.assemble((keys, "dim"), *state))
    if screen.problem:
        lines.append(Text(plain(screen.problem), style="red"))

    living = sorted_jobs([job for job in view.jobs if job["phase"] not in _FINAL], screen.sort)
    ended = sorted_jobs([job for job in view.jobs if job["phase"] in _FINAL], "start")[:_ENDED_SHOWN]
    jobs = [_job_row(job, view.at_unix_s) for job in living + ended]
    workers = [_worker_row(worker) for worker in view.taskmanagers]
    workers += [(wait["id"], "–", "starting", 0, "–", "–", human_time(wait["since_s"] * 1000)) for wait in view.pending]
    room = None if screen.height is None else max(2, screen.height - len(lines) - 6)
    parts: list[Any] = [*lines]
    shares = (len(jobs), len(workers)) if room is None else _shares(len(jobs), len(workers), room)
    for headers, rows, share in (
        (("JOB", "NAME", "STATE", "SLOTS", "EXECUTORS", "MISSING", "FOR", "WHY"), jobs, shares[0]),
        (("WORKER", "HOST", "STATE", "SLOTS", "CORES", "MEMORY", "HEARD"), workers, shares[1]),
    ):
        parts.append(Text(""))
        if rows:
            parts.append(build_table(headers, rows[:share], screen.width))
        else:
            parts.append(Text(f"no {headers[0].lower()}s", style="dim"))
        if len(rows) > share:
            parts.append(Text(f"… {len(rows) - share} more", style="dim"))
    return Group(*parts)


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many rows of two lists fit into ``room``: each its half, and what the other does not need."""
    half = room // 2
    one = min(first, max(half, room - second))
    return max(1, one), max(1, min(second, room - one))


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a key and returns it, or nothing after a moment; then the terminal is as before."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def key() -> str:
        ready, _, _ = select.select([descriptor], [], [], _KEYS_POLL_S)
        # Not from sys.stdin: what that reads ahead, select does not see.
        return os.read(descriptor, 1).decode("ascii", "replace") if ready else ""

    try:
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Feed(threading.Thread):
    """Looks at the master every ``interval_s``, and sooner when the master says that something has changed."""

    def __init__(self, given: dict[str, Any], interval_s: float) -> None:
        super().__init__(daemon=True)
        self._given = given
        self._interval_s = interval_s
        self._changed = threading.Event()
        self.view: View | None = None
        self.problem = ""

    def run(self) -> None:
        """Until the process ends."""
        with connect(self._given) as client:
            watching = threading.Thread(target=self._watch, daemon=True)
            watching.start()
            while True:
                try:
                    self.view = look(client)
                    self.problem = ""
                except ClusterError as error:
                    self.problem = str(error)
                self._changed.wait(self._interval_s)
                self._changed.clear()

    def _watch(self) -> None:
        """Note each word of the stream of events; a master without one is looked at by the clock alone."""
        with connect(self._given) as client, contextlib.suppress(ClusterError):
            for _ in client.changes():
                self._changed.set()


@click.command()
@master_options
@click.option("--once", is_flag=True, help="Print it once and end, as where standard output is no terminal.")
@click.option("--sort", type=click.Choice(SORTS), default="start", show_default=True, help="Order of the jobs.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Look at least so often.",
)
@json_option
def top(once: bool, sort: str, interval: float, as_json: bool, **given: Any) -> int:
    """Watch the cluster: resources as bars, workers, and jobs with what they hold, lack and why.

    Keys: q ends, s changes the order of the jobs, p pauses.

    \b
    Examples:
      slotwise top
      slotwise top --sort missing --interval 5
      slotwise top --once | head -20
      slotwise top --json
    """
    if as_json or once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        with connect(given) as client:
            view = look(client)
        if as_json:
            print(json.dumps(msgspec.to_builtins(view), indent=2, ensure_ascii=False))
        else:
            screen = console()
            with screen.capture() as captured:
                screen.print(render(view, Screen(sort, width=screen.width)))
            print("\n".join(line.rstrip() for line in captured.get().splitlines()))
        return 0
    # A master that is not there, or a wrong token, is one line and no empty screen.
    with connect(given) as client:
        view = look(client)
    with contextlib.suppress(KeyboardInterrupt):
        _watch(given, view, sort, interval)
    return 0


def _watch(given: dict[str, Any], view: View, sort: str, interval_s: float) -> None:
    from rich.live import Live

    feed = _Feed(given, interval_s)
    feed.view = view
    feed.start()
    screen = Screen(sort, live=True)
    terminal = console()
    with _keys() as key, Live(console=terminal, screen=True, auto_refresh=False) as live:
        while True:
            if not screen.paused and feed.view is not None:
                view = feed.view
            screen.problem, (screen.width, screen.height) = feed.problem, terminal.size
            live.update(render(view, screen), refresh=True)
            pressed = key()
            if pressed in ("q", "Q", "\x03"):
                return
            if pressed == "s":
                screen.sort = SORTS[(SORTS.index(screen.sort) + 1) % len(SORTS)]
            elif pressed in ("p", " "):
                screen.paused = not screen.paused
