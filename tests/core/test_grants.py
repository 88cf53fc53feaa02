"""Grants: one row for each resource and principal, listed from either side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct

from holdfast.core.grants import AsyncGrants, Grants, GrantTable
from holdfast.core.paging import encode_cursor
from holdfast.core.records import Limited
from holdfast.core.rows import Column
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from tests.core.table_databases import TableDatabase, check_statements, database, detects, pages, with_defect
from tests.errors import raises


class NewMember(Struct, frozen=True, kw_only=True):
    team: str
    user: str
    role: str = "member"
    tools: list[str] = []


class Member(Struct, frozen=True):
    team: Annotated[str, Limited("name_bytes", empty=False)]
    user: Annotated[str, Limited("name_bytes", empty=False), Column("user_id")]
    role: Annotated[str, Limited("name_bytes")]
    tools: Annotated[list[str], Limited("metadata_bytes")]
    created_at: datetime
    updated_at: datetime


class AsyncMembers(AsyncGrants[Member, NewMember]):
    """The members of teams."""

    grants = GrantTable("members", Member, resource="team", principal="user", noun="member")


class Members(Grants[Member, NewMember]):
    """The same for synchronous programs."""


TABLE = """CREATE TABLE members (tenant_id {text} NOT NULL, team {text} NOT NULL, user_id {text} NOT NULL,
    role {text} NOT NULL, tools {json} NOT NULL, created_at {time} NOT NULL, updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, team, user_id))"""


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableDatabase]:
    with database(request, tmp_path, "members", TABLE) as result:
        yield result


def members(here: TableDatabase, tenant: str = "acme") -> Members:
    return here.store(AsyncMembers, Members, tenant)


Open = Callable[..., Members]


def granting_again_replaces_the_attributes(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    first = acme.grant(NewMember(team="red", user="ada", role="lead", tools=["a\x00", "é"]))
    assert (first.role, first.tools, first.created_at) == ("lead", ["a\x00", "é"], first.updated_at)
    here.clock.advance(5)
    second = acme.grant(NewMember(team="red", user="ada"))
    assert (second.role, second.tools) == ("member", [])
    assert (second.created_at, second.updated_at) == (first.created_at, first.created_at + timedelta(seconds=5))
    assert acme.find("red", "ada") == second
    assert acme.list(resource="red") == [second]


def a_grant_is_revoked_once_and_alone(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    for team, user in (("red", "ada"), ("red", "bob"), ("blue", "ada")):
        acme.grant(NewMember(team=team, user=user))
    assert acme.revoke("red", "ada") is True
    assert acme.revoke("red", "ada") is False
    assert acme.find("red", "ada") is None
    assert [row.user for row in acme.list(resource="red")] == ["bob"]
    assert [row.team for row in acme.list(principal="ada")] == ["blue"]


def both_sides_are_listed_in_order_and_in_pages(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    for number in (3, 1, 4, 2, 0):
        role = "lead" if number % 2 else "member"
        acme.grant(NewMember(team="red", user=f"u{number}", role=role))
        acme.grant(NewMember(team=f"t{number}", user="ada", role=role))
    for side, field in (({"resource": "red"}, "user"), ({"principal": "ada"}, "team")):
        whole = acme.list(**side)  # type: ignore[arg-type]
        assert [getattr(row, field)[1:] for row in whole] == ["0", "1", "2", "3", "4"]
        assert pages(partial(acme.list, **side), 2) == whole  # type: ignore[arg-type]


def grants_of_tenants_are_separate(here: TableDatabase, open: Open) -> None:
    acme, zenith = open(here), open(here, "zenith")
    mine = acme.grant(NewMember(team="red", user="ada", role="lead"))
    theirs = zenith.grant(NewMember(team="red", user="ada"))
    zenith.grant(NewMember(team="red", user="eve"))
    assert (acme.find("red", "ada"), zenith.find("red", "ada")) == (mine, theirs)
    assert acme.find("red", "eve") is None
    assert acme.list(resource="red") == acme.list(principal="ada") == [mine]
    assert acme.revoke("red", "eve") is False
    assert acme.revoke("red", "ada") is True
    assert zenith.find("red", "ada") == theirs


PROMISES = [
    granting_again_replaces_the_attributes,
    a_grant_is_revoked_once_and_alone,
    both_sides_are_listed_in_order_and_in_pages,
    grants_of_tenants_are_separate,
]


@pytest.mark.parametrize("promise", PROMISES)
def test_grants(here: TableDatabase, promise: Callable[[TableDatabase, Open], None]) -> None:
    promise(here, members)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WHERE tenant_id = :tenant_id AND ", "WHERE "),
        ("role = excluded.role, ", ""),
        ("updated_at = excluded.updated_at", "created_at = excluded.created_at"),
        (" AND user_id = :user", ""),
        ("ORDER BY", "ORDER BY role DESC,"),
        ("LIMIT :limit", "LIMIT :limit - 1"),
    ],
)
def test_a_defect_is_detected(here: TableDatabase, old: str, new: str) -> None:
    wrong = type("Wrong", (AsyncMembers,), {"grants": with_defect(AsyncMembers.grants, old, new)})
    assert detects(here, PROMISES, lambda database, tenant="acme": database.store(wrong, Members, tenant), "members")


def test_invalid_arguments_are_rejected(here: TableDatabase) -> None:
    acme = members(here)
    calls: list[Callable[[], Any]] = [
        lambda: acme.grant(NewMember(team="", user="ada")),
        lambda: acme.grant(NewMember(team="red", user=7)),  # type: ignore[arg-type]
        lambda: acme.grant(NewMember(team="red", user="ada", tools="x")),  # type: ignore[arg-type]
        lambda: acme.grant(NewMember(team="red", user="x" * 41)),
        lambda: acme.find("", "ada"),
        lambda: acme.revoke("red", ""),
        acme.list,
        lambda: acme.list(resource="red", principal="ada"),
        lambda: acme.list(resource="red", limit=0),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(InvalidFilter):
        acme.list(resource="red", limit=1, cursor=encode_cursor("other", "ada"))


def test_a_list_without_a_limit_is_bounded(here: TableDatabase) -> None:
    acme = members(here)
    for number in range(7):
        acme.grant(NewMember(team="red", user=f"u{number}"))
    with raises(LimitExceeded, limit="list_rows", maximum=6):
        acme.list(resource="red")


def test_the_statements_follow_the_rules(here: TableDatabase, request: pytest.FixtureRequest) -> None:
    check_statements(here, AsyncMembers.grants, request)
