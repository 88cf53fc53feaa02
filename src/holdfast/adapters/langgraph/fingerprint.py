"""A copy of an object's content: to detect a change in place, and to build an equal object.

A state is mostly messages, and most fields of a message are empty or immutable. So dictionaries of fields are compared first;
only fields that contain something mutable are compared in depth.
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from operator import is_
from typing import Any

import ormsgpack
from pydantic import BaseModel

_new, _put = object.__new__, object.__setattr__
_put_fields = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_put_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_put_private = BaseModel.__dict__["__pydantic_private__"].__set__
_FIXED = frozenset((str, int, float, bool, bytes, type(None)))
_NO_LIST: list[Any] = []
_NO_DICT: dict[str, Any] = {}
"""Shared empty values of all fingerprints. They are only compared with, never handed out."""
_EQUAL_TO_OTHERS = _FIXED - {str, type(None)}
_JSON_ONLY = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


class Fingerprint:
    """The content of an object when it was serialized."""

    __slots__ = ("_deep", "_dicts", "_lists", "_mark", "exact", "extra", "fields", "kind", "values")

    def __init__(self, value: Any) -> None:
        self.kind: Any = type(value)
        self.values = values = value.__dict__.copy()
        self.fields = value.__pydantic_fields_set__.copy()
        # Most mutable fields are empty, and creating a new empty value is faster than copying one.
        lists, dicts, deep = list[str](), list[str](), list[str]()
        for name, field in value.__dict__.items():
            kind = type(field)
            if kind in _FIXED:
                continue
            if kind in (list, dict) and not field:
                (lists if kind is list else dicts).append(name)
                values[name] = _NO_LIST if kind is list else _NO_DICT
            else:
                deep.append(name)
                values[name] = _copy(field)
        self._lists, self._dicts, self._deep = lists, dicts, deep
        extra = value.__pydantic_extra__
        self.extra = _copy(extra) if extra else None if extra is None else {}
        # 1, True and 1.0 are equal but serialized differently. Strings and empty values need no comparison of types.
        self.exact = [*deep, *(name for name, field in values.items() if type(field) in _EQUAL_TO_OTHERS)]
        self._mark = _mark([values[name] for name in self.exact]) if self.exact else None

    def is_exactly(self, value: Any) -> bool:
        """Whether an object that is equal to this one also has fields of the same types."""
        inside = value.__dict__
        now, then = [inside.get(name) for name in self.exact], map(self.values.get, self.exact)
        are_identical = all(map(_identical, now, then)) if self._mark is None else _mark(now) == self._mark
        return are_identical and _identical(value.__pydantic_extra__, self.extra)

    def rebuild(self) -> Any:
        """Create a new equal object."""
        value = _new(self.kind)
        values = self.values.copy()
        for name in self._lists:
            values[name] = []
        for name in self._dicts:
            values[name] = {}
        for name in self._deep:
            values[name] = _copy(values[name])
        _put(value, "__dict__", values)
        _put_fields(value, self.fields.copy())
        _put_extra(value, _copy(self.extra) if self.extra else None if self.extra is None else {})
        _put_private(value, None)
        return value


def fingerprint_of(value: Any) -> Fingerprint | None:
    """Return the fingerprint of an object; ``None`` if a part of it cannot be copied."""
    try:
        return Fingerprint(value)
    except Exception:
        return None


def is_unchanged(value: Any, was: Fingerprint) -> bool:
    """Whether an object still equals its fingerprint. An object that cannot be compared counts as changed."""
    try:
        return (
            type(value) is was.kind
            and value.__dict__ == was.values
            and (value.__pydantic_extra__ or None) == (was.extra or None)
            and (not (was.exact or was.extra) or was.is_exactly(value))
        )
    except Exception:
        return False


def is_recognisable(value: Any) -> bool:
    """Whether an object can be recognized and rebuilt: a message, or another plain pydantic object."""
    if not isinstance(value, BaseModel) or value.__pydantic_private__ is not None:
        return False
    kind: Any = type(value)
    return _serializes_all_fields(kind)


@lru_cache(maxsize=1_024)
def _serializes_all_fields(kind: type[BaseModel]) -> bool:
    """Whether serialization excludes no field. Otherwise a rebuilt object would have fields that were not saved."""
    return not any(field.exclude for field in kind.model_fields.values())


def _copy(value: Any) -> Any:
    """Return a deep copy. JSON values are copied many times faster than by ``deepcopy``."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind is list:
        return [_copy(item) for item in value]
    return deepcopy(value)


def _mark(values: list[Any]) -> bytes | None:
    """Return bytes that are equal if and only if values and types are equal; ``None`` if a value is not a JSON value."""
    try:
        return ormsgpack.packb(values, option=_JSON_ONLY)
    except ormsgpack.MsgpackEncodeError:
        return None


def _identical(one: Any, other: Any) -> bool:
    """Whether two values are equal and all their parts have the same types."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if len(one) == len(other) and all(map(is_, one, other)) and all(map(is_, one.values(), other.values())):
            return True  # the usual case: a copy shares most values with its original
        one, other = [*one, *one.values()], [*other, *other.values()]
    elif isinstance(one, BaseModel):
        one, other = [one.__dict__, one.__pydantic_extra__], [other.__dict__, other.__pydantic_extra__]
    elif isinstance(one, (set, frozenset)):
        return {(type(item), item) for item in one} == {(type(item), item) for item in other}
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_identical, one, other))
    return bool(one == other)
