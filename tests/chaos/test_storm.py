"""The short form of `make chaos`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.storm import Storm


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_f_08_jobs_end_well_and_nothing_is_left_whatever_is_killed_stopped_or_cut_off(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    storm = Storm(tmp_path, seed, seconds=15, parallel=2)
    assert storm.run() == 0, f"seed {seed}: {storm.violations}"
