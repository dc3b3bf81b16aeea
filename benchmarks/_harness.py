"""What all benchmarks share: cases with a unit, ours beside a peer's, and their printing."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BOUNDS = Path(__file__).with_name("bounds.toml")


@dataclass(frozen=True)
class Case:
    """One measured case. ``ratio`` is ours / peer; less is better where the unit is seconds or bytes."""

    case: str
    unit: str
    ours: float
    peer: float | None
    ratio: float | None


def case(name: str, unit: str, ours: float, peer: float | None = None) -> Case:
    """A case from two figures."""
    return Case(
        name,
        unit,
        round(ours, 4),
        None if peer is None else round(peer, 4),
        None if not peer else round(ours / peer, 4),
    )


def median(values: Sequence[float]) -> float:
    """The middle of the measured values."""
    return float(statistics.median(values))


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object a case")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound of bounds.toml is broken")
    return parser


def check(section: str, cases: Sequence[Case]) -> int:
    """The exit code: 1, and each broken bound of ``section`` on the error output, or 0."""
    broken = _broken(section, cases)
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def _broken(section: str, cases: Sequence[Case]) -> list[str]:
    """What is over its bound, and bounds that no case has. A bound's name may be the beginning of a case's."""
    broken = []
    for name, bound in tomllib.loads(BOUNDS.read_text()).get(section, {}).items():
        exactly = [one for one in cases if one.case == name]
        found = exactly or [one for one in cases if one.case.startswith(name)]
        if not found:
            broken.append(f"bounds.toml names a case that was not measured: {name}")
        for one in found:
            if one.ours > bound.get("ours", one.ours):
                broken.append(f"{one.case}: {one.ours:g} {one.unit}, the bound is {bound['ours']:g}")
            if one.ratio is not None and one.ratio > bound.get("ratio", one.ratio):
                broken.append(f"{one.case}: {one.ratio:g} of the peer's, the bound is {bound['ratio']:g}")
    return broken


def show(cases: Sequence[Case], as_json: bool, notes: Sequence[str] = ()) -> None:
    """Print the cases, as JSON lines or as a table with ``notes`` below."""
    if as_json:
        for one in cases:
            print(json.dumps(asdict(one)))
        return
    width = max(len(one.case) for one in cases)
    print(f"{'case'.ljust(width)}  {'unit':6} {'ours':>12} {'peer':>12} {'ratio':>7}")
    for one in cases:
        peer = "–" if one.peer is None else f"{one.peer:.2f}"
        ratio = "–" if one.ratio is None else f"{one.ratio:.3f}"
        print(f"{one.case.ljust(width)}  {one.unit:6} {one.ours:>12.2f} {peer:>12} {ratio:>7}")
    for note in notes:
        print(note)
