"""``slotwise cluster``: a master with local workers in the background of this machine."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import psutil

from slotwise.cli.main import no_such_command
from slotwise.cli.options import config_options, json_option, local_options
from slotwise.client import Client, default_token_file, read_token, state_directory
from slotwise.dispatcher.files import open_files
from slotwise.dispatcher.job_store import FileJobStore
from slotwise.ha.embedded import EmbeddedLeaderElection
from slotwise.model.errors import ClusterError, EnvironmentProblem
from slotwise.protocol.effects import PersistCancel
from slotwise.provisioners.local import RECORDS_FILE
from slotwise.provisioners.worker_records import end_all
from slotwise.runtime.home import sweep_stale

_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 60.0
_WORKERS_STOP_LIMIT_S = 20.0


class _Group(click.Group):
    """With the nearest name where there is no such command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise no_such_command(args[0], self.commands, "slotwise cluster")
        return super().resolve_command(ctx, args)


@click.group(cls=_Group)
def cluster() -> None:
    """Start, stop or look at a local cluster in the background.

    The master starts workers on this machine when jobs need them and releases them when idle. `submit`, `jobs`
    and the others find it by themselves.

    \b
    Examples:
      slotwise cluster start --workers 4 --worker-memory 8g
      slotwise cluster status
      slotwise cluster stop
    """


def _address_file() -> Path:
    return state_directory() / "cluster.json"


def _running() -> dict[str, Any] | None:
    """The address of the running cluster, or None."""
    try:
        address = dict(json.loads(_address_file().read_text()))
        process = psutil.Process(int(address["pid"]))
        if (
            process.is_running()
            and process.status() != psutil.STATUS_ZOMBIE
            and "slotwise" in " ".join(process.cmdline())
        ):
            return address
    except (OSError, ValueError, KeyError, psutil.Error):
        pass
    return None


def _clear_up() -> str:
    """End what a master that was killed has left: its jobs are cancelled as soon as a master looks at them, its workers
    end now. Returns what was done, in words; nothing is when another master leads in the directory.
    """
    directory = state_directory() / "master"

    async def cancel_jobs() -> int:
        election = EmbeddedLeaderElection(directory)
        await election.acquire()
        try:
            store = FileJobStore(open_files(directory))
            unfinished = [job.job for job in store.recover() if job.result is None and not job.cancelled]
            for job in unfinished:
                store.persist(PersistCancel(job))
            return len(unfinished)
        finally:
            await election.release()

    jobs = asyncio.run(cancel_jobs())
    workers = end_all(directory / "workers" / RECORDS_FILE, _WORKERS_STOP_LIMIT_S)
    sweep_stale(directory / "workers", spare_kept=False)
    return f"ended {workers} worker(s), cancelled {jobs} job(s)"


@cluster.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="0: the one of the cluster before, or a free one.",
)
@local_options
@config_options
def start(**given: Any) -> int:
    """Start a local cluster, unless one is running.

    If the last one's master was killed, its workers and jobs are taken over and go on.

    \b
    Examples:
      slotwise cluster start
      slotwise cluster start --workers 4 --worker-cpus 2 --worker-memory 8g
      slotwise cluster start --port 8090 -D log.format=json
    """
    running = _running()
    if running is not None:
        click.echo(f"a cluster is running already at {running['url']} (pid {running['pid']})")
        return 0
    directory = state_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A dead master's: its successor writes a new one. Where it listened is in its directory as well.
    _address_file().unlink(missing_ok=True)
    log = directory / "master.log"
    argv = [
        *(sys.executable, "-m", "slotwise", "master", "--local-workers", "--port", str(given["port"])),
        *("--address-file", str(_address_file()), "--workers", str(given["workers"])),
    ]
    for option, name in (
        ("--worker-cpus", "worker_cpus"),
        ("--worker-memory", "worker_memory"),
        ("--config", "config_file"),
    ):
        if given[name] is not None:
            value = given[name].absolute() if isinstance(given[name], Path) else given[name]
            argv += [option, str(value)]
    for setting in given["settings"]:
        argv += ["-D", setting]
    with log.open("ab") as output:
        began = output.tell()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=directory
        )
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = log.read_bytes()[began:].decode("utf-8", "replace").strip().splitlines()
            raise EnvironmentProblem(said[-1].removeprefix("slotwise: ") if said else f"the master ended; see {log}")
        if _address_file().exists():
            address = json.loads(_address_file().read_text())
            click.echo(f"cluster started at {address['url']} (pid {address['pid']}, log {log})")
            return 0
        time.sleep(0.05)
    process.terminate()
    raise EnvironmentProblem(f"the master did not start within {_START_LIMIT_S:g} s; see {log}")


@cluster.command()
def stop() -> int:
    """Stop the local cluster: jobs are cancelled, then workers and master end.

    \b
    Example:
      slotwise cluster stop
    """
    running = _running()
    if running is None:
        if not _address_file().exists():
            click.echo("no cluster is running")
            return 0
        click.echo(f"the cluster's master had died; {_clear_up()}")
        _address_file().unlink(missing_ok=True)
        return 0
    process = psutil.Process(running["pid"])
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_LIMIT_S)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(10)
        click.echo(f"the master did not end in time and was killed; {_clear_up()}", err=True)
    _address_file().unlink(missing_ok=True)
    click.echo("cluster stopped")
    return 0


@cluster.command()
@json_option
def status(as_json: bool) -> int:
    """Say whether the local cluster runs, and what it has. Exit code 1 when there is none.

    \b
    Examples:
      slotwise cluster status
      slotwise cluster status --json
    """
    running = _running()
    if running is None:
        click.echo("null" if as_json else "no cluster is running; start one with: slotwise cluster start")
        return 1
    with Client(running["url"], read_token(default_token_file())) as client:
        try:
            overview = client.call("GET", "/v1/overview")
        except ClusterError as error:
            raise ClusterError(f"the master (pid {running['pid']}) runs but does not answer: {error}") from error
    if as_json:
        print(json.dumps({**running, **overview}, indent=2))
    else:
        click.echo(
            f"cluster at {running['url']} (pid {running['pid']}): {overview['taskmanagers']} worker(s), "
            f"{overview['slots-total']} slot(s), {overview['jobs-running']} job(s) running"
        )
    return 0
