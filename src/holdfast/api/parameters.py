"""Derives the parameters of a request from a function's signature, for the handlers and the OpenAPI document."""

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
    """One argument of an operation, and the part of the request it is taken from."""

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
        """Whether it is encoded as JSON, because it is neither a plain value nor a list of them."""
        bare = without_annotations(self.type)
        return get_origin(bare) is dict or (self.repeated and _is_struct(get_args(bare)[0]))

    @property
    def repeated(self) -> bool:
        """Whether it may be sent several times."""
        return get_origin(without_annotations(self.type)) is list

    @property
    def is_datetime(self) -> bool:
        """Whether it is a time."""
        return without_annotations(self.type) is datetime


@cache
def hints(function: Function) -> Mapping[str, Any]:
    """Return the type hints of a function, including ``Annotated`` metadata."""
    return get_type_hints(function, include_extras=True)


@cache
def parameters(operation: Operation) -> tuple[Parameter, ...]:
    """Return all parameters of an operation except its service, body and caller."""
    signature = inspect.signature(operation.function)
    _, *names = signature.parameters
    in_path = set(_IN_PATH.findall(operation.path))
    result = []
    for name in names:
        if name in ("body", "upload", "caller"):
            continue
        default = signature.parameters[name].default
        hint = hints(operation.function)[name]
        header = _header(hint)
        place: Place = "path" if name in in_path else "header" if header else "query"
        missing = UNSET if default is inspect.Parameter.empty else default
        result.append(Parameter(name, without_none(hint), place, header or name, missing))
    return tuple(result)


@cache
def arguments(operation: Operation) -> type[Struct]:
    """Return a struct with a field for each parameter, which validates and converts the text of the request."""
    fields: list[Any] = [
        (parameter.name, parameter.type) if parameter.required else (parameter.name, parameter.type | UnsetType, UNSET)
        for parameter in parameters(operation)
    ]
    return msgspec.defstruct(f"{operation.function.__name__}_arguments", fields, kw_only=True)


@cache
def bodies(operation: Operation) -> tuple[Any, ...]:
    """Return the types that the body may have; empty for an operation without one."""
    if "body" not in operation.function.__annotations__:
        return ()
    return choices(hints(operation.function)["body"])


@cache
def may_be_empty(operation: Operation) -> bool:
    """Return whether the body has no required fields, so that it can be omitted."""
    kinds = bodies(operation)
    return bool(kinds) and not any(field.required for kind in kinds for field in msgspec.structs.fields(kind))


def choices(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union of types, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def without_annotations(hint: Any) -> Any:
    """Return a type without its ``Annotated`` metadata."""
    return without_annotations(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def without_none(hint: Any) -> Any:
    """Return an optional type without ``None``."""
    if get_origin(hint) is Annotated:
        bare, *metadata = get_args(hint)
        kept = [item for item in metadata if not isinstance(item, Header)]
        inner = without_none(bare)
        return Annotated[inner, *kept] if kept else inner
    members = [member for member in choices(hint) if member is not NoneType]
    return Union[tuple(members)]  # noqa: UP007  # built from a list


def _header(hint: Any) -> str:
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((item.name for item in metadata if isinstance(item, Header)), "")


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)
