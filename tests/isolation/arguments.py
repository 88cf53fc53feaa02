"""Random arguments for every public method of every store, generated from its signature, so that new stores are covered too."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, UnsetType, structs

from holdfast import Strategy
from holdfast.core.blocking import Blocking
from holdfast.core.crypto import KeyRing, Secret
from holdfast.core.filters import Filter, column, meta
from holdfast.core.grants import AsyncGrants
from holdfast.core.records import AsyncRecords
from holdfast.errors import InvalidInput
from tests.workloads.workload_compactions import Shorten

NO_PLACE = os.path.join(os.devnull, "tree")
"""A path at which no file can exist."""


class Pool:
    """The values that another tenant might try: all texts and rows of the other tenant, its own ids, and unknown ids.

    Each call focuses on one row and its related rows. A parameter with the name of a field, or of a kind of row
    (``message_ids``), usually gets a value of that field.
    """

    def __init__(self, *, texts: Sequence[str], rows: Sequence[Struct], cursors: Sequence[str], random: Random) -> None:
        self.random = random
        self.ids = [text for text in texts if len(text) == 36 and text.count("-") == 4]
        self.digests = [text for text in texts if len(text) == 64 and set(text) <= set("0123456789abcdef")]
        self.texts = [*texts, "absent", ""]
        self.rows, self.cursors = rows, cursors
        self._anywhere = _texts_by_field(rows)
        self.refocus()

    def refocus(self) -> None:
        """Choose the row on which the next call focuses."""
        kind = self.random.choice(
            sorted({type(row).__name__ for row in self.rows})
        )  # so that every kind of row is equally likely
        row = self.random.choice([row for row in self.rows if type(row).__name__ == kind])
        about = getattr(row, "session_id", getattr(row, "id", None))
        self._focus = [item for item in self.rows if item is row or (about and about in structs.astuple(item))]
        self._by_field = _texts_by_field(self._focus)

    def value(self, name: str, hint: Any) -> Any:
        """Return a value for a parameter of this name and type. No value refers to an existing file."""
        plain = {
            str: lambda: self._text(name),
            bytes: lambda: self._text(name).encode("utf-8", "replace"),
            int: lambda: self.random.choice([0, 1, 2, 5, 50]),
            float: lambda: self.random.choice([0.0, 0.5, 1.0]),
            bool: lambda: self.random.random() < 0.5,
            datetime: lambda: datetime(2023, 11, 14, tzinfo=UTC),
            timedelta: lambda: timedelta(hours=self.random.choice([0, 1, 1_000])),
            type(None): lambda: None,
            UnsetType: lambda: UNSET,
            Any: lambda: self._anything(name),
            Filter: lambda: self._filter(name),
            os.PathLike[str]: lambda: NO_PLACE,
        }
        origin, args = get_origin(hint), get_args(hint)
        if hint in plain:
            return plain[hint]()
        if origin in (Union, types.UnionType):
            return self.value(name, self.random.choice(args))
        if origin in (Annotated, Secret):
            value = self.value(name, args[0])
            return Secret(value) if origin is Secret else value
        if origin is Literal:
            return self.random.choice(args)
        if origin in (Mapping, dict):
            return self.random.choice([{}, {"text": self._text(name)}, {self._text(name): 1}])
        if origin is Callable or hint is Strategy:
            # The result must be the same in both worlds.
            return (lambda *args: f"about {name}") if origin else Shorten()
        if origin in (Sequence, list):
            return [self.value(name, args[0]) for _ in range(self.random.randrange(1, 4))]
        if origin is tuple:
            return tuple(self.value(name, arg) for arg in args)
        if isinstance(hint, type) and issubclass(hint, Struct):
            return self._row(name, hint)
        raise TypeError(f"cannot generate a {hint!r} for {name}: add this type to tests/isolation/arguments.py")

    def _anything(self, name: str) -> Any:
        text = self._text(name)
        return self.random.choice([text, [{"type": "text", "text": text}], {"id": self._text("id")}])

    def _filter(self, name: str) -> Filter:
        field = self.random.choice([*self._by_field])
        target = self.random.choice([meta("text"), meta(self._text(name)), column(field), column(field)])
        return self.random.choice([target.eq, target.ne, target.contains])(self._text(field))

    def _row(self, name: str, hint: type[Struct]) -> Any:
        """Return a row of the other tenant, a new row with fields from the pool, or a text if those fields are invalid."""
        initial = [row for row in self._focus if type(row) is hint]
        if initial:
            return self.random.choice(initial)
        hints = get_type_hints(hint, include_extras=True)
        arguments = [
            field
            for field in structs.fields(hint)
            if field.required or field.name in ALWAYS_PASSED or self.random.random() < 0.3
        ]
        try:
            return hint(**{field.name: self.value(field.name, hints[field.name]) for field in arguments})
        except InvalidInput:
            return self._text(name)

    def _text(self, name: str) -> str:
        if name == "path":
            return NO_PLACE
        if "cursor" in name and self.cursors:
            return self.random.choice(self.cursors)
        if name == "role" and self.random.random() < 0.7:
            return self.random.choice(["user", "assistant", "system"])
        if "digest" in name and self.digests:
            return self.random.choice(self.digests)
        candidates = [
            fields.get(item) for fields in (self._by_field, self._anywhere) for item in (name, name.removesuffix("s"))
        ]
        initial = next((texts for texts in candidates if texts), None)
        if initial and self.random.random() < 0.85:
            return self.random.choice(initial)
        if name.endswith(("id", "ids")) and self.random.random() < 0.9:
            return self.random.choice(self.ids)
        return self.random.choice(self.texts)


def _texts_by_field(rows: Sequence[Struct]) -> dict[str, list[str]]:
    """Return all texts in these rows by the name of their field; ids also by the kind of their row."""
    result: dict[str, list[str]] = {}
    for row in rows:
        for field, value in structs.asdict(row).items():
            if isinstance(value, str) and value:
                result.setdefault(field, []).append(value)
        if id := getattr(row, "id", ""):
            result.setdefault(f"{type(row).__name__.lower()}_id", []).append(id)
    return result


def stores(holder: object, path: str = "") -> Iterator[tuple[str, Blocking[Any]]]:
    """Yield every store that is reachable from a handle, with its path."""
    for name in dir(holder):
        if name.startswith("_"):
            continue
        value = getattr(holder, name)
        if isinstance(value, Blocking):
            yield f"{path}{name}", value
        elif type(value).__module__.startswith("holdfast.") and not callable(value) and not isinstance(value, KeyRing):
            yield from stores(value, f"{path}{name}.")


def methods(store: Blocking[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public method of a store."""
    for name in dir(type(store)):
        if not name.startswith("_"):
            yield name, getattr(store, name)


def arguments(method: Callable[..., Any], pool: Pool) -> tuple[list[Any], dict[str, Any]]:
    """Generate arguments for one call: the required ones and, in half of the calls, some optional ones."""
    hints = get_type_hints(inspect.unwrap(method), include_extras=True)
    pool.refocus()
    store = getattr(getattr(method, "__self__", None), "_async", None)
    if isinstance(store, AsyncGrants) and "new" not in hints:
        return _of_a_grant(store, method, pool)
    share = pool.random.choice([0.0, 0.4])
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in inspect.signature(method).parameters.values():
        required = parameter.default is inspect.Parameter.empty
        if parameter.name == "self" or not (
            required or parameter.name in ALWAYS_PASSED or pool.random.random() < share
        ):
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args += _key(method, parameter.name, pool)
            continue
        value = pool.value(parameter.name, _hint(method, parameter.name, hints))
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def _of_a_grant(store: AsyncGrants[Any, Any], method: Any, pool: Pool) -> tuple[list[Any], dict[str, Any]]:
    """Generate arguments that name a grant, or one side of a list."""
    table = pool.random.choice(store.grants)
    sides = {side: pool.value(getattr(table, side), str) for side in ("resource", "principal")}
    kwargs: dict[str, Any] = {"kind": table.principal}
    if method.__name__ != "list":
        return [*sides.values()], kwargs
    side = pool.random.choice([*sides])
    kwargs |= {side: sides[side]} | pool.random.choice([{}, {"limit": 1}])
    return [], kwargs | ({"cursor": pool.value("cursor", str)} if pool.random.random() < 0.2 else {})


def _key(method: Any, name: str, pool: Pool) -> list[Any]:
    """Return values for the parts of a record's key or name."""
    declared = method.__self__._async.declared
    fields = declared.natural if name == "name" and declared.natural else declared.key
    return [pool.value(field.name, str) for field in fields]


def _hint(method: Any, name: str, hints: Mapping[str, Any]) -> Any:
    """Return the type of a parameter; record and grant stores define the types of their generic parameters."""
    store = getattr(getattr(method, "__self__", None), "_async", None)
    if isinstance(store, AsyncGrants) and name == "new":
        return Union[tuple(table.new for table in store.grants)]  # noqa: UP007
    if not isinstance(store, AsyncRecords) or name not in ("new", "change"):
        return hints[name]
    return store.new_type if name == "new" else store.change_type


ALWAYS_PASSED = ("role",)
"""Parameters that are optional in the signature but needed by almost every valid call."""
