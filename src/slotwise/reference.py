"""Reference pages made from the code: ``make docs`` writes them, a test compares them.

Run ``python -m slotwise.reference DIRECTORY``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slotwise.config import ENV_PREFIX, OPTIONS, variable_of

_HEAD = f"""# Configuration

Made from the code by `make docs`; do not edit.

Values come from a YAML file (`--config`), the environment, and `-D key=value`; later wins. Nested maps and dotted keys
mean the same. Durations are `10 s`, `500 ms`, `5 min`; sizes are `512m`, `4g`; cores are `2` or `0.5`. The
environment's names begin with `{ENV_PREFIX}`. Names are Flink's where the meaning is the same. An unknown key is
refused with the nearest valid one; limits that contradict each other are refused at start with the sums.

Minimum, maximum and redundancy have an effect only where the cluster starts its own workers.

| key | default | meaning |
|---|---|---|
"""


def configuration_page() -> str:
    """The text of ``docs/configuration.md``."""
    rows = [f"| `{option.key}` | {option.default or '–'} | {option.meaning} |" for option in OPTIONS.values()]
    example = next(iter(OPTIONS))
    tail = f"\nIn the environment, `{example}` is `{variable_of(example)}`.\n"
    return _HEAD + "\n".join(rows) + "\n" + tail


def main(directory: str) -> None:
    """Write all pages below ``directory``."""
    (Path(directory) / "configuration.md").write_text(configuration_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
