"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead, for programs.")(command)


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    try:
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    except UnicodeEncodeError:  # half of a pair of surrogates: no UTF-8 says it, but JSON can spell it out
        import json

        click.echo(json.dumps(msgspec.to_builtins(value), indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; what is in it is taken as it is, never as markup."""
    # Here and not above: it takes longer to import than most commands take to run.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")  # an id that is cut short is of no use
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    Console(markup=False, emoji=False, highlight=False).print(table)


def printable(text: str) -> str:
    """The same, with what no UTF-8 says, half of a pair of surrogates, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, most: int) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
