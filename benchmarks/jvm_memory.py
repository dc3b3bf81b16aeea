"""What a one-core executor's JVM holds, and how fast it works, by its flags: an aggregation of 20 million rows.

`ours` is the JVM as Slotwise starts it (the serial collector on one core), `peer` the same with the collector that
Spark's executors have by default (G1); from Java 25 on also ours beside the same with compact object headers. All take
turns. The time is that of the second of two aggregations; the memory that of the executor's JVM before the first, and
at its most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, median, show
from slotwise.spark.java import find_java

PROGRAM = """\
import json, time
import psutil
from pyspark.sql import SparkSession, functions as f
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
def held(_):
    jvm = next(one for one in psutil.Process().parents() if "java" in one.name())
    status = open(f"/proc/{jvm.pid}/status").read().split()
    return [int(status[status.index(name) + 1]) / 1024 for name in ("VmRSS:", "VmHWM:")]
def look():
    return spark.sparkContext.parallelize([0], 1).map(held).collect()[0]
before = look()[0]
def work():
    rows = spark.range(0, 20_000_000, 1, 8).selectExpr("id % 100003 as k", "id as v", "cast(id % 1000 as string) as s")
    sums = f.sum("v").alias("v"), f.avg("v").alias("a"), f.max("s").alias("m"), f.count("*").alias("n")
    found = rows.groupBy("k").agg(*sums)
    # All of them are asked for: Spark computes no column that nobody reads.
    assert found.agg(f.sum("n"), f.sum("v"), f.sum("a"), f.max("m")).collect()[0][0] == 20_000_000
work()
began = time.time()
work()
print(json.dumps({"seconds": time.time() - began, "before": before, "most": look()[1]}), flush=True)
spark.stop()
"""
FIGURES = {
    "seconds": ("20 million rows", "s"),
    "before": ("executor before its work", "MiB"),
    "most": ("executor at its most", "MiB"),
}
LIMIT_S = 600.0
OURS = ""
FIRST_WITH_COMPACT_HEADERS = 25


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; medians are shown")
    given = parser.parse_args()
    others = {"G1": "-XX:+UseG1GC"}
    if find_java().major >= FIRST_WITH_COMPACT_HEADERS:
        others["compact headers"] = "-XX:+UseCompactObjectHeaders"
    with tempfile.TemporaryDirectory(prefix="jvm-memory-") as folder:
        show(measure(Path(folder), others, given.rounds), given.json)


def measure(directory: Path, others: dict[str, str], rounds: int) -> list[Case]:
    """A case for each figure and each of the others."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "SLOTWISE_STATE_DIR": str(directory / "state")}
    runs: dict[str, list[dict[str, float]]] = {options: [] for options in (OURS, *others.values())}
    for _ in range(rounds):
        for options, found in runs.items():
            found.append(_run(env, program, options))
    return [
        case(
            f"{what}: peer with {name}",
            unit,
            median([run[key] for run in runs[OURS]]),
            median([run[key] for run in runs[options]]),
        )
        for name, options in others.items()
        for key, (what, unit) in FIGURES.items()
    ]


def _run(env: dict[str, str], program: Path, options: str) -> dict[str, float]:
    argv = ["run", "--quiet", "--num-executors", "1", "--executor-cores", "1", "--executor-memory", "1g"]
    if options:
        argv += ["--conf", f"spark.executor.extraJavaOptions={options}"]
    # The cache of classes holds for one layout of objects: all go without.
    command = [sys.executable, "-m", "slotwise", *argv, "-D", "taskmanager.jvm-cache.mode=off", str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"the program failed:\n{done.stdout}\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
