"""Operations derived from store methods: their parameters and results define the requests and responses.

A call of ``route`` names a verb, a path and a method. Arguments that are named in the path are taken from there. The others are
query parameters of GET and DELETE, and fields of the body otherwise. A page becomes ``{"items": ..., "next": ...}``, a
list ``{"items": ...}``, and a number ``{"count": ...}``; a ``None`` result of ``find`` becomes 404. The descriptions in the
document are the docstrings. If the method takes an ``id``, an ``Idempotency-Key`` can provide it; if it takes a ``version``,
``If-Match`` provides it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import Filter, NewMessage, Page, errors
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.ids import Id
from holdfast.types import SearchPage, Session

from .idempotency import IdempotencyKey, chosen_id, retry_id
from .operations import Header, Need, Operation
from .pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from .parameters import choices, without_annotations, without_none
from .problems import PreconditionFailed
from .schemas import HitPage, MessageToAppend, Metadata, Uuid, present_fields
from .state import Service

Method = Callable[..., Awaitable[Any]]
IfMatch = Annotated[
    str | None,
    Header("If-Match"),
    Meta(description="The ETag that the object must have; otherwise nothing is changed."),
]
NonNegativeInt = Annotated[int, Meta(ge=0, le=2**53)]
Timestamp = Annotated[datetime, Meta(tz=True)]

_GLOBAL_STORES = {"api_keys", "erasures", "run_queue", "tenants"}
"""Stores that are attributes of the Holdfast instead of a tenant's handle."""
_IN_PATH = re.compile(r"{(\w+)}")
_RAISED = re.compile(r"^    (\w+):", re.MULTILINE)
_OR_NONE = re.compile(r",? or ``None``( [^.]*)?\.")
_DOUBLE_BACKTICKS = re.compile(r"``([^`]*)``")


class Count(Struct, frozen=True):
    """A number of objects."""

    count: int


class ChangeResult(Struct, frozen=True):
    """Whether anything was changed."""

    done: bool


class CurrentId(Struct, frozen=True):
    """The id of the current object, or null."""

    id: str | None


class _Shape(NamedTuple):
    """A response type, and the conversion of a method's result to it."""

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
    summary: str = "",
    fixed: Mapping[str, Any] | None = None,
    renamed: Mapping[str, str] | None = None,
    row: type[Struct] | None = None,
    notifies: str = "",
) -> Operation:
    """Return an operation that calls a store method.

    Args:
        store: the attribute of a tenant's handle, or of the Holdfast if it concerns all tenants.
        name: the name of the operation.
        need, area: as in ``operation``.
        status: the status of success; by default 201 if POST creates an object, 204 if nothing is returned, or 200.
        leave_out: arguments that are not part of the request.
        summary: a summary instead of the docstring's.
        fixed: arguments that have the same value for every request.
        renamed: JSON keys of the body that differ from the names of the arguments.
        row: the type of the rows, if the method is inherited and its result generic, or filters rows that it does not return.
        notifies: the path parameter whose topic is published after the call.
    """
    arguments_by_name = _arguments(path, method, (*leave_out, *(fixed or ())))
    returned = _with_row(get_type_hints(method)["return"], row)
    shape = _shape(returned)
    versioned = _has_version(shape.type)
    compares = "version" in arguments_by_name
    filtered = row or _row_of(returned)
    signature, body = _signature(verb, path, arguments_by_name, name, compares=compares, renamed=renamed)
    takes_id = body is not None and "id" in arguments_by_name
    call = _StoreCall(store, method, shape, dict(fixed or {}), filtered, takes_id, notifies)

    async def function(service: Service, **arguments: Any) -> Any:
        return await call(service, arguments)

    function.made_from = (store, method)  # type: ignore[attr-defined]
    description = _description(method, summary, finds=shape.of is _not_none)
    signature_of(function, name, signature, shape.type, description)
    creates = verb == "POST" and name.startswith(("create_", "start_", "append_", "fork_", "record_"))
    usual = 204 if shape.type is NoneType else 201 if creates else 200
    return Operation(
        verb,
        path,
        function,
        status or usual,
        _errors(method, verb, compares),
        version_etag if versioned else None,
        need or ("read" if verb == "GET" else "write"),
        area,
    )


def version_etag(row: Any) -> str:
    """Return the ETag of a versioned row."""
    return f'"{row.version}"'


class _StoreCall:
    """Calls a store method with the arguments of a request."""

    def __init__(
        self,
        store: str,
        method: Method,
        shape: _Shape,
        fixed: Mapping[str, Any],
        row: type[Struct] | None,
        takes_id: bool,
        notifies: str,
    ) -> None:
        self._store, self._method, self._shape, self._fixed = store, method, shape, fixed
        self._row, self._takes_id, self._notifies = row, takes_id, notifies

    async def __call__(self, service: Service, arguments: dict[str, Any]) -> Any:
        body = arguments.pop("body", None)
        if body is not None:
            arguments.update(present_fields(body))
        tenant = arguments.get("tenant", "")
        store = self._store_of(service, arguments)
        if_match = arguments.pop("if_match", None)
        version = version_of(if_match)
        if version is not None:
            arguments["version"] = version
        if arguments.get("where") is not None:
            arguments["where"] = filters(arguments["where"], self._row or Session)
        topic = arguments.get(self._notifies)
        try:
            result = await self._run(service, store, arguments)
        except Conflict as error:
            raise (PreconditionFailed(str(error)) if if_match is not None else error) from error
        if topic is not None:
            service.notifier.publish(f"{tenant}/{topic}")
        return self._shape.of(result)

    def _store_of(self, service: Service, arguments: dict[str, Any]) -> Any:
        """Return the store. The tenant's name is an argument of the method only if the store is global."""
        if self._store in _GLOBAL_STORES:
            return getattr(service.holdfast, self._store)
        return getattr(service.tenant(arguments.pop("tenant")), self._store)

    async def _run(self, service: Service, store: Any, arguments: dict[str, Any]) -> Any:
        if not self._takes_id:
            return await self._method(store, **arguments, **self._fixed)
        id = chosen_id(service, arguments.pop("id", None), arguments.pop("idempotency_key", None))
        with retry_id(id):
            return await self._method(store, **arguments, **self._fixed, id=id)


Arguments = dict[str, tuple[Any, Any]]
"""Arguments by name: their type and their default, or ``UNSET`` for required ones."""


def _arguments(path: str, method: Method, leave_out: Sequence[str]) -> Arguments:
    hints = get_type_hints(method, include_extras=True)
    arguments: Arguments = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name != "self" and name not in leave_out:
            default = UNSET if parameter.default is inspect.Parameter.empty else parameter.default
            arguments[name] = (wire_type(name, hints[name]), default)
    missing = set(_IN_PATH.findall(path)) - set(arguments) - {"tenant"}
    if missing:
        raise ValueError(f"{path} names {missing}, which are not parameters of the method")
    return arguments


def _signature(
    verb: str, path: str, arguments: Arguments, name: str, *, compares: bool, renamed: Mapping[str, str] | None = None
) -> tuple[Arguments, Any]:
    """Return the parameters of the operation's function, and the type of its body, if it has one."""
    in_path = set(_IN_PATH.findall(path))
    rest = {
        argument: arguments[argument]
        for argument in arguments
        if argument not in in_path and not (compares and argument == "version")
    }
    parameters: Arguments = {
        argument: ((arguments[argument][0] if argument in arguments else str), UNSET)
        for argument in _IN_PATH.findall(path)
    }
    body = None
    if verb in ("GET", "DELETE"):
        parameters.update({argument: _in_query(argument, *rest[argument]) for argument in rest})
    elif rest:
        body = body_type(name, rest, renamed)
        parameters["body"] = (body, UNSET)
        if "id" in rest and "id" not in in_path:
            parameters["idempotency_key"] = (IdempotencyKey, None)
    if compares:
        parameters["if_match"] = (IfMatch, None)
    return parameters, body


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


def body_type(name: str, fields: Arguments, renamed: Mapping[str, str] | None = None) -> Any:
    """Return a struct type with these fields; those with a default are optional."""
    defined: list[Any] = [
        (field, kind) if default is UNSET else (field, kind | UnsetType, UNSET)
        for field, (kind, default) in sorted(fields.items(), key=lambda item: item[1][1] is not UNSET)
    ]
    title = "".join(word.title() for word in name.split("_"))
    doc = f"The body of `{name}`."
    return msgspec.defstruct(
        title, defined, namespace={"__doc__": doc}, frozen=True, forbid_unknown_fields=True, rename=renamed
    )


def signature_of(function: Any, name: str, arguments: Arguments, returned: Any, description: str) -> None:
    """Set the name, signature and docstring of a function, which describe the operation."""
    kinds = inspect.Parameter
    parameters = [kinds("service", kinds.POSITIONAL_OR_KEYWORD)]
    for argument, (_, default) in sorted(arguments.items(), key=lambda item: item[1][1] is not UNSET):
        empty = kinds.empty if default is UNSET else default
        parameters.append(kinds(argument, kinds.KEYWORD_ONLY, default=empty))
    function.__name__, function.__doc__ = name, description
    function.__annotations__ = {**{argument: hint for argument, (hint, _) in arguments.items()}, "return": returned}
    function.__signature__ = inspect.Signature(parameters)


def wire_type(name: str, hint: Any) -> Any:
    """Return the JSON type of an argument."""
    bare = without_none(hint)
    if get_origin(bare) in (Mapping, dict):
        return Metadata if name == "metadata" else dict[str, get_args(bare)[1]]  # type: ignore[misc]
    if get_origin(bare) in (Sequence, list):
        return list[wire_type(name, get_args(bare)[0])]  # type: ignore[misc]
    if bare == Id:
        return Uuid
    bare = without_annotations(bare)
    if bare is int:
        return NonNegativeInt
    if bare is datetime:
        return Timestamp
    return _input_type(bare)


@cache
def _input_type(kind: Any) -> Any:
    """Return a type for input: a row that a client sends must not have unknown fields."""
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
        return _Shape(HitPage, lambda page: HitPage([*page], page.next, page.complete, page.sessions_behind))
    if get_origin(bare) is Page:
        page = page_type(get_args(bare)[0])
        return _Shape(page, lambda rows: page(list(rows), rows.next))
    if get_origin(bare) in (Sequence, list):
        list_of = _list_type(get_args(bare)[0], with_next=False)
        return _Shape(list_of, lambda rows: list_of(list(rows)))
    if bare is bool:
        return _Shape(ChangeResult, ChangeResult)
    if bare is int:
        return _Shape(Count, Count)
    if bare is str:
        return _Shape(CurrentId, CurrentId)
    if get_origin(bare) in (Mapping, dict):
        return _Shape(dict[str, get_args(bare)[1]], lambda result: {str(key): result[key] for key in result})  # type: ignore[misc]
    if NoneType in choices(hint) and bare is not NoneType:
        return _Shape(bare, _not_none)
    return _Shape(bare, lambda result: result)


def page_type(row: Any) -> Any:
    """Return the type of a page of rows."""
    return _list_type(row, with_next=True)


@cache
def _list_type(row: Any, *, with_next: bool) -> Any:
    fields: list[Any] = [("items", list[row])]
    name = "Id" if row is str else row.__name__[0].upper() + row.__name__[1:]
    if with_next:
        note = Meta(description="The cursor of the next page, or null on the last page.")
        fields.append(("next", Annotated[str | None, note]))
    doc = {"__doc__": f"A page of {name}." if with_next else f"A complete list of {name}."}
    return msgspec.defstruct(f"{name}{'Page' if with_next else 'List'}", fields, namespace=doc, frozen=True)


def _row_of(hint: Any) -> type[Struct] | None:
    row = get_args(hint)[0] if get_origin(hint) in (Page, Sequence) else None
    return row if isinstance(row, type) and issubclass(row, Struct) else None


def _with_row(hint: Any, row: Any) -> Any:
    """Return the type of a result; ``row`` replaces the type parameter of a generic one."""
    if isinstance(hint, TypeVar):
        return row
    if not any(isinstance(argument, TypeVar) for argument in get_args(hint)):
        return hint
    return Page[row] if get_origin(hint) is Page else row | None


def _not_none(result: Any) -> Any:
    if result is None:
        raise NotFound("this object does not exist")
    return result


def _has_version(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct) and "version" in kind.__struct_fields__


def version_of(if_match: str | None) -> int | None:
    """Return the version in an ``If-Match`` header, or ``None`` if it is missing or ``*``.

    Raises:
        InvalidInput: it is not the ETag of a version.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    version = if_match.strip().strip('"')
    if not version.isascii() or not version.isdecimal() or len(version) > 15:
        raise InvalidInput(
            f'If-Match must be the ETag of a response, such as "7", not {if_match[:60]!r}', field="If-Match"
        )
    return int(version)


def _errors(method: Method, verb: str, compares: bool) -> tuple[type[HoldfastError], ...]:
    """Return the errors in the method's docstring, and those that every operation of a tenant can raise."""
    raises = inspect.cleandoc(method.__doc__ or "").partition("\nRaises:\n")[2]
    documented = [getattr(errors, name) for name in _RAISED.findall(raises) if hasattr(errors, name)]
    usual = [NotFound] if verb == "GET" else [NotFound, Conflict, errors.AlreadyExists]
    return tuple(dict.fromkeys([*documented, *usual, *([PreconditionFailed] if compares else [])]))


def _description(method: Method, summary: str, *, finds: bool) -> str:
    """Return the docstring without the parts that concern Python only. A ``None`` result is 404 over HTTP."""
    text = summary or inspect.cleandoc(method.__doc__ or "")
    text = re.split(r"\n\n?(?:Args|Raises|Returns):\n", text)[0]
    if finds:
        text = _OR_NONE.sub(lambda match: f"; 404{match[1] or ' if it does not exist'}.", text, count=1)
    return _DOUBLE_BACKTICKS.sub(r"`\1`", text)
