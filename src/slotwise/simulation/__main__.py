"""``python -m slotwise.simulation``: run seeds, replay one, shrink one, look for planted bugs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from slotwise.simulation.planted import PLANTED
from slotwise.simulation.planting import plant


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slotwise.simulation",
        description="Simulates whole clusters of the real components in virtual time, with faults, from seeds.",
        epilog="Exit code: 0 no violation, 1 a violation (or a planted bug not found), 2 usage, 130 interrupted.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    planted_help = "with one of the planted bugs (see `planted --list`)"

    run = commands.add_parser("run", help="run many seeds and report those that violate a rule")
    run.add_argument("--seeds", type=int, default=100, metavar="N", help="how many seeds (default %(default)s)")
    run.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default %(default)s)")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to use (default %(default)s)")
    run.add_argument("--stop", action="store_true", help="end at the first violation")
    run.add_argument("--quiet", action="store_true", help="print no progress and no stories")
    run.add_argument("--planted", metavar="NAME", help=planted_help)

    replay = commands.add_parser("replay", help="run one seed and tell its story")
    replay.add_argument("--log", action="store_true", help="print the whole log")
    replay.add_argument("--lines", type=int, default=400, metavar="N", help="of the story (default %(default)s)")
    replay.add_argument("--about", metavar="ID", action="append", default=[], help="tell the story of this object, too")
    shrink = commands.add_parser("shrink", help="find a shorter scenario that violates the same rule")
    for command in (replay, shrink):
        command.add_argument("seed", type=int)
        command.add_argument("--without", default="", metavar="LABELS", help="leave parts out: f3,j2,w4,loss,f5=2.5")
        command.add_argument("--until", type=float, metavar="S", help="end the faults after so many virtual seconds")
        command.add_argument("--planted", metavar="NAME", help=planted_help)

    planted = commands.add_parser("planted", help="plant each bug in turn and see that seeds find it")
    planted.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    planted.add_argument("--seeds", type=int, default=500, metavar="N", help="at most (default %(default)s)")
    planted.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default %(default)s)")
    planted.add_argument("--jobs", type=int, default=1, metavar="N", help="bugs at a time (default %(default)s)")
    planted.add_argument("--list", action="store_true", help="say what there is to plant, and run nothing")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    names = [*getattr(options, "names", ()), *([options.planted] if getattr(options, "planted", None) else ())]
    unknown = [name for name in names if name not in PLANTED]
    if unknown:
        print(f"there is no planted bug {', '.join(unknown)}; there are: {', '.join(PLANTED)}", file=sys.stderr)
        return 2
    if getattr(options, "planted", None):
        # Before any of the machines is imported.
        plant(PLANTED[options.planted])
    from slotwise.simulation import commands

    try:
        return commands.COMMANDS[options.command](options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
