"""The fields of a record: markers on a row type, and the declaration that is built from them.

A row type is a frozen Struct. Its fields are columns; markers in ``Annotated`` add the rest::

    class Provider(Struct, frozen=True):
        id: Annotated[Id, Key()]
        name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
        settings: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
        enabled: Annotated[bool, Filterable()]
        version: int
        created_at: datetime
        updated_at: datetime

The store sets ``version``, ``created_at``, ``updated_at``, ``last_seen_at`` and ``deleted_at``. The ``New...`` Struct has every
other field, and the ``...Change`` Struct has the fields that can be changed.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Struct, structs

from ..filters import FilterColumns
from ..rows import column_names, kind_of

ROW = TypeVar("ROW", bound=Struct)
STAMPS = ("created_at", "updated_at", "last_seen_at")
"""Times that the store sets when it creates a record."""
MANAGED = ("version", *STAMPS, "deleted_at")
"""Fields that the store sets; callers cannot set them."""


class Key(Struct, frozen=True):
    """The field identifies a record within its tenant. Several keys form a composite key, in the order of the fields.

    A part with a default in the ``New...`` Struct can be left out at the end of a key.
    """


class Natural(Struct, frozen=True):
    """The field is part of the name by which people know a record; it is unique among the records that are not deleted.

    The table needs a unique index on the tenant and these columns, ``WHERE deleted_at IS NULL`` if records can be restored.
    """


class Limited(Struct, frozen=True):
    """The limit (a field of ``Limits``) of a text, in bytes of UTF-8, of a JSON value, in bytes as stored, or of a number."""

    limit: str
    empty: bool = True
    """Whether an empty text is allowed."""


class Url(Struct, frozen=True):
    """The text is empty or an http or https URL without a user name and a password."""


class AtLeast(Struct, frozen=True):
    """The smallest allowed number."""

    minimum: int


class Format(Struct, frozen=True):
    """The text has the form of a regular expression, or is empty, if that is allowed."""

    pattern: str
    about: str
    """The form in words, for errors: "an absolute path", for example."""
    example: str
    """A text of this form, which letters and digits may follow."""


class OnlyFor(Struct, frozen=True):
    """Only records whose field ``of`` has one of these values can have a value in this field."""

    of: str
    values: tuple[str, ...]
    required: bool = False
    """Whether those records must have one."""


class Names(Struct, frozen=True):
    """A list of names without duplicates; ``limit`` bounds their number."""

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


class AtMostOne(Struct, frozen=True):
    """A flag of at most one live record, or of one of those that are equal in the fields ``within``: a default, for example.

    A record that gets the flag takes it from the other one, in the same transaction. A deleted record loses it. The table needs a
    unique index on the tenant and the columns of ``within``, ``WHERE`` the flag is set.
    """

    within: tuple[str, ...] = ()


class Searchable(Struct, frozen=True):
    """The ``search`` argument of ``list`` and ``count`` searches the field."""


class Merged(Struct, frozen=True):
    """``update`` merges the object into the stored one, key by key. An empty object, or ``None``, clears it."""


class DefaultsTo(Struct, frozen=True):
    """The value of the field in a new record that leaves it out: that of another field, or of the actor context.

    The ``New...`` Struct has the default ``UNSET`` for it. Without an actor the field is empty.
    """

    field: str = ""
    actor: str = ""
    """A field of ``ActorContext``, such as ``user``."""


class References(Struct, frozen=True):
    """The field names a record of another table, which must exist and be live. An empty text, or ``None``, names none."""

    table: str
    noun: str
    column: str = "id"
    live: str = ""
    """An SQL condition of live records, such as ``deleted_at IS NULL``; records that name another one are hidden."""


class KeyOptional(Struct, frozen=True):
    """The secret is stored as plain text if no encryption key is configured. Without this marker it is refused then."""


class Metadata(Struct, frozen=True):
    """The JSON object whose keys can be filtered on with ``meta(...)``."""


class Field(Struct, frozen=True):
    """One field of a row type."""

    name: str
    column: str
    kind: str
    """id, plain, text, time, bool, number, json or secret; see ``core/rows.py``."""
    type: Any
    optional: bool
    markers: dict[type, Any]

    def marker(self, kind: type[Struct]) -> Any:
        """Return the marker of this kind, or ``None``."""
        return self.markers.get(kind)

    @property
    def is_filterable(self) -> bool:
        """Whether ``list`` and ``count`` accept filters on the field."""
        return self.marker(Filterable) is not None

    @property
    def is_list_of_names(self) -> bool:
        """Whether the field is a list of names or tags."""
        return self.marker(Names) is not None or self.marker(Tags) is not None

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values, if the type is a ``Literal``."""
        return choices(self.type)


class Declaration(Struct, Generic[ROW], frozen=True):
    """Everything that the types of a store declare about it."""

    row: type[ROW]
    fields: dict[str, Field]
    key: tuple[Field, ...]
    natural: tuple[Field, ...]
    new_fields: tuple[Field, ...]
    """Fields of the ``New...`` Struct."""
    editable: tuple[Field, ...]
    """Fields of the ``...Change`` Struct."""
    order: tuple[Field, ...]
    """Fields that a list is sorted by; the last ones are the key, so that the order is total."""
    descending: bool
    tags: Field | None
    searchable: tuple[Field, ...]
    references: tuple[Field, ...]
    variants: tuple[Field, ...]
    """Fields that only some records can have; see ``OnlyFor``."""
    flag: Field | None
    """The field of the kind ``AtMostOne``."""
    secrets: tuple[Field, ...]
    """Fields of type ``Secret``: encrypted, with the tenant, the table, the key and the column as associated data."""
    defaults: dict[str, Any]
    """Defaults of the parts of the key that have one."""


def fields_of(row: type[Struct]) -> dict[str, Field]:
    """Return the fields of a row type, by name.

    Raises:
        TypeError: a field has no limit.
    """
    hints, columns = get_type_hints(row, include_extras=True), column_names(row)
    return {name: _field(name, columns[name], hints[name]) for name in row.__struct_fields__}


def declare(
    row: type[ROW], new: type[Struct], change: type[Struct], order: Sequence[str], extra: Sequence[str]
) -> Declaration[ROW]:
    """Return the declaration of a store.

    Args:
        order: the fields a list is sorted by, the key if empty; ``-name`` means descending, for all fields or for none.
        extra: fields of ``new`` and ``change`` that are not columns: the store handles them itself.

    Raises:
        TypeError: the types contradict each other, or a field has no limit.
    """
    fields = fields_of(row)
    key = tuple(field for field in fields.values() if field.marker(Key))
    new_fields = _select(fields, [name for name in new.__struct_fields__ if name not in extra], new)
    editable = _select(fields, [name for name in change.__struct_fields__ if name not in extra], change)
    sorted_by = tuple(fields[name.removeprefix("-")] for name in order)
    missing = [name for name in fields if name not in {field.name for field in new_fields} and name not in MANAGED]
    copied = [fields[field.marker(DefaultsTo).field or field.name] for field in new_fields if field.marker(DefaultsTo)]
    problems = [
        (not key, "has no Key()"),
        (bool(missing), f"has fields that {new.__name__} does not have: {', '.join(missing)}"),
        (any(field in key for field in editable), f"has a key that {change.__name__} would change"),
        (
            any(field.marker(DefaultsTo) and field.marker(DefaultsTo).field for field in copied),
            "has a default that is the default of another field",
        ),
        (len({name.startswith("-") for name in order}) > 1, "is sorted in ascending and descending order at once"),
    ]
    for wrong, message in problems:
        if wrong:
            raise TypeError(f"{row.__name__} {message}")
    return Declaration(
        row=row,
        fields=fields,
        key=key,
        natural=tuple(field for field in fields.values() if field.marker(Natural)),
        new_fields=new_fields,
        editable=editable,
        order=sorted_by + tuple(field for field in key if field not in sorted_by),
        descending=any(name.startswith("-") for name in order),
        tags=next((field for field in fields.values() if field.marker(Tags)), None),
        searchable=tuple(field for field in fields.values() if field.marker(Searchable)),
        references=tuple(field for field in fields.values() if field.marker(References)),
        variants=tuple(field for field in fields.values() if field.marker(OnlyFor)),
        flag=next((field for field in fields.values() if field.marker(AtMostOne)), None),
        secrets=tuple(field for field in fields.values() if field.kind == "secret"),
        defaults={
            field.name: field.default for field in structs.fields(new) if field.default not in (NODEFAULT, UNSET)
        },
    )


def filter_columns(declared: Declaration[Any]) -> FilterColumns:
    """Return the columns that the filters of ``list`` and ``count`` may use."""
    kinds = {"plain": "text"}
    columns = {
        field.name: (field.column, kinds.get(field.kind, field.kind))
        for field in declared.fields.values()
        if field.marker(Filterable)
    }
    if declared.tags is not None:
        tags = declared.tags.marker(Tags)
        tagged = f"SELECT t.{tags.column} FROM {tags.table} AS t WHERE t.tenant_id = :tenant_id AND t.tag"
        columns[declared.tags.name] = (f"{declared.key[0].column} IN ({tagged}", "tags")
    metadata = next((field.column for field in declared.fields.values() if field.marker(Metadata)), None)
    return FilterColumns(columns, metadata=metadata)


def _select(fields: dict[str, Field], names: Sequence[str], struct: type[Struct]) -> tuple[Field, ...]:
    unknown = [name for name in names if name not in fields or name in MANAGED]
    if unknown:
        raise TypeError(f"{struct.__name__} has fields that callers cannot set: {', '.join(unknown)}")
    return tuple(fields[name] for name in names)


def _field(name: str, column: str, hint: Any) -> Field:
    plain, *markers = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    optional = get_origin(plain) in (Union, types.UnionType) and type(None) in get_args(plain)
    field = Field(
        name, column, kind_of(hint), _without_none(plain), optional, {type(marker): marker for marker in markers}
    )
    if (
        name not in MANAGED
        and field.kind in ("text", "json")
        and not any(isinstance(marker, (Limited, Names, Tags)) for marker in markers)
    ):
        raise TypeError(f"the field {name} has no limit: mark it with Limited, Names or Tags")
    return field


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = Union[tuple(arg for arg in get_args(hint) if arg is not type(None))]  # noqa: UP007
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


@cache
def choices(hint: Any) -> tuple[Any, ...]:
    """Return the values of a ``Literal``, or of a union of them."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(value for arg in get_args(hint) for value in choices(arg))
