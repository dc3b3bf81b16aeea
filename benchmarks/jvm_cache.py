"""How fast a driver and an executor start from the cache of loaded classes, beside the same start without it.

Each round runs one program twice with `slotwise run`, without and with the cache, in turns, so that both meet the same
machine. `ours` is with the cache, `peer` without. The cache is made first (a minute or two, at ordinary priority),
unless `--directory` has it already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, median, show

PROGRAM = """\
import json, sys, time
import psutil
from pyspark.sql import SparkSession, functions as f
spark = SparkSession.builder.getOrCreate()
ready = time.time()
sc = spark.sparkContext
jvm = sc._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
driver_start = jvm.getStartTime() / 1000
maps = open(f"/proc/{jvm.getPid()}/maps").read()
def executor_start(_):
    chain = psutil.Process().parents()
    return next(process.create_time() for process in chain if "java" in process.name())
executor_starts = sc.parallelize([0], 1).map(executor_start).collect()
executors = sc._jsc.sc().statusStore().executorList(True)
added = [executors.apply(i).addTime().getTime() / 1000 for i in range(executors.size())
         if executors.apply(i).id() != "driver"]
began = time.time()
spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 9 as key", "cast(id as string) as text").write.parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
read.groupBy("key").agg(f.sum("id"), f.max("text")).orderBy("key").collect()
ended = time.time()
print(json.dumps({"driver": ready - driver_start, "executor": min(added) - min(executor_starts),
                  "query": ended - began, "ended": ended,
                  "cached": float("/spark.jsa" in maps or "/spark.aot" in maps)}), flush=True)
spark.stop()
"""
MIB = 1024 * 1024
LIMIT_S = 300.0
FIGURES = {
    "driver": "driver's JVM: start to SparkContext ready",
    "executor": "executor's JVM: start to registered",
    "query": "first query: write, read, aggregate Parquet",
    "all": "slotwise run, command to the query's result",
}


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs; medians are shown")
    parser.add_argument("--directory", type=Path, help="a folder of caches, to keep what is made for the next time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jvm-cache-") as folder:
        directory = Path(folder)
        (directory / "program.py").write_text(PROGRAM)
        cases, made = measure(directory, given.directory or directory / "caches", given.rounds)
        note = f"ours: with a cache of {made['size_bytes'] / MIB:.0f} MiB, made in {made['build_s']:g} s; peer: without"
        show(cases, given.json, [note])


def measure(directory: Path, caches: Path, rounds: int) -> tuple[list[Case], dict[str, Any]]:
    """All cases, and what the cache says of itself."""
    env = {**os.environ, "SLOTWISE_STATE_DIR": str(directory / "state")}
    where = f"taskmanager.jvm-cache.directory={caches.absolute()}"
    if slotwise(env, "cache", "show", "-D", where).returncode:
        done = slotwise(env, "cache", "build", "-D", where)
        if done.returncode:
            raise SystemExit(done.stderr)
    made = json.loads(slotwise(env, "cache", "show", "--json", "-D", where).stdout)
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(rounds):
        # Who comes first changes, so that a machine that gets slower or faster favours nobody.
        for cached in (False, True) if number % 2 else (True, False):
            option = where if cached else "taskmanager.jvm-cache.mode=off"
            figures = one_run(directory, env, option, f"{number}-{cached}")
            if bool(figures["cached"]) is not cached:
                raise SystemExit(f"the driver's JVM {'did not use' if cached else 'used'} the cache")
            found[cached].append(figures)
    cases = [
        case(name, "s", median([run[key] for run in found[True]]), median([run[key] for run in found[False]]))
        for key, name in FIGURES.items()
    ]
    return cases, made


def one_run(directory: Path, env: dict[str, str], option: str, name: str) -> dict[str, float]:
    """The figures of one run, in seconds."""
    began = time.time()
    program = (str(directory / "program.py"), str(directory / name))
    done = slotwise(env, "run", "--quiet", "--num-executors", "1", "-D", option, *program)
    if done.returncode:
        raise SystemExit(f"the program failed:\n{done.stdout}\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    figures["all"] = figures.pop("ended") - began
    return figures


def slotwise(env: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    """Run ``slotwise`` to its end."""
    command = [sys.executable, "-m", "slotwise", *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)


if __name__ == "__main__":
    main()
