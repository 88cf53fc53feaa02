"""Ids: UUID version 7, their accepted spellings, tokens and API keys."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import RandomIds, SeededIds, ids
from holdfast.errors import InvalidInput
from tests.errors import raises


def test_random_ids_are_version_7_and_ascending() -> None:
    source = RandomIds()
    new_ids = [source.new() for _ in range(1_000)]
    assert all(uuid.UUID(id).version == 7 for id in new_ids)
    assert len({*new_ids}) == 1_000
    assert new_ids == sorted(new_ids)


def test_seeded_ids_depend_only_on_the_seed() -> None:
    one, same, other = SeededIds(5), SeededIds(5), SeededIds(6)
    first = [one.new() for _ in range(50)]
    assert first == [same.new() for _ in range(50)]
    assert not {*first} & {other.new() for _ in range(50)}
    assert first == sorted(first)
    assert all(uuid.UUID(id).version == 7 and uuid.UUID(id).variant == uuid.RFC_4122 for id in first)


@given(st.uuids())
def test_every_spelling_of_an_id_has_one_canonical_form(value: uuid.UUID) -> None:
    canonical = str(value)
    for spelling in (canonical, canonical.upper(), value.hex, f"{{{canonical}}}", f"urn:uuid:{canonical}", value):
        assert ids.parse(spelling) == canonical


@pytest.mark.parametrize(
    "value", ["", "42", None, 7, b"x" * 16, [], "g" * 32, "0" * 31, "0" * 33, "x" * 36, "\ud800", " " * 36]
)
def test_a_value_that_is_not_an_id_is_rejected(value: Any) -> None:
    with raises(InvalidInput, field="session id"):
        ids.parse(value, "session id")


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_is_rejected(value: str) -> None:
    try:
        parsed = ids.parse(value)
    except InvalidInput:
        return
    assert str(uuid.UUID(parsed)) == parsed


@pytest.mark.parametrize("size", [1, 16, 24])
def test_a_token_has_two_digits_per_byte_and_is_unique(size: int) -> None:
    tokens = {ids.new_token(16 + size) for _ in range(20)}
    assert len(tokens) == 20
    assert {len(token) for token in tokens} == {2 * (16 + size)}
    key = ids.new_api_key()
    assert (key[:3], len(key), ids.new_api_key() != key) == ("hf_", 51, True)
