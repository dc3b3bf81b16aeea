"""The command line's entry: a group whose commands are imported only when they are used, so that ``slotwise --help``
is fast.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from slotwise.model.errors import SlotwiseError

# Name -> (module, attribute, one line for the list of commands).
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("slotwise.cli.run", "run", "Run one PySpark program on an embedded cluster on this machine."),
    "demo": ("slotwise.cli.demo", "demo", "Run the flights demo and show what the cluster did."),
    "cluster": ("slotwise.cli.cluster", "cluster", "Start, stop or look at a local cluster in the background."),
    "master": ("slotwise.cli.daemons", "master", "Run a master in the foreground."),
    "worker": ("slotwise.cli.daemons", "worker", "Run a worker in the foreground."),
    "submit": ("slotwise.cli.submit", "submit", "Submit a PySpark program to a running master."),
    "jobs": ("slotwise.cli.remote", "jobs", "List the jobs."),
    "job": ("slotwise.cli.remote", "job", "Show one job: what it declared, holds, lacks and runs."),
    "explain": ("slotwise.cli.remote", "explain", "Say why a job has what it has, and what would help."),
    "logs": ("slotwise.cli.remote", "logs", "Print a job's output."),
    "cancel": ("slotwise.cli.remote", "cancel", "Cancel a job."),
    "scale": ("slotwise.cli.remote", "scale", "Change how many executors a running job may have."),
    "workers": ("slotwise.cli.remote", "workers", "List the workers with their slots."),
    "resources": ("slotwise.cli.remote", "resources", "Show what the cluster has and what each job requires."),
    "dashboard": ("slotwise.cli.dashboard", "dashboard", "Print where the dashboard is, or open it in a browser."),
    "top": ("slotwise.cli.top", "top", "Watch the cluster live: resources, workers, jobs and what they lack."),
    "token": ("slotwise.cli.token", "token", "Make, list and revoke tokens of people and workers."),
    "cache": ("slotwise.cli.cache", "cache", "Show, make or remove this machine's cache of loaded classes."),
    "doctor": ("slotwise.cli.doctor", "doctor", "Check this machine: Java, Python, Spark, memory, ports."),
    "completion": ("slotwise.cli.completion", "completion", "Print a script that makes a shell complete all this."),
}


def no_such_command(name: str, known: Iterable[str], group: str) -> click.UsageError:
    """The error, with the nearest name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"`{group} --help` lists them."
    return click.UsageError(f"There is no command {name!r}. {hint}")


class LazyGroup(click.Group):
    """Knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a newcomer meets them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With the nearest name where there is no such command."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise no_such_command(args[0], _COMMANDS, "slotwise")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that begin so, without importing anything, and the group's own options."""
        named = [(name, text) for name, (_, _, text) in _COMMANDS.items() if name.startswith(incomplete)]
        items = [CompletionItem(name, help=text) for name, text in named]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from slotwise import __version__

        click.echo(f"slotwise {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `slotwise doctor`, then `slotwise demo`, then `slotwise run your_program.py`.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """A resource manager and job service for PySpark.

    A job declares what it needs, starts with what there is, and gets slots of exactly its sizes, made on demand on
    workers that many jobs share. Your PySpark programs run unchanged.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line; never a traceback for a user's mistake."""
    try:
        code: Any = cli.main(args=argv, prog_name="slotwise", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("slotwise: interrupted", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except SlotwiseError as error:
        click.echo(f"slotwise: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our output went away (as in `slotwise jobs | head`): nothing to say, and nobody to say it to.
        sys.stderr.close()
        code = 0
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        click.echo(f"slotwise: {error.strerror or error}{where}", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
