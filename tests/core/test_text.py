"""The conversion between Python text or JSON and the database."""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import offload
from holdfast.core import text
from holdfast.errors import Corrupt, InvalidText, LimitExceeded
from tests.contract.cases.values import NOT_JSON, NUMBERS, TEXTS, documents, nested, same
from tests.errors import raises

RESERVED = [0x10F000, 0x10F001, 0x10F7FF, 0x10F800, 0x10F801, 0x10F802, 0x10F803, 0x10F841, 0x10F842]
any_text = st.text(
    st.one_of(
        st.characters(codec=None),
        st.sampled_from(["\x00", "\ud800", "\udbff", "\udc00", "\udfff", "a", "\\", '"', *map(chr, RESERVED)]),
    ),
    max_size=8,
)
numbers = st.one_of(
    st.integers(-(2**80), 2**80), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(NUMBERS)
)
any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, any_text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(any_text, inner, max_size=4)),
    max_leaves=12,
)


def without_negative_zero(value: Any) -> Any:
    if isinstance(value, float):
        return value or 0.0
    if isinstance(value, dict):
        return {key: without_negative_zero(item) for key, item in value.items()}
    return [without_negative_zero(item) for item in value] if isinstance(value, list) else value


@given(any_text)
@example("".join(map(chr, RESERVED)))
@example("".join(TEXTS))
def test_every_text_round_trips(value: str) -> None:
    assert text.unescape(text.escape(value)) == value


@given(st.lists(st.sampled_from(["\x00", "\ud800", "a", "é", *map(chr, RESERVED)]), max_size=40).map("".join))
def test_long_texts_are_escaped_in_slices(value: str) -> None:
    whole = text.escape(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "SLICE_CHARS", 5)
        assert text.escape(value) == whole
        assert text.unescape(whole) == value


@pytest.mark.parametrize("among", [0.5, 7, "a", None, True])
@pytest.mark.parametrize(
    "value", [1e300, -1e300, -0.0, float("nan"), float("inf"), float("-inf"), b"", {1: 2}, {"a": 1}]
)
def test_one_unusual_scalar_among_many_is_detected(among: Any, value: Any) -> None:
    many = [*[among] * 1_000, value, *[among] * 1_000]
    try:
        expected = text.load(text.dump([value]))
    except InvalidText:
        with pytest.raises(InvalidText):
            text.dump(many)
        with pytest.raises(InvalidText):
            text.dump(dict(zip(map(str, range(len(many))), many, strict=True)))
    else:
        assert same(text.load(text.dump(many))[1_000:1_001], expected)


@pytest.mark.parametrize(
    ("value", "is_large"),
    [
        ("x" * offload.INLINE_CHARS, True),
        ("x" * 1_000, False),
        ([0] * offload.INLINE_CHARS, True),
        ([{}] * 100, False),
        ({"a": [{"b": ["x" * offload.INLINE_CHARS]}]}, True),
        ({"x" * offload.INLINE_CHARS: 1}, True),
        (7, False),
    ],
    ids=["text", "short", "list", "few", "deep", "key", "number"],
)
def test_large_values_are_recognised(value: Any, is_large: bool) -> None:
    assert offload.is_large(value) is is_large


@given(any_text)
def test_stored_text_has_neither_nul_nor_lone_surrogates(value: str) -> None:
    encoded = text.escape(value)
    assert "\x00" not in encoded
    assert encoded.encode("utf-8").decode("utf-8") == encoded


@given(any_text, any_text)
def test_different_texts_are_stored_differently(one: str, other: str) -> None:
    assert (text.escape(one) == text.escape(other)) == (one == other)


@given(any_text, any_text, any_text)
@example("\U0010f801", "\U0010f000", "\ud800")
@example("\U0010f801", "\ud800", "\U0010f000")
@example("", "\U0010f000", "\ud800")
def test_a_substring_is_found_in_stored_text_exactly_where_python_finds_it(before: str, part: str, after: str) -> None:
    whole = before + part + after
    assert text.escape(part) in text.escape(whole)
    for value in (before, after, part[:1], part[1:]):
        assert (text.escape(value) in text.escape(part)) == (value in part)


def test_all_of_unicode_round_trips() -> None:
    everything = "".join(map(chr, range(0x110000)))
    assert text.unescape(text.escape(everything)) == everything
    assert text.load(text.dump(everything)) == everything


@given(any_json)
@example(documents())
@example([-0.0, 1e16, -1e16, 9999999999999998.0, 1e300, 5e-324])
def test_every_json_value_round_trips(value: Any) -> None:
    encoded = text.dump(value)
    assert same(text.load(encoded), without_negative_zero(value))
    assert same(
        text.load_many([encoded, "1", encoded]), [without_negative_zero(value), 1, without_negative_zero(value)]
    )
    assert encoded.encode("utf-8").decode("utf-8") == encoded
    assert "\\u0000" not in encoded.replace("\\\\", "")


@pytest.mark.parametrize("value", [1e16, -1e16, 1e17, 1.5e300, 1.7976931348623157e308, -2.2250738585072014e300])
def test_a_large_float_stays_a_number_and_a_float(value: float) -> None:
    encoded = text.dump(value)
    assert "e" not in encoded.lower()
    assert encoded.endswith(".0")
    assert same(text.load(encoded), value)


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("around", [lambda v: v, lambda v: [v], lambda v: {"k": ["\ud800", v]}, lambda v: [1e300, v]])
def test_values_that_are_not_json_are_rejected(value: Any, around: Any) -> None:
    with pytest.raises(InvalidText):
        text.dump(around(value))


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class OwnStr(str):
    __slots__ = ()


class OwnInt(int):
    pass


class OwnFloat(float):
    pass


class OwnList(list[Any]):
    pass


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Colour.RED, "red"),
        (Size.BIG, 3),
        (OwnStr("a\x00"), "a\x00"),
        (OwnInt(5), 5),
        (OwnFloat(1e300), 1e300),
        (OwnFloat(0.5), 0.5),
        (OwnList([1, Colour.RED]), [1, "red"]),
        (OrderedDict(a=Size.BIG), {"a": 3}),
        (MappingProxyType({"a": (1, 2)}), {"a": [1, 2]}),
        ({Colour.RED: 1}, {"red": 1}),
        ((1, (2, 3)), [1, [2, 3]]),
    ],
)
def test_subclasses_of_json_types_become_plain(given: Any, plain: Any) -> None:
    assert same(text.load(text.dump(given)), plain)
    assert same(text.load(text.dump({"deep": [given]})), {"deep": [plain]})


@pytest.mark.parametrize("bad", [OwnFloat("nan"), OwnFloat("inf"), OwnList([{1}]), OrderedDict({"a": {1: 2}})])
def test_subclasses_do_not_bypass_the_checks(bad: Any) -> None:
    with pytest.raises(InvalidText):
        text.dump(bad)


def test_nesting_has_a_limit() -> None:
    assert text.load(text.dump(nested(5), depth=5)) == nested(5)
    for value in (nested(6), {"a": nested(5)}, [nested(5, "\ud800")], OrderedDict(a=nested(5))):
        with raises(LimitExceeded, limit="json_depth"):
            text.dump(value, depth=5)


def test_nesting_never_goes_deeper_than_can_be_read_back() -> None:
    assert text.load(text.dump(nested(text.MAX_DEPTH, "\x00"), depth=10**6)) == nested(text.MAX_DEPTH, "\x00")
    with pytest.raises(LimitExceeded):
        text.dump(nested(text.MAX_DEPTH + 1), depth=10**6)


def test_a_value_that_contains_itself_is_rejected() -> None:
    around: list[Any] = []
    around.append(around)
    with pytest.raises(LimitExceeded):
        text.dump(around)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        "[1,]",
        "nul",
        '"\\ud800',
        '{"a":1',
        "1 2",
        "'a'",
        "NaN",
        "1e400",
        "[" * 100_000,
        '{"a":' * 100_000,
        "\ud800",
        "9" * 5_000,
    ],
    ids=lambda value: value[:10],
)
def test_damaged_json_is_corrupt(damaged: str) -> None:
    with pytest.raises(Corrupt):
        text.load(damaged)
    for texts in ([damaged], ["1", damaged, "{}"], [damaged, '"é"']):
        with pytest.raises(Corrupt):
            text.load_many(texts)


@given(
    st.one_of(
        st.text(max_size=30),
        st.text(st.sampled_from('{}[]",:01e.-+\\ud8fntrsal \U0010f801\U0010f802\U0010f000'), max_size=30),
    )
)
def test_loading_any_text_gives_data_or_raises_corrupt(stored: str) -> None:
    try:
        value = text.load(stored)
    except Corrupt:
        return
    assert _is_plain(value)


@given(any_json, st.data())
def test_loading_tampered_text_gives_data_or_raises_corrupt(value: Any, data: st.DataObject) -> None:
    encoded = text.dump(value)
    place = data.draw(st.integers(0, len(encoded)))
    cut = data.draw(st.integers(0, 3))
    try:
        loaded = text.load(encoded[:place] + data.draw(st.text(max_size=3)) + encoded[place + cut :])
    except Corrupt:
        return
    assert _is_plain(loaded)


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return type(value) in (str, int, float, bool, type(None))


@given(any_json, any_json)
def test_identical_compares_every_type_and_digit(one: Any, other: Any) -> None:
    one, other = without_negative_zero(one), without_negative_zero(other)
    assert text.identical(one, one)
    assert text.identical(one, other) == same(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([1], [True]), ({"a": 1}, {"a": 1.0}), (None, 0)]
)
def test_identical_distinguishes_values_that_python_equates(one: Any, other: Any) -> None:
    assert not text.identical(one, other)


def test_identical_ignores_the_order_of_keys() -> None:
    assert text.identical({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"d": 3, "c": 2}], "a": 1})


@given(any_text)
def test_size_counts_bytes(value: str) -> None:
    encoded = text.escape(value)
    assert text.size(encoded) == len(encoded.encode())


def test_unescaping_a_truncated_text_is_not_an_error() -> None:
    for value in ("\U0010f801", "\U0010f801\U0010f802", "a\U0010f801b", "\U0010f802\U0010f841"):
        assert isinstance(text.unescape(value), str)


@given(any_text, st.integers(0, 40))
def test_a_cut_text_is_the_longest_prefix_that_fits(value: str, most: int) -> None:
    cut = text.cut(value, most)
    assert value.startswith(cut)
    assert text.size(text.escape(cut)) <= most
    assert cut == value or text.size(text.escape(value[: len(cut) + 1])) > most
