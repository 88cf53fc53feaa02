"""Limits: each allows its number and no more, and has a docstring."""

from __future__ import annotations

import inspect

import pytest

from holdfast import Limits
from holdfast.errors import LimitExceeded
from tests.errors import raises


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_a_limit_allows_its_number_and_no_more(limit: str) -> None:
    limits = Limits(**{limit: 3})
    limits.check(limit, 3, "it")
    with raises(LimitExceeded, limit=limit, maximum=3):
        limits.check(limit, 4, "it")


def test_every_limit_has_a_docstring() -> None:
    source = inspect.getsource(Limits)
    for field in Limits.__struct_fields__:
        assert f"    {field}: int = " in source
        next_line = source.split(f"    {field}: int = ")[1].split("\n")[1]
        assert next_line.strip().startswith('"""'), field
