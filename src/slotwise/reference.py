"""Reference pages made from the code: ``make docs`` writes them, a test compares them.

Run ``python -m slotwise.reference DIRECTORY``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import click

from slotwise.config import ENV_PREFIX, variable_of
from slotwise.config_options import OPTIONS
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
asks for. The call needs a token that may look, as every other GET; this makes one that may do nothing else:
`slotwise token create --name prometheus --role viewer`.

```yaml
scrape_configs:
  - job_name: slotwise
    authorization: {credentials_file: /etc/prometheus/slotwise-token}
    # scheme: https, and tls_config: {ca_file: …}, where the master has a certificate
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


_CLI_HEAD = """# The command line

Made from the code by `make docs`; do not edit. `slotwise COMMAND --help` says the same.

A unique beginning of an id is enough wherever one is asked for, with or without `job-` or `worker-`. `--json` prints
what a script wants to read; tables are cut to the terminal's width, and not at all where there is none. Colours are for
terminals, and `NO_COLOR` switches them off. `slotwise completion` makes bash, zsh and fish complete commands, options
and ids. The master is the one that `--master` or `SLOTWISE_MASTER` names, else this machine's; the token is that in
`--token-file` or `SLOTWISE_TOKEN`, else the one that a master of this machine has written.

Exit codes: 0 done, 1 it failed, 2 a mistake in what was typed or configured, 130 interrupted or cancelled. Commands
that run a program have the program's own.
"""


def cli_page() -> str:
    """The text of ``docs/cli.md``."""
    from slotwise.cli.main import cli

    context = click.Context(cli, info_name="slotwise", **cli.context_settings)
    names = cli.list_commands(context)
    parts = [_CLI_HEAD, "\n" + "\n".join(f"- [`slotwise {name}`](#slotwise-{name})" for name in names) + "\n"]
    for name in names:
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(_command(command, click.Context(command, info_name=name, parent=context)))
        if isinstance(command, click.Group):
            inside = click.Context(command, info_name=name, parent=context)
            parts += [
                _command(below, click.Context(below, info_name=known, parent=inside))
                for known, below in command.commands.items()
            ]
    return "".join(parts)


def _command(command: click.Command, context: click.Context) -> str:
    """One command: how it is called, what it does, its options."""
    usage = " ".join(command.collect_usage_pieces(context))
    text = [f"\n## {context.command_path}\n\n```\n{context.command_path} {usage}\n```\n"]
    for block in inspect.cleandoc(command.help or "").split("\n\n"):
        if block.startswith("\b\n"):
            head, *lines = block.removeprefix("\b\n").splitlines()
            text.append(f"\n{head}\n\n```\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```\n")
        else:
            text.append(f"\n{' '.join(block.split())}\n")
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in filter(None, records) if meaning]
    if rows:
        text.append("\n| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
}
"""The pages that are made from the code, by their names below ``docs/``."""


def main(directory: str) -> None:
    """Write all pages below ``directory``."""
    for name, page in PAGES.items():
        (Path(directory) / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
