"""What the fields of a record are: the markers of a row type, and the declaration that is read from them.

A row type is a frozen Struct. Its fields are columns; markers in ``Annotated`` say the rest::

    class Provider(Struct, frozen=True):
        id: Annotated[Id, Key()]
        name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
        settings: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
        enabled: Annotated[bool, Filterable()]
        version: int
        created_at: datetime
        updated_at: datetime

The store fills in ``version``, ``created_at``, ``updated_at`` and ``deleted_at``. Every other field is given by the ``New...``
Struct, and the ``...Change`` Struct names those that can be changed.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Struct, structs

from ..filters import Filterable as FilterColumns
from ..rows import column_names, kind_of

ROW = TypeVar("ROW", bound=Struct)
MANAGED = ("version", "created_at", "updated_at", "deleted_at")
"""Fields that the store fills in; no caller gives them."""


class Key(Struct, frozen=True):
    """The field identifies a record within its tenant. Several keys form a composite key, in the order of the fields.

    A part with a default in the ``New...`` Struct can be left out at the end of a key.
    """


class Natural(Struct, frozen=True):
    """The field is part of the name by which people know a record; it is unique among the records that are not deleted.

    The table needs a unique index over the tenant and these columns, ``WHERE deleted_at IS NULL`` if records can be restored.
    """


class Limited(Struct, frozen=True):
    """The limit of ``Limits`` for a text, in bytes as UTF-8, or for a JSON value, in bytes as stored."""

    limit: str
    empty: bool = True
    """Whether an empty text is allowed."""


class Names(Struct, frozen=True):
    """A list of names without duplicates; ``limit`` is the limit for their number."""

    limit: str


class Tags(Struct, frozen=True):
    """A list of names by which records can be found; ``table`` has a row for each tag of each record.

    The table's columns are ``tenant_id``, ``tag`` and ``column``, which holds the record's key.
    """

    table: str
    column: str
    limit: str = "tags"


class Filterable(Struct, frozen=True):
    """``list`` and ``count`` accept filters on the field."""


class Searchable(Struct, frozen=True):
    """``search`` of ``list`` and ``count`` looks into the field."""


class Metadata(Struct, frozen=True):
    """The JSON object whose keys can be filtered on with ``meta(...)``."""


class Field(Struct, frozen=True):
    """One field of a row type."""

    name: str
    column: str
    kind: str
    """id, plain, text, time, bool, number or json; see ``core/rows.py``."""
    type: Any
    optional: bool
    markers: tuple[Any, ...]

    def marker(self, kind: type[Struct]) -> Any:
        """The marker of this kind, if the field has one."""
        return next((each for each in self.markers if isinstance(each, kind)), None)


class Declaration(Struct, Generic[ROW], frozen=True):
    """Everything the types of a store say about it."""

    row: type[ROW]
    fields: dict[str, Field]
    key: tuple[Field, ...]
    natural: tuple[Field, ...]
    given: tuple[Field, ...]
    """Fields of the ``New...`` Struct."""
    editable: tuple[Field, ...]
    """Fields of the ``...Change`` Struct."""
    order: tuple[Field, ...]
    """Fields that a list is sorted by; the last ones are the key, so that no two records have the same place."""
    descending: bool
    tags: Field | None
    searchable: tuple[Field, ...]
    defaults: dict[str, Any]
    """Defaults of the key's parts, where they have one."""


def fields_of(row: type[Struct]) -> dict[str, Field]:
    """The fields of a row type, by name.

    Raises:
        TypeError: a field has no limit.
    """
    hints, columns = get_type_hints(row, include_extras=True), column_names(row)
    return {name: _field(name, columns[name], hints[name]) for name in row.__struct_fields__}


def declare(
    row: type[ROW], new: type[Struct], change: type[Struct], order: Sequence[str], extra: Sequence[str]
) -> Declaration[ROW]:
    """The declaration of a store.

    Args:
        order: what a list is sorted by, the key if empty; ``-name`` sorts downwards, and then all of them do.
        extra: fields of ``new`` that are no columns: the store handles them itself.

    Raises:
        TypeError: the types contradict each other, or a field has no limit.
    """
    fields = fields_of(row)
    key = tuple(each for each in fields.values() if each.marker(Key))
    given = _named(fields, [each for each in new.__struct_fields__ if each not in extra], new)
    editable = _named(fields, change.__struct_fields__, change)
    sorted_by = tuple(fields[each.removeprefix("-")] for each in order)
    missing = [name for name in fields if name not in {each.name for each in given} and name not in MANAGED]
    problems = [
        (not key, "has no Key()"),
        (bool(missing), f"has fields that {new.__name__} does not give: {', '.join(missing)}"),
        (any(each in key for each in editable), f"has a key that {change.__name__} would change"),
        (len({each.startswith("-") for each in order}) > 1, "is sorted upwards and downwards at once"),
    ]
    for wrong, message in problems:
        if wrong:
            raise TypeError(f"{row.__name__} {message}")
    return Declaration(
        row=row,
        fields=fields,
        key=key,
        natural=tuple(each for each in fields.values() if each.marker(Natural)),
        given=given,
        editable=editable,
        order=sorted_by + tuple(each for each in key if each not in sorted_by),
        descending=any(each.startswith("-") for each in order),
        tags=next((each for each in fields.values() if each.marker(Tags)), None),
        searchable=tuple(each for each in fields.values() if each.marker(Searchable)),
        defaults={each.name: each.default for each in structs.fields(new) if each.default not in (NODEFAULT, UNSET)},
    )


def filter_columns(declared: Declaration[Any]) -> FilterColumns:
    """What ``list`` and ``count`` accept filters on."""
    kinds = {"plain": "text"}
    columns = {
        each.name: (each.column, kinds.get(each.kind, each.kind))
        for each in declared.fields.values()
        if each.marker(Filterable)
    }
    if declared.tags is not None:
        tags = declared.tags.marker(Tags)
        tagged = f"SELECT t.{tags.column} FROM {tags.table} AS t WHERE t.tenant_id = :tenant_id AND t.tag"
        columns[declared.tags.name] = (f"{declared.key[0].column} IN ({tagged}", "tags")
    metadata = next((each.column for each in declared.fields.values() if each.marker(Metadata)), None)
    return FilterColumns(columns, metadata=metadata)


def _named(fields: dict[str, Field], names: Sequence[str], struct: type[Struct]) -> tuple[Field, ...]:
    unknown = [name for name in names if name not in fields or name in MANAGED]
    if unknown:
        raise TypeError(f"{struct.__name__} has fields that a caller cannot give: {', '.join(unknown)}")
    return tuple(fields[name] for name in names)


def _field(name: str, column: str, hint: Any) -> Field:
    plain, *markers = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    optional = get_origin(plain) in (Union, types.UnionType) and type(None) in get_args(plain)
    found = Field(name, column, kind_of(hint), _without_none(plain), optional, tuple(markers))
    if (
        name not in MANAGED
        and found.kind in ("text", "json")
        and not any(isinstance(each, (Limited, Names, Tags)) for each in markers)
    ):
        raise TypeError(f"the field {name} has no limit: mark it with Limited, Names or Tags")
    return found


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = Union[tuple(each for each in get_args(hint) if each is not type(None))]  # noqa: UP007
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def choices(hint: Any) -> tuple[Any, ...]:
    """The values of a ``Literal``, or of a union of them."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(value for each in get_args(hint) for value in choices(each))
