"""The values of any checkpoint are decoded to plain data or reported as unreadable; no foreign code runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Write
from holdfast.cli import graph_values
from holdfast.cli.graph_values import Unreadable
from holdfast.types import Checkpoint

pack = msgspec.msgpack.encode
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def checkpoint(state: bytes, *pieces: bytes | None) -> Checkpoint:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return Checkpoint("t", "", "id", None, {}, state, pieces, [[1, len(pieces)]], "stamp", [], moment, [])


def with_value(node: Any, *pieces: bytes) -> Checkpoint:
    shape = pack([4, ["channel"], [0], [], [0]])
    return checkpoint(pack([1, 0, 7, [0], [], None, [node]]), shape, *pieces)


def value_of(found: Checkpoint) -> Any:
    (channel,) = graph_values.channels(found)
    return channel.value


@given(PLAIN)
def test_plain_values_survive_encoding_and_decoding(value: Any) -> None:
    body = b"\x03" + pack(value)
    assert value_of(with_value(body)) == value
    assert value_of(with_value(1, body)) == value
    assert value_of(with_value([5], pack(1), body)) == value
    assert value_of(with_value([6, body])) == value
    assert value_of(with_value([4, ["k"], [1]], body)) == {"k": value}
    assert value_of(with_value([3, [1, -1, b"\x03" + pack([value])]], body, b"\x03" + pack([value]))) == [value] * 3
    assert graph_values.write_value(Write(0, "c", pack(1), [body])) == value


@given(st.binary(max_size=200), st.lists(st.binary(max_size=60), max_size=4))
def test_arbitrary_bytes_are_decoded_or_reported_as_unreadable(state: bytes, pieces: list[bytes]) -> None:
    for candidate in (checkpoint(state, *pieces), with_value(state, *pieces), with_value([3, [len(pieces)]], *pieces)):
        try:
            channels = graph_values.channels(candidate)
        except Unreadable:
            continue
        assert msgspec.json.encode(channels)
    assert msgspec.json.encode(graph_values.write_value(Write(0, "c", state, pieces)))


@given(st.integers(0, 127), st.binary(max_size=80))
def test_objects_of_any_kind_become_plain_data(code: int, data: bytes) -> None:
    assert msgspec.json.encode(value_of(with_value(b"\x03" + pack(msgspec.msgpack.Ext(code, data)))))
    named = msgspec.msgpack.Ext(code, pack(["os", "system", "touch it"]))
    assert "touch it" in str(value_of(with_value(b"\x03" + pack(named)))) or code in (6, 7)


def test_the_size_of_a_value_is_the_size_of_its_pieces() -> None:
    (channel,) = graph_values.channels(with_value([3, [2]], b"\x03" + pack("a" * 100), b"\x03" + pack("b" * 50)))
    assert channel.size_bytes == 1 + 102 + 1 + 52
    assert value_of(with_value(b"\x00")) is None
    assert value_of(with_value(b"\x01" + b"12345")) == {"$bytes": 5}
    assert value_of(with_value(b"\x07?")) == {"$unreadable": 1}


def test_versions_are_decoded() -> None:
    shape = pack([4, ["a", "b"], [0, 1], [], []])
    counted = graph_values.channels(checkpoint(pack([1, 0, 7, [0, 2], [], None, []]), shape))
    assert [channel.version for channel in counted] == [7, 5]
    named = graph_values.channels(checkpoint(pack([1, 0, None, ["00002.7", 3], [], None, []]), shape))
    assert [channel.version for channel in named] == ["00002.7", 3]


@pytest.mark.parametrize(
    "unreadable",
    [
        checkpoint(b""),
        checkpoint(b"\x93\x01\x02"),
        checkpoint(pack([1, 0, 7, [0], [], None, [1]]), pack([4, ["channel"], [0], [], [0]])),
        checkpoint(pack([2, 0, 7, [0], [], None, []]), pack([4, ["channel"], [0], [], []])),
        with_value([9, 1]),
        with_value(1, *[b"\x03\x01"][:0]),
    ],
)
def test_other_formats_are_unreadable(unreadable: Checkpoint) -> None:
    with pytest.raises(Unreadable):
        graph_values.channels(unreadable)
