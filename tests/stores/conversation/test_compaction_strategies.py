"""What may be touched, what a strategy chooses from it, and how tokens are counted; without a database."""

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
    made = [
        message(
            seq,
            each.content,
            kind=each.kind,
            role=each.role,
            tokens=each.token_count,
            is_preserved=each.is_preserved,
            is_summary=each.is_summary,
        )
        for seq, each in enumerate(new, 1)
    ]
    return made, oracle.random_policy(random)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_protection_holds_for_all_histories(seed: int) -> None:
    messages, policy = random_history(seed)
    found = CompactionHistory(messages, policy, estimate)
    assert [each.id for each in found.removable] == [each.id for each in oracle.removable(messages, policy)]
    touchable = {each.id for each in found.rewritable}
    assert not touchable & oracle.untouchable(messages, policy)
    assert touchable | oracle.untouchable(messages, policy) == {each.id for each in messages}
    assert found.total_tokens == oracle.total(messages)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from([Summarization(), Hybrid()]))
def test_a_strategy_never_chooses_what_it_may_not_touch(seed: int, strategy: Any) -> None:
    messages, policy = random_history(seed)
    found = CompactionHistory(messages, policy, estimate)
    changes = strategy.choose(found, policy)
    assert check_changes(changes, found, Limits()) == changes
    assert set(changes.remove) in (set(), {each.id for each in oracle.removable(messages, policy)})
    for each in messages:
        if each.id in changes.rewrite:
            new = replace(each, content=changes.rewrite[each.id])
            assert new.content == oracle.without_outputs(each).content
            assert estimate(new.content) < tokens_of(each, estimate)


def test_the_last_tokens_are_those_that_fit_together() -> None:
    def kept(tokens: int) -> list[str]:
        return sorted(history("a", "b", "c", policy=replace(POLICY, protected_tokens=tokens)).kept)

    assert kept(0) == kept(9) == []
    assert kept(10) == kept(19) == ["m3"]
    assert kept(20) == ["m2", "m3"]
    assert kept(30) == kept(10**6) == ["m1", "m2", "m3"]


@pytest.mark.parametrize("last", [0, 1, 2, 3, 4, 100])
def test_the_last_messages_are_never_more_than_there_are(last: int) -> None:
    found = history("a", "b", "c", policy=replace(POLICY, preserve_last=last))
    assert len(found.kept) == min(last, 3)
    assert [each.id for each in found.removable] == ["m1", "m2", "m3"][: max(0, 3 - last)]


def test_nothing_is_in_an_empty_history() -> None:
    found = history()
    assert (found.removable, found.kept, found.total_tokens) == ([], {}, 0)
    assert Hybrid().choose(found, POLICY) == Summarization().choose(found, POLICY) == CompactionChanges()


def test_partners_of_partners_stay_too() -> None:
    found = history(call("a"), [*result("a"), *call("b")], [*result("b"), *call("c")], result("c"), "x")
    assert found.kept == {}
    one = CompactionHistory([*found.messages[:3], replace(found.messages[3], is_preserved=True)], POLICY, estimate)
    assert one.kept == {"m4": "preserved", "m3": "pair", "m2": "pair", "m1": "pair"}


def test_a_call_stays_as_long_as_its_result_may_come() -> None:
    found = history(call("a"), "x", call("b"), result("a"))
    assert found.kept == {"m3": "unanswered"}
    assert history(result("a"), "x").kept == {}, "a result whose call is gone is nobody's half"


def test_ids_that_come_again_bind_nothing_but_their_own_turn() -> None:
    turns = [each for _ in range(20) for each in (call("a"), result("a"))]
    found = history(*turns, call("a"), "gone on", call("a"), result("a"), policy=replace(POLICY, preserve_last=1))
    assert found.kept == {"m41": "unanswered", "m43": "pair", "m44": "last"}
    assert len(found.removable) == 41


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


def test_between_parts_nothing_is_matched() -> None:
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


def test_pruning_spares_what_is_short_what_is_foreign_and_what_is_pruned() -> None:
    foreign = {"type": "web_search_tool_result", "tool_use_id": "s", "content": LONG}
    short = {"type": "tool_result", "tool_use_id": "a", "content": "short", "is_error": True}
    found = history([foreign, short, *result("a")], result("a", output=PRUNED), tokens=300)
    changes = Hybrid().choose(found, replace(POLICY, target_tokens=999))
    assert changes.rewrite == {"m1": [foreign, short, *result("a", output=PRUNED)]}
    assert (changes.remove, changes.summarize) == ((), False)


@pytest.mark.parametrize(("saved", "prunes"), [(279, True), (280, True), (281, False)])
def test_pruning_must_be_worth_it(saved: int, prunes: bool) -> None:
    found = history(call("a"), result("a"), tokens=300)
    assert 300 - estimate(result("a", output=PRUNED)) == 280
    changes = Hybrid().choose(found, replace(POLICY, prune_tokens=saved, target_tokens=999))
    assert bool(changes.rewrite) == prunes
    assert bool(changes.remove) == (not prunes)


def test_pruning_stops_at_the_target_exactly() -> None:
    found = history(call("a"), result("a"), tokens=300)
    exactly = 300 + 300 - 280
    assert not Hybrid().choose(found, replace(POLICY, target_tokens=exactly)).remove
    assert Hybrid().choose(found, replace(POLICY, target_tokens=exactly - 1)).remove


def test_outputs_of_protected_messages_stay() -> None:
    found = history(call("a"), result("a"), call("b"), result("b"), policy=replace(POLICY, preserve_last=1), tokens=300)
    changes = Hybrid().choose(found, replace(POLICY, target_tokens=999))
    assert list(changes.rewrite) == ["m2"]


def test_a_partner_that_stays_may_lose_its_output() -> None:
    first = replace(message(1, call("a"), tokens=300), is_preserved=True)
    found = CompactionHistory([first, message(2, result("a"), tokens=300)], POLICY, estimate)
    assert found.kept == {"m1": "preserved", "m2": "pair"}
    assert list(Hybrid().choose(found, POLICY).rewrite) == ["m2"]


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


def test_the_given_count_comes_before_the_counter() -> None:
    assert tokens_of(message(1, LONG, tokens=7), estimate) == 7
    assert tokens_of(message(1, LONG, tokens=0), lambda content: 99) == 99


def setting(count_tokens: Any) -> Setting:
    return Setting(
        clock=FixedClock(), ids=SeededIds(), session_dependents=(), limits=Limits(), count_tokens=count_tokens
    )


def test_a_counter_of_ones_own_is_asked_and_checked() -> None:
    assert counter_of(setting(None)) is estimate
    seen: list[Any] = []
    count = counter_of(setting(lambda content: seen.append(content) or 3))
    assert (count([{"type": "x"}]), seen) == (3, [[{"type": "x"}]])
    for wrong in (-1, 1.5, True, None, "3", MAX_TOKENS + 1):
        with pytest.raises(InvalidInput, match="count_tokens must return"):
            counter_of(setting(lambda content, wrong=wrong: wrong))("text")


def test_reasons_are_part_of_the_public_plan() -> None:
    assert msgspec.json.decode(b'"pair"', type=strategies.Reason) == "pair"
