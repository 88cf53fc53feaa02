"""Ids and metadata of checkpoints in few bytes: they come back as they were, in their order, in Python and in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import apsw
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import text
from holdfast.engines.dialect import Dialect
from holdfast.errors import Corrupt, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.execution.checkpoints.compact_columns import (
    decode_id,
    encode_id,
    encode_metadata,
    encode_path,
    id_expression,
    id_of,
    ids_of,
    metadata_expression,
    metadata_of,
    path_of,
)

LIMITS = Limits()
UUIDS = st.uuids().map(str)
TEXTS = st.text(min_size=1, max_size=20).map(text.escape)
ODD_IDS = [
    "1", "x" * 14, "x" * 15, "x" * 16, "é" * 7 + "x", "é" * 7, "1EF0FA5B-0C70-6419-85DA-8A1E3298CA16",
    "1ef0fa5b0c70641985da8a1e3298ca16", "1ef0fa5b-0c70-6419-85da-8a1e3298ca1", "1ef0fa5b-0c70-6419-85da-8a1e3298ca160",
    "１ef0fa5b-0c70-6419-85da-8a1e3298ca16", "1ef0fa5b-0c70-6419-85da_8a1e3298ca16", "\U0010f800", "ÿ",
]  # fmt: skip
STEPS: list[dict[str, Any]] = [
    {"source": source, "step": step, "parents": {}}
    for source in ("input", "loop", "update", "fork") for step in (-1, 0, 7, 10**18 - 1)
]  # fmt: skip
MORE: dict[str, Any] = {"run_id": "r", "n": None, "deep": {"a": [1, {"b": "{"}]}, "\x00": "é\ud800", "f": 1e300}
OTHERS: list[dict[str, Any]] = [
    {}, {"source": "loop"}, {"source": "else", "step": 1, "parents": {}}, {"source": "loop", "step": True, "parents": {}},
    {"source": "loop", "step": 1.0, "parents": {}}, {"source": "loop", "step": 10**18, "parents": {}},
    {"source": "loop", "step": 1, "parents": {"": "x"}}, {"source": "loop", "step": 1, "parents": []},
    {"source": ["loop"], "step": 1, "parents": {}}, {"source": "loop", "step": 1, "parents": None}, MORE,
]  # fmt: skip


@given(UUIDS | TEXTS)
def test_an_id_comes_back_and_a_uuid_takes_sixteen_bytes(stored: str) -> None:
    short = encode_id(stored)
    assert decode_id(short) == stored
    assert id_of(memoryview(short)) == text.unescape(stored)
    is_uuid = len(stored) == 36 and stored == _canonical(stored)
    assert (len(short) == 16) == is_uuid


@pytest.mark.parametrize("stored", ODD_IDS)
def test_what_is_nearly_a_uuid_or_as_long_as_one_is_text(stored: str) -> None:
    assert len(encode_id(stored)) != 16
    assert ids_of([encode_id(stored)]) == [text.unescape(stored)]


@given(st.lists(UUIDS, max_size=8))
def test_uuids_keep_their_order(ids: list[str]) -> None:
    assert sorted(ids, key=encode_id) == sorted(ids)


@given(st.lists(st.text("ax\U0010f800é", min_size=1, max_size=18), max_size=8))
def test_other_ids_keep_their_order_and_come_after_uuids(ids: list[str]) -> None:
    assert sorted(ids, key=encode_id) == sorted(ids, key=str.encode)
    assert all(encode_id("1ef0fa5b-0c70-6419-85da-8a1e3298ca16") < encode_id(each) for each in ids)


@pytest.mark.parametrize("short", [b"", b"1", b"\x00" * 15, b"\x00" * 17, b"\xff\xf0", b"\xff\xff"])
def test_bytes_that_are_no_id_are_damaged(short: bytes) -> None:
    with pytest.raises(Corrupt, match=f"the stored id {short.hex()} is damaged"):
        decode_id(short)


@pytest.mark.parametrize("given_metadata", [*STEPS, *OTHERS, *({**MORE, **step} for step in STEPS)])
def test_metadata_come_back(given_metadata: dict[str, Any]) -> None:
    (back,) = metadata_of([encode_metadata(given_metadata, LIMITS)])
    assert text.identical(back, given_metadata)


def test_the_metadata_of_a_step_take_its_number_and_a_letter() -> None:
    assert [encode_metadata(each, LIMITS) for each in STEPS[4:7]] == ["l-1", "l0", "l7"]
    assert encode_metadata({"parents": {}, "a": 1, "step": 7, "source": "input"}, LIMITS) == 'i7{"a":1}'
    assert encode_metadata(None, LIMITS) == "{}"


def test_metadata_are_as_large_as_they_were_given() -> None:
    step = {"source": "loop", "step": 7, "parents": {}}
    with pytest.raises(LimitExceeded, match="metadata"):
        encode_metadata(step, Limits(metadata_bytes=38))
    with pytest.raises(InvalidInput, match="string keys"):
        encode_metadata({**step, 1: 2}, LIMITS)  # type: ignore[dict-item]


@pytest.mark.parametrize("short", ["", "l", "l07", "x7", "l-0", "l7[]", "l7{", "l7 ", "{", "l" + "9" * 19])
def test_text_that_is_no_metadata_is_damaged(short: str) -> None:
    with pytest.raises(Corrupt, match="cannot be read"):
        metadata_of(["{}", short])


@given(st.sampled_from(["", "~__pregel_pull, ", "~__pregel_push, ", "~<", "~>", "~=", "~=~="]), st.text(max_size=4))
def test_a_path_comes_back(begin: str, rest: str) -> None:
    assert path_of(encode_path(text.escape(begin + rest))) == begin + rest


def test_paths_of_langgraph_are_short_and_keep_their_order() -> None:
    paths = ["", *(f"~__pregel_{why}, {of}" for why in ("pull", "push") for of in ("a", "model", "~__pregel_push, x"))]
    short = [encode_path(each) for each in paths]
    assert (short, paths) == (sorted(short), sorted(paths))
    assert encode_path("~__pregel_pull, model") == "~<model"
    assert len(set(map(encode_path, ["~<a", "~=<a", "~=~<a", "~__pregel_pull, a"]))) == 4


class Sql:
    """A database that computes an expression over one value."""

    def __init__(self, dialect: Dialect, connection: Any) -> None:
        self.dialect, self._connection = dialect, connection

    def computed(self, expression: str, value: Any, type_: str) -> Any:
        """The value as the expression spells it out."""
        mark = "?" if self.dialect is Dialect.SQLITE else f"%s::{type_}"
        ((found,),) = self._connection.execute(f"SELECT {expression} FROM (SELECT {mark} AS v) AS one", (value,))
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def sql(request: pytest.FixtureRequest) -> Iterator[Sql]:
    if request.param == "sqlite":
        yield Sql(Dialect.SQLITE, apsw.Connection(":memory:"))
        return
    with psycopg.connect(request.getfixturevalue("bare_postgres_url")) as connection:
        yield Sql(Dialect.POSTGRES, connection)


def test_ids_are_spelled_out_in_sql(sql: Sql) -> None:
    expression = id_expression("v", sql.dialect)
    for stored in ["1ef0fa5b-0c70-6419-85da-8a1e3298ca16", "ffffffff-ffff-ffff-ffff-ffffffffffff", *ODD_IDS]:
        assert sql.computed(expression, encode_id(stored), "bytea") == stored
    assert sql.computed(expression, None, "bytea") is None


def test_metadata_are_spelled_out_in_sql(sql: Sql) -> None:
    expression = f"CAST({metadata_expression('v', sql.dialect)} AS TEXT)"
    for each in [*STEPS, *OTHERS, *({**MORE, **step} for step in STEPS)]:
        found = sql.computed(expression, encode_metadata(each, LIMITS), "text")
        assert text.load(found) == each


def _canonical(stored: str) -> str | None:
    try:
        return str(UUID(stored))
    except ValueError:
        return None
