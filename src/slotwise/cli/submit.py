"""``slotwise submit``, and how the output of a job of a running master is passed through."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import click

from slotwise.cli.console import Screen, job_line
from slotwise.cli.options import client_tls, job_options, job_spec, master_options
from slotwise.client import Client, default_master_url, read_token
from slotwise.model.errors import ClusterError

EXIT_CODES = {"FINISHED": 0, "FAILED": 1, "CANCELED": 130}
"""Of commands that wait for a job."""


def connect(given: dict[str, Any]) -> Client:
    """A client for the master that the options name."""
    url = given["master_url"] or default_master_url()
    return Client(url, read_token(given["token_file"]), tls=client_tls(given))


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@master_options
@click.option(
    "--wait", is_flag=True, help="Wait for the end, pass the program's output through, exit with its outcome."
)
@click.option("--quiet", "-q", is_flag=True, help="Print the job's id alone (with --wait: the program's output alone).")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def submit(program: str, args: tuple[str, ...], **given: Any) -> int:
    """Submit PROGRAM with ARGS, or a pipeline project, to a running master.

    PROGRAM is a .py file, or the directory of a Spark Declarative Pipelines project. It and its files are named by
    their absolute paths, which the workers must be able to read. Exit code with --wait: 0 finished, 1 failed, 130
    cancelled. Ctrl-C while waiting cancels the job.

    \b
    Examples:
      slotwise submit --wait job.py 2013
      slotwise submit --executor-cores 2 --executor-memory 4g --num-executors 8 job.py
      slotwise submit --wait --full-refresh carriers pipelines/flights
    """
    spec = job_spec(program, args, given)
    with connect(given) as client:
        job = client.submit(spec)
        if not given["wait"]:
            click.echo(job if given["quiet"] else f"submitted {job}; follow it with: slotwise logs {job} -f")
            return 0
        screen = Screen(given["quiet"])
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
            if name not in self._threads and name.startswith("driver-") and name.endswith((".out", ".err")):
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
                        self._screen.passthrough(data, error=name.endswith(".err"))
                    return
                except ClusterError:
                    # The master may be on its way back: the output goes on where it broke off.
                    time.sleep(_FOLLOW_PAUSE_S)

    def finish(self) -> None:
        """The job is over: what is left of its output."""
        self.start_new()
        for thread in self._threads.values():
            thread.join(timeout=30)
