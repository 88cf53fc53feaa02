"""Cosine similarity with and without numpy gives the same results."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.limits import Limits
from holdfast.stores.memory import similarity

numpy = pytest.importorskip("numpy")
NUMBERS = st.floats(-1e6, 1e6, width=32)
VECTORS = st.integers(1, 20).flatmap(
    lambda size: st.lists(st.lists(NUMBERS, min_size=size, max_size=size), min_size=1, max_size=8)
)


@given(VECTORS)
def test_numpy_and_pure_python_agree(vectors: list[list[float]]) -> None:
    query, *others = (similarity.pack(vector, Limits()) for vector in vectors)
    plain, quick = similarity._cosines_in_python(query, others), similarity._cosines_in_numpy(numpy, query, others)
    assert len(plain) == len(quick) == len(others)
    for one, other in zip(plain, quick, strict=True):
        assert math.isclose(one, other, abs_tol=1e-9)
        assert -1 <= one <= 1
    assert similarity.cosines(query, others) == quick, "numpy is used if it is installed"


def test_a_vector_has_cosine_1_with_itself_and_minus_1_with_its_opposite() -> None:
    here, opposite, across = (similarity.pack(vector, Limits()) for vector in ([3.0, 4.0], [-3.0, -4.0], [-4.0, 3.0]))
    for compare in (
        similarity._cosines_in_python,
        lambda query, others: similarity._cosines_in_numpy(numpy, query, others),
    ):
        assert [round(score, 9) for score in compare(here, [here, opposite, across])] == [1.0, -1.0, 0.0]
    assert similarity.unpack(here) == [3.0, 4.0]
    assert similarity.cosines(here, []) == []
