"""Each of these planted defects of compactions fails at least one case of the contract."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from holdfast.stores.conversation import originals, sessions, tool_pairs
from holdfast.stores.conversation.compaction import automatic as compaction_automatic
from holdfast.stores.conversation.compaction import commit as compaction_commit
from holdfast.stores.conversation.compaction import plan as compaction_plan
from holdfast.stores.conversation.compaction import rollback as compaction_rollback
from holdfast.stores.conversation.compaction import strategies as compaction_strategies
from holdfast.stores.conversation.compaction.attachments import Attachments
from holdfast.stores.conversation.compaction.events import queries
from tests.contract.cases import can, cases, play
from tests.contract.test_sensitivity import LEG, query

CASES = [case for case in cases() if case.name.startswith("compaction") and can(LEG, case)]


def patched(name: str, old: str, new: str) -> AbstractContextManager[Any]:
    """Patch a query of compactions."""
    return query(queries, name, old, new)


def nothing(*args: Any, **kwargs: Any) -> Any:
    return None


async def false(*args: Any, **kwargs: Any) -> bool:
    return False


DEFECTS: dict[str, AbstractContextManager[Any]] = {
    "a message is removed without an archived original": patched(
        "archive", "AND m.seq IN", "AND m.seq > 1 AND m.seq IN"
    ),
    "an original is archived without its feedback": patched(
        "archive", "f.message_id = m.id", "f.message_id = m.id AND FALSE"
    ),
    "an original is archived without its flags": patched("archive", "'is_summary', m.is_summary", "'is_summary', 0"),
    "an original is decoded and encoded again": patched(
        "archive", "'content', m.content", "'content', json(m.content)"
    ),
    "a rollback does not restore feedback": mock.patch.object(originals.queries.insert_feedback, "many", false),
    "removed messages stay in the log": patched("remove", "DELETE FROM messages", "DELETE FROM feedback"),
    "a rewritten message keeps its token count": patched("overwrite", "token_count = :token_count,", ""),
    "a rollback does not restore rewritten messages": mock.patch.object(compaction_rollback, "overwrite", false),
    "a rollback does not restore updated_at": patched("overwrite", "updated_at = :updated_at", "updated_at = :now_at"),
    "a rollback does not remove the summary": patched("drop", "DELETE FROM messages", "DELETE FROM feedback"),
    "a rollback does not empty the archive": patched("empty_archive", "compaction_event_id", "id"),
    "an event can be rolled back twice": patched(
        "mark_rolled_back", "rolled_back_at = :now_at", "rolled_back_at = NULL"
    ),
    "the oldest event is taken for the newest": patched("newest", "DESC", "ASC"),
    "the history is listed oldest first": patched("history", "DESC", "ASC"),
    "events of deleted sessions are returned": patched("get", " AND (s.deleted_at IS NULL) IS TRUE", ""),
    "compaction_count does not change": patched("settle", "compaction_count + :more_compactions", "compaction_count"),
    "token_count does not change": patched("settle", "token_count = :tokens", "token_count = token_count"),
    "message_count is wrong": patched("settle", "message_count = :message_count", "message_count = 1"),
    "the view does not change": patched("settle", "view = :view", "view = view"),
    "an automatic compaction is repeated immediately": patched("settle", "ELSE :tokens + p.due / 16 + 1", "ELSE p.due"),
    "a failed compaction is repeated immediately": patched(
        "postpone", "token_count + compact_from / 16 + 1", "compact_from"
    ),
    "the agent's policy precedes the session's own": patched("attached", "p.scope = 'session'", "p.scope = 'none'"),
    "new sessions do not get the policy of their agent": query(
        sessions.queries, "create", "scope = 'agent'", "scope = 'none'"
    ),
    "an upsert with another agent drops the session's own policy": query(
        sessions.queries, "update_by_key", "scope = 'session'", "scope = 'none'"
    ),
    "an upsert ignores the policy of the new agent": query(
        sessions.queries, "update_by_key", "scope = 'agent'", "scope = 'none'"
    ),
    "a page repeats the last original of the page before": patched(
        "archived", "> (:after_number, :after_seq)", ">= (:after_number, :after_seq)"
    ),
    "a plan is executed although the session changed": mock.patch.object(
        compaction_plan.SessionRows, "fingerprint", return_value="the same"
    ),
    "late tool results are not checked": mock.patch.object(compaction_commit, "_check_late_results", nothing),
    "other branches are not checked at a commit": mock.patch.multiple(compaction_commit, needed_elsewhere=false),
    "other branches are not checked at a rollback": mock.patch.multiple(compaction_rollback, needed_elsewhere=false),
    "the choice of a strategy is not checked": mock.patch.object(
        compaction_plan, "check_changes", lambda changes, *_: changes
    ),
    "tool pairs are not checked": mock.patch.object(tool_pairs.Pairs, "bound_to", return_value=set()),
    "the last tokens are not protected": mock.patch.object(
        compaction_strategies.CompactionHistory, "_newest_within", return_value=[]
    ),
    "appends never start a compaction": mock.patch.object(
        compaction_automatic.attachments.Attachments, "may_apply_to", return_value=False
    ),
    "attached functions are not found": mock.patch.object(Attachments, "find", return_value=None),
    "the summary has another role": mock.patch.object(compaction_commit, "SUMMARY_ROLE", "assistant"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_contract_detects(defect: str) -> None:
    with DEFECTS[defect]:
        for case in CASES:
            try:
                play(case, LEG)
            except Exception:
                return
    pytest.fail(f"no case noticed the defect: {defect}")


def test_without_a_defect_all_cases_pass() -> None:
    assert len(CASES) > 25
    for case in CASES:
        play(case, LEG)
