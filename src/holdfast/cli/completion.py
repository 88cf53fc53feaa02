"""``holdfast completion``: the shell finishes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .output import print_text

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_HOLDFAST_COMPLETE"


@click.command()
@click.option("--shell", required=True, type=click.Choice(SHELLS), help="For which shell.")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell finish commands and options.

    For bash: eval "$(holdfast completion --shell bash)" in ~/.bashrc; for zsh the same with zsh in ~/.zshrc; for fish, write it
    to ~/.config/fish/completions/holdfast.fish.
    """
    found = get_completion_class(shell)
    assert found is not None
    print_text(found(context.find_root().command, {}, "holdfast", _VARIABLE).source() + "\n")
