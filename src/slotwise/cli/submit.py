"""``slotwise submit``, and how the output of a job of a running master is passed through."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import click

from slotwise.cli.console import Screen, job_line
from slotwise.cli.options import client_tls, job_options, job_spec, master_options
from slotwise.client import Client, read_token
from slotwise.model.errors import ClusterError
from slotwise.model.resources import format_bytes
from slotwise.uploading import MODES, UploadPlan, plan_upload, wants_upload

SHOWN = (".out", ".err", ".setup.log")
"""Endings of a driver's logs that are passed through while its job is waited for."""

EXIT_CODES = {"FINISHED": 0, "FAILED": 1, "CANCELED": 130}
"""Of commands that wait for a job."""


def connect(given: dict[str, Any]) -> Client:
    """A client for the master that the options name."""
    return Client(given["master_url"], read_token(given["token_file"]), tls=client_tls(given))


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@master_options
@click.option(
    "--upload",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="Whether the job's files are sent to the master (always), or named by paths that workers can read (never). "
    "auto: sent if the master is on another machine.",
)
@click.option(
    "--wait", is_flag=True, help="Wait for the end, pass the program's output through, exit with its outcome."
)
@click.option("--quiet", "-q", is_flag=True, help="Print the job's id alone (with --wait: the program's output alone).")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def submit(program: str, args: tuple[str, ...], **given: Any) -> int:
    """Submit PROGRAM with ARGS, or a pipeline project, to a running master.

    PROGRAM is a .py file, or the directory of a Spark Declarative Pipelines project.

    Files that are uploaded (PROGRAM or the whole project, --py-files, --files, --archives, --jars) are sent once for
    their content, and lie in the folder that the program starts in. With --upload never, and to a master on this
    machine, nothing is sent: workers read the files under their absolute paths, and the program starts in this folder.

    Exit code with --wait: 0 finished, 1 failed, 130 cancelled. Ctrl-C while waiting cancels the job.

    \b
    Examples:
      slotwise submit --wait job.py 2013
      slotwise submit --executor-cores 2 --executor-memory 4g --num-executors 8 job.py
      slotwise submit --wait --full-refresh carriers pipelines/flights
      slotwise submit --upload always --py-files lib.zip --requirements requirements.txt job.py
    """
    spec = job_spec(program, args, given)
    screen = Screen(given["quiet"])
    with connect(given) as client:
        plan = plan_upload(spec, given["requirements"], files=wants_upload(given["upload"], client.url))
        sent = client.upload(plan, _progress(screen, plan))
        screen.end()
        if plan.files:
            sent_text = f"{min(sent, plan.files)} had to be sent" if sent else "all were at the master already"
            screen.say(f"{plan.files} uploaded file(s), {format_bytes(plan.size_bytes)}: {sent_text}")
        job = client.submit(plan.spec)
        if not given["wait"]:
            click.echo(job if given["quiet"] else f"submitted {job}; follow it with: slotwise logs {job} -f")
            return 0
        screen.say(f"submitted {job}")
        try:
            return _wait(client, job, screen)
        except KeyboardInterrupt:
            screen.say(f"cancelling {job} (Ctrl-C again to leave it)")
            client.call("PATCH", f"/v1/jobs/{job}", params={"mode": "cancel"})
            for _ in client.watch(job):
                pass
            screen.say(f"{job} canceled")
            return 130


def _progress(screen: Screen, plan: UploadPlan) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        screen.status(f"uploading {plan.files} file(s): {format_bytes(done)} of {format_bytes(total)}")

    return show


def _wait(client: Client, job: str, screen: Screen) -> int:
    follower = Follower(client, job, screen)
    details: dict[str, Any] = {}
    phase = ""
    for details in client.watch(job):
        follower.start_new()
        if details["phase"] != phase:
            phase = details["phase"]
            screen.say(f"{job} is {phase.lower().replace('_', ' ')}")
        screen.status(job_line(details))
    follower.finish()
    screen.end()
    if details["state"] != "FINISHED":
        screen.say(f"{job} {details['state'].lower()}: {details['reason']}")
    return EXIT_CODES[details["state"]]


_FOLLOW_ATTEMPTS = 240
_FOLLOW_PAUSE_S = 0.5


class Follower:
    """Passes the driver's output through, one thread a log file."""

    def __init__(self, client: Client, job: str, screen: Screen) -> None:
        self._client = client
        self._job = job
        self._screen = screen
        self._threads: dict[str, threading.Thread] = {}

    def start_new(self) -> None:
        """Follow the logs that have appeared. A master that is away is asked again later."""
        try:
            names = self._client.call("GET", f"/v1/jobs/{self._job}/logs")["logs"]
        except ClusterError:
            return
        for name in names:
            if name not in self._threads and name.startswith("driver-") and name.endswith(SHOWN):
                thread = threading.Thread(target=self._follow, args=(name,), daemon=True)
                self._threads[name] = thread
                thread.start()

    def _follow(self, name: str) -> None:
        offset = 0
        with contextlib.suppress(BrokenPipeError):
            for _ in range(_FOLLOW_ATTEMPTS):
                try:
                    for data in self._client.log(self._job, name, follow=True, offset=offset):
                        offset += len(data)
                        self._screen.passthrough(data, error=not name.endswith(".out"))
                    return
                except ClusterError:
                    # The master may be on its way back: the output goes on where it broke off.
                    time.sleep(_FOLLOW_PAUSE_S)

    def finish(self) -> None:
        """The job is over: what is left of its output."""
        self.start_new()
        for thread in self._threads.values():
            thread.join(timeout=30)
