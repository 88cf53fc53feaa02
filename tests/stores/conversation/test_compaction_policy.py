"""Compaction policies: defaults, accepted values and refused ones."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CompactionPolicy
from holdfast.errors import InvalidInput
from holdfast.stores.conversation.compaction.policy import policy_or_default
from tests.errors import raises


def test_a_policy_has_the_documented_defaults() -> None:
    policy = CompactionPolicy()
    assert msgspec.structs.asdict(policy) == {
        "strategy": "hybrid",
        "trigger": 0.85,
        "target_tokens": 80_000,
        "preserve_last": 10,
        "protected_tokens": 40_000,
        "window_tokens": 200_000,
        "keep_tool_outputs": False,
        "prune_tokens": 1_000,
        "summary_tokens": 4_096,
    }
    assert policy.due_tokens == 170_000


@pytest.mark.parametrize("field", ["preserve_last", "protected_tokens", "prune_tokens"])
def test_zero_means_zero_and_not_unset(field: str) -> None:
    assert getattr(CompactionPolicy(**{field: 0}), field) == 0


WRONG: list[dict[str, Any]] = [
    *({"trigger": value} for value in (0, -0.1, 1.0001, math.nan, math.inf, "0.5", True, None)),
    *({"target_tokens": value} for value in (0, -1, 200_000, 1.5, True, "9", 2**60)),
    *({"preserve_last": value} for value in (-1, 0.5, False, None)),
    *({"protected_tokens": value} for value in (-1, 1e3, None)),
    *({"window_tokens": value} for value in (0, -1)),
    *({"summary_tokens": value} for value in (0, -1)),
    *({"prune_tokens": value} for value in (-1, None)),
    *({"keep_tool_outputs": value} for value in (1, "yes", None)),
    *({"strategy": value} for value in ("", None, 7, "x" * 65)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_value_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with raises(InvalidInput, field=next(iter(wrong))):
        CompactionPolicy(**wrong)


def test_a_window_that_is_too_small_for_the_target_is_refused() -> None:
    with raises(InvalidInput, field="target_tokens"):
        CompactionPolicy(window_tokens=80_000)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="preserve"):
        CompactionPolicy(preserve=3)  # type: ignore[call-arg]
    with pytest.raises(msgspec.ValidationError, match="preserve"):
        msgspec.json.decode(b'{"preserve": 3}', type=CompactionPolicy)


def test_a_policy_cannot_be_changed_and_is_checked_when_it_is_decoded() -> None:
    with pytest.raises(AttributeError):
        CompactionPolicy().trigger = 0.5  # type: ignore[misc]
    with raises(InvalidInput, field="trigger"):
        msgspec.json.decode(b'{"trigger": 2}', type=CompactionPolicy)


policies = st.builds(
    CompactionPolicy,
    strategy=st.text(min_size=1, max_size=64).filter(lambda text: text.isprintable()),
    trigger=st.floats(0, 1, exclude_min=True),
    window_tokens=st.integers(1_001, 10**9),
    target_tokens=st.integers(1, 1_000),
    preserve_last=st.integers(0, 100),
    protected_tokens=st.integers(0, 10**6),
    keep_tool_outputs=st.booleans(),
    prune_tokens=st.integers(0, 10**6),
    summary_tokens=st.integers(1, 10**6),
)


@given(policies)
def test_a_policy_survives_json(policy: CompactionPolicy) -> None:
    assert msgspec.json.decode(msgspec.json.encode(policy), type=CompactionPolicy) == policy
    assert msgspec.convert(msgspec.to_builtins(policy), CompactionPolicy) == policy


@given(policies)
def test_a_compaction_is_due_from_the_trigger_on(policy: CompactionPolicy) -> None:
    share = policy.trigger * policy.window_tokens
    assert policy.due_tokens >= 1
    assert policy.due_tokens >= share - 1e-3
    assert policy.due_tokens - 1 < share + 1e-3


@pytest.mark.parametrize(
    ("trigger", "window", "due"), [(0.07, 100, 7), (0.85, 200_000, 170_000), (1.0, 10, 10), (0.5, 9, 5)]
)
def test_the_trigger_is_inclusive(trigger: float, window: int, due: int) -> None:
    assert CompactionPolicy(trigger=trigger, window_tokens=window, target_tokens=1).due_tokens == due


def test_only_a_compaction_policy_is_accepted() -> None:
    assert policy_or_default(None) == CompactionPolicy()
    for wrong in ({}, "hybrid", 0.5, CompactionPolicy):
        with raises(InvalidInput, field="policy"):
            policy_or_default(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"target_tokens": 300_000}, {"window_tokens": 80_000}], ids=str)
def test_a_target_beyond_the_window_is_refused(wrong: dict[str, Any]) -> None:
    with raises(InvalidInput, field="target_tokens"):
        CompactionPolicy(**wrong)
