"""The retention of a saver: which checkpoints of a thread it keeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import Struct

from holdfast.errors import InvalidInput


class ThreadRetention(Struct, frozen=True, kw_only=True):
    """The checkpoints that are kept: those that match any of these settings. Without a setting, nothing is removed.

    The newest checkpoint of every namespace is always kept, as are the ancestors that its delta channels need. The exception are
    calls of subgraphs, each of which has its own namespace: they are removed if they ended before the oldest checkpoint that is
    kept of the root graph.

    Raises:
        InvalidInput: a setting is invalid.
    """

    last: int | None = None
    """Keep this many of the newest checkpoints of every namespace."""
    age: timedelta | None = None
    """Keep the checkpoints that are younger than this."""
    runs: int | None = None
    """Keep the checkpoints of this many of the last runs (``run_id`` in the metadata)."""

    def __post_init__(self) -> None:
        for name, minimum in (("last", 1), ("runs", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < minimum):
                raise InvalidInput(f"{name} must be an integer of at least {minimum}, not {value!r}", field=name)
        if self.age is not None and (not isinstance(self.age, timedelta) or self.age < timedelta(0)):
            raise InvalidInput(f"age must be a timedelta of at least 0, not {self.age!r}", field="age")

    @property
    def is_configured(self) -> bool:
        """Whether any setting is given, so that checkpoints are removed."""
        return (self.last, self.age, self.runs) != (None, None, None)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the store's ``prune``."""
        seconds = None if self.age is None else int(self.age.total_seconds())
        return {"keep": self.last or 1, "younger_than_s": seconds, "runs": self.runs, "without_past_calls": True}
