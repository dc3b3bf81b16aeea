"""``slotwise completion``: what a shell needs to complete commands, options and ids."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

_VARIABLE = "_SLOTWISE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print a script that makes SHELL complete commands, options, and ids of jobs and workers.

    Ids are asked of the master that the line names, or of this machine's, for a second at most; without an answer
    there is nothing to complete, and nothing is said.

    \b
    Examples:
      slotwise completion bash > ~/.local/share/bash-completion/completions/slotwise
      slotwise completion zsh > ~/.zfunc/_slotwise         # with fpath+=~/.zfunc before compinit
      slotwise completion fish > ~/.config/fish/completions/slotwise.fish
    """
    from slotwise.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    # Not the class' own source(): bash's would ask the bash of this machine for its version first.
    click.echo(ShellComplete.source(kind(cli, {}, "slotwise", _VARIABLE)))
    return 0
