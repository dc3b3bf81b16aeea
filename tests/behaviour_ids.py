"""Lists the ids of behaviours that no test names: ``python tests/behaviour_ids.py [GROUP …]`` prints one a line.

A test names an id in its own name (``test_sm_07_…``) or in a docstring (``B: SM-07``, ``B: ML-01 … ML-07``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

GROUPS = {"D": 14, "SM": 16, "SZ": 11, "SP": 7, "ST": 10, "ML": 7, "F": 9, "A": 7}
"""How many behaviours each group has; they are numbered from 01."""

_NAME = re.compile(r"def test_((?:(?:d|sm|sz|sp|st|ml|f|a)_\d\d_)+)")
_ONE = re.compile(r"\b(D|SM|SZ|SP|ST|ML|F|A)-(\d\d)\b(?: … (?:\1-)?(\d\d))?")


def named(text: str) -> set[str]:
    """The ids that a test file names."""
    found = set()
    for names in _NAME.findall(text):
        found |= {f"{group.upper()}-{number}" for group, number in re.findall(r"([a-z]+)_(\d\d)_", names)}
    for line in text.splitlines():
        if "B: " in line:
            for group, first, last in _ONE.findall(line.split("B: ", 1)[1]):
                found |= {f"{group}-{number:02d}" for number in range(int(first), int(last or first) + 1)}
    return found


def missing(groups: list[str]) -> list[str]:
    """The ids of these groups that no test below this folder names."""
    found: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        # What a module's head says of its subject proves nothing; functions' docstrings and names do.
        found |= named(path.read_text(encoding="utf-8").split('"""', 2)[-1])
    every = [f"{group}-{number:02d}" for group in groups for number in range(1, GROUPS[group] + 1)]
    return [one for one in every if one not in found]


if __name__ == "__main__":
    for one in missing(sys.argv[1:] or list(GROUPS)):
        print(one)
