"""Errors: their default messages, names and attributes."""

from __future__ import annotations

import inspect

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, OutcomeUnknown

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, HoldfastError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_docstring_of_an_error_is_its_default_message(kind: type[HoldfastError]) -> None:
    assert str(kind()) == inspect.getdoc(kind)
    assert str(kind("more exactly")) == "more exactly"
    assert issubclass(kind, HoldfastError)
    assert kind.__module__ == "holdfast.errors"


def test_the_public_errors_exist() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert names >= {
        "NotFound", "Conflict", "AlreadyExists", "Forbidden", "InvalidText", "InvalidFilter", "LimitExceeded", "Corrupt",
        "Unavailable", "OutcomeUnknown", "SchemaMismatch", "Fenced",
    }  # fmt: skip


def test_an_unknown_outcome_names_the_id_to_retry_with() -> None:
    assert OutcomeUnknown(id="x").id == "x"
    assert OutcomeUnknown().id is None
