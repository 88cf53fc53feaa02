"""Values of a graph to bytes and back, strictly.

The bytes are those of LangGraph's own serializer. What differs is the way back: a class is only looked up if it is on the
list, and there is no switch, no fallback and no silent replacement. A type that is not on the list is refused when it is
saved, not months later when it is needed.
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
"""Types that may be saved and read without being named: LangGraph's list of safe ones, and the steps of LangChain's agents."""
_KINDS = ("null", "bytes", "bytearray", "msgpack")
_ARRAY = b"\xdd"
"""How msgpack begins an array; its length follows, in four bytes."""
_PYDANTIC = jsonplus.EXT_PYDANTIC_V2
_new: Any = object.__new__
_put_inside, _put_fields, _put_extra, _put_private = (
    BaseModel.__dict__[f"__{name}__"].__set__
    for name in ("dict", "pydantic_fields_set", "pydantic_extra", "pydantic_private")
)


class StrictSerializer(jsonplus.JsonPlusSerializer):
    """LangGraph's serializer with nothing but an allow-list: messages, documents and the types of Python's own library.

    Args:
        allow: further classes, or pairs of module and name, that may be saved and read.
    """

    def __init__(self, allow: Iterable[type | Name] = ()) -> None:
        self.allowed: frozenset[Name] = frozenset(map(_name_of, allow))
        self._found: set[type] = set()
        """Classes that are found again by what is written down of them."""
        super().__init__(
            pickle_fallback=False,
            allowed_json_modules=None,
            allowed_msgpack_modules=tuple(self.allowed) or None,
            __unpack_ext_hook__=lambda code, data: self._revive(code, data, []),
        )

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Any]) -> StrictSerializer:
        """The same with more classes on the list."""
        more = frozenset(map(_name_of, extra_allowlist)) - ALWAYS
        return self if more <= self.allowed else StrictSerializer([*self.allowed, *more])

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """A value as a kind and bytes.

        Raises:
            InvalidInput: it holds an object of a class that is not on the list, or of one that cannot be written down.
        """
        if obj is None or isinstance(obj, (bytes, bytearray)):
            kind, data = super().dumps_typed(obj)
            return kind, bytes(data)
        trouble: list[Exception] = []

        def default(value: Any) -> Any:
            with _noting(trouble):
                return self._default(value)

        try:
            return "msgpack", ormsgpack.packb(obj, default=default, option=_OPTION)
        except ormsgpack.MsgpackEncodeError as error:
            _raise_own(trouble)
            reason = trouble[0] if trouble else error
            raise InvalidInput(f"a value of the graph's state cannot be saved: {reason}") from error

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value behind a kind and bytes.

        Raises:
            InvalidInput: it holds an object of a class that is not on the list.
            Corrupt: it cannot be read.
        """
        kind, body = data
        if kind not in _KINDS:
            raise InvalidInput(
                f"a saved value is of the kind {kind!r}, which can run code when it is read; it is refused"
            )
        if kind != "msgpack":
            return super().loads_typed((kind, body))
        return self._unpack(body, [])

    def loads_all(self, bodies: Sequence[bytes]) -> list[Any]:
        """The values behind bodies of the kind msgpack: as one by one, but objects like messages all at once.

        Raises:
            InvalidInput: one holds an object of a class that is not on the list.
            Corrupt: one cannot be read.
        """
        written = _contents(bodies)
        if written is None:
            return [self._unpack(body, []) for body in bodies]
        several = self._unpack(_array_of(written), [])
        names = list(map(itemgetter(0, 1), several))
        classes = {name: self._class(name) for name in set(names)}
        kinds, contents = list(map(classes.get, names)), list(map(itemgetter(2), several))
        if list(map(dict.keys, contents)) == list(map(_MESSAGES.get, kinds)):
            return _messages(kinds, contents)
        return [_build(_PYDANTIC, *each) for each in zip(kinds, contents, strict=True)]

    def _class(self, name: Name) -> Any:
        self._check(name)
        return getattr(import_module(name[0]), name[1])

    def _default(self, value: Any) -> Any:
        if not isinstance(value, (_DeltaSnapshot, BaseException)) and not _is_array(value):
            name = _written_name(value)
            self._check(name)
            if name not in ALWAYS and type(value) not in self._found:
                _check_found(type(value))
                self._found.add(type(value))
        return jsonplus._msgpack_default(value)

    def _check(self, name: Name) -> None:
        if name not in ALWAYS and name not in self.allowed:
            raise InvalidInput(
                f"{'.'.join(name)} is not among the types that may be saved and read; "
                f"if you trust it: HoldfastSaver(..., allow=[{name[-1]}])"
            )

    def _unpack(self, body: bytes, trouble: list[Exception]) -> Any:
        def hook(code: int, data: bytes) -> Any:
            with _noting(trouble):
                return self._revive(code, data, trouble)

        try:
            return ormsgpack.unpackb(body, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except ormsgpack.MsgpackDecodeError as error:
            _raise_own(trouble)
            raise Corrupt(f"a saved value cannot be read: {trouble[0] if trouble else error}") from error

    def _revive(self, code: int, data: bytes, trouble: list[Exception]) -> Any:
        """An object that was written down: built by its own class, if that is on the list."""
        if code == jsonplus.EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(self._unpack(data, trouble))
        parts = self._unpack(data, trouble)
        if code == jsonplus.EXT_NUMPY_ARRAY:
            return _array(*parts)
        module, name, content = parts[:3]
        if code == jsonplus.EXT_METHOD_SINGLE_ARG:
            if (module, name, parts[3]) not in SAFE_MSGPACK_METHODS:
                self._check((module, name, parts[3]))
            return getattr(getattr(import_module(module), name), parts[3])(content)
        return _build(code, self._class((module, name)), content)


class _noting:  # noqa: N801 - it reads as a word
    """Notes an error, because ormsgpack does not say what went wrong in a function that it called."""

    __slots__ = ("_trouble",)

    def __init__(self, trouble: list[Exception]) -> None:
        self._trouble = trouble

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> None:
        if isinstance(error, Exception):
            self._trouble.append(error)


def _raise_own(trouble: list[Exception]) -> None:
    """Raise the first of our own errors: it says what is wrong, where the others only say that something is."""
    for error in trouble:
        if isinstance(error, HoldfastError):
            raise error from None


def _contents(bodies: Sequence[bytes]) -> list[bytes] | None:
    """What stands inside of bodies, each of which is a pydantic object; ``None`` if one is something else."""
    try:
        found = ormsgpack.unpackb(_array_of(bodies), ext_hook=_as_it_is, option=ormsgpack.OPT_NON_STR_KEYS)
    except ormsgpack.MsgpackDecodeError:
        return None
    # What is no object on the outside may have some inside, but is never a tuple itself.
    if len(found) != len(bodies) or any(type(each) is not tuple or each[0] != _PYDANTIC for each in found):
        return None
    return [content for _, content in found]


def _as_it_is(code: int, data: bytes) -> tuple[int, bytes]:
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
        except ValueError:  # what was saved without validation is read without it
            construct = getattr(kind, "model_construct", None) or kind.construct
            return construct(**content)
    raise Corrupt(f"a saved object is written in a way this release does not know: {code}")


_MESSAGES = {kind: frozenset(kind.model_fields) for kind in (AIMessage, HumanMessage, SystemMessage, ToolMessage)}
"""Messages with all their fields, as they are saved, were validated when they were made."""


def _messages(kinds: Sequence[Any], contents: Sequence[dict[str, Any]]) -> list[Any]:
    """Messages from all their fields, without validating them again: a state is mostly messages, and this is most of the work."""
    values = list(map(_new, kinds))
    for put, parts in (
        (_put_inside, contents),
        (_put_fields, map(set, contents)),
        (_put_extra, ({} for _ in values)),
        (_put_private, repeat(None)),
    ):
        deque(map(put, values, parts), maxlen=0)
    return values


def _written_name(value: Any) -> Name:
    kind = type(value)
    return ("re", "compile") if kind.__name__ == "Pattern" else (kind.__module__, kind.__name__)


def _check_found(kind: type) -> None:
    """See that a class is found by its module and name, which is all that is written down of it."""
    found = getattr(import_module(kind.__module__), kind.__name__, None)
    # A class that was defined again, as in a notebook, is another object of the same name.
    if found is not kind and getattr(found, "__qualname__", None) != kind.__qualname__:
        raise InvalidInput(
            f"{kind.__module__}.{kind.__qualname__} could not be read again: a saved object is looked up by the name "
            f"{kind.__name__} in its module. Give the class that name at the top level of {kind.__module__}"
        )


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _array(kind: str, shape: Any, order: Any, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype=numpy.dtype(kind)).reshape(shape, order=order)


def _name_of(given: type | Name) -> Name:
    if isinstance(given, type):
        return given.__module__, given.__name__
    return tuple(given)
