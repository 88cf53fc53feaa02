"""Compact ids, metadata and paths of checkpoints: they decode to the original, keep their order, and can be decoded in SQL."""

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
from tests.errors import raises

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
def test_an_id_decodes_to_itself_and_a_uuid_takes_sixteen_bytes(id: str) -> None:
    encoded = encode_id(id)
    assert decode_id(encoded) == id
    assert id_of(memoryview(encoded)) == text.unescape(id)
    is_uuid = len(id) == 36 and id == _canonical(id)
    assert (len(encoded) == 16) == is_uuid


@pytest.mark.parametrize("id", ODD_IDS)
def test_almost_uuids_are_stored_as_text(id: str) -> None:
    assert len(encode_id(id)) != 16
    assert ids_of([encode_id(id)]) == [text.unescape(id)]


@given(st.lists(UUIDS, max_size=8))
def test_uuids_keep_their_order(ids: list[str]) -> None:
    assert sorted(ids, key=encode_id) == sorted(ids)


@given(st.lists(st.text("ax\U0010f800é", min_size=1, max_size=18), max_size=8))
def test_other_ids_keep_their_order_and_come_after_uuids(ids: list[str]) -> None:
    assert sorted(ids, key=encode_id) == sorted(ids, key=str.encode)
    assert all(encode_id("1ef0fa5b-0c70-6419-85da-8a1e3298ca16") < encode_id(id) for id in ids)


@pytest.mark.parametrize("encoded", [b"", b"1", b"\x00" * 15, b"\x00" * 17, b"\xff\xf0", b"\xff\xff"])
def test_invalid_id_bytes_are_corrupt(encoded: bytes) -> None:
    with raises(Corrupt) as caught:
        decode_id(encoded)
    assert encoded.hex() in str(caught.value)


@pytest.mark.parametrize("given_metadata", [*STEPS, *OTHERS, *({**MORE, **step} for step in STEPS)])
def test_metadata_decode_to_themselves(given_metadata: dict[str, Any]) -> None:
    (back,) = metadata_of([encode_metadata(given_metadata, LIMITS)])
    assert text.identical(back, given_metadata)


def test_the_metadata_of_a_step_are_a_letter_and_its_number() -> None:
    assert [encode_metadata(step, LIMITS) for step in STEPS[4:7]] == ["l-1", "l0", "l7"]
    assert encode_metadata({"parents": {}, "a": 1, "step": 7, "source": "input"}, LIMITS) == 'i7{"a":1}'
    assert encode_metadata(None, LIMITS) == "{}"


def test_metadata_are_measured_in_their_original_form() -> None:
    step = {"source": "loop", "step": 7, "parents": {}}
    with raises(LimitExceeded, limit="metadata_bytes"):
        encode_metadata(step, Limits(metadata_bytes=38))
    with pytest.raises(InvalidInput):
        encode_metadata({**step, 1: 2}, LIMITS)  # type: ignore[dict-item]


@pytest.mark.parametrize("encoded", ["", "l", "l07", "x7", "l-0", "l7[]", "l7{", "l7 ", "{", "l" + "9" * 19])
def test_invalid_metadata_are_corrupt(encoded: str) -> None:
    with raises(Corrupt):
        metadata_of(["{}", encoded])


@given(st.sampled_from(["", "~__pregel_pull, ", "~__pregel_push, ", "~<", "~>", "~=", "~=~="]), st.text(max_size=4))
def test_a_path_decodes_to_itself(begin: str, rest: str) -> None:
    assert path_of(encode_path(text.escape(begin + rest))) == begin + rest


def test_paths_of_langgraph_are_short_and_keep_their_order() -> None:
    paths = ["", *(f"~__pregel_{why}, {of}" for why in ("pull", "push") for of in ("a", "model", "~__pregel_push, x"))]
    encoded = [encode_path(path) for path in paths]
    assert (encoded, paths) == (sorted(encoded), sorted(paths))
    assert encode_path("~__pregel_pull, model") == "~<model"
    assert len(set(map(encode_path, ["~<a", "~=<a", "~=~<a", "~__pregel_pull, a"]))) == 4


class Sql:
    """A database that computes an expression over one value."""

    def __init__(self, dialect: Dialect, connection: Any) -> None:
        self.dialect, self._connection = dialect, connection

    def evaluate(self, expression: str, value: Any, type_: str) -> Any:
        """Evaluate the expression for this value."""
        placeholder = "?" if self.dialect is Dialect.SQLITE else f"%s::{type_}"
        ((result,),) = self._connection.execute(
            f"SELECT {expression} FROM (SELECT {placeholder} AS v) AS one", (value,)
        )
        return result


@pytest.fixture(params=["sqlite", "postgres"])
def sql(request: pytest.FixtureRequest) -> Iterator[Sql]:
    if request.param == "sqlite":
        yield Sql(Dialect.SQLITE, apsw.Connection(":memory:"))
        return
    with psycopg.connect(request.getfixturevalue("bare_postgres_url")) as connection:
        yield Sql(Dialect.POSTGRES, connection)


def test_ids_can_be_decoded_in_sql(sql: Sql) -> None:
    expression = id_expression("v", sql.dialect)
    for id in ["1ef0fa5b-0c70-6419-85da-8a1e3298ca16", "ffffffff-ffff-ffff-ffff-ffffffffffff", *ODD_IDS]:
        assert sql.evaluate(expression, encode_id(id), "bytea") == id
    assert sql.evaluate(expression, None, "bytea") is None


def test_metadata_can_be_decoded_in_sql(sql: Sql) -> None:
    expression = f"CAST({metadata_expression('v', sql.dialect)} AS TEXT)"
    for metadata in [*STEPS, *OTHERS, *({**MORE, **step} for step in STEPS)]:
        decoded = sql.evaluate(expression, encode_metadata(metadata, LIMITS), "text")
        assert text.load(decoded) == metadata


def _canonical(id: str) -> str | None:
    try:
        return str(UUID(id))
    except ValueError:
        return None
