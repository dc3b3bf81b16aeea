"""``slotwise cache``: the cache of loaded classes that drivers and executors of this machine start from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from slotwise.cli.options import config_options, json_option
from slotwise.model.errors import SlotwiseError, UsageError


@click.command()
@click.argument("what", type=click.Choice(["show", "build", "remove"]), default="show")
@json_option
@config_options
def cache(what: str, as_json: bool, config_file: Path | None, settings: tuple[str, ...]) -> int:
    """Show, make or remove the cache of loaded classes from which drivers and executors start in about half the time.

    Workers make it in the background; `build` makes it now (a minute or two), as for the image of a container.
    Exit code 1 when there is none in the end.

    \b
    Examples:
      slotwise cache
      slotwise cache build
      slotwise cache build -D taskmanager.jvm-cache.directory=/opt/slotwise/jvm
    """
    from slotwise.config import load
    from slotwise.spark.jvm_cache import describe, to_json
    from slotwise.spark.jvm_cache_builder import LIMIT_S, build, find_cache, foreground

    root = load(config_file, settings).jvm_cache_root()
    if root is None:
        raise UsageError("JVM caches are switched off (taskmanager.jvm-cache.mode)")
    found = find_cache(root)
    if what == "build":
        click.echo(f"slotwise: making the cache for Java {found.java.major} and Spark {found.spark.version}", err=True)
        try:
            asyncio.run(foreground(build(found)))
        except TimeoutError:
            raise SlotwiseError(f"the cache was not made within {LIMIT_S:g} s; is the machine busy?") from None
    elif what == "remove":
        click.echo(f"slotwise: {'removed' if found.remove() else 'there is none in'} {found.folder}", err=True)
        return 0
    status = found.status()
    if as_json:
        click.echo(to_json(status))
    elif status.state == "ready":
        click.echo(describe(status))
    else:
        click.echo(f"{status.state}: {status.reason or f'none in {status.folder}'}")
    return 0 if status.state == "ready" else 1
