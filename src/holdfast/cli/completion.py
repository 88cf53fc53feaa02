"""``holdfast completion``: shell completion of commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .output import print_text

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_HOLDFAST_COMPLETE"


@click.command()
@click.option("--shell", required=True, type=click.Choice(SHELLS), help="The shell.")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash, add eval "$(holdfast completion --shell bash)" to ~/.bashrc; for zsh, add the same with zsh to ~/.zshrc; for fish,
    write the output to ~/.config/fish/completions/holdfast.fish.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    print_text(completion_class(context.find_root().command, {}, "holdfast", _VARIABLE).source() + "\n")
