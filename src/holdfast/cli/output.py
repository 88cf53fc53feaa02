"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WIDE = 10_000
"""Columns of what is no terminal: whoever reads a pipe line by line wants each row in one."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal obeys instead of showing it. Ends of lines and tabs are not among it."""


def json_option(command: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead, for programs.")(command)


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    try:
        written = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        click.echo(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", written))  # all of them stand within strings
    except UnicodeEncodeError:  # half of a pair of surrogates: no UTF-8 says it, but JSON can spell it out
        import json

        click.echo(json.dumps(msgspec.to_builtins(value), indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; what is in it is taken as it is, never as markup."""
    # Here and not above: it takes longer to import than most commands take to run.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=printable(title), title_justify="left", box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns):
        # An id that is cut short, or goes on in the next line, is of no use: nobody can copy it.
        width = max((len(row[place]) for row in rows if _ID.fullmatch(row[place])), default=None)
        table.add_column(column, overflow="fold", no_wrap=width is not None, min_width=width)
    for row in rows:
        table.add_row(*(printable(cell.replace("\r\n", "\n")) for cell in row))
    Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(table)


def printable(text: str) -> str:
    """The same for a terminal: also what it would obey is spelled out, for stored text can be anybody's."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", encodable(text))


def encodable(text: str) -> str:
    """The same, with what no UTF-8 says, half of a pair of surrogates, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, most: int) -> str:
    """The beginning of a text, in one line that can be printed."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"
