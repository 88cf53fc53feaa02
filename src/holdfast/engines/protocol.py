"""Protocols of connections and engines, used by every layer above them.

A *connection* runs statements; the caller's own connection, wrapped by a driver, is a connection too. An *engine* runs
calls: a call is a function that takes a connection and returns a coroutine, so an engine may run it in another thread,
retry it after a serialization failure, or let many calls share one commit.
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
    """Runs statements in the open transaction, if any. Blocking connections never suspend."""

    @property
    def dialect(self) -> Dialect: ...

    distributed: bool
    """Whether Citus distributes the tables by tenant. Each statement should then concern a single node."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        """Run one statement and return its rows."""

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement once for each row of arguments."""

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Return a scope whose statements are rolled back if it exits with an exception. Scopes nest."""


Call = Callable[[Connection], Coroutine[Any, Any, T]]


class Group(Protocol[ItemIn, Result]):
    """A write that many callers can share: queued items are executed in one exchange, and each succeeds or fails alone.

    Items with the same ``key`` may share a batch. ``run`` returns a result or an error for each item, or raises if the batch
    cannot be executed as a whole; then its items are executed one by one. The first run assumes that all items are new; if it
    raises ``AlreadyExists``, ``run`` is called again with ``careful`` and looks for existing rows. On PostgreSQL it runs
    without an explicit transaction, so it must write with one statement or inside ``in_one_commit``.
    """

    mixes_keys: bool
    """Whether items of different keys can run together in one transaction. An engine whose tables are distributed by tenant
    ignores this: a transaction over several nodes is slow, and a single failed node would fail it."""

    def key(self, item: ItemIn) -> object:
        """Return the key that the items of one batch share."""

    def id_of(self, item: ItemIn) -> str:
        """Return the id with which the caller can retry when the result of this item was lost."""

    async def run(
        self, connection: Connection, items: Sequence[ItemIn], *, careful: bool
    ) -> Sequence[Result | Exception]:
        """Execute the items and return the result or the error of each."""


def in_one_statement(connection: Connection) -> bool:
    """Return whether a group should write with one statement. Citus sends a statement with several changes to all nodes, so
    with Citus each change is a statement of its own."""
    return connection.dialect.changes_in_ctes and not connection.distributed


def in_one_commit(connection: Connection) -> AbstractAsyncContextManager[None]:
    """Return a scope in which all writes of a group become one commit, however many statements they take."""
    return connection.savepoint() if connection.distributed else nullcontext()


CAREFUL = (False, True, True)
"""Value of ``careful`` for each attempt at one item; the third attempt is for a concurrent change after the second."""


async def run_one(group: Group[Item, T], connection: Connection, item: Item, tries: Sequence[bool] = CAREFUL) -> T:
    """Execute one item by itself, each attempt in a savepoint of its own."""
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
    """Runs calls. Methods of a blocking engine never suspend; those of an asynchronous engine do."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def blocking(self) -> bool:
        """Whether the engine is synchronous, so that the caller has no event loop in which anything could be awaited."""

    @property
    def joined(self) -> bool:
        """Whether every call runs in the caller's own transaction."""

    distributed: bool | None
    """Whether Citus distributes the tables by tenant; ``None`` until the first connection was queried."""

    async def read(self, call: Call[T]) -> T:
        """Run a call that only reads."""

    async def write(self, call: Call[T]) -> T:
        """Run a call in one transaction: durable when this returns, rolled back when it raises."""

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        """Execute one item of a group, in one batch with other waiting items."""
