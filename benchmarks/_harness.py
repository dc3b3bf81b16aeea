"""What all benchmarks share: cases with a unit, ours beside a peer's, and their printing."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


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
    return parser


def show(cases: Sequence[Case], as_json: bool) -> None:
    """Print the cases, as JSON lines or as a table."""
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
