"""Operations that are derived from store methods."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from holdfast import errors
from holdfast.api.parameters import parameters
from holdfast.api.store_routes import route
from holdfast.errors import Conflict, NotFound


class _Things(Struct, frozen=True):
    """A thing."""

    id: str
    version: int


class _Store:
    async def get(self, thing_id: str, *, deep: bool = False) -> _Things:
        """One ``thing``.

        With more words.

        Raises:
            NotFound: it does not exist.
            Stale: it is old.
        """
        raise NotFound

    async def find(self, thing_id: str) -> _Things | None:
        """One thing, or nothing."""
        return None

    async def update(self, thing_id: str, *, name: str, version: int | None = None) -> _Things:
        """Change it."""
        raise Conflict("no longer")


def test_an_operation_derives_its_description_errors_and_parameters() -> None:
    made = route("GET", "/v1/tenants/{tenant}/things/{thing_id}", "things", _Store.get, "get_thing", area="agents")
    assert {(parameter.name, parameter.place, parameter.required) for parameter in parameters(made)} == {
        ("tenant", "path", True),
        ("thing_id", "path", True),
        ("deep", "query", False),
    }
    assert (made.function.__doc__, made.need, made.status) == ("One `thing`.\n\nWith more words.", "read", 200)
    assert {NotFound, errors.Stale} <= set(made.errors)
    assert made.etag is not None
    assert made.etag(_Things("a", 7)) == '"7"'


def test_a_version_is_sent_in_if_match_and_not_in_the_body() -> None:
    made = route(
        "PATCH", "/v1/tenants/{tenant}/things/{thing_id}", "things", _Store.update, "update_thing", area="agents"
    )
    assert [field.name for field in msgspec.structs.fields(made.function.__annotations__["body"])] == ["name"]
    assert "if_match" in made.function.__annotations__
    assert (made.need, 412 in made.statuses, 409 in made.statuses) == ("write", True, True)


def test_a_path_parameter_that_the_method_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="other_id"):
        route("GET", "/v1/tenants/{tenant}/things/{other_id}", "things", _Store.get, "get_thing")
