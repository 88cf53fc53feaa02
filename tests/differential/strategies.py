"""Hypothesis strategies of the state machine: few keys, so that calls interact, and values that are prone to errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from holdfast import Filter, NewMessage, column, meta
from tests.contract.cases.values import NUMBERS, TEXTS
from tests.contract.cases.world import uuid_of
from tests.models.oracle import MESSAGE_COLUMNS, SESSION_COLUMNS

IDS = [uuid_of(f"shared {number}") for number in range(4)]
START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)

hostile = st.sampled_from(TEXTS)
small_text = st.one_of(st.sampled_from(["a", "b", "plan", "pro", "1"]), hostile, st.text(max_size=6))
names = st.one_of(st.sampled_from(["a", "b"]), hostile, st.text(min_size=1, max_size=6))
keys = st.one_of(st.sampled_from(["k0", "k1", "k2"]), st.sampled_from(["k0", "k1"]), names, st.just("x" * 61))
users = st.one_of(st.none(), st.none(), st.sampled_from(["ada", "bob"]), names, st.just(""))
agents = st.one_of(st.none(), st.sampled_from(["helper"]), names)

numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(NUMBERS),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, small_text)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(small_text, inner, max_size=3)),
    max_leaves=6,
)
metadata = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(["a", "b", ""]), scalars, max_size=2),
    st.dictionaries(small_text, json_values, max_size=3),
)

token_counts = st.one_of(st.integers(0, 9), st.integers(0, 9), st.sampled_from([2**31 - 1, 2**31, -1]))
contents = st.one_of(
    small_text,
    small_text,
    st.lists(st.fixed_dictionaries({"type": small_text}, optional={"v": json_values}), max_size=2),
    st.sampled_from([[], None, {"no": "list"}, [{"no": "type"}]]),
)
message_ids = st.one_of(st.none(), st.none(), st.sampled_from(IDS))
flags = st.booleans()

new_messages = st.one_of(
    st.builds(
        NewMessage,
        role=st.sampled_from(["user", "assistant", "system"]),
        content=contents,
        metadata=metadata,
        token_count=token_counts,
        is_preserved=flags,
        is_summary=flags,
        id=message_ids,
    ),
    st.builds(
        NewMessage,
        kind=st.sampled_from(["adk.event", "x", "x", "x", "message", "NO", "a\n"]),
        role=st.sampled_from([None, None, None, "user", "custom"]),
        content=json_values,
        metadata=metadata,
        id=message_ids,
    ),
)

_OPS = ["eq", "ne", "lt", "le", "gt", "ge", "contains"]


def _column_values(kind: str) -> st.SearchStrategy[Any]:
    fitting: dict[str, st.SearchStrategy[Any]] = {
        "text": small_text | keys,
        "number": st.integers(-1, 20),
        "bool": st.booleans(),
        "time": st.integers(-300, 300).map(lambda s: START + timedelta(seconds=s)),
        "id": st.sampled_from(IDS),
        "json": json_values,
    }
    return st.one_of(fitting[kind], fitting[kind], fitting[kind], st.none(), scalars if kind != "id" else st.none())


def _filters(columns: Any) -> st.SearchStrategy[Filter]:
    def on_column(name: str) -> st.SearchStrategy[Filter]:
        values = _column_values(columns[name])
        plain = st.builds(lambda op, value: Filter(op, value, column=name), st.sampled_from(_OPS), values)
        return plain | st.lists(values, max_size=5).map(column(name).is_in)

    on_meta = st.builds(
        lambda op, key, value: Filter(op, value, meta=key), st.sampled_from(_OPS), small_text, scalars | json_values
    )
    in_meta = st.builds(lambda key, values: meta(key).is_in(values), small_text, st.lists(scalars, max_size=5))
    bare = st.sampled_from([Filter("eq", 1), Filter("eq", 1, column="nothing"), Filter("like", "a", meta="a")])  # type: ignore[arg-type]
    return st.one_of(st.sampled_from([*columns]).flatmap(on_column), on_meta, in_meta, bare)


session_filters = st.lists(_filters(SESSION_COLUMNS), max_size=3)
message_filters = st.lists(_filters(MESSAGE_COLUMNS), max_size=3)
page_limits = st.one_of(st.none(), st.integers(1, 4), st.sampled_from([0, 10, 11]))
