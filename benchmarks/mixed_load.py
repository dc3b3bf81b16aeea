"""A mixed load: 20 small and 3 large jobs, submitted at once; from the first submission to the last end.

Small jobs count a little; each of the 24 tasks of a large job waits for 5 s, as tasks do that read from slow storage,
and works for a moment. Ours is a master with two workers; the peer is Spark standalone with its defaults and two
workers of the same declared sizes, where every application takes all cores that it can get. Neither has Spark's web UI,
which finds no port where more than 17 applications run. Both start with nothing running but their agents. Spark's
drivers run outside of its cluster, all at once; ours have slots of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, check, median, show
from start_time import slotwise_argv, slotwise_cluster, spark_cluster

PROGRAM = """\
import sys, time
from pyspark.sql import SparkSession

kind = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
if kind == "small":
    assert spark.range(100_000).selectExpr("sum(id % 10) as s").first().s == 450_000
else:
    def wait(number):
        time.sleep(5)
        return sum(range(200_000)) and number
    assert spark.sparkContext.parallelize(range(24), 24).map(wait).sum() == sum(range(24))
spark.stop()
"""
SMALL, LARGE = 20, 3
CORES = 6
NO_UI = ("--conf", "spark.ui.enabled=false")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each; the median is shown")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mixed-load-") as folder:
        directory = Path(folder)
        program = directory / "program.py"
        program.write_text(PROGRAM)
        cases = _measure(directory, program, given.rounds)
    show(cases, given.json)
    raise SystemExit(check("mixed_load", cases) if given.check else 0)


def _measure(directory: Path, program: Path, rounds: int) -> list[Case]:
    env = {
        **os.environ,
        # What waits would need the room that the load is to fill.
        "SLOTWISE_CONF_TASKMANAGER_WARM_MODE": "off",
        "SLOTWISE_STATE_DIR": str(directory / "state"),
        # As on any machine that has run a job before; made now, so that nobody makes it while times are taken.
        "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY": str(directory / "caches"),
    }
    subprocess.run(slotwise_argv("cache", "build"), env=env, capture_output=True, check=True)
    ours, theirs = [], []
    for number in range(rounds):
        folder = directory / str(number)
        folder.mkdir()
        with slotwise_cluster(folder, env, cores=CORES, memory="10g"):
            ours.append(_makespan(_submit_ours, str(program), env))
            print(f"ours: {ours[-1]:.1f} s", file=sys.stderr)
        with spark_cluster(folder, cores=CORES, memory="10g") as (url, spark_env, _):
            theirs.append(_makespan(partial(_submit_theirs, url), str(program), spark_env))
            print(f"theirs: {theirs[-1]:.1f} s", file=sys.stderr)
    return [case(f"{SMALL} small and {LARGE} large jobs, until the last has ended", "s", median(ours), median(theirs))]


def _makespan(submit: object, program: str, env: dict[str, str]) -> float:
    """Seconds from the first submission until all jobs have ended well. Large jobs are among the small ones."""
    kinds = ["small"] * SMALL
    for place in range(LARGE):
        kinds.insert(place * (SMALL // LARGE) + 1, "large")
    began = time.monotonic()
    jobs = [submit(kind, program, env) for kind in kinds]  # type: ignore[operator]
    for job in jobs:
        _, err = job.communicate()
        if job.returncode:
            raise SystemExit(f"{job.args} failed with {job.returncode}:\n{err}")
    return time.monotonic() - began


def _submit_ours(kind: str, program: str, env: dict[str, str]) -> subprocess.Popen[str]:
    options = [
        "--num-executors",
        "1" if kind == "small" else "4",
        "--executor-memory",
        "512m",
        "--driver-memory",
        "512m",
    ]
    argv = slotwise_argv("submit", "--wait", "--quiet", *options, program, kind)
    return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _submit_theirs(url: str, kind: str, program: str, env: dict[str, str]) -> subprocess.Popen[str]:
    argv = [str(Path(env["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", url, *NO_UI, program, kind]
    return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
