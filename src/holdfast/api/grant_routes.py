"""The operations of a grant store, declared in one line: ``grants("/v1/tenants/{tenant}/agent-shares", "agent_shares", ...)``.

A grant has the path ``{path}/{resource}/{principal}``. If the store has grants to several kinds of principals, the kind comes
first, in the plural: ``{path}/users/{resource}/{user}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union

from msgspec import UNSET, Meta, UnsetType, structs

from holdfast import errors

from .operations import Need, Operation
from .pagination import PAGE_ROWS, Cursor, Limit
from .parameters import choices
from .schemas import Uuid, present_fields
from .state import Service
from .store_routes import Arguments, ChangeResult, body_type, page_type, signature_of, wire_type

Kind = Any
"""The asynchronous class of a grant store."""
Table = Any
"""One of its tables; ``table.fields`` describes the fields of its rows."""


def grants(
    path: str, store: str, kind: Kind, *, area: str = "", need: Mapping[str, Need] | None = None
) -> list[Operation]:
    """Return the operations of a grant store.

    Args:
        path: the path of the collection.
        store: the name of the store on a tenant's handle.
        area: as in ``operation``.
        need: required permissions of single operations that differ from the default, by method name.
    """
    several = len(kind.grants) > 1
    tables = [(f"{path}/{table.principal}s" if several else path, table) for table in kind.grants]
    return [item for place, table in tables for item in _Routes(place, store, kind, table, area, need or {}).all()]


class _Routes:
    def __init__(self, path: str, store: str, kind: Kind, table: Table, area: str, need: Mapping[str, Need]) -> None:
        self._path, self._store, self._kind, self._table = path, store, kind, table
        self._area, self._need = area, need
        self._resource, self._principal = table.resource, table.principal
        self._one = f"{path}/{{{self._resource}}}/{{{self._principal}}}"
        self._sides: Arguments = {
            name: (Uuid if table.fields[name].kind == "id" else str, UNSET)
            for name in (self._resource, self._principal)
        }

    def all(self) -> list[Operation]:
        """Return the four operations of the table."""
        return [self._list(), self._grant(), self._find(), self._revoke()]

    def _list(self) -> Operation:
        table, page = self._table, page_type(self._table.row)

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            resource, principal = arguments[table.resource], arguments[table.principal]
            limit, cursor = arguments["limit"], arguments["cursor"]
            rows = await store.list(
                resource=resource, principal=principal, kind=table.principal, limit=limit, cursor=cursor
            )
            return page(list(rows), rows.next)

        other = {self._resource: self._principal, self._principal: self._resource}
        parameters: Arguments = {
            name: (Annotated[hint | None, Meta(description=f"List by this; then `{other[name]}` is left out.")], None)
            for name, (hint, _) in self._sides.items()
        }
        parameters |= {"limit": (Limit, PAGE_ROWS), "cursor": (Cursor, None)}
        summary = (
            f"List the {table.nouns} of one {self._resource}, or those to one {self._principal}, a page at a time."
        )
        return self._operation(
            "GET", self._path, "list", f"list_{_snake(table.nouns)}", parameters, page, call, summary
        )

    def _grant(self) -> Operation:
        table = self._table
        fields = [field for field in structs.fields(table.new) if field.name not in self._sides]
        attributes = {field.name: (self._wire(field), UNSET if field.required else None) for field in fields}
        name = f"put_{_snake(table.noun)}"
        body = body_type(name, attributes)

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            sides = {side: arguments[side] for side in self._sides}
            return await store.grant(table.new(**present_fields(arguments["body"]), **sides))

        parameters = self._sides | {"body": (body, UNSET)}
        summary = f"Create {table.a_noun}, or replace its attributes. Repeating it has no effect."
        return self._operation("PUT", self._one, "grant", name, parameters, table.row, call, summary)

    def _find(self) -> Operation:
        table = self._table

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            resource, principal = (arguments[side] for side in self._sides)
            row = await store.find(resource, principal, kind=table.principal)
            if row is None:
                raise errors.NotFound(
                    f"{table.noun} of {resource!r} to {principal!r} does not exist", noun=table.noun, key=resource
                )
            return row

        summary = f"Get {table.a_noun}; 404 if it does not exist."
        name = f"get_{_snake(table.noun)}"
        return self._operation("GET", self._one, "find", name, self._sides, table.row, call, summary)

    def _revoke(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            resource, principal = (arguments[side] for side in self._sides)
            return ChangeResult(await store.revoke(resource, principal, kind=self._principal))

        summary = f"Remove {self._table.a_noun}. `done` tells whether it existed."
        name = f"delete_{_snake(self._table.noun)}"
        return self._operation("DELETE", self._one, "revoke", name, self._sides, ChangeResult, call, summary)

    def _operation(
        self,
        verb: str,
        path: str,
        method: str,
        name: str,
        parameters: Arguments,
        returned: Any,
        call: Callable[[Any, dict[str, Any]], Any],
        summary: str,
    ) -> Operation:
        defaults = {argument: default for argument, (_, default) in parameters.items() if default is not UNSET}

        async def function(service: Service, **arguments: Any) -> Any:
            store = getattr(service.tenant(arguments.pop("tenant")), self._store)
            return await call(store, {**defaults, **arguments})

        signature_of(function, name, {"tenant": (str, UNSET), **parameters}, returned, summary)
        function.made_from = (self._store, getattr(self._kind, method))  # type: ignore[attr-defined]
        usual: Need = "read" if verb == "GET" else "write"
        area = self._area or self._path.rpartition("/")[2]
        kinds = (errors.NotFound, *(() if verb == "GET" else (errors.Conflict,)))
        return Operation(verb, path, function, 200, kinds, None, self._need.get(method, usual), area)

    def _wire(self, field: structs.FieldInfo) -> Any:
        """Return the JSON type of an attribute."""
        hints = choices(field.type)
        kinds = [hint for hint in hints if hint not in (UnsetType, type(None))]
        hint: Any = int if kinds == [int] else wire_type(field.name, Union[tuple(kinds)])  # noqa: UP007
        return hint | None if type(None) in hints else hint


def _snake(noun: str) -> str:
    return str(noun).replace(" ", "_").lower()
