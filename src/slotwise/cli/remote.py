"""Commands that talk to a running master."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from slotwise.cli.console import Screen
from slotwise.cli.ids import complete_workers, job_argument
from slotwise.cli.options import json_option, master_options
from slotwise.cli.submit import EXIT_CODES, Follower, connect
from slotwise.cli.tables import print_table
from slotwise.model.resources import format_bytes, format_cpu


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _size(resource: dict[str, Any] | None) -> str:
    if resource is None:
        return "default slot"
    parts = [format_cpu(resource["cpu_milli"]), format_bytes(resource["memory_bytes"])]
    return ", ".join(parts + [f"{amount} {name}" for name, amount in resource["extendedResources"].items()])


def _counts(items: list[dict[str, Any]]) -> str:
    return "; ".join(f"{item['count']} × ({_size(item['resource'])})" for item in items) or "–"


def _when(milliseconds: int) -> str:
    if milliseconds <= 0:
        return "–"
    return datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC).astimezone().strftime("%H:%M:%S")


def _seconds(milliseconds: int) -> str:
    return "–" if milliseconds < 0 else f"{milliseconds / 1000:.1f} s"


@click.command()
@master_options
@json_option
def jobs(as_json: bool, **given: Any) -> int:
    """List the jobs of a master, newest last.

    \b
    Examples:
      slotwise jobs
      slotwise jobs --json
    """
    with connect(given) as client:
        found = client.call("GET", "/v1/jobs/overview")["jobs"]
    if as_json:
        _print_json(found)
        return 0
    rows = [
        (
            job["jid"],
            job["name"],
            job["phase"],
            _when(job["start-time"]),
            f"{job['duration'] / 1000:.1f} s",
            len(job.get("held", [])) if job["end-time"] < 0 else 0,
            f"{job['executors']['registered']}/{job['executors']['wanted']}" if "executors" in job else "–",
        )
        for job in found
    ]
    print_table(("JOB", "NAME", "STATE", "START", "DURATION", "SLOTS", "EXECUTORS"), rows)
    return 0


@click.command()
@job_argument
@master_options
@json_option
def job(job_id: str, as_json: bool, **given: Any) -> int:
    """Show one job: what it declared, holds, lacks and runs.

    \b
    Examples:
      slotwise job job-1a2b3c4d
      slotwise job 1a2b              # the beginning of an id is enough, here and everywhere
    """
    with connect(given) as client:
        job_id = client.find_job(job_id)
        details = client.job(job_id)
        events = client.call("GET", f"/v1/jobs/{job_id}/events")["events"]
    if as_json:
        _print_json({**details, "events": events})
        return 0
    print(f"{details['jid']}  {details['name']}  {details['phase']}")
    if details["reason"]:
        print(f"  reason     {details['reason']}")
    print(f"  started    {_when(details['start-time'])}, took {details['duration'] / 1000:.1f} s")
    print(f"  program    {details['program']}")
    if "declared" in details:
        print(f"  declared   {_counts(details['declared'])}")
        print(f"  spark      {details['app-id'] or '–'}  {details['spark-ui'] or ''}")
        high = details["max-executors"]
        print(
            f"  executors  {details['executors']['registered']} of {details['executors']['wanted']} wanted; "
            f"{details['min-executors']} to {'any number' if high is None else high} allowed"
        )
        for missing in details["missing"]:
            print(f"  missing    {missing['count']} × ({_size(missing['resource'])}): {missing['detail']}")
        if details["held"]:
            rows = [(s["allocation"], s["worker"], _size(s["resource"]), s["use"] or "idle") for s in details["held"]]
            print_table(("SLOT", "WORKER", "SIZE", "USE"), rows)
    vertices = [vertex for vertex in details["vertices"] if vertex["id"] != "application"]
    if vertices:
        regions = [
            (v["name"], v["status"], v["parallelism"], v["attempt"], _seconds(v["duration"]), v["reason"])
            for v in vertices
        ]
        print_table(("REGION", "STATE", "EXECUTORS", "ATTEMPT", "DURATION", "REASON"), regions)
    for line in details["log-tail"]:
        print(f"  | {line}")
    return 0


@click.command()
@job_argument
@master_options
@json_option
def explain(job_id: str, as_json: bool, **given: Any) -> int:
    """Say why a job has what it has: required, acquired, missing, the reason, and what would help.

    \b
    Examples:
      slotwise explain job-1a2b3c4d
      slotwise explain 1a2b --json
    """
    with connect(given) as client:
        found = client.call("GET", f"/v1/jobs/{client.find_job(job_id)}/explain")
    if as_json:
        _print_json(found)
        return 0
    print(f"{found['jid']} is {found['phase'].lower().replace('_', ' ')}: {found['summary']}")
    if found["required"]:
        print(f"  required   {_counts(found['required'])}")
        print(
            f"  acquired   {_counts(found['acquired'])}" + (f", {found['pending']} pending" if found["pending"] else "")
        )
    if found["missing"] and found["jobs-ahead"]:
        print(f"  {found['jobs-ahead']} job(s) that declared earlier are served before it")
    for missing in found["missing"]:
        print(f"  missing    {missing['count']} × ({_size(missing['resource'])}): {missing['detail']}")
        print(f"  → {missing['help']}")
    return 0


@click.command()
@job_argument
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@click.option(
    "--file", "name", metavar="NAME", help="One log of the job (default: the program's output, stdout and stderr)."
)
@click.option("--list", "list_names", is_flag=True, help="List the logs there are.")
@click.option(
    "--download", type=click.Path(dir_okay=False, path_type=Path), help="Write all logs of the job into this zip file."
)
@master_options
@json_option
def logs(
    job_id: str,
    follow: bool,
    name: str | None,
    list_names: bool,
    download: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Print a job's output: the program's own, or any log of its processes.

    The master keeps them, also when workers and job are gone: of each log the beginning and the end (see
    job.logs.max-file-size), of ended jobs for a while (job.logs.retention.*).

    \b
    Examples:
      slotwise logs job-1a2b3c4d
      slotwise logs job-1a2b3c4d --follow
      slotwise logs job-1a2b3c4d --list
      slotwise logs job-1a2b3c4d --file executor-1.log
      slotwise logs job-1a2b3c4d --download logs.zip
    """
    with connect(given) as client:
        job_id = client.find_job(job_id)
        if download is not None:
            _download(client.archive(job_id), download)
            return 0
        names = client.call("GET", f"/v1/jobs/{job_id}/logs")["logs"]
        if list_names or as_json:
            if as_json:
                _print_json(names)
            else:
                print("\n".join(names))
            return 0
        if name is not None:
            for data in client.log(job_id, name, follow=follow):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return 0
        screen = Screen(quiet=True)
        follower = Follower(client, job_id, screen)
        if follow:
            for _ in client.watch(job_id):
                follower.start_new()
            follower.finish()
            return 0
        for log in names:
            if log.startswith("driver-") and log.endswith((".out", ".err")):
                for data in client.log(job_id, log, follow=False):
                    screen.passthrough(data, error=log.endswith(".err"))
    return 0


def _download(pieces: Iterator[bytes], file: Path) -> None:
    """Write a file, whole or not at all."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as target:
            for data in pieces:
                target.write(data)
        size = partial.stat().st_size
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    click.echo(f"wrote {file} ({size:,} bytes)", err=True)


@click.command()
@job_argument
@click.option("--min", "least", type=click.IntRange(min=0), metavar="N", help="Start with no fewer executors.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Never have more executors than this.")
@master_options
@json_option
def scale(job_id: str, least: int | None, most: int | None, as_json: bool, **given: Any) -> int:
    """Change how many executors a job may have, while it runs. Without options: show its rescales.

    The driver goes on. Executors that come are used at once; those that go first move their shuffle and cached blocks
    to the others, and not within 30 s of the last change (the cool-down, see the configuration).

    \b
    Examples:
      slotwise scale job-1a2b3c4d --max 8
      slotwise scale job-1a2b3c4d --min 2 --max 4
    """
    with connect(given) as client:
        job_id = client.find_job(job_id)
        low, high = client.bounds(job_id)
        if least is not None or most is not None:
            low = low if least is None else least
            high = high if most is None else most
            if least is None and high is not None and high < low:
                low = high
            client.scale(job_id, low, high)
        history = client.call("GET", f"/v1/jobs/{job_id}/rescales/history")["rescales"]
    if as_json:
        _print_json({"jid": job_id, "min-executors": low, "max-executors": high, "rescales": history})
        return 0
    print(f"{job_id} may have {low} to {'any number of' if high is None else high} executors")
    rows = []
    for rescale in history if least is None and most is None else ():
        vertex = rescale["vertices"]["application"]
        rows.append(
            (
                _when(rescale["startTimestampInMillis"]),
                rescale["triggerCause"].lower().replace("_", " "),
                vertex["preRescaleParallelism"],
                vertex.get("postRescaleParallelism", vertex["desiredParallelism"]),
                rescale.get("terminalState", "under way").lower(),
                f"{rescale['durationInMillis'] / 1000:.1f} s" if "durationInMillis" in rescale else "–",
            )
        )
    if rows:
        print_table(("START", "CAUSE", "FROM", "TO", "STATE", "TOOK"), rows)
    return 0


@click.command()
@job_argument
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it has ended.")
@master_options
@json_option
def cancel(job_id: str, wait: bool, as_json: bool, **given: Any) -> int:
    """Cancel a job: its processes are ended and its slots given back.

    \b
    Examples:
      slotwise cancel job-1a2b3c4d
      slotwise cancel 1a2b --no-wait --json
    """
    with connect(given) as client:
        job_id = client.find_job(job_id)
        state = client.cancel(job_id)
        before = state in EXIT_CODES
        if wait and not before:
            for details in client.watch(job_id):
                state = details["state"]
        if as_json:
            _print_json({"jid": job_id, "state": state})
        elif before:
            click.echo(f"{job_id} had ended before: {state.lower()}")
        else:
            click.echo(f"{job_id} is {state.lower()}" if wait else f"{job_id} will be cancelled")
    return 0


@click.command()
@click.option(
    "--block",
    "block",
    metavar="ID",
    shell_complete=complete_workers,
    help="Give this worker no new slots; it keeps those that it has.",
)
@click.option(
    "--unblock", "unblock", metavar="ID", shell_complete=complete_workers, help="Let this worker have new slots again."
)
@master_options
@json_option
def workers(block: str | None, unblock: str | None, as_json: bool, **given: Any) -> int:
    """List the workers with their slots: total = free + the sum of the slots, to the byte.

    \b
    Examples:
      slotwise workers
      slotwise workers --block worker-1a2b3c4d
      slotwise workers --json
    """
    with connect(given) as client:
        for worker_id, word in ((block, "true"), (unblock, "false")):
            if worker_id is not None:
                client.call("PATCH", f"/v1/taskmanagers/{client.find_worker(worker_id)}", params={"blocked": word})
        answer = client.call("GET", "/v1/taskmanagers")
        overview = client.call("GET", "/v1/overview")
    if as_json:
        _print_json(answer)
        return 0
    rows: list[tuple[object, ...]] = []
    for worker in answer["taskmanagers"]:
        rows.append(
            (
                worker["id"] + (" (blocked)" if worker["blocked"] else ""),
                worker["host"],
                _size(worker["totalResource"]),
                _size(worker["freeResource"]),
                worker["slotsNumber"],
                format_bytes(worker["rss_bytes"]),
                _waiting(worker["warm"]),
            )
        )
        for slot in worker["allocatedSlots"]:
            rows.append((f"  {slot['allocation']}", slot["jobId"], _size(slot["resource"]), "", "", "", ""))
    for pending in answer["pending"]:
        rows.append((pending["id"], "starting", _size(pending["totalResource"]), "", "", "", ""))
    print_table(("WORKER / SLOT", "HOST / JOB", "SIZE", "FREE", "SLOTS", "AGENT RSS", "WAITING"), rows)
    if warm := overview["warm-applications"]:
        ready = overview["warm-applications-waiting"]
        click.echo(f"{warm} warm application(s), {ready} ready: the slots of jobs that `slotwise jobs` does not show")
    return 0


def _waiting(warm: dict[str, Any] | None) -> str:
    """What waits on a worker for drivers and executors to come, in a few words."""
    if warm is None:
        return ""
    parts = [f"{warm[name]} {name}" for name in ("drivers", "executors", "warming") if warm[name]]
    if warm["memory_bytes"]:
        parts.append(format_bytes(warm["memory_bytes"] // 1024**2 * 1024**2))
    return ", ".join(parts) or "nothing yet"


@click.command()
@master_options
@json_option
def resources(as_json: bool, **given: Any) -> int:
    """Show what the cluster has, and what each job requires, has acquired and lacks.

    \b
    Examples:
      slotwise resources
      slotwise resources --json
    """
    with connect(given) as client:
        answer = client.call("GET", "/v1/resources")
    if as_json:
        _print_json(answer)
        return 0
    print(f"{answer['workers']} worker(s), {answer['pending_workers']} starting")
    print(f"total {_size(answer['total'])}; used {_size(answer['used'])}; free {_size(answer['free'])}")
    rows = [
        (
            account["job"],
            _counts(account["required"]),
            _counts(account["acquired"]),
            "; ".join(f"{m['count']}: {m['detail']}" for m in account["missing"]) or "–",
        )
        for account in answer["jobs"]
    ]
    if rows:
        print_table(("JOB", "REQUIRED", "ACQUIRED", "MISSING"), rows)
    return 0
