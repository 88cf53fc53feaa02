"""What a function's signature says about a request; read by the handlers and by the OpenAPI document alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

from .operations import Function, Header, Operation

_IN_PATH = re.compile(r"{(\w+)}")

Place = Literal["path", "query", "header"]


class Parameter(Struct, frozen=True):
    """One argument of an operation, and where in the request it comes from."""

    name: str
    type: Any
    place: Place
    wire_name: str
    default: Any = UNSET

    @property
    def required(self) -> bool:
        return self.default is UNSET

    @property
    def as_json(self) -> bool:
        """Whether it is written as JSON, because it is neither a plain value nor a list of them."""
        bare = without_notes(self.type)
        return get_origin(bare) is dict or (self.repeated and _is_struct(get_args(bare)[0]))

    @property
    def repeated(self) -> bool:
        """Whether it holds several values."""
        return get_origin(without_notes(self.type)) is list

    @property
    def is_moment(self) -> bool:
        """Whether it is a time."""
        return without_notes(self.type) is datetime


@cache
def hints(function: Function) -> Mapping[str, Any]:
    """The types of a function's parameters and of what it returns, with their notes."""
    return get_type_hints(function, include_extras=True)


@cache
def parameters(operation: Operation) -> tuple[Parameter, ...]:
    """All parameters of an operation but its service, its body and who asks."""
    signature = inspect.signature(operation.function)
    _, *names = signature.parameters
    in_path = set(_IN_PATH.findall(operation.path))
    found = []
    for name in names:
        if name in ("body", "upload", "caller"):
            continue
        default = signature.parameters[name].default
        hint = hints(operation.function)[name]
        header = _header(hint)
        place: Place = "path" if name in in_path else "header" if header else "query"
        missing = UNSET if default is inspect.Parameter.empty else default
        found.append(Parameter(name, without_none(hint), place, header or name, missing))
    return tuple(found)


@cache
def arguments(operation: Operation) -> type[Struct]:
    """A type with a field for each parameter, which checks and converts what came as text."""
    fields: list[Any] = [
        (each.name, each.type) if each.required else (each.name, each.type | UnsetType, UNSET)
        for each in parameters(operation)
    ]
    return msgspec.defstruct(f"{operation.function.__name__}_arguments", fields, kw_only=True)


@cache
def bodies(operation: Operation) -> tuple[Any, ...]:
    """The types a body may have: none, one, or several to choose from."""
    if "body" not in operation.function.__annotations__:
        return ()
    return choices(hints(operation.function)["body"])


@cache
def may_be_empty(operation: Operation) -> bool:
    """Whether nothing has to be in the body, so that it need not be sent."""
    kinds = bodies(operation)
    return bool(kinds) and not any(field.required for kind in kinds for field in msgspec.structs.fields(kind))


def choices(hint: Any) -> tuple[Any, ...]:
    """The members of a union of types, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def without_notes(hint: Any) -> Any:
    """A type without what ``Annotated`` says about it."""
    return without_notes(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def without_none(hint: Any) -> Any:
    """A type that may be missing, as it is when it is there."""
    if get_origin(hint) is Annotated:
        bare, *notes = get_args(hint)
        kept = [note for note in notes if not isinstance(note, Header)]
        inner = without_none(bare)
        return Annotated[inner, *kept] if kept else inner
    left = [each for each in choices(hint) if each is not NoneType]
    return Union[tuple(left)]  # noqa: UP007  # built from a list


def _header(hint: Any) -> str:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note.name for note in notes if isinstance(note, Header)), "")


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)
