"""The stores whose rows declared resources bring about, in an order in which each follows the stores that it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from ...core.filters import Filter, column
from ...core.paging import Page
from ...core.records import AsyncRecords
from ...core.store import within
from ...engines.protocol import Connection
from ..agents.agents import AsyncAgents, NewAgent
from ..config.models import AsyncModels, Model, NewModel
from ..config.providers import AsyncProviders, NewProvider, Provider
from ..tools.mcp_servers import AsyncMcpServers, NewMcpServer

Name = tuple[str, ...]
NewRow = NewProvider | NewModel | NewMcpServer | NewAgent
"""A row that a resource can bring about. ``NewModel.provider`` is then the name of the provider, not its id."""


CHUNK = 1_000
"""Rows that one statement reads: the largest page, and the most values of one filter, unless the limits are changed."""
Store = AsyncRecords[Any, Any, Any]


class Target(Struct, frozen=True):
    """A store whose rows are made: its name on a handle, its class, and the fields by which a manifest names a row."""

    name: str
    kind: type[Store]
    new: type[Struct]
    fields: tuple[str, ...]

    def name_of(self, row: Struct) -> Name:
        """Return the name of a row, or of a new one."""
        return tuple(getattr(row, field) for field in self.fields)


TARGETS = (
    Target("providers", AsyncProviders, NewProvider, ("name",)),
    Target("models", AsyncModels, NewModel, ("provider", "name")),
    Target("mcp_servers", AsyncMcpServers, NewMcpServer, ("name", "kind")),
    Target("agents", AsyncAgents, NewAgent, ("id",)),
)


def target_of(new: Struct) -> Target:
    """Return the target that makes rows of this kind."""
    return next(target for target in TARGETS if isinstance(new, target.new))


class CurrentRows:
    """The current rows of all targets, by target and name."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Name], Any] = {}
        self._providers: dict[str, str] = {}

    def get(self, target: str, name: Sequence[str]) -> Any:
        """Return a row, or ``None``."""
        return self._rows.get((target, tuple(name)))

    def put(self, target: Target, row: Any) -> None:
        """Add a row that was read or written."""
        name = target.name_of(row)
        if isinstance(row, Provider):
            self._providers[row.id] = row.name
        if isinstance(row, Model):
            name = (self._providers[row.provider], row.name)
        self._rows[target.name, name] = row

    def linked(self, new: Any) -> Any:
        """Return a new row with ids in place of names; ``None`` if it refers to a row that does not exist yet."""
        if not isinstance(new, NewModel):
            return new
        provider = self.get("providers", [new.provider])
        return None if provider is None else structs.replace(new, provider=provider.id)


async def read_rows(
    connection: Connection, stores: Mapping[str, Store], names: Iterable[tuple[str, Name]]
) -> CurrentRows:
    """Read the rows with these targets and names, a thousand with each statement."""
    rows = CurrentRows()
    by_target: dict[str, set[Name]] = {}
    for target_name, name in names:
        by_target.setdefault(target_name, set()).add(name)
    for target in TARGETS:
        target_names = by_target.get(target.name, set())
        if target.kind is AsyncModels:
            providers = {name: rows.get("providers", [name]) for name, _ in target_names}
            ids = {row.id for row in providers.values() if row is not None}
            more = (
                [column("name").is_in(sorted({name for _, name in target_names})[:CHUNK])]
                if len(target_names) <= CHUNK
                else []
            )
            matches = await read_where(connection, stores[target.name], "provider", ids, more)
        else:
            matches = await read_where(
                connection, stores[target.name], target.fields[0], {name[0] for name in target_names}
            )
        for row in matches:
            rows.put(target, row)
    return rows


async def read_where(
    connection: Connection, store: Store, field: str, values: Iterable[str], more: Sequence[Filter] = ()
) -> list[Any]:
    """Read the rows whose field has one of these values."""
    ordered, rows = sorted(values), []
    for start in range(0, len(ordered), CHUNK):
        chunk = column(field).is_in(ordered[start : start + CHUNK])
        rows += await read_all(connection, store, [chunk, *more])
    return rows


async def read_all(connection: Connection, store: Store, where: Sequence[Filter]) -> list[Any]:
    """Read all rows that match the filters, page by page."""
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        page: Page[Any] = await within(store.list)(connection, where=where, limit=CHUNK, cursor=cursor)
        rows += page
        cursor = page.next
        if cursor is None:
            return rows
