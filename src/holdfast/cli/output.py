"""What commands print: lines and tables for people, JSON for programs.

Everything that a command prints goes through here. Stored text can be anybody's, so nothing in it reaches a terminal as a
command: control characters, and those that turn the direction of text, are spelled out, and what belongs into one line stays
in one line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import msgspec

from holdfast.encryption import mask_secret
from holdfast.extras import needs

F = TypeVar("F", bound=Callable[..., Any])
Advance = Callable[..., None]
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WIDE = 10_000
"""Columns of what is no terminal: whoever reads a pipe line by line wants each row in one."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What a terminal obeys instead of showing it, and what shows text in another order than it is written in."""
_IN_TEXT = frozenset("\n\t")
"""What is left as it is where a text may have several lines."""
_SHORT = {"\n": "\\n", "\t": "\\t"}


def json_option(command: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead, for programs.")(command)


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    try:
        written = msgspec.json.format(msgspec.json.encode(value, enc_hook=mask_secret), indent=2).decode()
        click.echo(in_json(written))
    except UnicodeEncodeError:  # half of a pair of surrogates: no UTF-8 says it, but JSON can spell it out
        import json

        click.echo(json.dumps(msgspec.to_builtins(value, enc_hook=mask_secret), indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; what is in it is taken as it is, never as markup."""
    # Here and not above: it takes longer to import than most commands take to run.
    with needs("server"):
        from rich import box
        from rich.console import Console
        from rich.table import Table

    table = Table(title=one_line(title), title_justify="left", box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns):
        # An id that is cut short, or goes on in the next line, is of no use: nobody can copy it.
        width = max((len(row[place]) for row in rows if _ID.fullmatch(row[place])), default=None)
        table.add_column(column, overflow="fold", no_wrap=width is not None, min_width=width)
    for row in rows:
        table.add_row(*map(one_line, row))
    Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(table)


def print_line(line: str, *, err: bool = False) -> None:
    """One line, whatever is in it."""
    click.echo(one_line(line), err=err)


def print_text(text: str, *, err: bool = False) -> None:
    """A text of several lines, each of which ends with a newline."""
    click.echo(printable(text), nl=False, err=err)


def print_progress(line: str, *, err: bool = False) -> None:
    """A line that the next one is written over, for a terminal."""
    click.echo(f"\r\x1b[K{one_line(line)}", nl=False, err=err)


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Advance]:
    """A bar on standard error, if that is a terminal. What is yielded takes the steps just done, and the total if it changed."""
    with needs("server"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield lambda steps, total=None: None
        return
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda steps, total=None: bar.update(task, advance=steps, total=total)


def one_line(text: str) -> str:
    """A text with everything spelled out that a terminal would obey, newlines and tabs included."""
    return _CONTROL.sub(_spelled, encodable(text))


def printable(text: str) -> str:
    """The same for a text that may have several lines."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in _IN_TEXT else _spelled(found), encodable(text))


def quoted(name: str) -> str:
    """The name of a file; in quotes if something in it is spelled out, so that no other name looks the same."""
    if not _CONTROL.search(name) and not name.startswith('"'):
        return encodable(name)
    return '"' + one_line(name.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def in_json(written: str) -> str:
    """The same JSON without a character in it that a terminal would obey."""
    return _CONTROL.sub(_as_in_json, written)


def encodable(text: str) -> str:
    """The same, with what no UTF-8 says, half of a pair of surrogates, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, most: int) -> str:
    """The beginning of a text, in one line that can be printed."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _spelled(found: re.Match[str]) -> str:
    char = found[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def _as_in_json(found: re.Match[str]) -> str:
    """Within strings, where JSON has no newline as such; between them there are only newlines."""
    return found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}"
