"""The contract notices defects of compactions: each of these, planted, breaks at least one promise."""

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


def says(name: str, old: str, new: str) -> AbstractContextManager[Any]:
    """A query of compactions that says something else."""
    return query(queries, name, old, new)


def nothing(*args: Any, **kwargs: Any) -> Any:
    return None


async def nobody(*args: Any, **kwargs: Any) -> bool:
    return False


DEFECTS: dict[str, AbstractContextManager[Any]] = {
    "a message without a copy": says("archive", "AND m.seq IN", "AND m.seq > 1 AND m.seq IN"),
    "a copy without its feedback": says("archive", "f.message_id = m.id", "f.message_id = m.id AND FALSE"),
    "a copy without its flags": says("archive", "'is_summary', m.is_summary", "'is_summary', 0"),
    "a copy that was read and written again": says("archive", "'content', m.content", "'content', json(m.content)"),
    "feedback that does not come back": mock.patch.object(originals.queries.insert_feedback, "many", nobody),
    "messages that stay where they were": says("remove", "DELETE FROM messages", "DELETE FROM feedback"),
    "a rewriting that forgets the tokens": says("overwrite", "token_count = :token_count,", ""),
    "a rewriting that is not undone": mock.patch.object(compaction_rollback, "overwrite", nobody),
    "an undoing that keeps the new time": says("overwrite", "updated_at = :updated_at", "updated_at = :now_at"),
    "a summary that stays": says("drop", "DELETE FROM messages", "DELETE FROM feedback"),
    "originals that are kept for ever": says("empty_archive", "compaction_event_id", "id"),
    "an event that can be undone twice": says("mark_rolled_back", "rolled_back_at = :now_at", "rolled_back_at = NULL"),
    "the oldest event taken for the newest": says("newest", "DESC", "ASC"),
    "the history from its beginning": says("history", "DESC", "ASC"),
    "events of deleted sessions": says("get", " AND (s.deleted_at IS NULL) IS TRUE", ""),
    "compactions that are not counted": says("settle", "compaction_count + :more_compactions", "compaction_count"),
    "tokens that are not counted": says("settle", "token_count = :tokens", "token_count = token_count"),
    "messages that are not counted": says("settle", "message_count = :message_count", "message_count = 1"),
    "a view that is not changed": says("settle", "view = :view", "view = view"),
    "an automatic compaction that is repeated at once": says("settle", "ELSE :tokens + p.due / 16 + 1", "ELSE p.due"),
    "a failure that is tried again at once": says("postpone", "token_count + compact_from / 16 + 1", "compact_from"),
    "a policy of the agent before the session's own": says("attached", "p.scope = 'session'", "p.scope = 'nobody'"),
    "sessions that come after a policy and do not follow it": query(
        sessions.queries, "create", "scope = 'agent'", "scope = 'nobody'"
    ),
    "another agent's policy before the session's own": query(
        sessions.queries, "update_by_key", "scope = 'session'", "scope = 'nobody'"
    ),
    "an upsert that forgets the policy of the new agent": query(
        sessions.queries, "update_by_key", "scope = 'agent'", "scope = 'nobody'"
    ),
    "a page that begins again": says("archived", "> (:after_number, :after_seq)", ">= (:after_number, :after_seq)"),
    "a plan that is carried out whatever happened": mock.patch.object(
        compaction_plan.SessionRows, "fingerprint", return_value="the same"
    ),
    "a late result that is not looked for": mock.patch.object(compaction_commit, "_check_late_results", nothing),
    "branches that are not asked": mock.patch.multiple(compaction_commit, needed_elsewhere=nobody),
    "branches that are not asked at a rollback": mock.patch.multiple(compaction_rollback, needed_elsewhere=nobody),
    "strategies that are not checked": mock.patch.object(compaction_plan, "check_changes", lambda changes, *_: changes),
    "partners that are not asked": mock.patch.object(tool_pairs.Pairs, "bound_to", return_value=set()),
    "protection of nothing but the last": mock.patch.object(
        compaction_strategies.CompactionHistory, "_newest_within", return_value=[]
    ),
    "appends that are not counted": mock.patch.object(
        compaction_automatic.attachments.Attachments, "may_apply_to", return_value=False
    ),
    "attachments that cannot be found": mock.patch.object(Attachments, "find", return_value=None),
    "a summary of another role": mock.patch.object(compaction_commit, "SUMMARY_ROLE", "assistant"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_contract_notices(defect: str) -> None:
    with DEFECTS[defect]:
        for case in CASES:
            try:
                play(case, LEG)
            except Exception:
                return
    pytest.fail(f"nobody noticed {defect}")


def test_without_a_defect_all_is_well() -> None:
    assert len(CASES) > 25
    for case in CASES:
        play(case, LEG)
