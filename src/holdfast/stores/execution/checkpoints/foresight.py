"""A step that is saved with one statement, because its caller knows how the log will be.

To save a step takes seven statements, one after the other: the places of its new pieces are known only when the log has been
locked and searched for them. On PostgreSQL each of them is a message there and back. But whoever saved the step before
knows where the log ended, and mostly nobody else has added to it. So the places are foreseen, and one statement saves the step
if the log is still like that; if it is not, the statement does nothing, and the step is saved in the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ....core.objects import Packed
from ....core.queries import Query
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Engine
from ....errors import OutcomeUnknown
from .piece_log import NewPiece
from .places import Range, firsts

PIECES_MOST = 2
"""New pieces of a step that is saved so: a message, and now and then the shape of the state."""
_NO_PIECE = Packed(b"", 0, b"", 0)


class Stored(Struct, frozen=True):
    """Where the pieces of a checkpoint lie now."""

    stamp: str
    places: Sequence[int]
    """For each of the pieces that were given, those of a checkpoint before those of tasks; of a range of places, the first."""
    next_place: int
    """Where the next new piece will lie, if nobody else adds one before."""


class Foreseen(Struct, frozen=True):
    """Where the pieces of a step will lie, and where the log will end."""

    places: list[int | Range]
    next_place: int
    params: dict[str, Any]
    """Of the statement that saves it, as far as its pieces go."""

    def stored(self) -> Stored:
        """The answer, if it came true."""
        return Stored(self.params["stamp"], firsts(self.places), self.next_place)


def foresee(
    engine: Engine, pieces: Sequence[NewPiece | int | Range], stamp: str | None, next_place: int | None
) -> Foreseen | None:
    """Where these pieces will lie in a log that ends before ``next_place``; ``None`` if that takes the long way."""
    if next_place is None or stamp is None or not _is_worth_it(engine):
        return None
    new = {each.packed.digest: each for each in pieces if isinstance(each, NewPiece)}
    given = [each for each in pieces if not isinstance(each, NewPiece)]
    if len(new) > PIECES_MOST or any(each.large is not None for each in new.values()):
        return None
    if not all(_is_within(each, next_place) for each in given):
        return None
    at = {digest: place for place, digest in enumerate(new, next_place)}
    one, other = [*(each.packed for each in new.values()), _NO_PIECE, _NO_PIECE][:2]
    params = {"stamp": stamp, "next_place": next_place, "count": len(new)}
    params |= {"one": one.digest, "one_codec": one.codec, "one_body": one.body}
    params |= {"other": other.digest, "other_codec": other.codec, "other_body": other.body}
    found = [at[each.packed.digest] if isinstance(each, NewPiece) else each for each in pieces]
    return Foreseen(found, next_place + len(new), params)


async def came_true(engine: Engine, query: Query, params: dict[str, Any]) -> bool:
    """Run the one statement; whether the log was as it was known to be, so that the step is saved."""
    try:
        return await engine.grouped(_ALONE, (query, params))
    except OutcomeUnknown:
        return False  # saving the same again settles it


def _is_worth_it(engine: Engine) -> bool:
    """Where a statement is a message there and back and a caller has its own connection for a while; where nobody can undo what
    was answered; and where the one statement goes to one machine."""
    return engine.dialect is Dialect.POSTGRES and engine.blocking and not engine.joined and not engine.distributed


def _is_within(place: int | Range, next_place: int) -> bool:
    first, last = (place, place) if isinstance(place, int) else place
    return first >= 1 and last < next_place


class _Alone:
    """A group of one."""

    mixes_keys = False

    def key(self, item: tuple[Query, dict[str, Any]]) -> object:
        return object()

    def id_of(self, item: tuple[Query, dict[str, Any]]) -> str:
        return str(item[1]["thread_id"])

    async def run(
        self, connection: Connection, items: Sequence[tuple[Query, dict[str, Any]]], *, careful: bool
    ) -> Sequence[bool | Exception]:
        if (
            careful
        ):  # the checkpoint or the task is there already: what is to become of it is not for one statement to say
            return [False for _ in items]
        return [await query.one(connection, params) is not None for query, params in items]


_ALONE = _Alone()
