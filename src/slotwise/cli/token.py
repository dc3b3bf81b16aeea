"""``slotwise token``: who may call the master, and as what."""

from __future__ import annotations

import datetime
import json
from typing import Any
from urllib.parse import quote

import click

from slotwise.cli.options import json_option, master_options
from slotwise.cli.submit import connect
from slotwise.cli.tables import print_table


@click.group()
def token() -> None:
    """Make, list and revoke tokens: of people (viewer, submitter, admin) and of workers (join).

    These calls need an admin's token; that of the master's own token file is one.

    \b
    Examples:
      slotwise token create --name ann --role submitter
      slotwise token list
      slotwise token revoke ann
    """


def _when(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).astimezone().isoformat(" ", "seconds")


@token.command()
@click.option("--name", required=True, metavar="NAME", help="Whose it is, or what for; no two have the same.")
@click.option(
    "--role",
    required=True,
    type=click.Choice(["viewer", "submitter", "admin", "join"]),
    help="viewer: sees everything; submitter: may also submit, cancel and scale jobs; admin: may do everything; "
    "join: a worker's, which may join the cluster and nothing else.",
)
@master_options
@json_option
def create(name: str, role: str, as_json: bool, **given: Any) -> int:
    """Make a token and print it: it is shown this once, and kept nowhere.

    \b
    Examples:
      slotwise token create --name ann --role submitter > ann.token
      slotwise token create --name rack-7 --role join > join.token
    """
    with connect(given) as client:
        made = client.call("POST", "/v1/tokens", json={"name": name, "role": role})
    if as_json:
        print(json.dumps(made, indent=2))
        return 0
    click.echo(made["token"])
    click.echo(f"this is the {role} token {name!r}; it is not shown again", err=True)
    return 0


@token.command(name="list")
@master_options
@json_option
def list_tokens(as_json: bool, **given: Any) -> int:
    """List the tokens, without their secrets.

    \b
    Examples:
      slotwise token list
      slotwise token list --json
    """
    with connect(given) as client:
        found = client.call("GET", "/v1/tokens")["tokens"]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    print_table(("NAME", "ROLE", "CREATED"), [(one["name"], one["role"], _when(one["created"])) for one in found])
    return 0


@token.command()
@click.argument("name")
@master_options
def revoke(name: str, **given: Any) -> int:
    """Revoke a token at once: what was opened with it (sessions, event streams, workers' streams) ends.

    \b
    Example:
      slotwise token revoke ann
    """
    with connect(given) as client:
        client.call("DELETE", f"/v1/tokens/{quote(name, safe='')}")
    click.echo(f"the token {name!r} is revoked")
    return 0
