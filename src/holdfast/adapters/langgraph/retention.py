"""What a saver keeps of a thread."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import Struct

from holdfast.errors import InvalidInput


class Retention(Struct, frozen=True, kw_only=True):
    """What is kept: what any of these names. Nothing is ever removed if none of them is given.

    The newest checkpoint of every namespace always stays, and so do the ancestors that its delta channels need. Only calls of
    subgraphs, each of which has a namespace of its own, go when they ended before all that is kept of the graph itself.

    Raises:
        InvalidInput: one of them is not what it should be.
    """

    last: int | None = None
    """The newest checkpoints of every namespace, this many."""
    age: timedelta | None = None
    """What was saved in this last time."""
    runs: int | None = None
    """The checkpoints of the last runs (``run_id`` in the metadata), this many."""

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("runs", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise InvalidInput(f"{name} is a whole number from {least} on, not {value!r}")
        if self.age is not None and (not isinstance(self.age, timedelta) or self.age < timedelta(0)):
            raise InvalidInput(f"age is a timedelta from 0 on, not {self.age!r}")

    @property
    def is_asked_for(self) -> bool:
        """Whether anything is ever removed."""
        return (self.last, self.age, self.runs) != (None, None, None)

    def arguments(self) -> dict[str, Any]:
        """The same for the store."""
        seconds = None if self.age is None else int(self.age.total_seconds())
        return {"keep": self.last or 1, "younger_than_s": seconds, "runs": self.runs, "without_past_calls": True}
