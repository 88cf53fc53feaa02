"""A saver in joined transactions: rolled back checkpoints are not cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from holdfast import Holdfast, TenantHandle
from holdfast.adapters.langgraph import HoldfastSaver


class Callers:
    """A caller with its own connection, and another handle that sees only committed data."""

    def __init__(self, address: str, acme: TenantHandle) -> None:
        self._is_sqlite = "://" not in address
        self.connection: Any = apsw.Connection(address) if self._is_sqlite else psycopg.connect(address)
        self.acme = acme

    def does(self, end: str, work: Callable[[], Any]) -> Any:
        """Run work in a transaction that ends with ``end``."""
        if self._is_sqlite:
            self.connection.execute("BEGIN IMMEDIATE")
        try:
            return work()
        finally:
            self.connection.execute(end)

    def saver(self) -> HoldfastSaver:
        return HoldfastSaver(self.acme.join(self.connection))

    def messages(self) -> list[str]:
        checkpoint = HoldfastSaver(self.acme).get_tuple({"configurable": {"thread_id": "t"}})
        assert checkpoint is not None
        return [message.id for message in checkpoint.checkpoint["channel_values"]["messages"]]


@pytest.fixture
def callers(address: str) -> Iterator[Callers]:
    with Holdfast(address, auto_migrate=True) as opened:
        made = Callers(address, opened.tenant("acme"))
        yield made
        made.connection.close()


def put(saver: HoldfastSaver, messages: list[Any], parent: str | None = None) -> str:
    checkpoint = empty_checkpoint()
    checkpoint |= {"channel_values": {"messages": messages}, "channel_versions": {"messages": 1}}
    at: dict[str, Any] = {"thread_id": "t", "checkpoint_ns": "", **({"checkpoint_id": parent} if parent else {})}
    return str(saver.put({"configurable": at}, checkpoint, {"source": "loop"}, {})["configurable"]["checkpoint_id"])


def said(name: str) -> HumanMessage:
    return HumanMessage(name * 30, id=name)


def test_work_repeated_after_a_rollback_is_stored(callers: Callers) -> None:
    saver, (a, b, x) = callers.saver(), map(said, "abx")
    first = callers.does("COMMIT", lambda: put(saver, [a]))
    callers.does("ROLLBACK", lambda: put(saver, [a, x], first))

    def again() -> None:
        put(saver, [a, b], first)
        put(saver, [a, b, x], first)

    callers.does("COMMIT", again)
    assert callers.messages() == ["a", "b", "x"]


def test_a_saver_outside_a_rolled_back_transaction_stores_its_checkpoints(callers: Callers) -> None:
    plain, joined, (a, b, x) = HoldfastSaver(callers.acme), callers.saver(), map(said, "abx")
    first = put(plain, [a])
    callers.does("ROLLBACK", lambda: put(joined, [a, x], first))
    second = put(plain, [a, b], first)
    callers.does("COMMIT", lambda: put(joined, [a, b, x], second))
    put(plain, [a, b, x], second)
    assert callers.messages() == ["a", "b", "x"]
