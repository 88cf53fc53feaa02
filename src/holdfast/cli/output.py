"""Output of commands: lines and tables for people, JSON for programs.

All output goes through this module. Stored text is untrusted, so it must not send commands to a terminal: control characters and
characters that change the direction of text are escaped, and a value that belongs on one line stays on one line.
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
"""Width of output that is not a terminal, so that a program that reads a pipe gets each row on one line."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that a terminal interprets instead of printing, and characters that reorder text."""
_IN_TEXT = frozenset("\n\t")
"""Control characters that are not escaped in a text of several lines."""
_SHORT = {"\n": "\\n", "\t": "\\t"}


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def print_json(value: Any) -> None:
    """Print one JSON value, indented."""
    try:
        document = msgspec.json.format(msgspec.json.encode(value, enc_hook=mask_secret), indent=2).decode()
        click.echo(in_json(document))
    except UnicodeEncodeError:  # an unpaired surrogate cannot be encoded as UTF-8, but JSON can escape it
        import json

        click.echo(json.dumps(msgspec.to_builtins(value, enc_hook=mask_secret), indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Its cells are plain text, never markup."""
    # Imported here because the import takes longer than most commands take to run.
    with needs("server"):
        from rich import box
        from rich.console import Console
        from rich.table import Table

    table = Table(title=one_line(title), title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        # Ids are neither truncated nor wrapped, so that they can be copied.
        width = max((len(row[index]) for row in rows if _ID.fullmatch(row[index])), default=None)
        table.add_column(column, overflow="fold", no_wrap=width is not None, min_width=width)
    for row in rows:
        table.add_row(*map(one_line, row))
    Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(table)


def print_line(line: str, *, err: bool = False) -> None:
    """Print one line, with control characters escaped."""
    click.echo(one_line(line), err=err)


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, each of which ends with a newline."""
    click.echo(printable(text), nl=False, err=err)


def print_progress(line: str, *, err: bool = False) -> None:
    """Print a line that the next one overwrites, for a terminal."""
    click.echo(f"\r\x1b[K{one_line(line)}", nl=False, err=err)


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Advance]:
    """Show a progress bar on standard error, if that is a terminal.

    Yields a function that takes the number of completed steps, and the new total if it changed.
    """
    with needs("server"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield lambda steps, total=None: None
        return
    columns = TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda steps, total=None: bar.update(task, advance=steps, total=total)


def one_line(text: str) -> str:
    """Escape all control characters of a text, including newlines and tabs."""
    return _CONTROL.sub(_escape, encodable(text))


def printable(text: str) -> str:
    """Escape the control characters of a text, except newlines and tabs."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in _IN_TEXT else _escape(match), encodable(text))


def quoted(name: str) -> str:
    """Return the name of a file, in quotes if a character is escaped, so that no two names look the same."""
    if not _CONTROL.search(name) and not name.startswith('"'):
        return encodable(name)
    return '"' + one_line(name.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def in_json(document: str) -> str:
    """Escape the control characters of a JSON document."""
    return _CONTROL.sub(_escape_in_json, document)


def encodable(text: str) -> str:
    """Escape unpaired surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, max_chars: int) -> str:
    """Return the beginning of a text as one printable line."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def _escape_in_json(match: re.Match[str]) -> str:
    """Escape a character within a string. Newlines occur only between strings and are kept."""
    return match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}"
