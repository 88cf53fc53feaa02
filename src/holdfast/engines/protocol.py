"""What an engine and a connection are, for everything above them.

A *connection* runs statements; the caller's own connection, wrapped by a driver, is one too. An *engine* runs calls:
a call is a function that takes a connection and returns a coroutine, so an engine may run it in another thread, run
it again after a serialization failure, or let many of them share one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from ..errors import AlreadyExists
from .dialect import Dialect

T = TypeVar("T")
Item = TypeVar("Item")
ItemIn = TypeVar("ItemIn", contravariant=True)
Result = TypeVar("Result", covariant=True)
Row = tuple[Any, ...]


class Connection(Protocol):
    """Runs statements inside whatever transaction is open. Blocking connections never suspend."""

    @property
    def dialect(self) -> Dialect: ...

    distributed: bool
    """Whether Citus distributes the tables by tenant. Each statement should then be one that goes to a single machine."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        """Run one statement and return its rows."""

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement once for each row of arguments."""

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """A scope whose statements are all undone if it is left by an exception; they nest."""


Call = Callable[[Connection], Coroutine[Any, Any, T]]


class Group(Protocol[ItemIn, Result]):
    """Work that many callers can share: what has queued up is done in one exchange, each failing or succeeding alone.

    ``key`` says which items may stand in one group. ``run`` answers each item with its result or its error, or raises if the
    group cannot be done as a whole; then its items are done one by one. It is first run hoping that all is new; if that
    raises ``AlreadyExists`` it is run again, ``careful``, to see what is there already. On PostgreSQL it runs without a
    transaction around it, so it must write with one statement, or inside ``in_one_commit``.
    """

    mixes_keys: bool
    """Whether items of different keys can be run together, in one transaction. An engine whose tables are distributed by tenant
    does not do so: a transaction over several nodes is slow, and one failed node would fail it."""

    def key(self, item: ItemIn) -> object:
        """What the items of one group have in common."""

    def id_of(self, item: ItemIn) -> str:
        """The id with which the caller can ask again when the answer to this item was lost."""

    async def run(
        self, connection: Connection, items: Sequence[ItemIn], *, careful: bool
    ) -> Sequence[Result | Exception]:
        """The result or the error of each item."""


def in_one_statement(connection: Connection) -> bool:
    """Whether a group should write with one statement. Citus sends a statement with several changes to all machines, so there
    each change is a statement of its own."""
    return connection.dialect.changes_in_ctes and not connection.distributed


def in_one_commit(connection: Connection) -> AbstractAsyncContextManager[None]:
    """A scope in which everything that a group writes becomes one commit, however many statements it takes."""
    return connection.savepoint() if connection.distributed else nullcontext()


CAREFUL = (False, True, True)
"""The tries of one item: hoping, then careful, then careful once more if somebody came in between."""


async def run_one(group: Group[Item, T], connection: Connection, item: Item, tries: Sequence[bool] = CAREFUL) -> T:
    """Do one item by itself, each try in a savepoint of its own."""
    for careful in tries:
        try:
            async with connection.savepoint():
                (outcome,) = await group.run(connection, [item], careful=careful)
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome
        except AlreadyExists as error:
            raced = error
    raise raced


class Engine(Protocol):
    """Runs calls. A blocking engine's methods never suspend; an asynchronous one's do."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def blocking(self) -> bool:
        """Whether there is no event loop in which something of the caller's could be awaited."""

    @property
    def joined(self) -> bool:
        """Whether every call runs in the caller's own transaction, so that nothing happens outside of one."""

    distributed: bool | None
    """Whether Citus distributes the tables by tenant; ``None`` before the first connection was asked."""

    async def read(self, call: Call[T]) -> T:
        """Run a call that only reads."""

    async def write(self, call: Call[T]) -> T:
        """Run a call in one transaction; durable when this returns, without a trace when it raises."""

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        """Do one item of a group, together with whatever else is waiting."""
