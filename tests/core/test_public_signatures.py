"""The public signatures of store methods: without the connection and the actor context."""

from __future__ import annotations

import copy
import inspect

import pytest

from holdfast.types import AsyncMessages, AsyncSessions, Messages


@pytest.mark.parametrize("method", [AsyncMessages.append, Messages.append, AsyncSessions.create, AsyncSessions.get])
def test_signatures_hide_the_connection_and_the_actor_context(method: object) -> None:
    seen = inspect.signature(method)  # type: ignore[arg-type]
    assert not {"connection", "acting"} & set(seen.parameters)
    assert next(iter(seen.parameters)) == "self"
    assert seen.return_annotation is not inspect.Signature.empty


def test_a_signature_is_a_standard_signature() -> None:
    seen = inspect.signature(AsyncMessages.count)
    assert str(seen) == "(self, session_id: 'Id', *, where: 'Sequence[Filter]' = ()) -> 'int'"
    assert seen == inspect.signature(AsyncMessages.count) != inspect.signature(AsyncMessages.get)
    assert str(seen.replace(parameters=[])) == "() -> 'int'"
    assert seen.bind(None, "id").arguments["session_id"] == "id"
    with pytest.raises(AttributeError, match="nothing"):
        seen.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_signature_can_be_copied() -> None:
    seen = inspect.signature(AsyncMessages.count)
    assert copy.deepcopy(seen) == seen
