"""``slotwise dashboard``: where the dashboard is, and a browser that is logged in."""

from __future__ import annotations

import json
import webbrowser
from typing import Any

import click

from slotwise.cli.options import json_option, master_options
from slotwise.cli.submit import connect
from slotwise.model.errors import ClusterError


@click.command()
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser, logged in.")
@master_options
@json_option
def dashboard(open_browser: bool, as_json: bool, **given: Any) -> int:
    """Print where the master's dashboard is, or open it.

    With --open the browser is given a code that works once and for a minute; the token itself never gets into its
    address bar or history.

    \b
    Examples:
      slotwise dashboard
      slotwise dashboard --open
    """
    with connect(given) as client:
        # Says so when no master answers, or not to this token.
        client.call("GET", "/v1/session")
        if as_json:
            print(json.dumps({"url": f"{client.url}/"}))
        else:
            click.echo(f"{client.url}/")
        if not open_browser:
            return 0
        code = client.call("POST", "/v1/session-codes")["code"]
        if not webbrowser.open(f"{client.url}/login#code={code}"):
            raise ClusterError(
                f"no browser can be opened here; open {client.url}/ yourself and log in with the token, "
                "or forward the master's port to a machine that has a browser"
            )
    return 0
