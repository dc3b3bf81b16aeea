"""What exact slots save: one pipeline of three steps (light, memory-heavy, light) on two workers.

Three ways in the same run: each step in executors of its own size; the same project with the heavy step's size for all
of it; and that under Spark's own `spark-pipelines` on a standalone cluster of the same two workers. Compared are the
memory that is held for executors over time (GiB × s, from the first slot to the last), its peak, and the run time from
the command to its end. The heavy step needs its memory: with the light size it fails (`--prove` shows it)."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, check, median, show
from start_time import background, free_port, listens, slotwise_argv, spark_cluster, until

DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import functions as F

def spin(frame):
    # Work for the processor, without memory.
    for _ in range(6):
        frame = frame.withColumn("x", F.sha2(F.col("x"), 256))
    return frame

@dp.materialized_view(SMALL)
def light_one():
    numbers = spark.range(0, ROWS, 1, 4).withColumn("x", F.col("id").cast("string"))
    return spin(numbers).select("id", F.crc32("x").alias("x"))

@dp.materialized_view(LARGE)
def heavy():
    # All rows at once, on the heap of one executor: others could not help.
    rows = spark.read.table("light_one").crossJoin(spark.range(TIMES).toDF("n"))
    together = rows.agg(F.collect_list(F.col("id") + F.col("n")).alias("all"))
    return together.select(F.size("all").alias("size"), F.array_max("all").alias("most"))

@dp.materialized_view(SMALL)
def light_two():
    numbers = spark.read.table("light_one").crossJoin(spark.read.table("heavy"))
    return spin(numbers.withColumn("x", F.col("id").cast("string"))).agg(F.count("*").alias("n"), F.max("x").alias("x"))
"""
SIZES = {
    "light": {"spark.executor.memory": "512m", "spark.executor.memoryOverhead": "384m"},
    "heavy": {"spark.executor.memory": "3g", "spark.executor.memoryOverhead": "384m"},
    "heavy, alone": {
        "spark.executor.memory": "3g",
        "spark.executor.memoryOverhead": "384m",
        "slotwise.parallelism.max": "1",
    },
}
HELD = {"light": 896 / 1024, "heavy": 3456 / 1024}
ROWS, TIMES = 8_000_000, 2
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median is shown")
    parser.add_argument("--prove", action="store_true", help="only show that the heavy step fails in light executors")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="exact-slots-") as folder:
        directory = Path(folder)
        env = {**os.environ, "SLOTWISE_STATE_DIR": str(directory / "state")}
        # As on any machine that has run a job before; made now, so that nobody makes it while times are taken.
        env["SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY"] = str(directory / "caches")
        subprocess.run(slotwise_argv("cache", "build"), env=env, capture_output=True, check=True)
        if given.prove:
            _prove(directory, env)
            return
        cases = _measure(directory, env, given.rounds)
    show(cases, given.json)
    raise SystemExit(check("exact_slots", cases) if given.check else 0)


def _measure(directory: Path, env: dict[str, str], rounds: int) -> list[Case]:
    exact, alike, theirs = [], [], []
    for number in range(rounds):
        # One after the other in each round: what else runs on the machine meets all three.
        exact.append(_ours(directory / f"exact-{number}", env, "light", "heavy, alone"))
        alike.append(_ours(directory / f"alike-{number}", env, "heavy", "heavy"))
        theirs.append(_theirs(directory / f"theirs-{number}"))
    cases = []
    for peer, found in (("one size", alike), ("spark-pipelines on standalone", theirs)):
        for unit, name in (("GiB·s", "memory held × time"), ("s", "run time"), ("GiB", "peak memory held")):
            ours, other = (median([one[unit] for one in rounds]) for rounds in (exact, found))
            cases.append(case(f"{name}, beside {peer}", unit, ours, other))
    return cases


def _project(folder: Path, small: str, large: str, *, stated: bool) -> Path:
    """The project in ``folder``, with the sizes of these names for its steps."""
    (folder / "definitions").mkdir(parents=True)
    text = DEFINITIONS.replace("ROWS", str(ROWS)).replace("TIMES", str(TIMES))
    for word, size in (("SMALL", small), ("LARGE", large)):
        text = text.replace(f"({word})", f"(spark_conf={SIZES[size]!r})" if stated else "")
    (folder / "definitions" / "steps.py").write_text(text)
    (folder / "spark-pipeline.yml").write_text(
        f"name: exact\nstorage: file://{folder}/storage\nlibraries: [{{glob: {{include: definitions/**}}}}]\n"
    )
    return folder


def _ours(folder: Path, env: dict[str, str], small: str, large: str) -> dict[str, float]:
    project = _project(folder / "project", small, large, stated=True)
    argv = slotwise_argv("run", "--workers", "2", "--worker-cpus", "3", "--worker-memory", "8g", "--num-executors", "2")
    argv += ["--conf", f"spark.sql.warehouse.dir=file://{folder}/warehouse", "--conf", "spark.ui.enabled=false"]
    state = {**env, "SLOTWISE_STATE_DIR": str(folder / "state")}
    began = time.monotonic()
    done = subprocess.run([*argv, str(project)], env=state, capture_output=True, text=True, check=False)
    took_s = time.monotonic() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    (path,) = (folder / "state" / "runs").glob("*/jobs/*/events.jsonl")
    return {**_held([json.loads(line) for line in path.read_text().splitlines()]), "s": took_s}


def _held(events: list[dict[str, Any]]) -> dict[str, float]:
    """The memory of executors' slots over time, from when a slot is acquired until it is given back or lost."""
    sizes: dict[str, float] = {}
    changes: list[tuple[float, float]] = []
    driver = next(e["allocation"] for e in events if e["name"] == "deployed" and e["fields"]["process"] == "driver-1")
    for event in events:
        slot = event["allocation"]
        if event["name"] == "acquired" and slot != driver:
            number, unit = event["fields"]["profile"].split(", ")[1].split(" ")
            sizes[slot] = float(number) / (1024 if unit == "MiB" else 1)
            changes.append((event["unix_s"], sizes[slot]))
        elif event["name"] in ("released", "slot-lost") and slot in sizes:
            changes.append((event["unix_s"], -sizes.pop(slot)))
    held = peak = area = 0.0
    for (at, change), following in itertools.zip_longest(changes, changes[1:]):
        held += change
        peak = max(peak, held)
        if following is not None:
            area += held * (following[0] - at)
    return {"GiB·s": area, "GiB": peak}


def _theirs(folder: Path) -> dict[str, float]:
    """Spark's own command on a standalone cluster: its executors are there from its start to its end."""
    project = _project(folder / "project", "heavy", "heavy", stated=False)
    with spark_cluster(folder) as (url, env, _):
        port = free_port()
        conf = {
            **SIZES["heavy"],
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.sql.warehouse.dir": f"file://{folder}/warehouse",
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.port": str(port),
        }
        home = Path(env["SPARK_HOME"])
        server = [str(home / "bin" / "spark-submit"), "--class", CONNECT_SERVER, "--master", url]
        server += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        command = [str(home / "bin" / "spark-pipelines"), "--remote", f"sc://localhost:{port}"]
        began = time.monotonic()
        # The command refuses a master: a Spark Connect server is how its pipelines come to a cluster.
        with background([*server, "spark-internal"], env):
            until(lambda: listens(port))
            spec = str(project / "spark-pipeline.yml")
            argv = [*command, "run", "--spec", spec]
            done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
            took_s = time.monotonic() - began
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    # From the start of the command: Spark's events would give a little less.
    peak = 2 * HELD["heavy"]
    return {"GiB·s": peak * took_s, "GiB": peak, "s": took_s}


def _prove(directory: Path, env: dict[str, str]) -> None:
    try:
        _ours(directory / "light", env, "light", "light")
    except SystemExit as failed:
        print("with light executors for all steps the heavy one fails:", str(failed).splitlines()[-2], sep="\n")
    else:
        raise SystemExit("the heavy step has enough memory in a light executor: this benchmark would prove nothing")


if __name__ == "__main__":
    main()
