"""Compaction plans: fields, fingerprints and invalid plans; and the functions attached to a Holdfast."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import CompactionPolicy, FixedClock, Holdfast, Limits, NewMessage, SeededIds, TenantHandle
from holdfast.core.scope import Scope, Setting
from holdfast.errors import InvalidInput, LimitExceeded
from holdfast.stores.conversation.branches import BranchHead
from holdfast.stores.conversation.compaction.attachments import AttachedFunctions, AttachedPolicy, Attachments, of
from holdfast.stores.conversation.compaction.plan import (
    ProtectedMessage,
    RewrittenMessage,
    SessionRows,
    check_plan,
    id_of,
    position_of,
)
from holdfast.stores.conversation.views import PLAIN
from holdfast.types import CompactionPlan
from tests.contract.cases.compactions import HYBRID, LONG, POLICY, call, result
from tests.contract.cases.world import uuid_of
from tests.errors import raises

ROW = (
    "id", "session", 7, "message", "user", '[{"type":"text","text":"a"}]', 5, "{}", 0, 0, 1, 2, 7,
)  # fmt: skip
FIELDS = ("id", "session_id", "seq", "kind", "role", "content", "token_count", "metadata", "is_preserved", "is_summary",
          "created_at", "updated_at", "place")  # fmt: skip
HEAD = BranchHead(0, PLAIN, 8, 1)


def fingerprint(head: BranchHead = HEAD, counts: tuple[int, int] = (0, 0), **changes: Any) -> str:
    row = tuple(changes.get(name, value) for name, value in zip(FIELDS, ROW, strict=True))
    return SessionRows(head, counts, [row]).fingerprint([row])


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"kind": "adk.event"},
        {"role": None},
        {"content": '[{"type": "text","text":"a"}]'},
        {"token_count": 6},
        {"metadata": '{"a":1}'},
        {"is_preserved": 1},
        {"is_summary": 1},
        {"place": 8},
        {"head": replace(HEAD, branch=1)},
        {"head": replace(HEAD, view=((1, 6), (8, 9)))},
        {"counts": (1, 1)},
        {"counts": (0, 1)},
    ],
    ids=str,
)
def test_every_relevant_change_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(**change) != fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"updated_at": 9},
        {"created_at": 9},
        {"head": replace(HEAD, next_position=99)},
        {"head": replace(HEAD, blocks=5)},
    ],
)
def test_irrelevant_changes_keep_the_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(**change) == fingerprint()


def test_a_fingerprint_covers_all_rows_in_order() -> None:
    other = (*ROW[:-1], 8)
    rows = [ROW, other]
    both = SessionRows(HEAD, (0, 0), rows)
    prints = {both.fingerprint(some) for some in ([], [ROW], [other], [ROW, other], [other, ROW])}
    assert len(prints) == 5
    assert both.rows_of(["id"]) == rows
    assert (id_of(ROW), position_of(other)) == ("id", 8)


@pytest.fixture
def acme() -> Any:
    with Holdfast(":memory:", clock=FixedClock(), ids=SeededIds(3)) as hf:
        yield hf.tenant("acme")


def told(acme: TenantHandle, *contents: Any) -> str:
    session = acme.sessions.create().id
    acme.messages.append_many(session, [NewMessage(role="user", content=content) for content in contents])
    return session


def test_a_plan_survives_json(acme: TenantHandle) -> None:
    session = told(acme, LONG, call("a"), result("a"), LONG, "x", "y")
    for policy in (POLICY, HYBRID, replace(HYBRID, target_tokens=900)):
        plan = acme.compactions.plan(session, policy)
        again = msgspec.json.decode(msgspec.json.encode(plan), type=CompactionPlan)
        assert again == plan
        event = acme.compactions.compact(session, plan=again, summary="s")
        acme.compactions.rollback(event.id)


def test_a_plan_reports_the_tokens_it_saves(acme: TenantHandle) -> None:
    session = told(acme, LONG, LONG, "x", "y")
    plan = acme.compactions.plan(session, POLICY)
    assert plan.saved_tokens == plan.covered_tokens == plan.tokens_before - plan.tokens_after
    pruned = acme.compactions.plan(told(acme, call("a"), result("a"), "x", "y"), replace(HYBRID, target_tokens=900))
    assert pruned.saved_tokens == pruned.covered_tokens - sum(rewrite.tokens for rewrite in pruned.rewritten)
    assert isinstance(pruned.rewritten[0], RewrittenMessage)
    assert isinstance(plan.protected[0], ProtectedMessage)


@pytest.mark.parametrize(
    "wrong",
    [
        {"removed": ["not an id"]},
        {"removed": "text"},
        {"removed": [7]},
        {"session_id": "not an id"},
        {"policy": "hybrid"},
        {"policy": None},
        {"rewritten": [RewrittenMessage("not an id", 1, [], 1)]},
        {"rewritten": [{"message_id": uuid_of("x")}]},
        {"tokens_before": "many"},
        {"fingerprint": None},
        {"covered_tokens": 1.5},
        {"protected": [1]},
        {"last_seq": "7"},
    ],
    ids=str,
)
def test_an_invalid_plan_is_refused(acme: TenantHandle, wrong: dict[str, Any]) -> None:
    session = told(acme, LONG, LONG, "x", "y")
    plan = acme.compactions.plan(session, POLICY)
    check_plan(plan)
    with raises(InvalidInput, field="plan"):
        check_plan(replace(plan, **wrong))
    with pytest.raises(InvalidInput):
        acme.compactions.compact(session, plan=replace(plan, **wrong), summary="s")
    assert acme.compactions.history(session) == []


def test_a_session_over_compaction_rows_is_refused() -> None:
    with Holdfast(":memory:", limits=Limits(compaction_rows=5)) as hf:
        acme = hf.tenant("acme")
        session = told(acme, *["x"] * 5)
        assert acme.compactions.plan(session).tokens_before == 25
        acme.messages.append(session, role="user", content="one more")
        with raises(LimitExceeded, limit="compaction_rows", maximum=5):
            acme.compactions.plan(session)


def scope(tenant: str = "acme", setting: Setting | None = None) -> Scope:
    return Scope(
        tenant, setting or Setting(clock=FixedClock(), ids=SeededIds(), session_dependents=(), limits=Limits())
    )


NOTHING = AttachedFunctions(None, None, CompactionPolicy())


def test_attachments_are_shared_by_the_handles_of_one_holdfast() -> None:
    setting = Setting(clock=FixedClock(), ids=SeededIds(), session_dependents=(), limits=Limits())
    mine, again, elsewhere = scope(setting=setting), scope(setting=setting), scope()
    assert not of(mine).may_apply_to(mine, "s")
    of(mine).put(mine, "session", "s", NOTHING)
    assert of(again) is of(mine)
    assert of(again).may_apply_to(again, "s")
    assert not of(again).may_apply_to(again, "other")
    assert not of(elsewhere).may_apply_to(elsewhere, "s")
    other = scope("other", setting)
    assert not of(other).may_apply_to(other, "s")


def test_agent_functions_may_apply_to_every_session_until_detached() -> None:
    here, other_scope = scope(), scope("other")
    attachments = Attachments()
    attachments.put(here, "agent", "writer", NOTHING)
    attachments.put(here, "agent", "reader", NOTHING)
    assert attachments.may_apply_to(here, "any")
    assert not attachments.may_apply_to(other_scope, "any")
    attachments.detach(here, "agent", "writer")
    assert attachments.may_apply_to(here, "any")
    attachments.detach(here, "agent", "reader")
    attachments.detach(here, "agent", "never there")
    assert not attachments.may_apply_to(here, "any")


def test_functions_are_found_by_their_target() -> None:
    here, attachments = scope(), Attachments()
    policy = CompactionPolicy()
    one, two = AttachedFunctions(str, None, policy), AttachedFunctions(repr, None, policy)
    attachments.put(here, "agent", "x", one)
    attachments.put(here, "session", "x", two)
    assert attachments.find(here, AttachedPolicy("agent", "x", policy)) is one
    assert attachments.find(here, AttachedPolicy("session", "x", policy)) is two
    assert attachments.find(here, AttachedPolicy("session", "y", policy)) is None
    assert attachments.find(scope("other"), AttachedPolicy("session", "x", policy)) is None


def test_keep_others_keeps_functions_of_other_policies() -> None:
    here, attachments = scope(), Attachments()
    policies = [CompactionPolicy(preserve_last=number) for number in range(4)]
    first, second, third, other = (AttachedFunctions(str, None, policy) for policy in policies)
    attachments.put(here, "agent", "x", first)
    attachments.put(here, "agent", "x", second, keep_others=True)
    newer = AttachedFunctions(repr, None, policies[1])
    attachments.put(here, "agent", "x", newer, keep_others=True)
    functions = [attachments.find(here, AttachedPolicy("agent", "x", policy)) for policy in policies]
    assert functions == [first, newer, newer, newer]
    attachments.put(here, "agent", "x", third)
    assert {attachments.find(here, AttachedPolicy("agent", "x", policy)) for policy in policies} == {third}
    attachments.detach(here, "agent", "x")
    assert attachments.find(here, AttachedPolicy("agent", "x", other.policy)) is None


def test_one_of_many_concurrent_begins_succeeds() -> None:
    here, attachments = scope(), Attachments()
    barrier, began = Barrier(8), list[bool]()

    def begin() -> None:
        barrier.wait()
        began.append(attachments.begin(here, "s"))

    threads = [Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(began) == [False] * 7 + [True]
    assert attachments.begin(here, "another")
    assert attachments.begin(scope("other"), "s")
    attachments.end(here, "s")
    assert attachments.begin(here, "s")
