"""A strict serializer for the values of a graph.

The bytes are those of LangGraph's own serializer. Deserialization differs: a class is imported only if it is on the allowlist,
without any setting, fallback or silent replacement. A type that is not on the list is rejected when it is saved, not months later
when it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import repeat
from operator import itemgetter
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel

from holdfast.errors import Corrupt, HoldfastError, InvalidInput

Name = tuple[str, ...]
"""Module and name of a class."""

_OPTION = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
ALWAYS = SAFE_MSGPACK_TYPES | {
    ("langchain_core.agents", name) for name in ("AgentAction", "AgentActionMessageLog", "AgentFinish", "AgentStep")
}
"""Types that are always allowed: LangGraph's list of safe types, and the steps of LangChain's agents."""
_KINDS = ("null", "bytes", "bytearray", "msgpack")
_ARRAY = b"\xdd"
"""First byte of a msgpack array; its length follows in four bytes."""
_PYDANTIC = jsonplus.EXT_PYDANTIC_V2
_new: Any = object.__new__
_put_inside, _put_fields, _put_extra, _put_private = (
    BaseModel.__dict__[f"__{name}__"].__set__
    for name in ("dict", "pydantic_fields_set", "pydantic_extra", "pydantic_private")
)


class StrictSerializer(jsonplus.JsonPlusSerializer):
    """LangGraph's serializer restricted to an allowlist: messages, documents and standard Python types.

    Args:
        allow: further classes, or pairs of module and name, that may be serialized.
    """

    def __init__(self, allow: Iterable[type | Name] = ()) -> None:
        self.allowed: frozenset[Name] = frozenset(map(_name_of, allow))
        self._importable: set[type] = set()
        """Classes that were verified to be importable by their serialized name."""
        super().__init__(
            pickle_fallback=False,
            allowed_json_modules=None,
            allowed_msgpack_modules=tuple(self.allowed) or None,
            __unpack_ext_hook__=lambda code, data: self._revive(code, data, []),
        )

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Any]) -> StrictSerializer:
        """Return a serializer that allows more classes."""
        more = frozenset(map(_name_of, extra_allowlist)) - ALWAYS
        return self if more <= self.allowed else StrictSerializer([*self.allowed, *more])

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value to a kind and bytes.

        Raises:
            InvalidInput: the value contains an object whose class is not allowed or cannot be serialized.
        """
        if obj is None or isinstance(obj, (bytes, bytearray)):
            kind, data = super().dumps_typed(obj)
            return kind, bytes(data)
        errors: list[Exception] = []

        def default(value: Any) -> Any:
            with _record_error(errors):
                return self._default(value)

        try:
            return "msgpack", ormsgpack.packb(obj, default=default, option=_OPTION)
        except ormsgpack.MsgpackEncodeError as error:
            _raise_own(errors)
            reason = errors[0] if errors else error
            raise InvalidInput(f"a value of the graph's state cannot be serialized: {reason}", field="value") from error

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Deserialize a value.

        Raises:
            InvalidInput: the value contains an object whose class is not allowed.
            Corrupt: the bytes are damaged.
        """
        kind, body = data
        if kind not in _KINDS:
            raise InvalidInput(
                f"a saved value has the kind {kind!r}, which can run code when it is deserialized, and was rejected",
                field="kind",
            )
        if kind != "msgpack":
            return super().loads_typed((kind, body))
        return self._unpack(body, [])

    def loads_all(self, bodies: Sequence[bytes]) -> list[Any]:
        """Deserialize several msgpack bodies. Pydantic objects such as messages are deserialized in one batch.

        Raises:
            InvalidInput: a value contains an object whose class is not allowed.
            Corrupt: a body is damaged.
        """
        packed = _contents(bodies)
        if packed is None:
            return [self._unpack(body, []) for body in bodies]
        objects = self._unpack(_array_of(packed), [])
        names = list(map(itemgetter(0, 1), objects))
        classes = {name: self._class(name) for name in set(names)}
        kinds, contents = list(map(classes.get, names)), list(map(itemgetter(2), objects))
        if list(map(dict.keys, contents)) == list(map(_MESSAGES.get, kinds)):
            return _messages(kinds, contents)
        return [_build(_PYDANTIC, kind, content) for kind, content in zip(kinds, contents, strict=True)]

    def _class(self, name: Name) -> Any:
        self._check(name)
        return getattr(import_module(name[0]), name[1])

    def _default(self, value: Any) -> Any:
        if not isinstance(value, (_DeltaSnapshot, BaseException)) and not _is_array(value):
            name = _serialized_name(value)
            self._check(name)
            if name not in ALWAYS and type(value) not in self._importable:
                _check_importable(type(value))
                self._importable.add(type(value))
        return jsonplus._msgpack_default(value)

    def _check(self, name: Name) -> None:
        if name not in ALWAYS and name not in self.allowed:
            raise InvalidInput(
                f"{'.'.join(name)} is not on the list of allowed types: "
                f"if you trust it, use HoldfastSaver(..., allow=[{name[-1]}])",
                field="allow",
            )

    def _unpack(self, body: bytes, errors: list[Exception]) -> Any:
        def hook(code: int, data: bytes) -> Any:
            with _record_error(errors):
                return self._revive(code, data, errors)

        try:
            return ormsgpack.unpackb(body, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except ormsgpack.MsgpackDecodeError as error:
            _raise_own(errors)
            raise Corrupt(f"a saved value cannot be deserialized: {errors[0] if errors else error}") from error

    def _revive(self, code: int, data: bytes, errors: list[Exception]) -> Any:
        """Create a serialized object with its own class, if that is allowed."""
        if code == jsonplus.EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(self._unpack(data, errors))
        parts = self._unpack(data, errors)
        if code == jsonplus.EXT_NUMPY_ARRAY:
            return _array(*parts)
        module, name, content = parts[:3]
        if code == jsonplus.EXT_METHOD_SINGLE_ARG:
            if (module, name, parts[3]) not in SAFE_MSGPACK_METHODS:
                self._check((module, name, parts[3]))
            return getattr(getattr(import_module(module), name), parts[3])(content)
        return _build(code, self._class((module, name)), content)


class _record_error:  # noqa: N801  # used like a function
    """Records an error of a callback, because ormsgpack does not report it."""

    __slots__ = ("_errors",)

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> None:
        if isinstance(error, Exception):
            self._errors.append(error)


def _raise_own(errors: list[Exception]) -> None:
    """Raise the first Holdfast error, which is more specific than the errors of ormsgpack."""
    for error in errors:
        if isinstance(error, HoldfastError):
            raise error from None


def _contents(bodies: Sequence[bytes]) -> list[bytes] | None:
    """Return the packed contents of bodies that are pydantic objects; ``None`` if one is not."""
    try:
        values = ormsgpack.unpackb(_array_of(bodies), ext_hook=_keep_packed, option=ormsgpack.OPT_NON_STR_KEYS)
    except ormsgpack.MsgpackDecodeError:
        return None
    # A value that is not an object may contain objects, but only an object itself is a tuple here.
    if len(values) != len(bodies) or any(type(value) is not tuple or value[0] != _PYDANTIC for value in values):
        return None
    return [content for _, content in values]


def _keep_packed(code: int, data: bytes) -> tuple[int, bytes]:
    return code, data


def _array_of(bodies: Sequence[bytes]) -> bytes:
    return b"".join([_ARRAY, len(bodies).to_bytes(4, "big"), *bodies])


def _build(code: int, kind: Any, content: Any) -> Any:
    if code == jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG:
        return kind(content)
    if code == jsonplus.EXT_CONSTRUCTOR_POS_ARGS:
        if kind.__name__ == "Send" and len(content) == 3:
            return kind(content[0], content[1], timeout=content[2])
        return kind(*content)
    if code == jsonplus.EXT_CONSTRUCTOR_KW_ARGS:
        return kind(**content)
    if code in (jsonplus.EXT_PYDANTIC_V1, jsonplus.EXT_PYDANTIC_V2):
        if kind in _MESSAGES and content.keys() == _MESSAGES[kind]:
            return _messages([kind], [content])[0]
        try:
            return kind(**content)
        except ValueError:  # an object that was created without validation
            construct = getattr(kind, "model_construct", None) or kind.construct
            return construct(**content)
    raise Corrupt(f"a saved object has the extension code {code}, which this release does not support")


_MESSAGES = {kind: frozenset(kind.model_fields) for kind in (AIMessage, HumanMessage, SystemMessage, ToolMessage)}
"""The fields of message classes. A saved message with exactly these fields was validated when it was created."""


def _messages(kinds: Sequence[Any], contents: Sequence[dict[str, Any]]) -> list[Any]:
    """Create messages from all their fields without validation, which would dominate the cost: a state is mostly messages."""
    values = list(map(_new, kinds))
    for put, parts in (
        (_put_inside, contents),
        (_put_fields, map(set, contents)),
        (_put_extra, ({} for _ in values)),
        (_put_private, repeat(None)),
    ):
        deque(map(put, values, parts), maxlen=0)
    return values


def _serialized_name(value: Any) -> Name:
    kind = type(value)
    return ("re", "compile") if kind.__name__ == "Pattern" else (kind.__module__, kind.__name__)


def _check_importable(kind: type) -> None:
    """Check that a class can be imported by its module and name, which is how it is serialized."""
    imported = getattr(import_module(kind.__module__), kind.__name__, None)
    # A class that was redefined, as in a notebook, is another object with the same name.
    if imported is not kind and getattr(imported, "__qualname__", None) != kind.__qualname__:
        raise InvalidInput(
            f"{kind.__module__}.{kind.__qualname__} could not be deserialized: a saved object is looked up as "
            f"{kind.__name__} in its module. Define the class under that name at the top level of {kind.__module__}",
            field="class",
        )


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _array(kind: str, shape: Any, order: Any, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype=numpy.dtype(kind)).reshape(shape, order=order)


def _name_of(allowed: type | Name) -> Name:
    if isinstance(allowed, type):
        return allowed.__module__, allowed.__name__
    return tuple(allowed)
