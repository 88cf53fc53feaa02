"""The contract detects defects: each of these, introduced into a store, breaks at least one promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest

from holdfast.core import filters, paging, registration, scope, text
from holdfast.core.queries import Query
from holdfast.engines.dialect import Dialect
from holdfast.limits import Limits
from holdfast.stores.conversation import log_reading, message_changes, message_log, new_entries, sessions
from holdfast.stores.lifecycle import purge_statements
from tests.contract.cases import can, cases, play
from tests.contract.legs import MEMORY_LACKS, MemoryPlace, OwnLeg

LEG = OwnLeg("sqlite memory sync", MemoryPlace(), asynchronous=False, missing=MEMORY_LACKS)


def query(queries: Any, name: str, old: str, new: str) -> AbstractContextManager[Any]:
    """Patch a query."""
    result = queries.by_name[name]
    changed = {dialect: item.replace(old, new) for dialect, item in result.texts.items()}
    assert changed != result.texts, f"{name} does not contain {old!r}"
    return mock.patch.multiple(result, **vars(Query(name, changed)))


@contextmanager
def both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    """Two defects at once, where other code compensates for one of them alone."""
    with first, second:
        yield


def without_limit(name: str) -> AbstractContextManager[Any]:
    """Patch a limit so that it is never checked."""
    real = Limits.check

    def check(self: Limits, limit: str, value: int, what: str) -> None:
        if limit != name:
            real(self, limit, value, what)

    return mock.patch.object(Limits, "check", check)


def keep_everything(value: str) -> str:
    return value


ABOUT = ("sessions", "session_lists", "messages", "message_changes", "message_reading", "tenants", "values")
LIVE = " AND (deleted_at IS NULL) IS TRUE"
HERE, LOG = sessions.queries, message_log.queries
READ, ONE = log_reading.queries, message_changes.queries
DEFECTS: dict[str, AbstractContextManager[Any]] = {
    "messages in the order of their time": query(READ, "list", "ORDER BY seq", "ORDER BY created_at DESC, seq DESC"),
    "the last messages from the wrong end": query(READ, "list_newest", "ORDER BY seq DESC", "ORDER BY seq"),
    "a place given again": query(LOG, "advance_this_minute", "next_seq = next_seq +", "next_seq = message_count + 1 +"),
    "appends to deleted sessions": query(LOG, "advance", LIVE, ""),
    "messages of deleted sessions are read": query(ONE, "get", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "tokens that are not counted": query(ONE, "recount", "token_count = token_count + :more_tokens,", ""),
    "removed messages that are still counted": query(ONE, "recount", "message_count - :removed", "message_count"),
    "an id that may mean anything": mock.patch.object(message_log.LogEntry, "same_as", return_value=True),
    "an id that never means the same": mock.patch.object(message_log.LogEntry, "same_as", return_value=False),
    "a place that is included": query(READ, "list", "seq > :after", "seq >= :after"),
    "messages of any session are removed": query(ONE, "delete", "session_id = :session_id AND ", ""),
    "an update that renews the time of making": query(ONE, "update", "metadata =", "created_at = :now_at, metadata ="),
    "a deletion that hides nothing": query(HERE, "delete", "deleted_at = :now_at", "deleted_at = NULL"),
    "a restoration that counts as use": query(HERE, "restore", "= NULL", "= NULL, updated_at = updated_at + 1"),
    "a purge that leaves the session": query(HERE, "purge", "id = :id", "id = 'x'"),
    "an update of deleted sessions": query(HERE, "update", LIVE, ""),
    "an upsert that forgets the agent": query(
        HERE, "update_by_key", "agent_id = COALESCE(:agent_id, agent_id)", "agent_id = ''"
    ),
    "an upsert that forgets the metadata": query(HERE, "update_by_key", "COALESCE(:metadata, metadata)", "'{}'"),
    "the oldest session first": query(HERE, "list", "updated_at DESC", "updated_at"),
    "ties in any order": query(HERE, "list", "id DESC", "identifier"),
    "deleted sessions among the others": query(HERE, "count", "deleted_at IS NULL", "TRUE"),
    "a compare-and-set that does not compare": query(HERE, "lock", "WHERE tenant_id", "WHERE FALSE AND tenant_id"),
    "a session that changes its tenant": query(
        registration.queries, "register", "NOTHING", "UPDATE SET metadata = '{}'"
    ),
    "a tenant that leaves its sessions": both(
        mock.patch.object(purge_statements, "bounded", return_value=[]),
        mock.patch.object(purge_statements, "unbounded", return_value=[]),
    ),
    "a tenant deleted by mistake": mock.patch.object(
        purge_statements, "anything", return_value=Query("x", dict.fromkeys(Dialect, "SELECT 1 WHERE :tenant_id = 'x'"))
    ),
    "text that is stored as it is": mock.patch.multiple(text, escape=keep_everything, unescape=keep_everything),
    "names that are not measured": without_limit("key_bytes"),
    "content that is not measured": without_limit("content_bytes"),
    "batches that are not measured": without_limit("batch_rows"),
    "filters that are not counted": without_limit("filters"),
    "characters taken for bytes": mock.patch.object(text, "size", len),
    "cursors that are never understood": mock.patch.object(paging, "_in_range", return_value=False),
    "numbers in cursors that are not looked at": mock.patch.object(paging, "_in_range", return_value=True),
    "a filter that is ignored": mock.patch.object(filters.FilterColumns, "compile", return_value=""),
    "any role": mock.patch.object(new_entries, "ROLES", ("user", "assistant", "system", None, "tool", "", 7, "User")),
    "metadata of any shape": mock.patch.object(scope, "metadata", lambda value, limits: text.dump(value or {})),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_contract_detects(defect: str) -> None:
    with DEFECTS[defect]:
        # Cases of these stores come first: they detect a defect soonest.
        for case in sorted(cases(), key=lambda case: not case.promise.__module__.endswith(ABOUT)):
            if can(LEG, case):
                try:
                    play(case, LEG)
                except Exception:
                    return
    pytest.fail(f"no case detected {defect}")
