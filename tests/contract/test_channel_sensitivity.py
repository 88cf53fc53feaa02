"""The contract detects defects in pending messages, contacts and feedback: each of these breaks at least one promise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from holdfast.core import registration
from holdfast.core.queries import Query
from holdfast.core.records import values
from holdfast.stores.conversation import contacts, feedback, message_changes, pending_messages
from tests.contract.cases import Case, can, cases, play
from tests.contract.test_sensitivity import LEG, query, without_limit

STORES = ("pending_messages", "contacts", "feedback")
WAITING, PEOPLE, SAID = pending_messages.queries, contacts.queries, feedback.queries
READ = feedback.FEEDBACK
Defects = dict[str, AbstractContextManager[Any]]
TENANT = "tenant_id = :tenant_id"
UNSEEN = ("by_id", "lock", "lock_stale", "regroup")
"""Queries whose tenant condition has no visible effect: rows that are only read again, and ids that are unique across tenants."""


def forgetful(queries: Any, name: str) -> AbstractContextManager[Any]:
    """Patch a query so that it ignores the tenant."""
    result = queries.by_name[name]
    changed = {dialect: text.replace(TENANT, "TRUE") for dialect, text in result.texts.items()}
    assert changed != result.texts, name
    return mock.patch.multiple(result, **vars(Query(name, changed)))


def forgetful_ones(queries: Any) -> Defects:
    """Return every query of a store, each patched so that it ignores the tenant."""
    names = [name for name, item in queries.by_name.items() if any(TENANT in text for text in item.texts.values())]
    return {f"{name} of everybody": forgetful(queries, name) for name in names if name not in UNSEEN}


ON_WAITING: Defects = {
    "messages in the order of their time": query(WAITING, "list", "ORDER BY seq", "ORDER BY created_at, id DESC"),
    "a page that begins at its end": query(WAITING, "list", "seq > :after", "seq >= :after"),
    "places that are given twice": query(WAITING, "reserve", "1 + :rows", "2"),
    "groups by name only": query(WAITING, "groups", "ORDER BY MAX(created_at) DESC,", "ORDER BY"),
    "any summary will do": query(WAITING, "groups", "= MAX(seq)", "> 0"),
    "compaction counts as activity": query(WAITING, "groups", "MAX(created_at)", "MAX(updated_at)"),
    "messages of any group are replaced": query(WAITING, "delete", "AND id IN (SELECT value FROM json_each(:ids))", ""),
    "a group that is not forgotten": query(WAITING, "forget_group", "WHERE", "WHERE FALSE AND"),
    "a group that is never empty": query(WAITING, "forget_if_empty", "NOT EXISTS", "EXISTS"),
    "stale by the time it was said": query(WAITING, "delete_stale", "updated_at <", "created_at <"),
    "titles of deleted sessions": query(WAITING, "titles", "deleted_at IS NULL AND", ""),
    "titles that are numbers": query(WAITING, "titles", "AND json_type(metadata, '$.chat_title') = 'text'", ""),
    "the oldest title": query(WAITING, "titles", "updated_at DESC, id DESC", "updated_at"),
    "a repeated batch that may differ": mock.patch.object(
        pending_messages, "_repeated", lambda new, existing: existing
    ),
    "a tenant registered under another name": query(
        registration.queries, "register", "VALUES (:tenant_id", "VALUES (:tenant_id || 'x'"
    ),
}
ON_PEOPLE: Defects = {
    "names that are forgotten": query(PEOPLE, "upsert", "NULLIF(excluded.display_name, '')", "excluded.display_name"),
    "names that cannot be found": query(PEOPLE, "upsert", "NULLIF(excluded.search_name, '')", "NULL"),
    "metadata that is forgotten": query(PEOPLE, "upsert", "NULLIF(excluded.metadata, '{}')", "excluded.metadata"),
    "a contact that is never seen again": query(
        PEOPLE, "upsert", "last_seen_at = excluded.last_seen_at", "user_id = ''"
    ),
    "the one seen first": query(contacts.CONTACTS, "list", "last_seen_at DESC", "last_seen_at"),
    "found people in any order": query(PEOPLE, "search", "last_seen_at DESC, id DESC", "channel_type"),
    "usernames are not searched": query(PEOPLE, "search", "search_username >= :prefix", "FALSE"),
    "senders are not counted": query(PEOPLE, "count_found", "search_sender >= :prefix", "FALSE"),
    "those found twice are there twice": query(PEOPLE, "search", "DISTINCT", ""),
    "a search in one case only": mock.patch.object(contacts, "_search_key", lambda name: name or ""),
    "the sender seen first": query(PEOPLE, "by_sender_ids", "ORDER BY last_seen_at, id", "ORDER BY last_seen_at DESC"),
    "a merge of those that were named": query(PEOPLE, "involved", "other.merged_id = given.merged_id", "FALSE"),
    "a merge that does nothing": query(PEOPLE, "regroup", "WHERE", "WHERE FALSE AND"),
}
ON_SAID: Defects = {
    "a user with two opinions": query(SAID, "upsert", "user_id <> '' DO UPDATE", "user_id <> '' DO NOTHING --"),
    "an opinion that stays": query(
        SAID, "upsert", "is_positive = excluded.is_positive", "is_positive = feedback.is_positive"
    ),
    "feedback of deleted sessions": query(READ, "list", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "feedback of deleted sessions is counted": query(READ, "count", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "feedback of deleted sessions is found": query(READ, "get", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "feedback of deleted sessions is changed": query(SAID, "update", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "feedback of deleted sessions is removed": query(SAID, "delete", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "feedback on deleted sessions": query(SAID, "session_of", "AND (s.deleted_at IS NULL) IS TRUE", ""),
    "the newest feedback first": query(READ, "list", "ORDER BY created_at, id", "ORDER BY created_at DESC"),
    "an update that renews the time of making": query(SAID, "update", "metadata =", "created_at = :now_at, metadata ="),
    "an id that may mean anything": mock.patch.object(feedback, "_same", lambda existing, params: existing),
    "feedback of all messages of a session": query(
        message_changes.queries, "delete_feedback", "AND message_id IN (SELECT value FROM json_each(:ids))", ""
    ),
    "any kind of issue": mock.patch.dict(values._BY_KIND, plain=lambda *given: "tool"),
}
DEFECTS = {
    "pending_messages": ON_WAITING | forgetful_ones(WAITING) | {"bodies not measured": without_limit("content_bytes")},
    "contacts": ON_PEOPLE
    | forgetful_ones(PEOPLE)
    | forgetful_ones(contacts.CONTACTS)
    | {limit: without_limit(limit) for limit in ("url_bytes", "display_bytes", "batch_rows")},
    "feedback": ON_SAID
    | forgetful_ones(SAID)
    | forgetful_ones(READ)
    | {"text not measured": without_limit("text_bytes")},
}


def promises(of: str) -> list[Case]:
    """Return the cases of a store."""
    return [case for case in cases() if case.name.startswith(f"{of}.") and can(LEG, case)]


@pytest.mark.parametrize(("store", "defect"), [(store, defect) for store in STORES for defect in DEFECTS[store]])
def test_the_contract_detects(store: str, defect: str) -> None:
    with DEFECTS[store][defect]:
        for case in promises(store):
            try:
                play(case, LEG)
            except Exception:
                return
    pytest.fail(f"no case detected {defect}")


@pytest.mark.parametrize("store", STORES)
def test_without_a_defect_every_case_passes(store: str) -> None:
    for case in promises(store):
        play(case, LEG)
