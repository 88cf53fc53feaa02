"""Numbered migration files, one for each number, rendered into plain SQL for each engine.

``README.md`` in this folder describes the format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import apsw
from msgspec import Struct

from ..engines.dialect import Dialect
from ..errors import InvalidInput

FOLDER = Path(__file__).parent
MACROS = {
    "id": {Dialect.SQLITE: "TEXT", Dialect.POSTGRES: "UUID"},
    "text": {Dialect.SQLITE: "TEXT", Dialect.POSTGRES: 'TEXT COLLATE "C"'},
    "json": {Dialect.SQLITE: "TEXT", Dialect.POSTGRES: "JSONB"},
    "ordered_json": {Dialect.SQLITE: "TEXT", Dialect.POSTGRES: "JSON"},
    "time": {Dialect.SQLITE: "INTEGER", Dialect.POSTGRES: "TIMESTAMPTZ"},
    "bool": {Dialect.SQLITE: "INTEGER", Dialect.POSTGRES: "BOOLEAN"},
    "int": {Dialect.SQLITE: "INTEGER", Dialect.POSTGRES: "BIGINT"},
    "int32": {Dialect.SQLITE: "INTEGER", Dialect.POSTGRES: "INTEGER"},
    "int16": {Dialect.SQLITE: "INTEGER", Dialect.POSTGRES: "SMALLINT"},
    "float": {Dialect.SQLITE: "REAL", Dialect.POSTGRES: "DOUBLE PRECISION"},
    "bytes": {Dialect.SQLITE: "BLOB", Dialect.POSTGRES: "BYTEA"},
    "strict": {Dialect.SQLITE: "STRICT", Dialect.POSTGRES: ""},
    "clustered": {Dialect.SQLITE: "STRICT, WITHOUT ROWID", Dialect.POSTGRES: ""},
}
"""The replacement of ``{name}`` for each engine."""

_CLAUSE_OF = {"sqlite": Dialect.SQLITE, "pg": Dialect.POSTGRES}
_CLAUSE = re.compile(r"/\*(pg|sqlite)\s(.*?)\*/", re.DOTALL)
_MACRO = re.compile(r"\{(\w+)\}( ?) *")
_CREATED = re.compile(r"^CREATE (?:VIRTUAL )?TABLE (\w+)", re.MULTILINE)
_DOWN = re.compile(r"^-- down\n", re.MULTILINE)
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_LEFTOVERS = ((r"^[ \t]+\n", ""), (r"[ \t]+([;,]?)$", r"\1"), (r"\n{3,}", "\n\n"))
"""White space left behind by removed clauses of the other engine, with its replacement."""


class Migration(Struct, frozen=True):
    """One numbered migration, rendered for one engine."""

    version: int
    name: str
    up: str
    down: str
    checksum: str
    """SHA-256 of ``up``, in hex."""

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Return all migrations of this release, in order. The files are part of the package and read once."""
    files = sorted(FOLDER.glob("*.sql"), key=lambda file: file.name)
    return tuple(parse(file.name, file.read_text("utf-8"), dialect) for file in files)


def parse(filename: str, text: str, dialect: Dialect) -> Migration:
    """Parse a migration file for one engine.

    Raises:
        InvalidInput: the name is not ``NNNN_name.sql``, the text has not exactly one ``-- down`` line, or a macro is unknown.
    """
    name = _FILE.fullmatch(filename)
    if name is None:
        raise InvalidInput(
            f"{filename}: a migration must be named NNNN_name.sql, for example 0042_widgets.sql", field="filename"
        )
    parts = _DOWN.split(text)
    if len(parts) != 2:
        raise InvalidInput(
            f"{filename}: found {len(parts) - 1} lines '-- down', expected one between the two directions",
            field="down",
        )
    up, down = (_render(filename, part, dialect) for part in parts)
    return Migration(int(name[1]), name[2], up, down, hashlib.sha256(up.encode()).hexdigest())


def statements(script: str) -> list[str]:
    """Split a script into its statements, in order."""
    result: list[str] = []
    current = ""
    for line in script.splitlines(keepends=True):
        if not current and (not line.strip() or line.lstrip().startswith("--")):
            continue
        current += line
        if apsw.complete(current):
            result.append(current.strip())
            current = ""
    return result


def tables_of(known: Sequence[Migration]) -> list[str]:
    """Return the names of all tables that these migrations create."""
    return [name for migration in known for name in _CREATED.findall(migration.up)]


def plain_sql(dialect: Dialect, *, after: int = 0) -> str:
    """Return the migrations above version ``after`` as one script in a transaction, for ``psql -f`` or the sqlite3 shell.

    Raises:
        InvalidInput: the version does not exist.
    """
    initial = migrations(dialect)
    if not 0 <= after <= len(initial):
        raise InvalidInput(f"schema version {after} does not exist; versions are 0 to {len(initial)}", field="after")
    head = f"-- Schema of Holdfast for {dialect.value}. Run `holdfast migrate adopt` afterwards.\n\nBEGIN;\n\n"
    return head + "".join(f"-- {migration}\n\n{migration.up}\n" for migration in initial[after:]) + "COMMIT;\n"


def _render(filename: str, text: str, dialect: Dialect) -> str:
    def macro(match: re.Match[str]) -> str:
        if match[1] not in MACROS:
            raise InvalidInput(
                f"{filename}: unknown macro {{{match[1]}}}; known macros: {', '.join(sorted(MACROS))}", field="macro"
            )
        value = MACROS[match[1]][dialect]
        return value and value + match[2]

    text = _CLAUSE.sub(lambda match: match[2].rstrip() if _CLAUSE_OF[match[1]] is dialect else "", text)
    text = _MACRO.sub(macro, text)
    for pattern, replacement in _LEFTOVERS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.strip() + "\n"
