"""``slotwise master`` and ``slotwise worker``: the two processes, in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import secrets
import signal
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slotwise.cli.logging import FORMATS, LEVELS, configure_logging, output_file
from slotwise.cli.options import (
    client_tls,
    config_options,
    given_job_options,
    job_options,
    job_spec,
    local_options,
    tls_options,
    worker_total,
)
from slotwise.client import DEFAULT_PORT, default_token_file, read_token, state_directory
from slotwise.connection import master_address
from slotwise.model.errors import SlotwiseError, UsageError
from slotwise.runtime.log_context import hidden
from slotwise.tls import ServerTls

if TYPE_CHECKING:
    from slotwise.cli.single_job import SingleJob

_LOG_LEVEL = click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="What to log to standard error [default: log.level, which is info; with --job warning].",
)
_LOG_FORMAT = click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    help="Lines of key=value, or a JSON object a line [default: log.format, which is text].",
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: a free one.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Serve HTTPS with this certificate (chain), in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key, in PEM.")
@click.option(
    "--tls-client-ca",
    type=click.Path(path_type=Path),
    help="Let in only who shows a certificate of this authority, workers too.",
)
@click.option(
    "--insecure-http",
    is_flag=True,
    help="Serve plain HTTP on an address that others reach, where tokens and data can be read on the way.",
)
@click.option("--directory", type=click.Path(path_type=Path), help="Where jobs' records and logs are kept.")
@click.option("--token-file", type=click.Path(path_type=Path), help="The cluster's token; made if it is not there.")
@click.option("--standby", is_flag=True, help="While another master leads in --directory, wait and take over from it.")
@click.option(
    "--on-stop",
    type=click.Choice(["cancel", "leave"]),
    help="What becomes of running jobs when this process is told to end: cancelled, or left to go on and be taken over "
    "by the next master [default: Ctrl-C cancels; SIGTERM leaves them, or cancels with --local-workers].",
)
@click.option("--local-workers", is_flag=True, help="Start workers on this machine when jobs need them.")
@click.option("--address-file", type=click.Path(path_type=Path), help="Write the address as JSON here once it listens.")
@click.option("--job", "program", metavar="PROGRAM", help="Serve this one job and end with it; its ARGS follow.")
@job_options
@local_options
@tls_options
@config_options
@_LOG_LEVEL
@_LOG_FORMAT
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def master(**given: Any) -> int:
    """Run a master: REST, workers' stream and all JobMasters on one HTTP port.

    Without --local-workers the cluster is standalone: start `slotwise worker --master URL` on each machine.

    A master that is killed, or ends by SIGTERM, leaves the jobs of a standalone cluster running. Start it again with
    the same --directory and --port soon (within the heartbeat timeout), and it takes over jobs and workers as if
    nothing had been: this is how to restart or upgrade its machine. One master at a time leads in a directory.

    With --job the cluster is for one job: it needs no submission, takes every slot of every worker that comes, goes on
    with what is there when workers go, and ends, with its workers, when the job ends. Options for jobs (see `slotwise
    submit --help`) describe it; the exit code is the program's own.

    \b
    Examples:
      slotwise master
      slotwise master --directory /srv/slotwise --standby
      slotwise master --host 10.0.0.1 --tls-cert master.pem --tls-key master.key
      slotwise master --port 0 --local-workers --workers 4 --worker-memory 8g
      slotwise master --executor-memory 4g --job job.py -- --date 2013-01-01
    """
    single = None
    if given["program"] is not None:
        from slotwise.cli.console import Screen
        from slotwise.cli.single_job import SingleJob, reactive
        from slotwise.uploading import plan_upload

        if given["num_executors"] is not None:
            raise UsageError("--job takes every slot there is: say --min-executors N to wait for so many at first")
        spec = reactive(job_spec(given["program"], given["args"], given))
        single = SingleJob(plan_upload(spec, given["requirements"], files=False), Screen(quiet=False))
    elif given["args"]:
        raise UsageError(f"{given['args'][0]}: arguments belong to the program of --job")
    elif unused := given_job_options(given):
        raise UsageError(f"{unused} describes a job; it says nothing without --job")
    return asyncio.run(_master(given, single))


async def _master(given: dict[str, Any], single: SingleJob | None) -> int:
    from slotwise.cli.run import shape_from
    from slotwise.config import load
    from slotwise.master import Master, MasterOptions
    from slotwise.provisioners.local import LocalProvisioner

    tls = _server_tls(given)
    _check_host(given["host"], secure=tls is not None or given["insecure_http"])
    dialled = client_tls(given)
    if tls is not None and dialled.ca_cert is None:
        # Its own workers know it by its certificate.
        dialled = msgspec.structs.replace(dialled, ca_cert=tls.cert)
    configuration = load(given["config_file"], given["settings"])
    level = given["log_level"] or ("warning" if single else configuration.get("log.level"))
    configure_logging(level, given["log_format"] or configuration.get("log.format"), component="master")
    shape = shape_from(configuration, given) if given["local_workers"] else None
    directory = (given["directory"] or state_directory() / "master").absolute()
    token_file = (given["token_file"] or default_token_file()).absolute()
    options = MasterOptions(
        directory=directory,
        token=_token(token_file),
        host=given["host"],
        port=given["port"],
        resource_manager=configuration.resource_manager(shape, given["workers"] if shape else None),
        job_master=configuration.job_master(),
        settings=configuration.effective(),
        log_limits=configuration.job_logs(),
        blob_limits=configuration.blobs(),
        log_file=output_file(),
        worker_logs=directory / "workers",
        log_events=True,
        tls=tls,
        warm=configuration.warm_applications(),
    )
    hidden.add(options.token)
    service = Master(options)

    def provisioner(started: Master) -> LocalProvisioner:
        return LocalProvisioner(
            directory / "workers",
            started.url,
            token_file,
            started.worker_exited,
            bound=False,
            worker_options=(*configuration.as_flags(), *(dialled.as_flags() if tls is not None else ())),
        )

    if shape is None and configuration.has_limits():
        click.echo(
            "slotwise: workers come by themselves here: minimum, maximum and redundancy have no effect", err=True
        )
    stop, hurry = asyncio.Event(), asyncio.Event()
    signals: list[int] = []
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        signals.append(number)
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)

    def on_shut_down() -> None:
        wanted_by_client.append(True)
        on_signal(signal.SIGINT)

    wanted_by_client: list[bool] = []
    service.on_shut_down = on_shut_down

    def on_wait(holder: str) -> None:
        click.echo(f"slotwise: standing by: {holder} leads", err=True)

    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    starting: asyncio.Future[Any] = asyncio.ensure_future(
        service.start(provisioner if shape is not None else None, wait=given["standby"], on_wait=on_wait)
    )
    await asyncio.wait([stopping, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    await starting
    click.echo(f"slotwise: master listens on {service.url} (token in {token_file})", err=True)
    address_file = given["address_file"]
    if address_file is not None:
        partial = address_file.with_suffix(".partial")
        partial.write_text(json.dumps({"url": service.url, "pid": os.getpid()}))
        partial.replace(address_file)
    assert service.crashed is not None
    # Whatever ends this master but its user's wish, the next one goes on from here.
    leave, code = True, 0
    serving: list[asyncio.Future[Any]] = [stopping, service.crashed]
    job = asyncio.ensure_future(single.run(service)) if single is not None else None
    try:
        await asyncio.wait([*serving, *([job] if job is not None else [])], return_when=asyncio.FIRST_COMPLETED)
        if service.crashed.done():
            raise SlotwiseError(f"the master ends, and what runs is left to the next one: {service.crashed.result()}")
        if job is not None and job.done():
            leave = False
            return job.result()
        by_default = "leave" if signals[0] == signal.SIGTERM and shape is None else "cancel"
        leave = (given["on_stop"] or by_default) == "leave" and not wanted_by_client
        unfinished = sum(1 for record in service.dispatcher.jobs.values() if not record.state.is_final)
        if leave:
            click.echo(f"slotwise: stopping; {unfinished} job(s) go on for the next master", err=True)
        else:
            click.echo("slotwise: stopping", err=True)
            await _cancel_all(service, hurry)
            if job is not None or wanted_by_client:
                service.end_workers("the cluster was shut down")
                code = 130 if job is not None else 0
    finally:
        stopping.cancel()
        if job is not None:
            job.cancel()
        await service.close(0.0 if hurry.is_set() else 10.0, leave=leave)
        if address_file is not None:
            address_file.unlink(missing_ok=True)
    return code


async def _cancel_all(service: Any, hurry: asyncio.Event, limit_s: float = 20.0) -> None:
    """Jobs end before their workers do, unless a second signal says that there is no time for it."""
    from slotwise.model.errors import ClusterError

    records = service.dispatcher.jobs.values()
    for record in list(records):
        if not record.state.is_final:
            with contextlib.suppress(ClusterError):
                await service.cancel(record.job)
    deadline = asyncio.get_running_loop().time() + limit_s
    while not all(record.released for record in records) and asyncio.get_running_loop().time() < deadline:
        if hurry.is_set():
            return
        await asyncio.sleep(0.05)


def _server_tls(given: dict[str, Any]) -> ServerTls | None:
    cert, key, client_ca = given["tls_cert"], given["tls_key"], given["tls_client_ca"]
    if cert is None:
        if key is not None or client_ca is not None:
            raise UsageError("--tls-key and --tls-client-ca say nothing without --tls-cert")
        return None
    if given["insecure_http"]:
        raise UsageError("--insecure-http contradicts --tls-cert")
    return ServerTls(cert, key or cert, client_ca)


def _check_host(host: str, *, secure: bool) -> None:
    """Tokens and data must not cross a network in the clear unless somebody has said that they may."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            raise UsageError(
                f"--host {host} would listen on every address of this machine; name the one "
                "that workers and users reach"
            )
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UsageError(f"--host {host}: {error.strerror}") from error
    others = [address for address in found if not ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    if others and not secure:
        raise UsageError(
            f"--host {host} can be reached by others, who could read tokens and data on the way: give --tls-cert and "
            "--tls-key (docs/security.md says how to make them), or --insecure-http if the network is yours alone"
        )


def _standard_error_file() -> Path | None:
    """Where this process's log goes, if that is a file."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            path = Path(os.readlink("/proc/self/fd/2"))
            return path if path.is_file() else None
    return None


def _token(file: Path) -> str:
    """The token in ``file``, made with mode 0600 if it is not there."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        contextlib.suppress(FileExistsError),
        os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made,
    ):
        made.write(secrets.token_hex(32))
    token = file.read_text().strip()
    if len(token) < 16:
        raise UsageError(f"the token in {file} is too short; remove the file to have one made")
    if file.stat().st_mode & 0o077:
        raise UsageError(f"{file} can be read by others; run: chmod 600 {file}")
    return token


@click.command()
@click.option("--master", "master_url", metavar="URL", help="The master's address [default: this machine's].")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the cluster's token.")
@click.option("--cpus", help="Cores to give to slots, as in 4 or 0.5 [default: all].")
@click.option("--memory", help="Memory to give to slots, as in 8g [default: 90 % of the machine's].")
@click.option("--resource", "resources", multiple=True, metavar="NAME=AMOUNT", help="Another resource, as in gpu=1.")
@click.option("--default-slot", metavar="CPUS:BYTES", hidden=True)
@click.option("--host", help="Address under which other workers reach this one [default: loopback or found].")
@click.option("--worker-id", hidden=True)
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Folder for slots' files; they are removed with the slots."
)
@click.option(
    "--orphan-timeout",
    metavar="TIME",
    help="How long drivers and executors outlive this process if it is killed; a worker that is started here again "
    "within that time takes them over. 0: not at all [default: taskmanager.orphan-timeout].",
)
@click.option(
    "--drain-timeout",
    metavar="TIME",
    help="How long executors may move what they hold to other workers when this process gets SIGTERM; a second signal "
    "ends it at once [default: taskmanager.drain-timeout].",
)
@click.option(
    "--jvm-cache",
    type=click.Choice(["auto", "off"]),
    help="Whether drivers and executors start from a cache of loaded classes, which is made in the background where "
    "there is none [default: taskmanager.jvm-cache.mode].",
)
@click.option(
    "--warm",
    type=click.Choice(["off", "minimal", "full"]),
    help="Whether processes wait here for drivers and executors to come [default: taskmanager.warm.mode].",
)
@tls_options
@config_options
@_LOG_LEVEL
@_LOG_FORMAT
def worker(**given: Any) -> int:
    """Run a worker: it registers at the master and makes slots of any size as jobs need them.

    SIGTERM has it leave in order: it takes nothing new, its executors move their shuffle and cached blocks to others
    (--drain-timeout), then it ends. Ctrl-C ends it at once. A driver on it begins anew elsewhere in both cases.

    \b
    Examples:
      slotwise worker --master https://10.0.0.1:8090 --ca-cert ca.pem --token-file token
      slotwise worker --cpus 8 --memory 32g --resource gpu=1
    """
    import psutil

    from slotwise.config import load
    from slotwise.config_options import parse_duration
    from slotwise.model.ids import WorkerId
    from slotwise.spark.warm_pool import WarmPolicy
    from slotwise.worker import UploadPolicy, WorkerOptions, WorkerProcess

    configuration = load(given["config_file"], given["settings"])
    warm_drivers, warm_executors = configuration.warm_units(given["warm"])
    warm = WarmPolicy(
        warm_drivers,
        warm_executors,
        configuration.get("taskmanager.warm.quiet-time"),
    )
    configure_logging(
        given["log_level"] or configuration.get("log.level"),
        given["log_format"] or configuration.get("log.format"),
        component="worker",
    )
    total = worker_total(
        given["cpus"] or str(os.cpu_count() or 1),
        given["memory"] or str(int(psutil.virtual_memory().total * 0.9)),
        given["resources"],
    )
    default = configuration.worker_shape(total).default_profile
    if given["default_slot"]:
        cpus, _, memory = given["default_slot"].partition(":")
        default = worker_total(cpus, memory)
    url = master_address(given["master_url"])
    orphan_timeout_s = configuration.get("taskmanager.orphan-timeout")
    if given["orphan_timeout"] is not None:
        orphan_timeout_s = parse_duration(given["orphan_timeout"], "--orphan-timeout")
    drain_timeout_s = configuration.get("taskmanager.drain-timeout")
    if given["drain_timeout"] is not None:
        drain_timeout_s = parse_duration(given["drain_timeout"], "--drain-timeout")
    if drain_timeout_s < 0:
        raise UsageError("the drain timeout cannot be without end: who asks a worker to go wants to see it gone")
    if orphan_timeout_s < 0:
        raise UsageError("the orphan timeout cannot be without end: nothing of a dead worker may live for ever")
    options = WorkerOptions(
        master_url=url,
        token=read_token(given["token_file"]),
        worker=WorkerId(given["worker_id"]) if given["worker_id"] else None,
        host=given["host"] or _own_address(url),
        total=total,
        default_profile=default,
        # A folder of the worker's own: it is removed at the end, and what else is in the named one is not ours.
        base=(given["directory"] or _scratch_base()).absolute(),
        heartbeat_interval_s=configuration.get("heartbeat.interval"),
        heartbeat_timeout_s=configuration.get("heartbeat.timeout"),
        registration_timeout_s=configuration.get("taskmanager.registration.timeout"),
        slot_timeout_s=configuration.get("taskmanager.slot.timeout"),
        orphan_timeout_s=orphan_timeout_s,
        drain_timeout_s=drain_timeout_s,
        jvm_cache_root=configuration.jvm_cache_root(given["jvm_cache"]),
        jvm_cache_quiet_s=configuration.get("taskmanager.jvm-cache.quiet-time"),
        warm=warm if warm_drivers + warm_executors else None,
        uploads=UploadPolicy(
            configuration.uploads_root(),
            configuration.get("taskmanager.uploads.max-size"),
            configuration.get("taskmanager.environments.max-size"),
            configuration.get("taskmanager.environments.build-timeout"),
            configuration.get("taskmanager.environments.installer"),
        ),
        warm_rounds=configuration.get("taskmanager.warm.rounds"),
        tls=client_tls(given),
    )
    hidden.add(options.token)
    try:
        return asyncio.run(WorkerProcess(options).run())
    finally:
        if given["directory"] is None:
            # The shared folder goes with the last worker in it.
            with contextlib.suppress(OSError):
                _scratch_base().rmdir()


def _scratch_base() -> Path:
    """Slots' files belong on a local disk, in a folder that is this user's alone."""
    base = Path(tempfile.gettempdir()) / f"slotwise-workers-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid() or base.stat().st_mode & 0o077:
        raise UsageError(f"{base} is not this user's alone; name another folder with --directory")
    return base


def _own_address(url: str) -> str:
    """The address of this machine on the way to the master; no packet is sent."""
    host = url.split("://", 1)[-1].split("/", 1)[0].rsplit(":", 1)[0].strip("[]")
    try:
        info = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(info[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(f"--master {url}: cannot find a way to {host}: {error.strerror}") from error
