"""From the command to the first Spark task, and the agents' memory at rest, beside a Spark standalone cluster in the
same run.

The peer is `spark-submit` to a standalone master with two workers that run already. Ours is measured twice: `slotwise
run`, which also starts and ends its whole cluster, and `slotwise submit` to a master and two workers that run
already. The program is the same; its tasks tell when they ran.

Then from the request to the first row of a small job, by what is prepared on the workers: see _start_stages.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import Case, arguments, case, check, median, show
from slotwise.spark.home import find_spark
from slotwise.spark.java import find_java

PROGRAM = """\
import time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
times = spark.sparkContext.parallelize(range(2), 2).map(lambda _: time.time()).collect()
print(f"first_task={min(times):.6f}", flush=True)
spark.stop()
"""
PARTS = ("first", "stages", "at-once")
MIB = 1024 * 1024
LIMIT_S = 120.0
# For processes that warm up one after the other.
WARMING_LIMIT_S = 300.0


def main() -> None:
    """Measure and print."""
    # They import this file's helpers.
    import _start_at_once
    import _start_stages

    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="measurements of each; the median is shown (of the first cases three at most)",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=PARTS[:2],
        help="first: to the first task, and memory at rest; stages: to the first row, by what is prepared (a minute a "
        "measurement); at-once: ten jobs (a quarter of an hour to make ready what waits) [default: the first two]",
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=_start_stages.STAGES,
        default=list(_start_stages.STAGES),
        help="which of the stages [default: all]",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="start-time-") as folder:
        directory = Path(folder)
        program = directory / "program.py"
        program.write_text(PROGRAM)
        cases = measure(directory, program, min(given.rounds, 3)) if "first" in given.parts else []
        if "stages" in given.parts:
            cases += _start_stages.measure(directory, given.rounds, given.stages)
        if "at-once" in given.parts:
            cases += _start_at_once.measure(directory, min(given.rounds, 3))
        show(cases, given.json)
        raise SystemExit(check("start_time", cases) if given.check else 0)


def measure(directory: Path, program: Path, rounds: int) -> list[Case]:
    """All cases."""
    env = {
        **os.environ,
        "SLOTWISE_STATE_DIR": str(directory / "state"),
        # The peer has nothing like these; the stages below measure what they bring.
        "SLOTWISE_CONF_TASKMANAGER_JVM_CACHE_MODE": "off",
        "SLOTWISE_CONF_TASKMANAGER_WARM_MODE": "off",
    }
    # The first use compiles the bridge where no wheel brought it; that happens once a machine.
    slotwise(env, "doctor", check=False)
    embedded = [first_task(slotwise_argv("run", "--quiet", str(program)), env) for _ in range(rounds)]
    with slotwise_cluster(directory, env) as agents:
        time.sleep(3)
        ours_memory = [agent.memory_info().rss for agent in agents]
        submitted = [first_task(slotwise_argv("submit", "--wait", "--quiet", str(program)), env) for _ in range(rounds)]
    with spark_cluster(directory) as (url, spark_env, peers):
        time.sleep(3)
        peer_memory = [peer.memory_info().rss for peer in peers]
        spark_submit = str(find_spark().path / "bin" / "spark-submit")
        argv = [spark_submit, "--master", url, "--conf", "spark.ui.enabled=true", str(program)]
        standalone = [first_task(argv, spark_env) for _ in range(rounds)]
    return [
        case("first task, slotwise run (starts its cluster)", "s", median(embedded), median(standalone)),
        case("first task, slotwise submit (cluster runs)", "s", median(submitted), median(standalone)),
        case("memory at rest, master", "MiB", ours_memory[0] / MIB, peer_memory[0] / MIB),
        case("memory at rest, worker", "MiB", median(ours_memory[1:]) / MIB, median(peer_memory[1:]) / MIB),
    ]


def slotwise_argv(*argv: str) -> list[str]:
    """The command line of ``slotwise``."""
    return [sys.executable, "-m", "slotwise", *argv]


def slotwise(env: dict[str, str], *argv: str, check: bool = True) -> str:
    """Run ``slotwise`` and return what it printed."""
    return subprocess.run(slotwise_argv(*argv), env=env, check=check, capture_output=True, text=True).stdout


def first_task(argv: list[str], env: dict[str, str]) -> float:
    """Seconds from the start of ``argv`` to the first task of the program."""
    began = time.time()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    match = re.search(r"first_task=([\d.]+)", done.stdout)
    if done.returncode != 0 or match is None:
        raise SystemExit(f"{argv} failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return float(match.group(1)) - began


@contextlib.contextmanager
def slotwise_cluster(
    directory: Path, env: dict[str, str], cores: int = 2, memory: str = "4g", workers: int = 2
) -> Iterator[list[psutil.Process]]:
    """A master and workers by hand; yields their processes, the master first."""
    address = directory / "address.json"
    with background(slotwise_argv("master", "--port", "0", "--address-file", str(address)), env) as master:
        until(address.exists)
        env["SLOTWISE_MASTER"] = json.loads(address.read_text())["url"]
        worker = slotwise_argv("worker", "--cpus", str(cores), "--memory", memory)
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(background(worker, env)) for _ in range(workers)]
            until(lambda: len(json.loads(slotwise(env, "workers", "--json"))["taskmanagers"]) == workers)
            yield [psutil.Process(process.pid) for process in (master, *started)]
    del env["SLOTWISE_MASTER"]


@contextlib.contextmanager
def spark_cluster(
    directory: Path, cores: int = 2, memory: str = "4g", workers: int = 2
) -> Iterator[tuple[str, dict[str, str], list[psutil.Process]]]:
    """Spark standalone: a master and workers of the same sizes; yields its URL, the environment, the processes."""
    home = find_spark().path
    env = {
        **os.environ,
        "JAVA_HOME": str(find_java().path.parent.parent),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class = str(home / "bin" / "spark-class")
    master = [spark_class, "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", str(port)]
    worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "-c", str(cores), "-m", memory]
    worker += ["--webui-port", "0"]
    with background([*master, "--webui-port", "0"], env) as first:
        until(lambda: listens(port))
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(
                    background([*worker, "-d", str(directory / f"work-{number}"), url], env, "Successfully registered")
                )
                for number in range(workers)
            ]
            yield url, env, [psutil.Process(process.pid) for process in (first, *started)]


@contextlib.contextmanager
def background(argv: list[str], env: dict[str, str], ready: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process for the time of the block; it is waited for until it has said ``ready``."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, env=env, stdout=output, stderr=output, start_new_session=True)

        def said() -> bool:
            output.seek(0)
            return ready.encode() in output.read()

        try:
            until(said)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until ``condition()`` is true, so long at most."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("what the benchmark needs did not start in time")
        time.sleep(0.1)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
