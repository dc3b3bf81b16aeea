"""Options that several commands share, and how they become a job specification."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from slotwise.cli.projects import (
    asked_of_pipeline,
    conf_of_pipeline,
    pipeline_options,
    read_specification,
    specification,
)
from slotwise.model.errors import UsageError
from slotwise.model.job import JobSpec
from slotwise.model.resources import ResourceProfile, parse_bytes, parse_cpu
from slotwise.model.restart import RestartKind, RestartStrategy
from slotwise.tls import ClientTls

Function = TypeVar("Function", bound=Callable[..., Any])

_JOB_OPTIONS = [
    click.option("--name", metavar="NAME", help="Name of the job (default: the program's file name)."),
    click.option(
        "--conf",
        "-c",
        "conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A Spark setting, as in spark-submit; may be repeated.",
    ),
    click.option("--properties-file", metavar="FILE", help="File of Spark settings, as in spark-submit."),
    click.option("--py-files", metavar="FILES", help="Comma-separated .py, .zip or .egg files for the program."),
    click.option("--files", metavar="FILES", help="Comma-separated files for the working directory of executors."),
    click.option("--archives", metavar="FILES", help="Comma-separated archives, unpacked beside executors."),
    click.option("--jars", metavar="FILES", help="Comma-separated jars for driver and executors."),
    click.option(
        "--requirements",
        metavar="FILE",
        help="A requirements.txt or uv.lock: workers build the Python environment that it describes, once, and the "
        "program and its functions on executors run in it.",
    ),
    click.option("--driver-memory", metavar="SIZE", help="JVM heap of the driver, as in 1g [default: 1g]."),
    click.option("--driver-cores", type=int, metavar="N", help="Cores of the driver's slot [default: 1]."),
    click.option("--executor-memory", metavar="SIZE", help="JVM heap of each executor [default: 1g]."),
    click.option("--executor-cores", type=int, metavar="N", help="Cores of each executor [default: 1]."),
    click.option("--num-executors", type=int, metavar="N", help="Executors to ask for [default: 2]."),
    click.option("--min-executors", type=int, metavar="N", help="Start with no fewer [default: 1]."),
    click.option("--max-executors", type=int, metavar="N", help="Never more than this."),
    click.option(
        "--restart-strategy",
        type=click.Choice(["none", "fixed-delay", "exponential-delay"]),
        help="What follows when the program fails [default: the job has failed].",
    ),
    click.option("--restart-attempts", type=click.IntRange(-1), metavar="N", help="So often [default: 3]; -1: always."),
    click.option("--restart-delay", metavar="TIME", help="The first wait before it, as in 10s [default: 1s]."),
    click.option("--python", "python", metavar="PATH", help="Interpreter of the program [default: the worker's]."),
    click.option(
        "--env", "env", multiple=True, metavar="KEY=VALUE", help="Environment of the driver; may be repeated."
    ),
]

_LOCAL_OPTIONS = [
    click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Workers at most."),
    click.option("--worker-cpus", metavar="N", help="Cores of a worker [default: all of this machine, at least 2]."),
    click.option("--worker-memory", metavar="SIZE", help="Memory of a worker [default: 45 % of this machine's]."),
]

_CONFIG_OPTIONS = [
    click.option("--config", "config_file", type=click.Path(path_type=Path), help="YAML file of Slotwise options."),
    click.option("-D", "settings", multiple=True, metavar="KEY=VALUE", help="A Slotwise option; may be repeated."),
]

_MASTER_OPTIONS = [
    click.option(
        "--master", "master_url", metavar="URL", help="The master [default: this machine's, or SLOTWISE_MASTER]."
    ),
    click.option("--token-file", type=click.Path(path_type=Path), help="File with the cluster's token."),
]


_TLS_OPTIONS = [
    click.option(
        "--ca-cert",
        type=click.Path(path_type=Path),
        help="Certificate of the authority that the master's is of, or the master's own, in PEM "
        "[default: SLOTWISE_CA_CERT, or this machine's authorities].",
    ),
    click.option(
        "--client-cert",
        type=click.Path(path_type=Path),
        help="Certificate to show where the master asks for one [default: SLOTWISE_CLIENT_CERT].",
    ),
    click.option(
        "--client-key", type=click.Path(path_type=Path), help="Its key [default: SLOTWISE_CLIENT_KEY, or in its file]."
    ),
]


def _apply(function: Function, options: Sequence[Callable[[Any], Any]]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def job_options(function: Function) -> Function:
    """What a job may say of itself; spark-submit's names where it has them."""
    return _apply(pipeline_options(function), _JOB_OPTIONS)


JOB_PARAMETERS = (
    *("name", "conf", "properties_file", "py_files", "files", "archives", "jars", "driver_memory", "driver_cores"),
    *("executor_memory", "executor_cores", "num_executors", "min_executors", "max_executors", "restart_strategy"),
    *("restart_attempts", "restart_delay", "python", "env", "refresh", "full_refresh", "full_refresh_all", "dry_run"),
    "requirements",
)


def given_job_options(given: dict[str, Any]) -> str:
    """The first option for jobs that was given, or nothing."""
    return next((f"--{name.replace('_', '-')}" for name in JOB_PARAMETERS if given[name] not in (None, (), False)), "")


def local_options(function: Function) -> Function:
    """The size of an embedded or local cluster."""
    return _apply(function, _LOCAL_OPTIONS)


def config_options(function: Function) -> Function:
    """Slotwise's own configuration."""
    return _apply(function, _CONFIG_OPTIONS)


def master_options(function: Function) -> Function:
    """Which master, its token, and whom to trust."""
    return _apply(tls_options(function), _MASTER_OPTIONS)


def tls_options(function: Function) -> Function:
    """Whom to trust, and what to show."""
    return _apply(function, _TLS_OPTIONS)


def client_tls(given: dict[str, Any]) -> ClientTls:
    """What these options say."""
    return ClientTls.of(given["ca_cert"], given["client_cert"], given["client_key"])


def json_option(function: Function) -> Function:
    """Every listing can be JSON."""
    return _apply(function, [click.option("--json", "as_json", is_flag=True, help="Print JSON.")])


def job_spec(program: str, args: tuple[str, ...], given: dict[str, Any]) -> JobSpec:
    """The job that the options describe. Raises :class:`UsageError` for what cannot be."""
    from slotwise.spark.conf import job_sizes, parse_conf_options, read_properties_file

    project = specification(program)
    path = project or _program(program)
    pipeline = asked_of_pipeline(given, project is not None)
    conf: dict[str, str] = {}
    if given["properties_file"]:
        conf.update(read_properties_file(Path(given["properties_file"])))
    conf.update(parse_conf_options(given["conf"]))
    name = path.stem
    if project is not None:
        if args:
            raise UsageError(f"{args[0]}: a pipeline has no arguments")
        name, configuration = read_specification(project)
        conf = conf_of_pipeline(conf, configuration, given)
    sizes = job_sizes(
        conf,
        driver_memory=given["driver_memory"],
        driver_cores=given["driver_cores"],
        executor_memory=given["executor_memory"],
        executor_cores=given["executor_cores"],
        num_executors=given["num_executors"],
        min_executors=given["min_executors"],
        max_executors=given["max_executors"],
    )
    return JobSpec(
        name=given["name"] or conf.get("spark.app.name") or name,
        program=str(path),
        args=args,
        working_dir=os.getcwd() if project is None else str(project.parent),
        python=given["python"],
        conf=conf,
        env=_pairs(given["env"]),
        py_files=_paths(given["py_files"], "--py-files"),
        files=_paths(given["files"], "--files"),
        archives=_paths(given["archives"], "--archives"),
        jars=_paths(given["jars"], "--jars"),
        driver=sizes.driver,
        executor=sizes.executor,
        # A pipeline's least number is that of its regions; it starts with one to look at what it reads.
        min_executors=sizes.min_executors if project is None else 1,
        initial_executors=sizes.initial_executors,
        max_executors=sizes.max_executors,
        dynamic_allocation=sizes.dynamic_allocation,
        restart=_restart(given["restart_strategy"], given["restart_attempts"], given["restart_delay"]),
        pipeline=pipeline,
    )


def _restart(kind: str | None, attempts: int | None, delay: str | None) -> RestartStrategy | None:
    if kind is None:
        if attempts is not None or delay is not None:
            raise UsageError("--restart-attempts and --restart-delay say nothing without --restart-strategy")
        return None
    from slotwise.config_options import parse_duration

    default = RestartStrategy()
    delay_s = parse_duration(delay, "--restart-delay") if delay is not None else default.delay_s
    if delay_s < 0:
        raise UsageError(f"--restart-delay {delay}: a wait cannot be negative")
    return RestartStrategy(
        RestartKind(kind),
        default.attempts if attempts is None else attempts,
        delay_s,
        max(delay_s, default.max_delay_s),
    )


def _program(program: str) -> Path:
    path = Path(program).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"there is no file {program}")
    if path.suffix != ".py":
        raise UsageError(f"{program} is neither a Python program (a .py file) nor a pipeline's specification")
    return path


def _paths(text: str | None, option: str) -> tuple[str, ...]:
    """Absolute paths; a ``#name`` after an archive stays with it, and other schemes are Spark's business."""
    found = []
    for entry in (text or "").split(","):
        if not entry.strip():
            continue
        if re.match(r"^[a-z][a-z0-9+.-]*://", entry):
            found.append(entry)
            continue
        name, mark, alias = entry.strip().partition("#")
        path = Path(name).expanduser().absolute()
        if not path.exists():
            raise UsageError(f"{option}: there is no file {name}")
        found.append(f"{path}{mark}{alias}")
    return tuple(found)


def _pairs(entries: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for entry in entries:
        key, separator, value = entry.partition("=")
        if not separator or not key:
            raise UsageError(f"--env {entry}: write KEY=VALUE")
        pairs[key] = value
    return pairs


def worker_total(cpus: str, memory: str, resources: tuple[str, ...] = ()) -> ResourceProfile:
    """The size that a worker's options describe."""
    extended = {}
    for entry in resources:
        name, separator, amount = entry.partition("=")
        if not separator or not amount.isdigit():
            raise UsageError(f"--resource {entry}: write NAME=AMOUNT, as in gpu=1")
        extended[name] = int(amount)
    total = ResourceProfile.of(parse_cpu(cpus, "--cpus"), parse_bytes(memory, "--memory"), extended)
    if total.cpu_milli == 0 or total.memory_bytes == 0:
        raise UsageError("a worker needs more than zero cores and memory (--cpus, --memory)")
    return total
