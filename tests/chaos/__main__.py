"""``python -m tests.chaos``: see --help."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.storm import Storm


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Real Spark jobs with known answers, while masters, workers, drivers and executors are killed, "
        "stopped and cut off at random from a seed. Ends with 0 when every job ended well and nothing was left over.",
        epilog="The seed fixes what is done to whom and when; how the real processes take it is not repeatable.",
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults happen [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=None, help="[default: drawn, and printed]")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at any time [default: %(default)s]")
    parser.add_argument("--keep", type=Path, help="keep logs and records in this folder")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        return Storm(given.keep.absolute(), seed, given.minutes * 60, given.jobs).run()
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        return Storm(Path(folder), seed, given.minutes * 60, given.jobs).run()


if __name__ == "__main__":
    sys.exit(main())
