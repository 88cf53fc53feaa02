"""Export a tenant to one file, the bundle, and import it into another database, on either engine.

A bundle is lines of JSON, compressed with zstd:

* the header: ``{"holdfast_bundle": 1, "tenant": ..., "release": ..., "schema": ..., "created_at": ...}``;
* for each table ``{"table": ..., "columns": [...], "types": [...]}``, followed by a line ``[...]`` for each row. Times are
  microseconds since 1970, JSON is text, bytes are hexadecimal, booleans are 0 and 1, as SQLite stores them;
* the end: ``{"rows": {...}, "digest": ...}``, the number of rows of each table and the BLAKE3 digest of all preceding bytes.

``bundle_format`` writes and reads that. A bundle contains all data of the tenant except API keys, which belong to a server,
secrets, which are null, and the search index, which the next search rebuilds. Bodies that are stored in packs are included in
the rows. An import is one transaction, and starts only after the whole bundle was verified::

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
from .bundle_format import BundleEnd
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
    """The content of a bundle: its tenant, its schema version, and the number of rows of each table."""

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
    """Write a consistent copy of a tenant, without its secrets, to one file. The file appears only when it is complete.

    ``packs`` is the location of large objects, as for ``Holdfast``.

    Raises:
        NotFound: the tenant does not exist.
        Unavailable: the database cannot be reached, or its file does not exist.
        PackStorageMissing: the tenant has large objects in packs that are not at ``packs``.
        InvalidInput: the file already exists or cannot be written.
    """
    refuse_existing(file, replace=False)
    address.check_exists(url)
    with Holdfast(url, packs=packs) as hf:
        hf.tenants.get(tenant)
        scope = Scope(tenant, hf._setting)
        with bundle_format.line_writer(file) as write:
            call = _Export(hf._engine, scope, write, on_progress)
            step(hf._engine.exclusive(call.run))
    return check_bundle(file)


def check_bundle(file: str | os.PathLike[str]) -> Bundle:
    """Read a whole bundle, verify it and return its description.

    Raises:
        NotFound: the file does not exist.
        Corrupt: the file is not a bundle, is incomplete, or was modified.
        LimitExceeded: the file decompresses to far more than any export would.
    """
    for line in bundle_format.read(file):
        if isinstance(line, BundleEnd):
            head = line.head
            try:
                return Bundle(text.unescape(head["tenant"]), str(head["release"]), int(head["schema"]), line.rows)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Corrupt(f"{os.fspath(file)} is not a bundle, or is damaged: its header is malformed") from error
    raise Corrupt(f"{os.fspath(file)} is damaged: its end is missing")


def import_tenant(
    url: str,
    file: str | os.PathLike[str],
    *,
    tenant: str | None = None,
    on_progress: Progress = lambda table, count: None,
) -> Bundle:
    """Import a bundle in one transaction, as its own tenant or as ``tenant``, and return its description under that name.

    Raises:
        NotFound: the file does not exist.
        Corrupt: the bundle is incomplete or was modified. Nothing was changed.
        LimitExceeded: the file decompresses to far more than any export would. Nothing was changed.
        SchemaMismatch: the bundle was written by a release with another schema version.
        AlreadyExists: the tenant already exists in this database.
    """
    bundle = check_bundle(file)
    newest = max(migration.version for migration in migrations(Dialect.SQLITE))
    if bundle.schema != newest:
        raise SchemaMismatch(
            f"the bundle has schema version {bundle.schema}, this release has {newest}: import it with Holdfast {bundle.release}"
        )
    database = address.parse(url)
    with Holdfast(url, auto_migrate=database.engine == "sqlite") as hf:
        scope = Scope(bundle.tenant if tenant is None else tenant, hf._setting)
        call = _Import(scope, file, on_progress)
        step(hf._engine.exclusive(call.run))
    return msgspec.structs.replace(bundle, tenant=scope.tenant)


class _Export:
    """Writes the rows of a tenant, table by table, in one transaction."""

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
        kinds = [_KINDS.get(column.type, column.type) for column in table.columns]
        names = [column.name for column in table.columns]
        # Encrypted columns are left out entirely, because values stored before a key was configured are plain text.
        withheld = _secret_columns(table.name)
        self._write({"table": table.name, "columns": names, "types": kinds})
        count, after = 0, None
        while True:
            rows = await _page(connection, table, self._scope.stored_tenant, after)
            if not rows:
                break
            after = rows[-1][: len(table.key)]
            for row in await self._with_bodies(table, [row[len(table.key) :] for row in rows]):
                values = [_to_line(value, kind) for value, kind in zip(row, kinds, strict=True)]
                self._write([None if name in withheld else value for name, value in zip(names, values, strict=True)])
            count += len(rows)
            self._progress(table.name, count)

    async def _with_bodies(self, table: _Table, rows: Sequence[Row]) -> Sequence[Row]:
        """Insert the bodies that are stored in packs into the rows of ``objects``. A damaged body raises ``Corrupt``."""
        if table.name != "objects":
            return rows
        at = {column.name: index for index, column in enumerate(table.columns)}
        fields = ("digest", "codec", "pack", "pack_start", "stored_bytes")
        packed = [InPack(*(row[at[field]] for field in fields)) for row in rows if row[at["pack"]] is not None]
        from_packs = await pack_store.read_stored(self._engine, self._scope, packed) if packed else {}
        complete = []
        for row in rows:
            values = list(row)
            body = from_packs.get(bytes(row[at["digest"]]))
            if body is not None:
                values[at["body"]], values[at["pack"]], values[at["pack_start"]] = body, None, None
            bodies.unpack(row[at["digest"]], row[at["codec"]], values[at["body"]])
            complete.append(tuple(values))
        return complete


class _Import:
    """Inserts the rows of a bundle, in one transaction."""

    def __init__(self, scope: Scope, file: str | os.PathLike[str], progress: Progress) -> None:
        self._scope, self._file, self._progress = scope, file, progress

    async def run(self, connection: Connection) -> None:
        async with connection.savepoint():
            await self._refuse_existing_tenant(connection)
            # Rows of one table may refer to each other, in any order.
            await connection.fetch(_DEFERRED[connection.dialect], ())
            tables = {table.name: table for table in await _tables(connection)}
            table, columns, batch, count = None, list[str](), list[list[Any]](), 0
            for line in bundle_format.read(self._file):
                if isinstance(line, list):
                    batch.append(line)
                    count += 1
                if batch and (len(batch) >= _ROWS or not isinstance(line, list)):
                    assert table is not None
                    await self._insert(connection, table, columns, batch)
                    self._progress(table.name, count)
                    batch = []
                if isinstance(line, dict) and "table" in line:
                    table, columns, count = _matching_table(tables, line), line["columns"], 0

    async def _insert(
        self, connection: Connection, table: _Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        types = {column.name: column.type for column in table.columns}
        postgres = connection.dialect is Dialect.POSTGRES
        marks = [f"{connection.dialect.placeholder}{number}" for number in range(1, len(columns) + 2)]
        casts = [
            _WRITTEN.get(types[name], "{}::text").format(mark) if postgres else mark
            for name, mark in zip(columns, marks[1:], strict=True)
        ]
        names = ", ".join([table.tenant, *columns])
        sql = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join([marks[0], *casts])})"  # noqa: S608  # names of ours
        tenant = self._scope.stored_tenant
        kinds = [_KINDS.get(types[name], types[name]) for name in columns]
        behind = columns.index("search_behind") if "search_behind" in columns else None
        secret = [(columns.index(name), name) for name in _secret_columns(table.name) if name in columns]
        arguments = []
        for row in rows:
            values = list(row)
            if len(values) != len(kinds):
                raise Corrupt(
                    f"{os.fspath(self._file)} is damaged: a row of {table.name} has {len(values)} columns, not {len(kinds)}"
                )
            for index, name in secret:
                if values[index] is not None:
                    raise Corrupt(
                        f"{os.fspath(self._file)} has a value of {table.name}.{name}, and no export contains secrets: "
                        "set it after the import"
                    )
            if behind is not None:
                values[behind] = 1
            arguments.append(
                (tenant, *(_from_line(value, kind, postgres) for value, kind in zip(values, kinds, strict=True)))
            )
        await connection.many(sql, arguments)

    async def _refuse_existing_tenant(self, connection: Connection) -> None:
        tenant = self._scope.tenant
        sql = f"SELECT 1 FROM tenants WHERE id = {connection.dialect.placeholder}1"  # noqa: S608  # a placeholder
        if await connection.fetch(sql, (self._scope.stored_tenant,)):
            raise AlreadyExists(
                f"tenant {tenant!r} already exists in this database: import it under another name",
                noun="tenant",
                key=tenant,
            )


def _secret_columns(table: str) -> set[str]:
    """Return the columns with secrets; they are null in a bundle."""
    return {column.column for column in encrypted_columns() if column.table == table}


async def _tables(connection: Connection) -> list[_Table]:
    """Return the tables of a bundle, parents before children."""
    tables = []
    for table in tables_of_tenants():
        if table.tenant is None or not table.treatment.exported:
            continue
        columns, key = await _describe(connection, table.name)
        others = tuple(column for column in columns if column.name != table.tenant)
        tables.append(_Table(table.name, table.tenant, others, tuple(name for name in key if name != table.tenant)))
    return tables


async def _describe(connection: Connection, table: str) -> tuple[list[_Column], list[str]]:
    """Return the columns and the primary key of a table."""
    if connection.dialect is Dialect.POSTGRES:
        columns = [_Column(*row) for row in await connection.fetch(_POSTGRES_COLUMNS, (table,))]
        return columns, [row[0] for row in await connection.fetch(_POSTGRES_KEY, (table,))]
    sql = "SELECT name, lower(type), pk FROM pragma_table_info(?1) ORDER BY cid"
    rows = await connection.fetch(sql, (table,))
    key = sorted((row for row in rows if row[2]), key=lambda row: row[2])
    return [_Column(row[0], row[1]) for row in rows], [row[0] for row in key]


async def _page(connection: Connection, table: _Table, tenant: str, after: Row | None) -> Sequence[Row]:
    """Return the next rows after a key, in the order of the key: first the key, then all columns as a bundle stores them."""
    mark = connection.dialect.placeholder
    postgres = connection.dialect is Dialect.POSTGRES
    read = [(_READ.get(column.type, "{}") if postgres else "{}").format(f"t.{column.name}") for column in table.columns]
    key = ", ".join(f"t.{name}" for name in table.key)
    where, args = f"t.{table.tenant} = {mark}1", [tenant]
    if after is not None and table.key:
        marks = ", ".join(f"{mark}{number}" for number in range(2, len(table.key) + 2))
        where, args = f"{where} AND ({key}) > ({marks})", [tenant, *after]
    selected = ", ".join([key, *read] if key else read)
    order = f" ORDER BY {key}" if key else ""
    sql = f"SELECT {selected} FROM {table.name} AS t WHERE {where}{order} LIMIT {_ROWS}"  # noqa: S608  # names of ours
    if after is not None and not table.key:
        return []
    return await connection.fetch(sql, tuple(args))


def _to_line(value: Any, kind: str) -> Any:
    if value is None or kind != "blob":
        return value
    return bytes(value).hex()


def _from_line(value: Any, kind: str, postgres: bool) -> Any:
    if value is None:
        return None
    if postgres:
        return value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value)
    return bytes.fromhex(value) if kind == "blob" else value


def _matching_table(tables: Mapping[str, _Table], line: dict[str, Any]) -> _Table:
    table = tables.get(line["table"])
    if table is None or [column.name for column in table.columns] != line["columns"]:
        raise SchemaMismatch(f"table {line['table']!r} of the bundle does not exist here or has other columns")
    return table


def _head(tenant: str) -> dict[str, Any]:
    from . import __version__  # imported here because the package is still being imported when this module is

    schema = max(migration.version for migration in migrations(Dialect.SQLITE))
    now = from_us(SystemClock().now_us())
    return {
        "holdfast_bundle": bundle_format.FORMAT,
        "tenant": text.escape(tenant),
        "release": __version__,
        "schema": schema,
        "created_at": now,
    }


__all__ = ["Bundle", "check_bundle", "export_tenant", "import_tenant"]
