"""A tenant as one file, to keep or to bring into another database, on either engine.

A bundle is lines of JSON, compressed with zstd:

* the first says what it is: ``{"holdfast_bundle": 1, "tenant": ..., "release": ..., "schema": ..., "created_at": ...}``;
* then each table: ``{"table": ..., "columns": [...], "types": [...]}``, and a line ``[...]`` for each of its rows. Times are
  microseconds since 1970, JSON is text, bytes are hexadecimal, booleans are 0 and 1, as SQLite keeps them;
* the last: ``{"rows": {...}, "digest": ...}``, how many rows each table has, and the BLAKE3 of all bytes before it.

``bundle_lines`` writes and reads that. A bundle holds everything of the tenant but API keys, which belong to a server, secrets,
which are null in it, and the index over words, which is made anew by the next search. Bodies that lie in packs come along in the
rows. An import is one transaction: whole or absent, and only after the whole bundle was checked::

    from holdfast.bundles import export_tenant, import_tenant

    export_tenant("agents.db", "acme", "acme.holdfast")
    import_tenant("postgresql:///agents", "acme.holdfast")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from . import address, bundle_format
from .bundle_format import End
from .clock import SystemClock, from_us
from .core import objects as bodies
from .core import text
from .core.encrypted_columns import encrypted_columns
from .core.packs import PackStorage
from .core.scope import Scope
from .engines.dialect import Dialect
from .engines.protocol import Connection, Row
from .errors import AlreadyExists, Corrupt, SchemaMismatch
from .handles import Holdfast
from .migrations.catalogue import tables_of_tenants
from .migrations.files import migrations
from .new_file import refuse_existing
from .stores.objects import packs as pack_store
from .stores.objects.packs import InPack
from .sync_runner import step

_DEFERRED = {Dialect.SQLITE: "PRAGMA defer_foreign_keys = ON", Dialect.POSTGRES: "SET CONSTRAINTS ALL DEFERRED"}
_ROWS = 500
_KINDS = {
    "uuid": "text",
    "json": "text",
    "jsonb": "text",
    "int8": "integer",
    "int4": "integer",
    "int2": "integer",
    "bool": "integer",
    "timestamptz": "integer",
    "float8": "real",
    "bytea": "blob",
}
_READ = {
    "uuid": "{}::text",
    "json": "{}::text",
    "jsonb": "{}::text",
    "bool": "{}::int",
    "timestamptz": "(extract(epoch FROM {}) * 1000000)::bigint",
}
_WRITTEN = {
    "uuid": "{}::text::uuid",
    "json": "{}::text::json",
    "jsonb": "{}::text::jsonb",
    "int8": "{}::text::bigint",
    "int4": "{}::text::integer",
    "int2": "{}::text::smallint",
    "bool": "({}::text::integer)::boolean",
    "timestamptz": "to_timestamp(0) + {}::text::bigint * interval '1 microsecond'",
    "float8": "{}::text::float8",
    "bytea": "decode({}::text, 'hex')",
}
_POSTGRES_COLUMNS = """SELECT c.column_name::text, c.udt_name::text FROM information_schema.columns AS c
WHERE c.table_schema = current_schema() AND c.table_name = $1 ORDER BY c.ordinal_position"""
_POSTGRES_KEY = """SELECT a.attname::text FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = to_regclass($1) AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)"""

Progress = Callable[[str, int], None]


class Bundle(Struct, frozen=True):
    """What a bundle holds: whose, of which schema, and how many rows of each table."""

    tenant: str
    release: str
    schema: int
    rows: dict[str, int]


class _Column(Struct, frozen=True):
    name: str
    type: str


class _Table(Struct, frozen=True):
    name: str
    tenant: str
    columns: tuple[_Column, ...]
    key: tuple[str, ...]


def export_tenant(
    url: str,
    tenant: str,
    file: str | os.PathLike[str],
    *,
    packs: str | os.PathLike[str] | PackStorage | None = None,
    on_progress: Progress = lambda table, count: None,
) -> Bundle:
    """Write everything of a tenant but its secrets to one file, as it was at one moment. The file is there when it is whole.

    ``packs`` says where large objects lie, as ``Holdfast`` takes it.

    Raises:
        NotFound: there is no such tenant.
        Unavailable: the database cannot be reached, or the file is not there.
        PackStorageMissing: large objects lie elsewhere than ``packs`` says.
        InvalidInput: the file is there already, or cannot be written.
    """
    refuse_existing(file, replace=False)
    address.check_there(url)
    with Holdfast(url, packs=packs) as hf:
        hf.tenants.get(tenant)
        scope = Scope(tenant, hf._setting)
        with bundle_format.written(file) as write:
            call = _Export(hf._engine, scope, write, on_progress)
            step(hf._engine.exclusive(call.run))
    return check_bundle(file)


def check_bundle(file: str | os.PathLike[str]) -> Bundle:
    """Read a whole bundle and compare it with what it says of itself.

    Raises:
        NotFound: there is no such file.
        Corrupt: it is not a bundle, not whole, or not what was written.
        LimitExceeded: it unpacks to far more than any export.
    """
    for line in bundle_format.read(file):
        if isinstance(line, End):
            head = line.head
            try:
                return Bundle(text.unescape(head["tenant"]), str(head["release"]), int(head["schema"]), line.rows)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Corrupt(
                    f"{os.fspath(file)} is not a bundle, or is damaged: its first line is not one of a bundle"
                ) from error
    raise Corrupt("this bundle has no end")


def import_tenant(
    url: str,
    file: str | os.PathLike[str],
    *,
    tenant: str | None = None,
    on_progress: Progress = lambda table, count: None,
) -> Bundle:
    """Bring a bundle into a database, under its own name or another, all of it or nothing. What is returned has that name.

    Raises:
        NotFound: there is no such file.
        Corrupt: the bundle is not what was written. Nothing was changed.
        LimitExceeded: it unpacks to far more than any export. Nothing was changed.
        SchemaMismatch: it was written by a release with another schema.
        AlreadyExists: there is a tenant by that name.
    """
    bundle = check_bundle(file)
    newest = max(each.version for each in migrations(Dialect.SQLITE))
    if bundle.schema != newest:
        raise SchemaMismatch(
            f"this bundle has schema {bundle.schema} and this release {newest}: import it with Holdfast {bundle.release}"
        )
    where = address.parse(url)
    with Holdfast(url, auto_migrate=where.engine == "sqlite") as hf:
        scope = Scope(bundle.tenant if tenant is None else tenant, hf._setting)
        call = _Import(scope, file, on_progress)
        step(hf._engine.exclusive(call.run))
    return msgspec.structs.replace(bundle, tenant=scope.tenant)


class _Export:
    """The rows of a tenant, table by table, in one transaction."""

    def __init__(self, engine: Any, scope: Scope, write: Callable[[Any], None], progress: Progress) -> None:
        self._engine, self._scope, self._write, self._progress = engine, scope, write, progress

    async def run(self, connection: Connection) -> None:
        async with connection.savepoint():
            if connection.dialect is Dialect.POSTGRES:
                await connection.fetch("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ())
            self._write(_head(self._scope.tenant))
            for table in await _tables(connection):
                await self._table(connection, table)

    async def _table(self, connection: Connection, table: _Table) -> None:
        kinds = [_KINDS.get(each.type, each.type) for each in table.columns]
        names = [each.name for each in table.columns]
        # Not even encrypted: a value that was stored before there was a key is not.
        withheld = {each.column for each in encrypted_columns() if each.table == table.name}
        self._write({"table": table.name, "columns": names, "types": kinds})
        count, after = 0, None
        while True:
            rows = await _page(connection, table, self._scope.stored_tenant, after)
            if not rows:
                break
            after = rows[-1][: len(table.key)]
            for row in await self._whole(table, [row[len(table.key) :] for row in rows]):
                values = [_plain(value, kind) for value, kind in zip(row, kinds, strict=True)]
                self._write([None if name in withheld else each for name, each in zip(names, values, strict=True)])
            count += len(rows)
            self._progress(table.name, count)

    async def _whole(self, table: _Table, rows: Sequence[Row]) -> Sequence[Row]:
        """Rows whose bodies lie in packs get them. What is damaged is not handed on."""
        if table.name != "objects":
            return rows
        places = {each.name: place for place, each in enumerate(table.columns)}
        fields = ("digest", "codec", "pack", "pack_start", "stored_bytes")
        wanted = [InPack(*(row[places[each]] for each in fields)) for row in rows if row[places["pack"]] is not None]
        from_packs = await pack_store.read_stored(self._engine, self._scope, wanted) if wanted else {}
        filled = []
        for row in rows:
            values = list(row)
            body = from_packs.get(bytes(row[places["digest"]]))
            if body is not None:
                values[places["body"]], values[places["pack"]], values[places["pack_start"]] = body, None, None
            bodies.unpack(row[places["digest"]], row[places["codec"]], values[places["body"]])
            filled.append(tuple(values))
        return filled


class _Import:
    """The rows of a bundle, in one transaction."""

    def __init__(self, scope: Scope, file: str | os.PathLike[str], progress: Progress) -> None:
        self._scope, self._file, self._progress = scope, file, progress

    async def run(self, connection: Connection) -> None:
        async with connection.savepoint():
            await self._refuse_known(connection)
            # Rows of one table may refer to each other, in any order.
            await connection.fetch(_DEFERRED[connection.dialect], ())
            tables = {each.name: each for each in await _tables(connection)}
            table, columns, waiting, count = None, list[str](), list[list[Any]](), 0
            for line in bundle_format.read(self._file):
                if isinstance(line, list):
                    waiting.append(line)
                    count += 1
                if waiting and (len(waiting) >= _ROWS or not isinstance(line, list)):
                    assert table is not None
                    await self._insert(connection, table, columns, waiting)
                    self._progress(table.name, count)
                    waiting = []
                if isinstance(line, dict) and "table" in line:
                    table, columns, count = _known(tables, line), line["columns"], 0

    async def _insert(
        self, connection: Connection, table: _Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        types = {each.name: each.type for each in table.columns}
        postgres = connection.dialect is Dialect.POSTGRES
        marks = [f"{connection.dialect.placeholder}{number}" for number in range(1, len(columns) + 2)]
        written = [
            _WRITTEN.get(types[name], "{}::text").format(mark) if postgres else mark
            for name, mark in zip(columns, marks[1:], strict=True)
        ]
        names = ", ".join([table.tenant, *columns])
        sql = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join([marks[0], *written])})"  # noqa: S608  # names of ours
        tenant = self._scope.stored_tenant
        kinds = [_KINDS.get(types[name], types[name]) for name in columns]
        behind = columns.index("search_behind") if "search_behind" in columns else None
        ready = []
        for row in rows:
            values = list(row)
            if len(values) != len(kinds):
                raise Corrupt(f"{os.fspath(self._file)} is damaged: a row of {table.name} has another length")
            if behind is not None:
                values[behind] = 1
            ready.append(
                (tenant, *(_argument(value, kind, postgres) for value, kind in zip(values, kinds, strict=True)))
            )
        await connection.many(sql, ready)

    async def _refuse_known(self, connection: Connection) -> None:
        sql = f"SELECT 1 FROM tenants WHERE id = {connection.dialect.placeholder}1"  # noqa: S608  # a placeholder
        if await connection.fetch(sql, (self._scope.stored_tenant,)):
            raise AlreadyExists(f"there is a tenant {self._scope.tenant!r} here already: import it under another name")


async def _tables(connection: Connection) -> list[_Table]:
    """The tables of a bundle, parents before children."""
    found = []
    for table in tables_of_tenants():
        if table.tenant is None or not table.treatment.exported:
            continue
        columns, key = await _described(connection, table.name)
        others = tuple(each for each in columns if each.name != table.tenant)
        found.append(_Table(table.name, table.tenant, others, tuple(each for each in key if each != table.tenant)))
    return found


async def _described(connection: Connection, table: str) -> tuple[list[_Column], list[str]]:
    if connection.dialect is Dialect.POSTGRES:
        columns = [_Column(*row) for row in await connection.fetch(_POSTGRES_COLUMNS, (table,))]
        return columns, [row[0] for row in await connection.fetch(_POSTGRES_KEY, (table,))]
    sql = "SELECT name, lower(type), pk FROM pragma_table_info(?1) ORDER BY cid"
    rows = await connection.fetch(sql, (table,))
    key = sorted((row for row in rows if row[2]), key=lambda row: row[2])
    return [_Column(row[0], row[1]) for row in rows], [row[0] for row in key]


async def _page(connection: Connection, table: _Table, tenant: str, after: Row | None) -> Sequence[Row]:
    """Rows after a key, in its order: the key first, then all columns as they travel."""
    mark = connection.dialect.placeholder
    postgres = connection.dialect is Dialect.POSTGRES
    read = [(_READ.get(each.type, "{}") if postgres else "{}").format(f"t.{each.name}") for each in table.columns]
    key = ", ".join(f"t.{each}" for each in table.key)
    where, args = f"t.{table.tenant} = {mark}1", [tenant]
    if after is not None and table.key:
        marks = ", ".join(f"{mark}{number}" for number in range(2, len(table.key) + 2))
        where, args = f"{where} AND ({key}) > ({marks})", [tenant, *after]
    wanted = ", ".join([key, *read] if key else read)
    order = f" ORDER BY {key}" if key else ""
    sql = f"SELECT {wanted} FROM {table.name} AS t WHERE {where}{order} LIMIT {_ROWS}"  # noqa: S608  # names of ours
    if after is not None and not table.key:
        return []
    return await connection.fetch(sql, tuple(args))


def _plain(value: Any, kind: str) -> Any:
    if value is None or kind != "blob":
        return value
    return bytes(value).hex()


def _argument(value: Any, kind: str, postgres: bool) -> Any:
    if value is None:
        return None
    if postgres:
        return value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value)
    return bytes.fromhex(value) if kind == "blob" else value


def _known(tables: Mapping[str, _Table], line: dict[str, Any]) -> _Table:
    table = tables.get(line["table"])
    if table is None or [each.name for each in table.columns] != line["columns"]:
        raise SchemaMismatch(f"this database has another table {line['table']!r} than the bundle")
    return table


def _head(tenant: str) -> dict[str, Any]:
    from . import __version__  # here, because the package is still being imported when this module is

    schema = max(each.version for each in migrations(Dialect.SQLITE))
    made = from_us(SystemClock().now_us())
    return {
        "holdfast_bundle": bundle_format.FORMAT,
        "tenant": text.escape(tenant),
        "release": __version__,
        "schema": schema,
        "created_at": made,
    }


__all__ = ["Bundle", "check_bundle", "export_tenant", "import_tenant"]
