"""Pages and their cursors."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.errors import raises

KINDS = [(), (int,), (str,), (int, str), (str, int)]
LIMITS = Limits(page_rows=10, list_rows=20)


@given(st.integers(0, 253_402_300_799_999_999), st.one_of(st.text(), st.sampled_from(TEXTS)))
def test_a_cursor_round_trips_its_values(number: int, value: str) -> None:
    cursor = encode_cursor("sessions", number, value)
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert decode_cursor(cursor, "sessions", int, str) == [number, value]


def test_a_cursor_belongs_to_one_list() -> None:
    cursor = encode_cursor("messages", 7)
    with pytest.raises(InvalidFilter):
        decode_cursor(cursor, "messages-newest", int)
    with pytest.raises(InvalidFilter):
        decode_cursor(cursor, "messages", str)
    with pytest.raises(InvalidFilter):
        decode_cursor(cursor, "messages", int, int)
    with pytest.raises(InvalidFilter):
        decode_cursor(cursor, "messages")


@pytest.mark.parametrize("number", [-1, 2**63, 2**64 - 1, 253_402_300_800_000_000, True, 1.0])
def test_a_forged_number_is_rejected(number: Any) -> None:
    with pytest.raises(InvalidFilter):
        decode_cursor(encode_cursor("messages", number), "messages", int)


@pytest.mark.parametrize("cursor", GARBAGE_CURSORS, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_garbage_is_rejected(cursor: Any, kinds: tuple[type, ...]) -> None:
    with pytest.raises(InvalidFilter):
        decode_cursor(cursor, "sessions", *kinds)


@given(st.binary(max_size=40), st.sampled_from(KINDS))
def test_any_bytes_are_a_cursor_or_rejected(data: bytes, kinds: tuple[type, ...]) -> None:
    for cursor in (base64.urlsafe_b64encode(data).decode().rstrip("="), data.decode("latin-1")):
        with pytest.raises(InvalidFilter):
            decode_cursor(cursor, "sessions", *kinds)


@given(st.integers(0, 2**40), st.text(max_size=8), st.data())
def test_a_tampered_cursor_is_rejected_or_has_the_expected_types(number: int, value: str, data: st.DataObject) -> None:
    raw = base64.urlsafe_b64decode(encode_cursor("sessions", number, value) + "==")
    place, cut = data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, 3))
    changed = raw[:place] + data.draw(st.binary(max_size=3)) + raw[place + cut :]
    try:
        result = decode_cursor(base64.urlsafe_b64encode(changed).decode().rstrip("="), "sessions", int, str)
    except InvalidFilter:
        return
    assert [type(item) for item in result] == [int, str]


@pytest.mark.parametrize(
    "tail", [b"\xa1\x80", b"\x81\xa1\x80\x01", b"\xd9\x01\xff", b"\xc7\x08\xff12345678", b"\xd6\xff1234"]
)
def test_invalid_text_in_a_cursor_is_rejected(tail: bytes) -> None:
    with pytest.raises(InvalidFilter):
        decode_cursor(base64.urlsafe_b64encode(b"\x92\xa8sessions" + tail).decode(), "sessions", str)


nested_data = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)


@given(
    st.one_of(nested_data, st.lists(nested_data, max_size=3).map(lambda rest: ["sessions", *rest])),
    st.sampled_from(KINDS),
)
def test_a_forged_cursor_yields_only_values_of_the_expected_types(data: Any, kinds: tuple[type, ...]) -> None:
    cursor = base64.urlsafe_b64encode(msgspec.msgpack.encode(data)).decode().rstrip("=")
    try:
        result = decode_cursor(cursor, "sessions", *kinds)
    except InvalidFilter:
        return
    assert [type(value) for value in result] == list(kinds)
    assert all(0 <= value < 2**63 for value in result if isinstance(value, int))


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x00",
    ],
)
def test_a_deeply_nested_cursor_is_rejected_quickly(bomb: bytes) -> None:
    with pytest.raises(InvalidFilter):
        decode_cursor(base64.urlsafe_b64encode(bomb).decode(), "sessions", int)


def test_one_row_more_than_the_limit_is_read() -> None:
    assert rows_to_read(1, LIMITS) == 2
    assert rows_to_read(10, LIMITS) == 11
    assert rows_to_read(None, LIMITS) == 21
    with raises(LimitExceeded, limit="page_rows", maximum=10):
        rows_to_read(11, LIMITS)


@pytest.mark.parametrize("limit", [0, -1, True, False, 1.0, "1", [1]])
def test_a_limit_must_be_a_whole_number_from_one_on(limit: Any) -> None:
    with raises(InvalidInput, field="limit"):
        rows_to_read(limit, LIMITS)


def test_a_page_is_a_list_with_the_next_cursor() -> None:
    page = Page([1, 2], "cursor")
    assert page == [1, 2]
    assert page.next == "cursor"
    assert Page().next is None
    assert not hasattr(page, "__dict__")
