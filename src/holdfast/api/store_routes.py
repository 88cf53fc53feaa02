"""Operations that are made from the methods of the stores: what a method takes and returns is what travels.

A line of the table names a verb, a path and a method. Arguments that stand in the path come from there. The others are query
parameters of GET and DELETE, and the fields of the body of everything else. A page travels as ``{"items": ..., "next": ...}``, a
list as ``{"items": ...}``, a number as ``{"count": ...}``; what a ``find`` does not find is 404. The words of the document are
those of the docstring. Where the method takes an id of the caller's, an ``Idempotency-Key`` is one too, and where it compares a
version, ``If-Match`` is that.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import Filter, NewMessage, Page, errors
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.ids import Id
from holdfast.types import SearchPage, Session

from .idempotency import IdempotencyKey, chosen_id, settled_by
from .operations import Header, Need, Operation
from .pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from .parameters import choices, without_none, without_notes
from .problems import NoLongerSo
from .schemas import HitPage, MessageToAppend, Metadata, Uuid, given
from .state import Service

Method = Callable[..., Awaitable[Any]]
IfMatch = Annotated[
    str | None, Header("If-Match"), Meta(description="The ETag it must still have; otherwise nothing is changed.")
]
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[datetime, Meta(tz=True)]

_OF_ALL_TENANTS = {"api_keys", "erasures", "run_queue", "tenants"}
"""Stores that are found on the Holdfast itself, and not on a tenant's handle."""
_IN_PATH = re.compile(r"{(\w+)}")
_RAISED = re.compile(r"^    (\w+):", re.MULTILINE)
_OR_NONE = re.compile(r",? or ``None``( [^.]*)?\.")
_MARKS = re.compile(r"``([^`]*)``")


class Count(Struct, frozen=True):
    """How many."""

    count: int


class Whether(Struct, frozen=True):
    """Whether there was anything to do."""

    done: bool


class Named(Struct, frozen=True):
    """The id of what there is now, or null if there is nothing."""

    id: str | None


class _Shape(NamedTuple):
    """The type that travels, and how what a method returns becomes it."""

    type: Any
    of: Callable[[Any], Any]


def route(
    verb: str,
    path: str,
    store: str,
    method: Method,
    name: str,
    *,
    need: Need | None = None,
    area: str = "",
    status: int | None = None,
    leave_out: Sequence[str] = (),
    words: str = "",
    fixed: Mapping[str, Any] | None = None,
    renamed: Mapping[str, str] | None = None,
    row: type[Struct] | None = None,
    tells: str = "",
) -> Operation:
    """One operation.

    Args:
        store: where the method is found on a tenant's handle, or on the Holdfast if it is about all tenants.
        name: what the operation is called.
        need, area: as in ``operation``.
        status: that of a good answer; without it 201 where something is made by POST, 204 where nothing is returned, or 200.
        leave_out: arguments that do not travel.
        words: a summary instead of the docstring's.
        fixed: arguments that are the same for every request.
        renamed: keys of the JSON body that differ from the argument's name.
        row: what filters are about, where the method does not return it.
        tells: the name of a path's part whose listeners are told.
    """
    taken = _taken(path, method, (*leave_out, *(fixed or ())))
    shape = _shape(get_type_hints(method)["return"])
    versioned = _has_version(shape.type)
    compares = "version" in taken
    filtered = row or _row_of(get_type_hints(method)["return"])
    signature, body = _signature(verb, path, taken, name, compares=compares, renamed=renamed)
    call = _Call(store, method, shape, dict(fixed or {}), filtered, body is not None and "id" in taken, tells)

    async def function(service: Service, **arguments: Any) -> Any:
        return await call(service, arguments)

    function.made_from = (store, method)  # type: ignore[attr-defined]
    signature_of(function, name, signature, shape.type, _words(method, words, finds=shape.of is _found))
    made = 201 if verb == "POST" and name.startswith(("create_", "start_", "append_", "fork_", "record_")) else 200
    usual = 204 if shape.type is NoneType else made
    return Operation(
        verb,
        path,
        function,
        status or usual,
        _raised(method, verb, compares),
        version_etag if versioned else None,
        need or ("read" if verb == "GET" else "write"),
        area,
    )


def version_etag(thing: Any) -> str:
    """What the version of a thing is called in HTTP."""
    return f'"{thing.version}"'


class _Call:
    """What is done for a request."""

    def __init__(
        self,
        store: str,
        method: Method,
        shape: _Shape,
        fixed: Mapping[str, Any],
        row: type[Struct] | None,
        takes_id: bool,
        tells: str,
    ) -> None:
        self._store, self._method, self._shape, self._fixed = store, method, shape, fixed
        self._row, self._takes_id, self._tells = row, takes_id, tells

    async def __call__(self, service: Service, arguments: dict[str, Any]) -> Any:
        body = arguments.pop("body", None)
        if body is not None:
            arguments.update(given(body))
        tenant = arguments.get("tenant", "")
        store = self._found(service, arguments)
        if_match = arguments.pop("if_match", None)
        version = version_of(if_match)
        if version is not None:
            arguments["version"] = version
        if arguments.get("where") is not None:
            arguments["where"] = filters(arguments["where"], self._row or Session)
        told = arguments.get(self._tells)
        try:
            result = await self._made(service, store, arguments)
        except Conflict as error:
            raise (NoLongerSo(str(error)) if if_match is not None else error) from error
        if told is not None:
            service.notifier.publish(f"{tenant}/{told}")
        return self._shape.of(result)

    def _found(self, service: Service, arguments: dict[str, Any]) -> Any:
        """The store; the tenant's name is an argument only where the store is not the tenant's own."""
        if self._store in _OF_ALL_TENANTS:
            return getattr(service.holdfast, self._store)
        return getattr(service.tenant(arguments.pop("tenant")), self._store)

    async def _made(self, service: Service, store: Any, arguments: dict[str, Any]) -> Any:
        if not self._takes_id:
            return await self._method(store, **arguments, **self._fixed)
        id = chosen_id(service, arguments.pop("id", None), arguments.pop("idempotency_key", None))
        with settled_by(id):
            return await self._method(store, **arguments, **self._fixed, id=id)


Taken = dict[str, tuple[Any, Any]]
"""Arguments by name: their type, and what they are if nobody says."""


def _taken(path: str, method: Method, leave_out: Sequence[str]) -> Taken:
    hints = get_type_hints(method, include_extras=True)
    found: Taken = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name != "self" and name not in leave_out:
            default = UNSET if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = (wire_type(name, hints[name]), default)
    missing = set(_IN_PATH.findall(path)) - set(found) - {"tenant"}
    if missing:
        raise ValueError(f"{path} names {missing}, which the method does not take")
    return found


def _signature(
    verb: str, path: str, taken: Taken, name: str, *, compares: bool, renamed: Mapping[str, str] | None = None
) -> tuple[Taken, Any]:
    """Where every argument comes from: the parameters of the function, and the type of the body if it has one."""
    in_path = set(_IN_PATH.findall(path))
    rest = {each: taken[each] for each in taken if each not in in_path and not (compares and each == "version")}
    found: Taken = {each: ((taken[each][0] if each in taken else str), UNSET) for each in _IN_PATH.findall(path)}
    body = None
    if verb in ("GET", "DELETE"):
        found.update({each: _in_query(each, *rest[each]) for each in rest})
    elif rest:
        body = body_type(name, rest, renamed)
        found["body"] = (body, UNSET)
        if "id" in rest and "id" not in in_path:
            found["idempotency_key"] = (IdempotencyKey, None)
    if compares:
        found["if_match"] = (IfMatch, None)
    return found, body


def _in_query(name: str, kind: Any, default: Any) -> tuple[Any, Any]:
    if name == "limit":
        return Limit, PAGE_ROWS if default is None else default
    if name == "cursor":
        return Cursor, None
    if name == "where":
        return Where, None
    if default == ():
        default = None
    return (kind if default is UNSET else kind | None), default


def body_type(name: str, fields: Taken, renamed: Mapping[str, str] | None = None) -> Any:
    """The type of a body with these fields; those with a default need not be there."""
    defined: list[Any] = [
        (each, kind) if default is UNSET else (each, kind | UnsetType, UNSET)
        for each, (kind, default) in sorted(fields.items(), key=lambda item: item[1][1] is not UNSET)
    ]
    title = "".join(word.title() for word in name.split("_"))
    doc = f"What `{name}` is given."
    return msgspec.defstruct(
        title, defined, namespace={"__doc__": doc}, frozen=True, forbid_unknown_fields=True, rename=renamed
    )


def signature_of(function: Any, name: str, taken: Taken, returned: Any, words: str) -> None:
    """Give a function the name, the parameters and the words that an operation is read from."""
    kinds = inspect.Parameter
    parameters = [kinds("service", kinds.POSITIONAL_OR_KEYWORD)]
    for each, (_, default) in sorted(taken.items(), key=lambda item: item[1][1] is not UNSET):
        empty = kinds.empty if default is UNSET else default
        parameters.append(kinds(each, kinds.KEYWORD_ONLY, default=empty))
    function.__name__, function.__doc__ = name, words
    function.__annotations__ = {**{each: hint for each, (hint, _) in taken.items()}, "return": returned}
    function.__signature__ = inspect.Signature(parameters)


def wire_type(name: str, hint: Any) -> Any:
    """The type of an argument as it travels."""
    bare = without_none(hint)
    if get_origin(bare) in (Mapping, dict):
        return Metadata if name == "metadata" else dict[str, get_args(bare)[1]]  # type: ignore[misc]
    if get_origin(bare) in (Sequence, list):
        return list[wire_type(name, get_args(bare)[0])]  # type: ignore[misc]
    if bare == Id:
        return Uuid
    bare = without_notes(bare)
    if bare is int:
        return Whole
    if bare is datetime:
        return Moment
    return _strict(bare)


@cache
def _strict(kind: Any) -> Any:
    """A row that comes from outside must have no field that nobody knows."""
    if kind is NewMessage:
        return MessageToAppend
    is_row = isinstance(kind, type) and issubclass(kind, Struct) and kind is not Filter
    if not is_row or kind.__struct_config__.forbid_unknown_fields:
        return kind
    name = kind.__name__ if kind.__name__.startswith("New") else f"{kind.__name__}Given"
    doc = {"__doc__": inspect.cleandoc(kind.__doc__ or ""), "__module__": __name__}
    return msgspec.defstruct(name, [], bases=(kind,), namespace=doc, frozen=True, forbid_unknown_fields=True)


def _shape(hint: Any) -> _Shape:
    bare = without_none(hint) if hint is not NoneType else NoneType
    if bare is SearchPage:
        return _Shape(HitPage, lambda found: HitPage([*found], found.next, found.complete, found.sessions_behind))
    if get_origin(bare) is Page:
        page = page_type(get_args(bare)[0])
        return _Shape(page, lambda rows: page(list(rows), rows.next))
    if get_origin(bare) in (Sequence, list):
        several = _several(get_args(bare)[0], with_next=False)
        return _Shape(several, lambda rows: several(list(rows)))
    if bare is bool:
        return _Shape(Whether, Whether)
    if bare is int:
        return _Shape(Count, Count)
    if bare is str:
        return _Shape(Named, Named)
    if get_origin(bare) in (Mapping, dict):
        return _Shape(dict[str, get_args(bare)[1]], lambda found: {str(each): found[each] for each in found})  # type: ignore[misc]
    if NoneType in choices(hint) and bare is not NoneType:
        return _Shape(bare, _found)
    return _Shape(bare, lambda result: result)


def page_type(row: Any) -> Any:
    """The type of a page of rows."""
    return _several(row, with_next=True)


@cache
def _several(row: Any, *, with_next: bool) -> Any:
    fields: list[Any] = [("items", list[row])]
    name = "Id" if row is str else row.__name__[0].upper() + row.__name__[1:]
    if with_next:
        note = Meta(description="The cursor of the next page, or null at the end.")
        fields.append(("next", Annotated[str | None, note]))
    doc = {"__doc__": f"A page of {name}." if with_next else f"All of {name} there are."}
    return msgspec.defstruct(f"{name}{'Page' if with_next else 'List'}", fields, namespace=doc, frozen=True)


def _row_of(hint: Any) -> type[Struct] | None:
    row = get_args(hint)[0] if get_origin(hint) in (Page, Sequence) else None
    return row if isinstance(row, type) and issubclass(row, Struct) else None


def _found(result: Any) -> Any:
    if result is None:
        raise NotFound("there is nothing by that name here")
    return result


def _has_version(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct) and "version" in kind.__struct_fields__


def version_of(if_match: str | None) -> int | None:
    """The version that ``If-Match`` names, if it names one.

    Raises:
        InvalidInput: it is no ETag of a version.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    written = if_match.strip().strip('"')
    if not written.isascii() or not written.isdecimal() or len(written) > 15:
        raise InvalidInput(f'If-Match takes one ETag as it was read, such as "7", not {if_match[:60]!r}')
    return int(written)


def _raised(method: Method, verb: str, compares: bool) -> tuple[type[HoldfastError], ...]:
    """What the docstring says it raises, and what everything below a tenant can end in."""
    words = inspect.cleandoc(method.__doc__ or "").partition("\nRaises:\n")[2]
    named = [getattr(errors, each) for each in _RAISED.findall(words) if hasattr(errors, each)]
    usual = [NotFound] if verb == "GET" else [NotFound, Conflict, errors.AlreadyExists]
    return tuple(dict.fromkeys([*named, *usual, *([NoLongerSo] if compares else [])]))


def _words(method: Method, words: str, *, finds: bool) -> str:
    """The docstring, without what only concerns Python. What a method does not find is 404 over HTTP."""
    text = words or inspect.cleandoc(method.__doc__ or "")
    text = re.split(r"\n\n?(?:Args|Raises|Returns):\n", text)[0]
    if finds:
        text = _OR_NONE.sub(lambda match: f"; 404{match[1] or ' if there is none'}.", text, count=1)
    return _MARKS.sub(r"`\1`", text)
