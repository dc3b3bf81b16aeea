"""Ten small jobs submitted at the same moment, until the last has its rows, beside ten spark-submits.

One worker with room for all of them, on both sides; it has ten drivers and ten executors that wait. The processors are
those of the machine: both sides share what there is. Used by start_time.py."""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _harness import Case, case, median
from _start_stages import MODE, PROGRAM, QUERIES, make_input, small_job
from slotwise.client import Client, read_token
from slotwise.spark.home import find_spark
from start_time import slotwise_argv, slotwise_cluster, spark_cluster, until

JOBS = 10
CORES = 2 * JOBS
MEMORY = "30g"
# For twenty processes that warm up one after the other.
_WARMING_LIMIT_S = 3600.0


def measure(directory: Path, rounds: int) -> list[Case]:
    """One case: seconds until the last of the jobs has its rows."""
    source = make_input(directory)
    program = directory / "at-once.py"
    program.write_text(PROGRAM.replace("QUERY", QUERIES["usual"]))
    peer = _spark_submit(directory, source, program, rounds)
    env = {
        **os.environ,
        "SLOTWISE_STATE_DIR": str(directory / "state-at-once"),
        "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY": str(directory / "caches"),
        f"SLOTWISE_CONF_{MODE}": "minimal",
        "SLOTWISE_CONF_TASKMANAGER_WARM_DRIVERS": str(JOBS),
        "SLOTWISE_CONF_TASKMANAGER_WARM_EXECUTORS": str(JOBS),
    }
    subprocess.run(slotwise_argv("cache", "build"), env=env, capture_output=True, check=True)
    ours = _slotwise(directory, env, source, program, rounds)
    return [case(f"{JOBS} jobs at once, the last row of the last: warm processes", "s", median(ours), median(peer))]


def _slotwise(directory: Path, env: dict[str, str], source: Path, program: Path, rounds: int) -> list[float]:
    found = []
    with (
        slotwise_cluster(directory, env, cores=CORES, memory=MEMORY, workers=1),
        Client(env["SLOTWISE_MASTER"], read_token(Path(env["SLOTWISE_STATE_DIR"]) / "token")) as client,
    ):
        for _ in range(rounds):
            until(lambda: _all_wait(client), _WARMING_LIMIT_S)
            jobs = [small_job(f"job-{number}", program, directory, source) for number in range(JOBS)]
            began = time.time()
            with ThreadPoolExecutor(JOBS) as pool:
                submitted = list(pool.map(client.submit, (spec for spec, _ in jobs)))
            for one in submitted:
                if client.wait(one)["state"] != "FINISHED":
                    raise SystemExit(f"{one} failed")
            found.append(max(float(marks.read_text()) for _, marks in jobs) - began)
    return found


def _all_wait(client: Client) -> bool:
    time.sleep(1)
    (worker,) = client.call("GET", "/v1/taskmanagers")["taskmanagers"]
    warm = worker["warm"] or {}
    return bool(warm.get("drivers") == JOBS and warm["executors"] == JOBS and not warm["warming"])


def _spark_submit(directory: Path, source: Path, program: Path, rounds: int) -> list[float]:
    found = []
    submit = str(find_spark().path / "bin" / "spark-submit")
    with spark_cluster(directory, cores=CORES, memory=MEMORY, workers=1) as (url, env, _):
        for _ in range(rounds):
            marks = [directory / f"marks-{time.time_ns()}-{number}" for number in range(JOBS)]
            argv = [submit, "--master", url, "--total-executor-cores", "1", "--executor-cores", "1", str(program)]
            began = time.time()
            running = [
                subprocess.Popen(
                    [*argv, str(source), str(mark)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                for mark in marks
            ]
            # Every one is waited for, also after one that failed.
            codes = [process.wait() for process in running]
            if any(codes):
                raise SystemExit("a spark-submit failed")
            found.append(max(float(mark.read_text()) for mark in marks) - began)
    return found
