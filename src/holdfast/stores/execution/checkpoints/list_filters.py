"""SQL conditions for lists of checkpoints: the filters that callers may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....core.filters import Filter, FilterColumns, equal_metadata, filter_list
from ....engines.dialect import Dialect
from ....limits import Limits
from . import compact_columns

FILTERS = {
    dialect: FilterColumns(
        {
            "thread_id": ("thread_id", "text"),
            "user": ("user_id", "text"),
            "namespace": ("checkpoint_ns", "text"),
            "id": (compact_columns.id_expression("checkpoint_id", dialect), "text"),
            "parent": (compact_columns.id_expression("parent_checkpoint_id", dialect), "text"),
            "run_id": ("run_id", "text"),
        },
        metadata=compact_columns.metadata_expression("metadata", dialect),
    )
    for dialect in Dialect
}


def compile_filters(
    equal: Mapping[str, str | None],
    metadata: Mapping[str, Any] | None,
    where: Sequence[Filter],
    params: dict[str, Any],
    dialect: Dialect,
    limits: Limits,
) -> str:
    """Return SQL conditions for the requested checkpoints, and add their values to ``params``.

    Args:
        equal: columns with the values they must have; ``None`` for any value.

    Raises:
        InvalidFilter: a filter is not part of the language.
    """
    plain = [Filter("eq", value, column=name) for name, value in equal.items() if value is not None]
    return FILTERS[dialect].compile([*plain, *equal_metadata(metadata), *filter_list(where)], params, dialect, limits)
