"""The operations of a record store, all of them from one line: ``records("/v1/tenants/{tenant}/agents", "agents", AsyncAgents)``.

The first part of a record's key stands in the path; the others are query parameters, except where a body has them. Where a
record has a version, it is its ETag, and ``If-Match`` compares it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Union

from msgspec import UNSET, Meta, UnsetType, structs

from holdfast import column, errors
from holdfast.errors import Conflict, HoldfastError

from .idempotency import IdempotencyKey, chosen_id, settled_by
from .operations import Need, Operation
from .pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from .parameters import choices
from .problems import NoLongerSo
from .schemas import Uuid, given
from .state import Service
from .store_routes import Count, IfMatch, Taken, body_type, page_type, signature_of, version_etag, version_of, wire_type

Kind = Any
"""The asynchronous class of a record store."""
Search = Annotated[str | None, Meta(description="Text to look for; ASCII letters match in either case.")]
Tag = Annotated[str | None, Meta(description="Only those with this tag.")]


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
    """The operations of a record store.

    Args:
        path: where the records are.
        store: the name of the store on a tenant's handle.
        area: as in ``operation``.
        key: the name of the key in the path, if it is not that of its field.
        within: parts of the key that a list is confined to; without a value, to their default.
        need: what single operations ask of a caller, if it is not the usual scope; by the name of the method.
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
        """Every operation that the store has."""
        found = [
            self._list(),
            self._count(),
            self._create(),
            self._get(),
            self._upsert(),
            self._update(),
            self._delete(),
        ]
        if self._declared.natural:
            found.append(self._find())
        if self._soft:
            found.append(self._restore())
        return found

    def _list(self) -> Operation:
        page = page_type(self._declared.row)

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            rows = await store.list(limit=arguments["limit"], cursor=arguments["cursor"], **self._chosen(arguments))
            return page(list(rows), rows.next)

        taken = self._choosing() | {"limit": (Limit, PAGE_ROWS), "cursor": (Cursor, None)}
        words = f"List {self._nouns}, a page at a time."
        return self._made("GET", self._path, "list", f"list_{_snake(self._nouns)}", taken, page, call, words)

    def _count(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return Count(await store.count(**self._chosen(arguments)))

        # Where a key is any text, a count must not stand where a key may stand.
        path = f"{self._path}/count" if self._first.kind == "id" else f"{self._path.removesuffix('s')}-count"
        words = f"Count {self._nouns}."
        return self._made("GET", path, "count", f"count_{_snake(self._nouns)}", self._choosing(), Count, call, words)

    def _create(self) -> Operation:
        name = f"create_{_snake(self._noun)}"
        fields = self._new_fields(())
        takes_id = fields[self._first.name][1] is not UNSET
        body = body_type(name, fields)

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            values = given(arguments["body"])
            if not takes_id:
                return await store.create(self._kind.new_type(**values))
            chosen = chosen_id(arguments["service"], values.get(self._first.name), arguments["idempotency_key"])
            values[self._first.name] = chosen
            with settled_by(chosen):
                return await store.create(self._kind.new_type(**values))

        taken: Taken = {"body": (body, UNSET)} | ({"idempotency_key": (IdempotencyKey, None)} if takes_id else {})
        words = f"Create {self._a_noun}. The same key with the same values can be sent again; other values are refused."
        return self._made("POST", self._path, "create", name, taken, self._declared.row, call, words)

    def _get(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return await store.get(*self._key_of(arguments))

        words = f"Get one {self._noun}; 404 if there is none."
        return self._made(
            "GET", self._one, "get", f"get_{_snake(self._noun)}", self._at(), self._declared.row, call, words
        )

    def _find(self) -> Operation:
        names = [each.name for each in self._declared.natural]

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            found = await store.find(*[arguments[name] for name in names])
            if found is None:
                raise errors.NotFound(f"there is no {self._noun} {arguments[names[-1]]!r}")
            return found

        path = f"{self._path}/by-{'-and-'.join(names)}/{'/'.join(f'{{{name}}}' for name in names)}"
        taken: Taken = dict.fromkeys(names, (str, UNSET))
        words = f"Find {self._a_noun} by its {' and '.join(names)}; 404 if there is none."
        return self._made("GET", path, "find", f"find_{_snake(self._noun)}", taken, self._declared.row, call, words)

    def _upsert(self) -> Operation:
        name = f"upsert_{_snake(self._noun)}"
        body = body_type(name, self._new_fields((self._first.name,)))

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            values = given(arguments["body"]) | {self._first.name: arguments[self._key]}
            return await store.upsert(self._kind.new_type(**values))

        taken: Taken = {self._key: (self._key_type(), UNSET), "body": (body, UNSET)}
        words = f"Create {self._a_noun}, or change the one with this key to what is given. A deleted one becomes live again."
        return self._made("PUT", self._one, "upsert", name, taken, self._declared.row, call, words)

    def _update(self) -> Operation:
        name = f"update_{_snake(self._noun)}"
        fields = structs.fields(self._kind.change_type)
        body = body_type(name, {each.name: (self._wire(each), None) for each in fields})

        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            change = self._kind.change_type(**given(arguments["body"]))
            key, version = self._key_of(arguments), version_of(arguments.get("if_match"))
            return await _compared(arguments, store.update(*key, change=change, version=version))

        taken = self._at() | {"body": (body, UNSET)} | self._comparing()
        words = f"Change the fields of {self._a_noun} that are in the body."
        return self._made("PATCH", self._one, "update", name, taken, self._declared.row, call, words)

    def _delete(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            version = version_of(arguments.get("if_match"))
            await _compared(arguments, store.delete(*self._key_of(arguments), version=version))

        can_be_undone = " It can be restored." if self._soft else ""
        words = f"Delete {self._a_noun}.{can_be_undone}"
        taken = self._at() | self._comparing()
        return self._made("DELETE", self._one, "delete", f"delete_{_snake(self._noun)}", taken, NoneType, call, words)

    def _restore(self) -> Operation:
        async def call(store: Any, arguments: dict[str, Any]) -> Any:
            return await store.restore(*self._key_of(arguments))

        words = f"Undo the deletion of {self._a_noun}. A live one is returned unchanged."
        name = f"restore_{_snake(self._noun)}"
        return self._made("POST", f"{self._one}/restore", "restore", name, self._at(), self._declared.row, call, words)

    def _made(
        self,
        verb: str,
        path: str,
        method: str,
        name: str,
        taken: Taken,
        returned: Any,
        call: Callable[[Any, dict[str, Any]], Any],
        words: str,
    ) -> Operation:
        defaults = {each: default for each, (_, default) in taken.items() if default is not UNSET}

        async def function(service: Service, **arguments: Any) -> Any:
            store = getattr(service.tenant(arguments.pop("tenant")), self._store)
            return await call(store, {**defaults, **arguments, "service": service})

        signature_of(function, name, {"tenant": (str, UNSET), **taken}, returned, words)
        function.made_from = (self._store, getattr(self._kind, method))  # type: ignore[attr-defined]
        compares = "if_match" in taken
        usual: Need = "read" if verb == "GET" else "write"
        return Operation(
            verb,
            path,
            function,
            204 if returned is NoneType else 201 if method == "create" else 200,
            _raised(verb, compares),
            version_etag if self._versioned and returned is self._declared.row else None,
            self._need.get(method, usual),
            self._area or self._path.rpartition("/")[2],
        )

    def _new_fields(self, without: Sequence[str]) -> Taken:
        fields = [each for each in structs.fields(self._kind.new_type) if each.name not in without]
        return {each.name: (self._wire(each), UNSET if each.required else None) for each in fields}

    def _wire(self, field: structs.FieldInfo) -> Any:
        """The type of a field of a body."""
        kinds = [each for each in choices(field.type) if each not in (UnsetType, NoneType)]
        declared = self._declared.fields.get(field.name)
        if declared is not None and declared.kind == "id":
            found: Any = Uuid
        else:
            found = int if kinds == [int] else wire_type(field.name, Union[tuple(kinds)])  # noqa: UP007
        return found | None if NoneType in choices(field.type) else found

    def _choosing(self) -> Taken:
        """What a list and a count can be confined to."""
        found: Taken = {name: (str, self._declared.defaults[name]) for name in self._within}
        found |= {"where": (Where, None)}
        found |= {"search": (Search, None)} if self._declared.searchable else {}
        return found | ({"tag": (Tag, None)} if self._declared.tags is not None else {})

    def _chosen(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        where = filters(arguments["where"], self._declared.row)
        where += [column(name).eq(arguments[name]) for name in self._within]
        if self._declared.tags is not None and arguments["tag"] is not None:
            where.append(column(self._declared.tags.name).contains(arguments["tag"]))
        return {"where": where, "search": arguments.get("search")}

    def _at(self) -> Taken:
        """The parameters that identify a record."""
        defaults = self._declared.defaults
        rest: Taken = {each.name: (str, defaults.get(each.name, UNSET)) for each in self._rest}
        return {self._key: (self._key_type(), UNSET)} | rest

    def _key_of(self, arguments: Mapping[str, Any]) -> list[str]:
        return [arguments[self._key], *(arguments[each.name] for each in self._rest)]

    def _key_type(self) -> Any:
        return Uuid if self._first.kind == "id" else str

    def _comparing(self) -> Taken:
        return {"if_match": (IfMatch, None)} if self._versioned else {}


async def _compared(arguments: Mapping[str, Any], made: Any) -> Any:
    try:
        return await made
    except Conflict as error:
        raise (NoLongerSo(str(error)) if arguments.get("if_match") is not None else error) from error


def _raised(verb: str, compares: bool) -> tuple[type[HoldfastError], ...]:
    usual: list[type[HoldfastError]] = [errors.NotFound]
    usual += [] if verb == "GET" else [errors.Conflict, errors.AlreadyExists]
    return (*usual, *([NoLongerSo] if compares else []))


def _snake(noun: str) -> str:
    return noun.replace(" ", "_")
