"""How soon a running job uses more executors, and what it costs to take them away: from 1 to 4 and back.

A program sums a shuffled set of numbers again and again; its tasks note when and in which slot they ran. Measured:
from the slot's being there to the first task in it, for each new executor (the slowest counts), as it is, with a JVM
cache, and with executors that wait on the workers (`taskmanager.warm.mode=full`); and how many tasks of the shuffle's
first half had to be computed again after the shrink."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import arguments, case, check, median, show
from slotwise.client import Client, read_token
from slotwise.model.job import DriverSize, JobSpec
from slotwise.spark.conf import job_sizes
from start_time import WARMING_LIMIT_S, slotwise, slotwise_argv, slotwise_cluster, until

PROGRAM = """\
import os, sys, time
from pyspark.sql import SparkSession

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()

def note(name, text):
    with open(os.path.join(folder, name), "a") as file:
        file.write(text + "\\n")

def mapped(number, rows):
    note("map", str(number))
    return [(row % 40, row) for row in rows]

def reduced(rows):
    note("reduce", f"{time.time():.3f} {os.environ['SLOT_ID']}")
    time.sleep(0.05)
    return [sum(value for _, value in rows)]

sums = spark.sparkContext.parallelize(range(80_000), MAPS).mapPartitionsWithIndex(mapped).partitionBy(MAPS)
while not os.path.exists(os.path.join(folder, "stop")):
    assert sum(sums.mapPartitions(reduced).collect()) == sum(range(80_000))
spark.stop()
"""
SLOWEST = "slowest new executor, from its slot to its first task"
AGAIN = "tasks computed again"
MAPS = 12
MIB = 1024 * 1024
# Of the default size, beside the driver and the first executor on two workers of three cores.
_FITTING = 4


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median is shown")
    given = parser.parse_args()
    cases = []
    with tempfile.TemporaryDirectory(prefix="rescale-") as directory:
        for prefix in ("", "JVM cache: ", "warm executors: "):
            env = {**os.environ, "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_MODE": "off"}
            if prefix:
                env = {**os.environ, "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_DIRECTORY": f"{directory}/caches"}
                subprocess.run(slotwise_argv("cache", "build"), env=env, capture_output=True, check=True)
            env["SLOTWISE_CONF_TASKMANAGER_WARM_DRIVERS"] = "0"
            env["SLOTWISE_CONF_TASKMANAGER_WARM_MODE"] = "full" if prefix.startswith("warm") else "off"
            rounds = []
            for number in range(given.rounds):
                folder = Path(directory) / f"{prefix[:4]}-{number}"
                folder.mkdir()
                rounds.append(_measure(folder, {**env, "SLOTWISE_STATE_DIR": str(folder / "state")}))
            for name, unit in (
                (SLOWEST, "s"),
                (AGAIN, "count"),
            ):
                cases.append(case(f"{prefix}{name}", unit, median([one[name] for one in rounds])))
    show(cases, given.json)
    raise SystemExit(check("rescale", cases) if given.check else 0)


def _measure(folder: Path, env: dict[str, str]) -> dict[str, float]:
    program = folder / "program.py"
    program.write_text(PROGRAM.replace("MAPS", str(MAPS)))
    with slotwise_cluster(folder, env, cores=3, memory="5g"):
        spec = JobSpec(
            name="rescale",
            program=str(program),
            args=(str(folder),),
            working_dir=str(folder),
            driver=DriverSize(1, 512 * MIB, 256 * MIB),
            executor=job_sizes({}).executor,
            initial_executors=1,
        )
        with Client(env["SLOTWISE_MASTER"], read_token(folder / "state" / "token")) as client:
            job = client.submit(spec)
            until(lambda: len(_runs(folder)) >= 3 * MAPS)
            first = {slot for _, slot in _runs(folder)}
            if env["SLOTWISE_CONF_TASKMANAGER_WARM_MODE"] != "off":
                until(lambda: _waiting(client) >= _FITTING, WARMING_LIMIT_S)
            slotwise(env, "scale", job, "--max", "4")
            until(lambda: len({slot for _, slot in _runs(folder)}) == 4)
            time.sleep(3)
            slotwise(env, "scale", job, "--max", "1")
            until(lambda: len([one for one in client.job(job)["held"] if one["use"]]) == 2)
            before = len(_runs(folder))
            until(lambda: len(_runs(folder)) >= before + 3 * MAPS)
            events = client.call("GET", f"/v1/jobs/{job}/events")["events"]
            (folder / "stop").touch()
            state = [details["state"] for details in client.watch(job)][-1]
    assert state == "FINISHED", state
    began = {slot: min(at for at, ran_in in _runs(folder) if ran_in == slot) for _, slot in _runs(folder)}
    there = {event["allocation"]: event["unix_s"] for event in events if event["name"] == "acquired"}
    waited = [at - there[slot] for slot, at in began.items() if slot not in first]
    maps = (folder / "map").read_text().split()
    return {SLOWEST: max(waited), AGAIN: len(maps) - MAPS}


def _waiting(client: Client) -> int:
    """How many executors wait on the workers."""
    workers = client.call("GET", "/v1/taskmanagers")["taskmanagers"]
    return sum(worker["warm"]["executors"] for worker in workers if worker["warm"])


def _runs(folder: Path) -> list[tuple[float, str]]:
    """When each task of the second half began, and in which slot."""
    path = folder / "reduce"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(words[0]), words[1]) for words in lines if len(words) == 2]


if __name__ == "__main__":
    main()
