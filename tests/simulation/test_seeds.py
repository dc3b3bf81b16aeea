"""The simulator itself: deterministic, able to fail, able to shrink. Thousands of seeds are for ``make simulate``."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from slotwise.simulation.planted import PLANTED
from slotwise.simulation.planting import PlantedBug, changed
from slotwise.simulation.run import simulate
from slotwise.simulation.scenario import draw
from slotwise.simulation.shrink import Cut, reduced


@pytest.mark.parametrize("seed", range(20))
def test_seeds_violate_nothing(seed: int) -> None:
    outcome = simulate(draw(seed))
    assert outcome.violation is None, "\n".join([*outcome.story(60), f"seed {seed}: {outcome.violation}"])


def command(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "slotwise.simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=200, env=environment)


def test_a_seed_gives_the_same_log_to_the_byte_in_any_process() -> None:
    logs = [command("replay", "8", "--log", hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    assert len(logs[0]) > 100_000
    digests = {hashlib.sha256(log.encode()).hexdigest() for log in logs}
    assert len(digests) == 1


def test_the_same_seed_twice_in_one_process_gives_the_same_log() -> None:
    first, second = (list(simulate(draw(3)).cluster.log.lines()) for _ in range(2))
    assert first == second


def test_a_cut_leaves_parts_of_a_scenario_out() -> None:
    scenario = draw(8)
    cut = reduced(scenario, Cut(("f0", "j1", "loss", "f1=0.5"), 100.0))
    assert len(cut.faults) == len(scenario.faults) - 1
    assert cut.faults[0].for_s == 0.5
    assert cut.network.loss == 0.0
    assert cut.faults_s == 100.0
    with pytest.raises(ValueError, match="has no f999"):
        reduced(scenario, Cut(("f999",)))


@pytest.mark.parametrize("name", ["fence-of-sender-dropped", "pending-not-counted", "silent-job-keeps-slots"])
def test_a_planted_bug_is_found_replayed_and_shrunk(name: str) -> None:
    found = command("run", "--seeds", "100", "--stop", "--quiet", "--planted", name)
    assert found.returncode == 1, found.stdout + found.stderr
    seed = found.stdout.split()[1]
    rule = found.stdout.split("violates ", 1)[1].split(":", 1)[0]
    replay = next(line for line in found.stdout.splitlines() if "replay: " in line).split("slotwise.simulation ", 1)[1]
    again = command(*replay.split())
    assert again.returncode == 1
    assert rule in again.stdout
    if name != "pending-not-counted":
        return
    shrunk = command("shrink", seed, "--planted", name)
    line = next(line for line in shrunk.stdout.splitlines() if line.startswith("replay: "))
    shorter = command(*line.split("slotwise.simulation ", 1)[1].split())
    assert shorter.returncode == 1
    assert rule in shorter.stdout
    assert " 0 faults" in shorter.stdout


def test_every_planted_bug_changes_its_module_in_one_place() -> None:
    assert sum(not bug.unseen for bug in PLANTED.values()) >= 25
    for bug in PLANTED.values():
        path = os.path.join(os.path.dirname(sys.modules["slotwise"].__file__ or ""), *bug.module.split(".")[1:]) + ".py"
        with open(path, encoding="utf-8") as file:
            compile(changed(file.read(), bug), path, "exec")


def test_a_planted_bug_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        changed("x = 1\n", PlantedBug("b", "m", "y = 1", "y = 2", ""))
    with pytest.raises(ValueError, match="occurs 2 times"):
        changed("x = 1\nx = 1\n", PlantedBug("b", "m", "x = 1", "x = 2", ""))


def test_the_command_line_says_what_it_does_not_know() -> None:
    assert command("run", "--planted", "no-such-bug").returncode == 2
    assert "has no f999" in command("replay", "1", "--without", "f999").stderr
