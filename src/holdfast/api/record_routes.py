"""The operations of a record store, declared in one line: ``records("/v1/tenants/{tenant}/agents", "agents", AsyncAgents)``.

The first field of a record's key is in the path; the others are query parameters, or fields of the body where there is one. The
version of a record, if it has one, is its ETag, and ``If-Match`` compares it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Union

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs

from holdfast import column, errors
from holdfast.errors import Conflict, HoldfastError

from .idempotency import IdempotencyKey, chosen_id, retry_id
from .operations import Need, Operation
from .pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from .parameters import choices
from .problems import PreconditionFailed
from .schemas import Uuid, present_fields
from .state import Service
from .store_routes import (
    Arguments,
    Count,
    IfMatch,
    body_type,
    page_type,
    signature_of,
    version_etag,
    version_of,
    wire_type,
)

Kind = Any
"""The asynchronous class of a record store."""
Search = Annotated[str | None, Meta(description="Text to search for; ASCII letters match case-insensitively.")]
Tag = Annotated[str | None, Meta(description="Only records with this tag.")]


def records(
    path: str,
    store: str,
    kind: Kind,
    *,
    area: str = "",
    key: str = "",
    within: Sequence[str] = (),
    need: Mapping[str, Need] | None = None,
) -> list[Operation]:
    """Return the operations of a record store.

    Args:
        path: the path of the collection.
        store: the name of the store on a tenant's handle.
        area: as in ``operation``.
        key: the name of the key in the path, if it differs from its field.
        within: key fields that restrict a list; each has its field's default.
        need: required permissions of single operations that differ from the default, by method name.
    """
    return _Routes(path, store, kind, area, key, within, need or {}).all()


class _Routes:
    def __init__(
        self, path: str, store: str, kind: Kind, area: str, key: str, within: Sequence[str], need: Mapping[str, Need]
    ) -> None:
        self._path, self._store, self._kind, self._area, self._need = path, store, kind, area, need
        self._declared, self._within = kind.declared, within
        self._first, *self._rest = self._declared.key
        self._key = key or self._first.name
        self._one = f"{path}/{{{self._key}}}"
        self._noun, self._nouns, self._a_noun = kind.noun, kind.nouns, kind.a_noun
        self._soft = hasattr(kind, "restore")
        self._versioned = "version" in self._declared.fields

    def all(self) -> list[Operation]:
        """Return all operations that the store supports."""
        operations = [
            self._list(),
            self._count(),
            self._create(),
            self._get(),
            self._upsert(),
            self._update(),
            self._delete(),
        ]
        if self._declared.natural:
            operations.append(self._find())
        if self._soft:
            operations.append(self._restore())
        if hasattr(self._kind, "reveal"):
            operations.append(self._reveal())
        return operations

    def _list(self) -> Operation:
        page = page_type(self._declared.row)

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            rows = await store.list(
                limit=arguments["limit"], cursor=arguments["cursor"], **self._filter_values(arguments)
            )
            return page(list(rows), rows.next)

        parameters = self._filter_parameters() | {"limit": (Limit, PAGE_ROWS), "cursor": (Cursor, None)}
        summary = f"List {self._nouns}, a page at a time."
        return self._operation(
            "GET", self._path, "list", f"list_{_snake(self._nouns)}", parameters, page, call, summary
        )

    def _count(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return Count(await store.count(**self._filter_values(arguments)))

        # Where a key is any text, "count" could be a key.
        path = f"{self._path}/count" if self._first.kind == "id" else f"{self._path.removesuffix('s')}-count"
        summary = f"Count {self._nouns}."
        return self._operation(
            "GET", path, "count", f"count_{_snake(self._nouns)}", self._filter_parameters(), Count, call, summary
        )

    def _create(self) -> Operation:
        name = f"create_{_snake(self._noun)}"
        fields = self._new_fields(())
        takes_id = fields[self._first.name][1] is not UNSET
        body = body_type(name, fields)

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            values = present_fields(arguments["body"])
            if not takes_id:
                return await store.create(self._kind.new_type(**values))
            id = chosen_id(arguments["service"], values.get(self._first.name), arguments["idempotency_key"])
            values[self._first.name] = id
            with retry_id(id):
                return await store.create(self._kind.new_type(**values))

        parameters: Arguments = {"body": (body, UNSET)} | (
            {"idempotency_key": (IdempotencyKey, None)} if takes_id else {}
        )
        summary = f"Create {self._a_noun}. Repeating it with the same key and values is safe; other values are refused."
        return self._operation("POST", self._path, "create", name, parameters, self._declared.row, call, summary)

    def _get(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return await store.get(*self._key_of(arguments))

        summary = f"Get {self._a_noun}; 404 if it does not exist."
        return self._operation(
            "GET",
            self._one,
            "get",
            f"get_{_snake(self._noun)}",
            self._key_parameters(),
            self._declared.row,
            call,
            summary,
        )

    def _find(self) -> Operation:
        names = [field.name for field in self._declared.natural]
        # A part with a default is in the query: it can be empty, and a part of a path cannot.
        in_path = [name for name in names if name not in self._declared.defaults]

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            row = await store.find(*[arguments[name] for name in names])
            if row is None:
                key = arguments[in_path[-1]]
                raise errors.NotFound(f"{self._noun} {key!r} does not exist", noun=self._noun, key=key)
            return row

        # Where a key is any text, "by-name" could be a key.
        prefix = f"{self._path}/" if self._first.kind == "id" else f"{self._path.removesuffix('s')}-"
        path = f"{prefix}by-{'-and-'.join(in_path)}/{'/'.join(f'{{{name}}}' for name in in_path)}"
        parameters: Arguments = {name: (str, self._declared.defaults.get(name, UNSET)) for name in names}
        summary = f"Find {self._a_noun} by its {' and '.join(names)}; 404 if it does not exist."
        return self._operation(
            "GET", path, "find", f"find_{_snake(self._noun)}", parameters, self._declared.row, call, summary
        )

    def _upsert(self) -> Operation:
        name = f"upsert_{_snake(self._noun)}"
        body = body_type(name, self._new_fields((self._first.name,)))

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            values = present_fields(arguments["body"]) | {self._first.name: arguments[self._key]}
            return await store.upsert(self._kind.new_type(**values))

        parameters: Arguments = {self._key: (self._key_type(), UNSET), "body": (body, UNSET)}
        summary = f"Create {self._a_noun}, or replace the one with this key. A deleted one is restored."
        return self._operation("PUT", self._one, "upsert", name, parameters, self._declared.row, call, summary)

    def _update(self) -> Operation:
        name = f"update_{_snake(self._noun)}"
        fields = structs.fields(self._kind.change_type)
        body = body_type(name, {field.name: (self._wire(field), None) for field in fields})

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            change = self._kind.change_type(**present_fields(arguments["body"]))
            key, version = self._key_of(arguments), version_of(arguments.get("if_match"))
            return await _with_precondition(arguments, store.update(*key, change=change, version=version))

        parameters = self._key_parameters() | {"body": (body, UNSET)} | self._version_parameters()
        summary = f"Change the fields of {self._a_noun} that are in the body."
        return self._operation("PATCH", self._one, "update", name, parameters, self._declared.row, call, summary)

    def _delete(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            version = version_of(arguments.get("if_match"))
            await _with_precondition(arguments, store.delete(*self._key_of(arguments), version=version))

        note = " It can be restored." if self._soft else ""
        summary = f"Delete {self._a_noun}.{note}"
        parameters = self._key_parameters() | self._version_parameters()
        return self._operation(
            "DELETE", self._one, "delete", f"delete_{_snake(self._noun)}", parameters, NoneType, call, summary
        )

    def _restore(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return await store.restore(*self._key_of(arguments))

        summary = f"Undo the deletion of {self._a_noun}. A live one is returned unchanged."
        name = f"restore_{_snake(self._noun)}"
        return self._operation(
            "POST", f"{self._one}/restore", "restore", name, self._key_parameters(), self._declared.row, call, summary
        )

    def _reveal(self) -> Operation:
        secrets = _secrets_type(self._declared.row, tuple(self._declared.secrets))

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return secrets(**await store.reveal(*self._key_of(arguments)))

        summary = f"Return the secrets of {self._a_noun}, decrypted. The activity log gets an entry."
        name = f"reveal_{_snake(self._noun)}"
        return self._operation(
            "POST", f"{self._one}/reveal", "reveal", name, self._key_parameters(), secrets, call, summary
        )

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
            return await call(store, {**defaults, **arguments, "service": service})

        signature_of(function, name, {"tenant": (str, UNSET), **parameters}, returned, summary)
        function.made_from = (self._store, getattr(self._kind, method))  # type: ignore[attr-defined]
        compares = "if_match" in parameters
        usual: Need = "admin" if method == "reveal" else "read" if verb == "GET" else "write"
        return Operation(
            verb,
            path,
            function,
            204 if returned is NoneType else 201 if method == "create" else 200,
            _errors(verb, compares),
            version_etag if self._versioned and returned is self._declared.row else None,
            self._need.get(method, usual),
            self._area or self._path.rpartition("/")[2],
        )

    def _new_fields(self, without: Sequence[str]) -> Arguments:
        fields = [field for field in structs.fields(self._kind.new_type) if field.name not in without]
        return {field.name: (self._wire(field), UNSET if field.required else None) for field in fields}

    def _wire(self, field: structs.FieldInfo) -> Any:
        """Return the JSON type of a field of a body."""
        kinds = [kind for kind in choices(field.type) if kind not in (UnsetType, NoneType)]
        declared = self._declared.fields.get(field.name)
        if declared is not None and declared.kind == "id":
            hint: Any = Uuid
        else:
            hint = int if kinds == [int] else wire_type(field.name, Union[tuple(kinds)])  # noqa: UP007
        return hint | None if NoneType in choices(field.type) else hint

    def _filter_parameters(self) -> Arguments:
        """Return the parameters that restrict a list or a count."""
        parameters: Arguments = {name: (str, self._declared.defaults[name]) for name in self._within}
        parameters |= {"where": (Where, None)}
        parameters |= {"search": (Search, None)} if self._declared.searchable else {}
        return parameters | ({"tag": (Tag, None)} if self._declared.tags is not None else {})

    def _filter_values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        where = filters(arguments["where"], self._declared.row)
        where += [column(name).eq(arguments[name]) for name in self._within]
        if self._declared.tags is not None and arguments["tag"] is not None:
            where.append(column(self._declared.tags.name).contains(arguments["tag"]))
        return {"where": where, "search": arguments.get("search")}

    def _key_parameters(self) -> Arguments:
        """Return the parameters that identify a record."""
        defaults = self._declared.defaults
        rest: Arguments = {field.name: (str, defaults.get(field.name, UNSET)) for field in self._rest}
        return {self._key: (self._key_type(), UNSET)} | rest

    def _key_of(self, arguments: Mapping[str, Any]) -> list[str]:
        return [arguments[self._key], *(arguments[field.name] for field in self._rest)]

    def _key_type(self) -> Any:
        return Uuid if self._first.kind == "id" else str

    def _version_parameters(self) -> Arguments:
        return {"if_match": (IfMatch, None)} if self._versioned else {}


def _secrets_type(row: type[Struct], fields: Sequence[Any]) -> Any:
    """Return the type of a record's secrets, decrypted."""
    kinds = [(field.name, (dict[str, Any] if "dict" in str(field.type) else str) | None) for field in fields]
    doc = {"__doc__": f"The decrypted secrets of a {row.__name__}."}
    return defstruct(f"{row.__name__}Secrets", kinds, namespace=doc, frozen=True)


async def _with_precondition(arguments: Mapping[str, Any], change: Any) -> Any:
    try:
        return await change
    except Conflict as error:
        raise (PreconditionFailed(str(error)) if arguments.get("if_match") is not None else error) from error


def _errors(verb: str, compares: bool) -> tuple[type[HoldfastError], ...]:
    kinds: list[type[HoldfastError]] = [errors.NotFound]
    kinds += [] if verb == "GET" else [errors.Conflict, errors.AlreadyExists]
    return (*kinds, *([PreconditionFailed] if compares else []))


def _snake(noun: str) -> str:
    return noun.replace(" ", "_").lower()
