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
"""What is empty in every snapshot: to be compared with, never handed out."""
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
        # Most of what could be changed is empty, and a new empty one is quicker than a copy.
        lists, dicts, deep = list[str](), list[str](), list[str]()
        for name, each in value.__dict__.items():
            kind = type(each)
            if kind in _FIXED:
                continue
            if kind in (list, dict) and not each:
                (lists if kind is list else dicts).append(name)
                values[name] = _NO_LIST if kind is list else _NO_DICT
            else:
                deep.append(name)
                values[name] = _copied(each)
        self._lists, self._dicts, self._deep = lists, dicts, deep
        extra = value.__pydantic_extra__
        self.extra = _copied(extra) if extra else None if extra is None else {}
        # 1, True and 1.0 are equal and are written differently. Texts and what is empty need no such look.
        self.exact = [*deep, *(name for name, each in values.items() if type(each) in _EQUAL_TO_OTHERS)]
        self._mark = _mark([values[name] for name in self.exact]) if self.exact else None

    def is_exactly(self, value: Any) -> bool:
        """Whether an object that is equal to this is so in its types too."""
        inside = value.__dict__
        now, then = [inside.get(name) for name in self.exact], map(self.values.get, self.exact)
        are_alike = all(map(_alike, now, then)) if self._mark is None else _mark(now) == self._mark
        return are_alike and _alike(value.__pydantic_extra__, self.extra)

    def rebuild(self) -> Any:
        """A new object like it."""
        value = _new(self.kind)
        values = self.values.copy()
        for name in self._lists:
            values[name] = []
        for name in self._dicts:
            values[name] = {}
        for name in self._deep:
            values[name] = _copied(values[name])
        _put(value, "__dict__", values)
        _put_fields(value, self.fields.copy())
        _put_extra(value, _copied(self.extra) if self.extra else None if self.extra is None else {})
        _put_private(value, None)
        return value


def fingerprint_of(value: Any) -> Fingerprint | None:
    """What an object is; ``None`` if it cannot be noted, because something in it cannot be copied."""
    try:
        return Fingerprint(value)
    except Exception:
        return None


def is_unchanged(value: Any, was: Fingerprint) -> bool:
    """Whether an object has not been changed since. What cannot be compared has been."""
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
    """Whether an object can be recognised and rebuilt: a message, or another plain pydantic object."""
    if not isinstance(value, BaseModel) or value.__pydantic_private__ is not None:
        return False
    kind: Any = type(value)
    return _is_written_whole(kind)


@lru_cache(maxsize=1_024)
def _is_written_whole(kind: type[BaseModel]) -> bool:
    """Whether no field is left out when an object is written down: rebuilt from memory it would have what it has lost."""
    return not any(each.exclude for each in kind.model_fields.values())


def _copied(value: Any) -> Any:
    """A copy all the way down; what JSON knows is copied many times as fast as by ``deepcopy``."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict:
        return {key: _copied(each) for key, each in value.items()}
    if kind is list:
        return [_copied(each) for each in value]
    return deepcopy(value)


def _mark(values: list[Any]) -> bytes | None:
    """Bytes that are equal exactly where values and their types are; ``None`` if there is more in them than JSON knows."""
    try:
        return ormsgpack.packb(values, option=_JSON_ONLY)
    except ormsgpack.MsgpackEncodeError:
        return None


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, and everything in them of the same types."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if len(one) == len(other) and all(map(is_, one, other)) and all(map(is_, one.values(), other.values())):
            return True  # most of what is in a copy is the very same
        one, other = [*one, *one.values()], [*other, *other.values()]
    elif isinstance(one, BaseModel):
        one, other = [one.__dict__, one.__pydantic_extra__], [other.__dict__, other.__pydantic_extra__]
    elif isinstance(one, (set, frozenset)):
        return {(type(each), each) for each in one} == {(type(each), each) for each in other}
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)
