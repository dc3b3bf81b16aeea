"""What it brings, and costs, to have Java's optimising compiler wait for ten times as many calls: a program of many
different queries over three million rows, again and again.

`ours` is a job as Slotwise starts it, `peer` the same with the thresholds that HotSpot has by itself, in driver and
executor. They take turns. The first time is that of the program's first pass through its queries, with what is new to
the JVMs; the other the mean of the following ones, when all that is hot has been compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, median, show

PROGRAM = """\
import json, sys, time
from pyspark.sql import SparkSession, Window, functions as f
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
folder = sys.argv[1]
spark.range(0, 3_000_000, 1, 4).selectExpr(
    "id", "id % 1003 as k", "hash(id) as h", "cast(id % 5000 as string) as s", "timestamp_seconds(id * 37) as t",
    "rand(3) as x", "array(id % 3, id % 5, id % 7) as a",
).write.parquet(folder + "/rows")
def work():
    rows = spark.read.parquet(folder + "/rows")
    month = f.date_trunc("month", "t").alias("m")
    first = f.row_number().over(Window.partitionBy("k").orderBy("h"))
    rows.groupBy("k").agg(f.sum("h"), f.avg("x"), f.max("s")).agg(f.sum("k")).collect()
    rows.where("s like '%12%'").groupBy("s").count().orderBy("count").limit(10).collect()
    rows.join(rows.where("id < 200000").select("id", f.col("x").alias("y")), "id").agg(f.corr("x", "y")).collect()
    rows.withColumn("r", first).where("r < 4").agg(f.sum("id")).collect()
    rows.select(f.explode("a").alias("e"), "k").groupBy("e").agg(f.approx_count_distinct("k")).collect()
    rows.groupBy(month).agg(f.stddev("x").alias("d"), f.countDistinct("k")).orderBy(f.desc("d")).limit(5).collect()
    rows.select(f.sha2("s", 256).alias("d")).groupBy(f.substring("d", 1, 2)).count().collect()
    rows.repartition(6, "h").sortWithinPartitions("x").agg(f.first("x")).collect()
    rows.select(f.regexp_replace("s", "[0-4]", "a").alias("z"), "x").groupBy("z").agg(f.median("x")).collect()
    for key in range(12):
        rows.where(f"k = {key}").count()
    pairs = spark.sparkContext.parallelize(range(200_000), 4).map(lambda value: (value % 100, value))
    pairs.reduceByKey(lambda one, other: one + other).count()
    rows.select("id", "k", "s").write.mode("overwrite").parquet(f"{folder}/copy")
passes = []
for _ in range(5):
    began = time.time()
    work()
    passes.append(time.time() - began)
print(json.dumps(passes), flush=True)
spark.stop()
"""
HOTSPOTS = (
    "-XX:Tier4InvocationThreshold=5000 -XX:Tier4MinInvocationThreshold=600 "
    "-XX:Tier4CompileThreshold=15000 -XX:Tier4BackEdgeThreshold=40000 -XX:+UnlockDiagnosticVMOptions "
    "-XX:+AOTReplayTraining"
)
LIMIT_S = 900.0


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; medians are shown")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hot-later-") as folder:
        show(measure(Path(folder), given.rounds), given.json)


def measure(directory: Path, rounds: int) -> list[Case]:
    """Both cases."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    env = {
        **os.environ,
        "SLOTWISE_STATE_DIR": str(directory / "state"),
        "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY": str(directory / "caches"),
    }
    build = [sys.executable, "-m", "slotwise", "cache", "build"]
    subprocess.run(build, env=env, capture_output=True, check=True)
    runs: dict[str, list[list[float]]] = {"": [], HOTSPOTS: []}
    for number in range(rounds):
        for options, found in runs.items():
            rows = directory / f"rows-{number}-{len(options)}"
            found.append(_run(env, program, rows, options))
    first = {options: median([passes[0] for passes in found]) for options, found in runs.items()}
    later = {options: median([mean(passes[1:]) for passes in found]) for options, found in runs.items()}
    return [
        case("first pass through many queries", "s", first[""], first[HOTSPOTS]),
        case("each of the following ones", "s", later[""], later[HOTSPOTS]),
    ]


def _run(env: dict[str, str], program: Path, rows: Path, options: str) -> list[float]:
    argv = ["run", "--quiet", "--num-executors", "1", "--executor-cores", "1", "--executor-memory", "2g"]
    if options:
        argv += ["--conf", f"spark.driver.extraJavaOptions={options}"]
        argv += ["--conf", f"spark.executor.extraJavaOptions={options}"]
    command = [sys.executable, "-m", "slotwise", *argv, str(program), str(rows)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"the program failed:\n{done.stdout}\n{done.stderr}")
    passes: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return passes


if __name__ == "__main__":
    main()
