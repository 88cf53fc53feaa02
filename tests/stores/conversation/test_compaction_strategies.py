"""Protection, the built-in strategies, and token counts; without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import CompactionPolicy, FixedClock, Limits, SeededIds
from holdfast.core.scope import Setting
from holdfast.errors import InvalidInput
from holdfast.stores.conversation.compaction import strategies
from holdfast.stores.conversation.compaction.strategies import PRUNED, Hybrid, Summarization, check_changes, find
from holdfast.stores.conversation.tokens import MAX_TOKENS, MEDIA_TOKENS, counter_of, estimate, tokens_of
from holdfast.stores.conversation.tool_pairs import Pairs, calls_in, results_in
from holdfast.types import CompactionChanges, CompactionHistory, Message
from tests.contract.cases.compactions import LONG, call, result
from tests.differential import compaction_oracle as oracle
from tests.errors import raises

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = CompactionPolicy(window_tokens=1_000, target_tokens=100, preserve_last=0, protected_tokens=0, prune_tokens=1)


def message(
    seq: int, content: Any, *, kind: str = "message", role: Any = "user", tokens: int = 10, **more: Any
) -> Message:
    blocks = [{"type": "text", "text": content}] if kind == "message" and isinstance(content, str) else content
    flags = {"is_preserved": False, "is_summary": False, **more}
    return Message(f"m{seq}", "s", seq, kind, role, blocks, tokens, {}, created_at=NOW, updated_at=NOW, **flags)


def history(*contents: Any, policy: CompactionPolicy = POLICY, **more: Any) -> CompactionHistory:
    messages = [message(seq, content, **more) for seq, content in enumerate(contents, 1)]
    return CompactionHistory(messages, policy, estimate)


def random_history(seed: int) -> tuple[list[Message], CompactionPolicy]:
    random = Random(seed)
    new = oracle.random_messages(random, random.randrange(30), [f"t{n}" for n in range(random.choice((1, 4)))])
    messages = [
        message(
            seq,
            content.content,
            kind=content.kind,
            role=content.role,
            tokens=content.token_count,
            is_preserved=content.is_preserved,
            is_summary=content.is_summary,
        )
        for seq, content in enumerate(new, 1)
    ]
    return messages, oracle.random_policy(random)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_protection_equals_the_oracle_for_random_histories(seed: int) -> None:
    messages, policy = random_history(seed)
    session = CompactionHistory(messages, policy, estimate)
    assert [item.id for item in session.removable] == [item.id for item in oracle.removable(messages, policy)]
    touchable = {item.id for item in session.rewritable}
    assert not touchable & oracle.untouchable(messages, policy)
    assert touchable | oracle.untouchable(messages, policy) == {item.id for item in messages}
    assert session.total_tokens == oracle.total(messages)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from([Summarization(), Hybrid()]))
def test_a_built_in_strategy_never_chooses_protected_messages(seed: int, strategy: Any) -> None:
    messages, policy = random_history(seed)
    session = CompactionHistory(messages, policy, estimate)
    changes = strategy.choose(session, policy)
    assert check_changes(changes, session, Limits()) == changes
    assert set(changes.remove) in (set(), {item.id for item in oracle.removable(messages, policy)})
    for item in messages:
        if item.id in changes.rewrite:
            new = replace(item, content=changes.rewrite[item.id])
            assert new.content == oracle.without_outputs(item).content
            assert estimate(new.content) < tokens_of(item, estimate)


def test_the_last_tokens_are_those_that_fit_together() -> None:
    def kept(tokens: int) -> list[str]:
        return sorted(history("a", "b", "c", policy=replace(POLICY, protected_tokens=tokens)).kept)

    assert kept(0) == kept(9) == []
    assert kept(10) == kept(19) == ["m3"]
    assert kept(20) == ["m2", "m3"]
    assert kept(30) == kept(10**6) == ["m1", "m2", "m3"]


@pytest.mark.parametrize("last", [0, 1, 2, 3, 4, 100])
def test_preserve_last_may_exceed_the_number_of_messages(last: int) -> None:
    session = history("a", "b", "c", policy=replace(POLICY, preserve_last=last))
    assert len(session.kept) == min(last, 3)
    assert [item.id for item in session.removable] == ["m1", "m2", "m3"][: max(0, 3 - last)]


def test_an_empty_history_has_nothing_to_compact() -> None:
    session = history()
    assert (session.removable, session.kept, session.total_tokens) == ([], {}, 0)
    assert Hybrid().choose(session, POLICY) == Summarization().choose(session, POLICY) == CompactionChanges()


def test_protection_extends_to_chains_of_tool_pairs() -> None:
    session = history(call("a"), [*result("a"), *call("b")], [*result("b"), *call("c")], result("c"), "x")
    assert session.kept == {}
    one = CompactionHistory([*session.messages[:3], replace(session.messages[3], is_preserved=True)], POLICY, estimate)
    assert one.kept == {"m4": "preserved", "m3": "pair", "m2": "pair", "m1": "pair"}


def test_an_unanswered_call_is_protected() -> None:
    session = history(call("a"), "x", call("b"), result("a"))
    assert session.kept == {"m3": "unanswered"}
    assert history(result("a"), "x").kept == {}, "a result without a call belongs to no pair"


def test_repeated_ids_connect_only_messages_of_their_turn() -> None:
    turns = [content for _ in range(20) for content in (call("a"), result("a"))]
    session = history(*turns, call("a"), "gone on", call("a"), result("a"), policy=replace(POLICY, preserve_last=1))
    assert session.kept == {"m41": "unanswered", "m43": "pair", "m44": "last"}
    assert len(session.removable) == 41


@pytest.mark.parametrize(
    ("contents", "calls"),
    [
        ([call("a"), result("a"), call("a"), result("a")], {2: 1, 4: 3}),
        ([call("a"), call("a"), result("a"), result("a")], {3: 2, 4: 1}),
        ([call("a"), call("a"), result("a"), result("a"), result("a")], {3: 2, 4: 1, 5: 2}),
        ([result("a"), call("a"), "x", result("b"), result("a")], {5: 2}),
        ([call("a"), [*result("a"), *call("a")], result("a")], {2: 1, 3: 2}),
        ([[*result("a"), *call("a")], result("a")], {2: 1}),
    ],
)
def test_a_result_belongs_to_the_nearest_call_that_waits_for_it(contents: Any, calls: dict[int, int]) -> None:
    pairs = Pairs([message(seq, content) for seq, content in enumerate(contents, 1)])
    assert pairs.call_of == {(f"m{result}", "a"): f"m{call}" for result, call in calls.items()}


def test_pairs_are_not_matched_across_parts() -> None:
    messages = [message(seq, content) for seq, content in enumerate([call("a"), result("a")], 1)]
    assert Pairs(messages[:1], messages[1:]).call_of == {}
    assert Pairs(messages).call_of == {("m2", "a"): "m1"}


def test_only_messages_have_blocks() -> None:
    entry = message(1, call("a"), kind="adk.event", role=None)
    assert (calls_in(entry), results_in(entry)) == (set(), set())
    assert Pairs([entry]).unanswered == set()
    odd = message(
        2, [{"type": "tool_use"}, {"type": "tool_use", "id": 7}, {"type": "tool_result", "tool_use_id": None}]
    )
    assert (calls_in(odd), results_in(odd)) == (set(), set())
    run_elsewhere = message(
        3, [{"type": "server_tool_use", "id": "s"}, {"type": "web_search_tool_result", "tool_use_id": "s"}]
    )
    assert (calls_in(run_elsewhere), results_in(run_elsewhere)) == ({"s"}, {"s"})


def test_pruning_skips_short_foreign_and_pruned_outputs() -> None:
    foreign = {"type": "web_search_tool_result", "tool_use_id": "s", "content": LONG}
    short = {"type": "tool_result", "tool_use_id": "a", "content": "short", "is_error": True}
    session = history([foreign, short, *result("a")], result("a", output=PRUNED), tokens=300)
    changes = Hybrid().choose(session, replace(POLICY, target_tokens=999))
    assert changes.rewrite == {"m1": [foreign, short, *result("a", output=PRUNED)]}
    assert (changes.remove, changes.summarize) == ((), False)


@pytest.mark.parametrize(("saved", "prunes"), [(279, True), (280, True), (281, False)])
def test_pruning_must_save_the_minimum(saved: int, prunes: bool) -> None:
    session = history(call("a"), result("a"), tokens=300)
    assert 300 - estimate(result("a", output=PRUNED)) == 280
    changes = Hybrid().choose(session, replace(POLICY, prune_tokens=saved, target_tokens=999))
    assert bool(changes.rewrite) == prunes
    assert bool(changes.remove) == (not prunes)


def test_pruning_stops_at_the_target_exactly() -> None:
    session = history(call("a"), result("a"), tokens=300)
    exactly = 300 + 300 - 280
    assert not Hybrid().choose(session, replace(POLICY, target_tokens=exactly)).remove
    assert Hybrid().choose(session, replace(POLICY, target_tokens=exactly - 1)).remove


def test_tool_outputs_of_protected_messages_stay() -> None:
    session = history(
        call("a"), result("a"), call("b"), result("b"), policy=replace(POLICY, preserve_last=1), tokens=300
    )
    changes = Hybrid().choose(session, replace(POLICY, target_tokens=999))
    assert list(changes.rewrite) == ["m2"]


def test_a_message_kept_for_its_pair_may_lose_its_output() -> None:
    first = replace(message(1, call("a"), tokens=300), is_preserved=True)
    session = CompactionHistory([first, message(2, result("a"), tokens=300)], POLICY, estimate)
    assert session.kept == {"m1": "preserved", "m2": "pair"}
    assert list(Hybrid().choose(session, POLICY).rewrite) == ["m2"]


def test_strategies_are_found_by_name() -> None:
    assert isinstance(find(POLICY, None), Hybrid)
    assert isinstance(find(replace(POLICY, strategy="summarization"), None), Summarization)
    with raises(InvalidInput, field="strategy"):
        find(replace(POLICY, strategy="rolling"), None)
    own = Summarization()
    assert find(replace(POLICY, strategy="rolling"), own) is own
    for wrong in (object(), "hybrid", Hybrid.choose):
        with raises(InvalidInput, field="strategy"):
            find(POLICY, wrong)  # type: ignore[arg-type]
    nameless = Summarization()
    nameless.name = ""
    with raises(InvalidInput, field="strategy"):
        find(POLICY, nameless)
    assert set(strategies.STRATEGIES) == {"summarization", "hybrid"}


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 4),
        ("a", 5),
        ("four", 5),
        ("fives", 6),
        ("é" * 4, 6),
        ("世" * 4, 7),
        ("\ud800", 5),
        ([{"type": "text", "text": "four"}, {"type": "text", "text": "four"}], 6),
        ([{"type": "thinking", "thinking": "fives", "signature": "x" * 1_000}], 6),
        ([{"type": "image", "source": {"data": "x" * 100_000}}], 4 + MEDIA_TOKENS),
        ([{"type": "tool_use", "id": "long id that does not count", "name": "look", "input": {}}], 4 + 10 + 1 + 1),
        ([{"type": "tool_result", "tool_use_id": "id", "content": "four"}], 4 + 10 + 1),
        ([{"type": "tool_result", "tool_use_id": "id", "content": [{"type": "text", "text": "four"}]}], 4 + 10 + 1),
        ([{"type": "tool_result", "tool_use_id": "id"}], 4 + 10),
        ([], 4),
        (None, 5),
        (7, 5),
        ({"key": "value"}, 4 + 4),
        ([1, 2, 3], 4 + 2),
        ([{"type": "text"}], 4 + 4),
    ],
)
def test_the_estimate(content: Any, tokens: int) -> None:
    assert estimate(content) == tokens


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4)
                    | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_anything_can_be_estimated_and_more_text_is_never_less(content: Any) -> None:
    tokens = estimate(content)
    assert 4 <= tokens <= 4 + 14 * (len(repr(content).encode(errors="surrogatepass")) + 4)
    assert estimate([content, "more"]) >= 4


def test_a_stored_count_takes_precedence_over_the_counter() -> None:
    assert tokens_of(message(1, LONG, tokens=7), estimate) == 7
    assert tokens_of(message(1, LONG, tokens=0), lambda content: 99) == 99


def setting(count_tokens: Any) -> Setting:
    return Setting(
        clock=FixedClock(), ids=SeededIds(), session_dependents=(), limits=Limits(), count_tokens=count_tokens
    )


def test_a_custom_counter_is_used_and_checked() -> None:
    assert counter_of(setting(None)) is estimate
    seen: list[Any] = []
    count = counter_of(setting(lambda content: seen.append(content) or 3))
    assert (count([{"type": "x"}]), seen) == (3, [[{"type": "x"}]])
    for wrong in (-1, 1.5, True, None, "3", MAX_TOKENS + 1):
        with raises(InvalidInput, field="count_tokens"):
            counter_of(setting(lambda content, wrong=wrong: wrong))("text")


def test_reasons_are_part_of_the_public_plan() -> None:
    assert msgspec.json.decode(b'"pair"', type=strategies.Reason) == "pair"
