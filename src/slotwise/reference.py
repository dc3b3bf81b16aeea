"""Reference pages made from the code: ``make docs`` writes them, a test compares them.

Run ``python -m slotwise.reference DIRECTORY``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from slotwise.config import ENV_PREFIX, OPTIONS, variable_of
from slotwise.metrics.names import METRICS
from slotwise.protocol.messages import ShortageReason

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


_METRICS_HEAD = """# Metrics

Made from the code by `make docs`; do not edit.

A master serves them at `/metrics` on its one port, in Prometheus' text format or as OpenMetrics, whichever the scraper
asks for. The call needs a token that may look (`viewer`), as every other GET:

```yaml
scrape_configs:
  - job_name: slotwise
    authorization: {credentials_file: /etc/prometheus/slotwise-token}
    static_configs: [{targets: ["10.0.0.1:8090", "10.0.0.2:8090"]}]
```

Name every master that may lead: one that stands by does not listen, so `up` tells which one leads. Workers open no
port; what is known of them came with their heartbeats. Gauges are read at the moment of the scrape; counters begin at
zero with every master, as Prometheus' `rate` expects. A job has series of its own until it has ended, a worker until it
is gone.

`docs/grafana/slotwise.json` is a dashboard of these for Grafana (import it and choose the data source).
[production.md](production.md#what-to-watch) says which of them to be woken by. Beside them are the usual `process_*` of
the master's own process.
"""


def metrics_page() -> str:
    """The text of ``docs/metrics.md``."""
    groups: dict[str, list[str]] = {}
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        row = f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |"
        groups.setdefault(metric.group, []).append(row)
    tables = [
        f"\n## {group}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        for group, rows in groups.items()
    ]
    reasons = "\n".join(f"| `{reason.name}` | {reason.value} |" for reason in ShortageReason)
    return (
        _METRICS_HEAD
        + "".join(tables)
        + f"\n## Reasons of missing slots\n\n| reason | meaning |\n|---|---|\n{reasons}\n\n"
        + "[explain.md](explain.md) says what to do about each.\n"
    )


PAGES: dict[str, Callable[[], str]] = {"configuration.md": configuration_page, "metrics.md": metrics_page}
"""The pages that are made from the code, by their names below ``docs/``."""


def main(directory: str) -> None:
    """Write all pages below ``directory``."""
    for name, page in PAGES.items():
        (Path(directory) / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
