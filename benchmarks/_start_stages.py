"""From a submission to the first row of a small job, by what is prepared, beside spark-submit in the same run.

Ours counts from the HTTP request, the peer's from its command, both to the moment when the program has collected its
rows. Each stage is a cluster of its own with two workers; `never seen` is a query with nothing of which anything was
warmed up. Used by start_time.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from _harness import Case, case, median
from slotwise.client import Client, read_token
from slotwise.model.job import JobSpec
from slotwise.spark.conf import job_sizes
from slotwise.spark.home import find_spark
from start_time import WARMING_LIMIT_S, slotwise_argv, slotwise_cluster, spark_cluster, until

QUERIES = {
    "usual": 'rows.groupBy("k").sum("v").collect()',
    "never seen": (
        'rows.where("v % 10 = 3").selectExpr("k", "date_trunc(\\"month\\", timestamp_seconds(v * 1000)) as m", '
        '"levenshtein(cast(v as string), \\"12345\\") as l", "v").groupBy("m").pivot("k", [0, 1, 2])'
        '.agg({"l": "skewness", "v": "median"}).collect()'
    ),
}
PROGRAM = """\
import sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.read.parquet(sys.argv[1])
assert QUERY
with open(sys.argv[2], "a") as file:
    file.write(f"{time.time():.6f}\\n")
spark.stop()
"""
MODE = "TASKMANAGER_WARM_MODE"
APPLICATION = "JOBMANAGER_WARM_APPLICATIONS_MAX"
STAGES = {
    "cold": {"TASKMANAGER_JVM_CACHE_MODE": "off", MODE: "off"},
    "JVM cache": {MODE: "off"},
    "warm processes": {MODE: "minimal"},
    # Nothing else warms up meanwhile, so that each is soon ready for the next measurement.
    "warm application": {MODE: "off", APPLICATION: "1"},
}
_QUIET_LOOKS = 5


def measure(directory: Path, rounds: int, stages: Sequence[str]) -> list[Case]:
    """These stages, and the peer. Each measurement is told on standard error: they take a minute or two each."""
    source = make_input(directory)
    programs = {}
    for name, query in QUERIES.items():
        programs[name] = directory / f"{name.replace(' ', '-')}.py"
        programs[name].write_text(PROGRAM.replace("QUERY", query))
    peer = _spark_submit(directory, source, programs, rounds)
    caches = {**os.environ, "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY": str(directory / "caches")}
    subprocess.run(slotwise_argv("cache", "build"), env=caches, capture_output=True, check=True)
    cases = []
    for stage in stages:
        settings = STAGES[stage]
        env = {**caches, "SLOTWISE_STATE_DIR": str(directory / f"state-{stage[:4]}")}
        env.update({f"SLOTWISE_CONF_{key}": value for key, value in settings.items()})
        ours, memory = _stage(stage, directory, env, source, programs, rounds)
        cases += [
            case(f"first row, {query} query: {stage}", "s", median(ours[query]), median(peer[query]))
            for query in QUERIES
        ]
        if memory:
            cases.append(case("memory of a driver and an executor that wait", "MiB", median(memory) / 1024**2))
    return cases


def make_input(directory: Path) -> Path:
    import pyarrow as arrow
    from pyarrow import parquet

    path = directory / "input.parquet"
    parquet.write_table(arrow.table({"k": [row % 7 for row in range(100_000)], "v": list(range(100_000))}), path)
    return path


def _stage(
    stage: str, directory: Path, env: dict[str, str], source: Path, programs: dict[str, Path], rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each query, and what one worker's waiting processes hold."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    memory: list[float] = []
    warm = env[f"SLOTWISE_CONF_{MODE}"] != "off"
    application = f"SLOTWISE_CONF_{APPLICATION}" in env
    token = Path(env["SLOTWISE_STATE_DIR"]) / "token"
    started = 0
    with (
        slotwise_cluster(directory, env, cores=2, memory="5g"),
        Client(env["SLOTWISE_MASTER"], read_token(token)) as client,
    ):
        if application:
            # For its kind; it may be slow.
            client.wait(client.submit(small_job("first", programs["usual"], directory, source)[0]))
        for _ in range(rounds):
            for name, program in programs.items():
                if application:
                    _until_application(client)
                elif warm:
                    memory.append(_until_warm(client, started))
                spec, marks = small_job(name, program, directory, source)
                began = time.time()
                job = client.submit(spec)
                last = client.wait(job)["state"]
                if last != "FINISHED":
                    raise SystemExit(f"the job ended as {last}")
                found[name].append(float(marks.read_text()) - began)
                _tell(stage, name, found)
                started += 2
    return found, memory


def small_job(name: str, program: Path, directory: Path, source: Path) -> tuple[JobSpec, Path]:
    """A job, and the file where it says when it had its rows."""
    sizes = job_sizes({}, num_executors=1)
    marks = directory / f"marks-{time.time_ns()}"
    spec = JobSpec(
        name=name,
        program=str(program),
        args=(str(source), str(marks)),
        working_dir=str(directory),
        driver=sizes.driver,
        executor=sizes.executor,
        initial_executors=1,
    )
    return spec, marks


def _until_application(client: Client) -> None:
    """Wait until an application waits, and nothing else warms up beside it for a while."""
    quiet = 0

    def ready() -> bool:
        nonlocal quiet
        time.sleep(1)
        workers = client.call("GET", "/v1/taskmanagers")["taskmanagers"]
        warming = any((worker["warm"] or {}).get("warming") for worker in workers)
        waits = client.call("GET", "/v1/overview")["warm-applications-waiting"]
        quiet = quiet + 1 if waits and not warming else 0
        return quiet >= _QUIET_LOOKS

    until(ready, WARMING_LIMIT_S)


def _until_warm(client: Client, started: int) -> float:
    """Wait until both workers have a driver and an executor that wait, and know of as many processes as were started;
    the memory that one worker's hold.
    """
    held = 0.0

    def warm() -> bool:
        nonlocal held
        workers = client.call("GET", "/v1/taskmanagers")["taskmanagers"]
        reports = [worker["warm"] or {} for worker in workers]
        held = max(report.get("memory_bytes", 0.0) for report in reports)
        counted = sum(report.get("hits", 0) + report.get("misses", 0) for report in reports)
        return counted == started and all(
            report.get("drivers") and report.get("executors") and not report["warming"] for report in reports
        )

    until(warm, WARMING_LIMIT_S)
    return held


def _spark_submit(directory: Path, source: Path, programs: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in programs}
    submit = str(find_spark().path / "bin" / "spark-submit")
    with spark_cluster(directory, cores=2, memory="5g") as (url, env, _):
        for _ in range(rounds):
            for name, program in programs.items():
                marks = directory / f"marks-{time.time_ns()}"
                began = time.time()
                argv = [submit, "--master", url, "--total-executor-cores", "1", str(program), str(source), str(marks)]
                subprocess.run(argv, env=env, check=True, capture_output=True)
                until(marks.exists)
                found[name].append(float(marks.read_text()) - began)
                _tell("spark-submit", name, found)
    return found


def _tell(stage: str, query: str, found: dict[str, list[float]]) -> None:
    taken = found[query]
    print(f"{stage}, {query} query, {len(taken)}: {taken[-1]:.3f} s", file=sys.stderr, flush=True)
