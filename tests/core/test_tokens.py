"""Expiring tokens: only a hash is stored, and an expired token grants nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct

from holdfast.clock import from_us
from holdfast.core.records import Limited
from holdfast.core.tokens import MIN_TOKEN_CHARS, AsyncTokens, Tokens, TokenTable
from holdfast.errors import AlreadyExists, InvalidInput
from tests.core.table_databases import TableDatabase, check_statements, database, detects, with_defect
from tests.errors import raises

TOKEN, OTHER = "0123456789abcdef", "fedcba9876543210"


class NewInvite(Struct, frozen=True):
    email: str


class Invite(Struct, frozen=True):
    email: Annotated[str, Limited("name_bytes", empty=False)]
    created_at: datetime
    expires_at: datetime | None


class AsyncInvites(AsyncTokens[Invite, NewInvite]):
    """Invitations."""

    tokens = TokenTable("invites", Invite, noun="invitation")


class Invites(Tokens[Invite, NewInvite]):
    """The same for synchronous programs."""


TABLE = """CREATE TABLE invites (tenant_id {text} NOT NULL, token_hash {text} NOT NULL, email {text} NOT NULL,
    created_at {time} NOT NULL, expires_at {time}, PRIMARY KEY (tenant_id, token_hash))"""


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableDatabase]:
    with database(request, tmp_path, "invites", TABLE) as result:
        yield result


def invites(here: TableDatabase, tenant: str = "acme") -> Invites:
    return here.store(AsyncInvites, Invites, tenant)


Open = Callable[..., Invites]


def in_seconds(here: TableDatabase, seconds: int) -> datetime:
    return from_us(here.clock.now_us()) + timedelta(seconds=seconds)


def a_token_grants_what_was_issued_until_it_is_revoked(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    issued = acme.issue(TOKEN, NewInvite("ada\x00"))
    assert (issued.email, issued.expires_at) == ("ada\x00", None)
    assert acme.find(TOKEN) == issued
    assert acme.find(TOKEN.upper()) is None
    with raises(AlreadyExists, noun="invitation"):
        acme.issue(TOKEN, NewInvite("bob"))
    assert acme.find(TOKEN) == issued
    assert (acme.revoke(TOKEN), acme.revoke(TOKEN), acme.find(TOKEN)) == (True, False, None)


def an_expired_token_grants_nothing_and_is_pruned(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    issued = acme.issue(TOKEN, NewInvite("ada"), expires_at=in_seconds(here, 10))
    forever = acme.issue(OTHER, NewInvite("bob"))
    here.clock.advance(9)
    assert (acme.find(TOKEN), acme.prune()) == (issued, 0)
    here.clock.advance(1)
    assert acme.find(TOKEN) is None
    assert acme.find(OTHER) == forever
    assert [acme.prune(), acme.prune()] == [1, 0]
    assert acme.find(OTHER) == forever
    assert acme.issue(TOKEN, NewInvite("eve")).email == "eve"


def only_a_hash_is_stored(here: TableDatabase, open: Open) -> None:
    open(here).issue(TOKEN, NewInvite("ada"))
    ((row,),) = [here.execute("SELECT * FROM invites")]
    assert sha256(TOKEN.encode()).hexdigest() in row
    assert TOKEN not in str(row)


def tokens_of_tenants_are_separate(here: TableDatabase, open: Open) -> None:
    acme, zenith = open(here), open(here, "zenith")
    theirs = zenith.issue(TOKEN, NewInvite("zoe"), expires_at=in_seconds(here, 1))
    assert (acme.find(TOKEN), acme.revoke(TOKEN)) == (None, False)
    mine = acme.issue(TOKEN, NewInvite("ada"))
    assert (acme.find(TOKEN), zenith.find(TOKEN)) == (mine, theirs)
    here.clock.advance(1)
    assert (acme.prune(), zenith.prune()) == (0, 1)
    assert acme.find(TOKEN) == mine


PROMISES = [
    a_token_grants_what_was_issued_until_it_is_revoked,
    an_expired_token_grants_nothing_and_is_pruned,
    only_a_hash_is_stored,
    tokens_of_tenants_are_separate,
]


@pytest.mark.parametrize("promise", PROMISES)
def test_tokens(here: TableDatabase, promise: Callable[[TableDatabase, Open], None]) -> None:
    promise(here, invites)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WHERE tenant_id = :tenant_id AND token_hash = :token_hash", "WHERE token_hash = :token_hash"),
        ("WHERE tenant_id = :tenant_id AND expires_at", "WHERE expires_at"),
        (" AND (expires_at IS NULL OR expires_at > :now_at)", ""),
        ("expires_at IS NULL OR ", ""),
        ("expires_at > :now_at", "expires_at >= :now_at"),
        ("expires_at <= :now_at", "expires_at < :now_at"),
    ],
)
def test_a_defect_is_detected(here: TableDatabase, old: str, new: str) -> None:
    wrong = type("Wrong", (AsyncInvites,), {"tokens": with_defect(AsyncInvites.tokens, old, new)})
    assert detects(here, PROMISES, lambda database, tenant="acme": database.store(wrong, Invites, tenant), "invites")


def test_a_token_stored_in_plain_text_is_detected(here: TableDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.tokens.digest", lambda token: token)
    assert detects(here, PROMISES, invites, "invites")


def test_invalid_arguments_are_rejected(here: TableDatabase) -> None:
    acme = invites(here)
    calls: list[Callable[[], Any]] = [
        lambda: acme.issue("x" * (MIN_TOKEN_CHARS - 1), NewInvite("ada")),
        lambda: acme.issue("x" * 41, NewInvite("ada")),
        lambda: acme.issue(TOKEN, NewInvite("")),
        lambda: acme.issue(TOKEN, NewInvite("ada"), expires_at=datetime(2026, 1, 1)),  # noqa: DTZ001
        lambda: acme.find(""),
        lambda: acme.revoke(7),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert acme.find("short") is None


def test_the_statements_follow_the_rules(here: TableDatabase, request: pytest.FixtureRequest) -> None:
    check_statements(here, AsyncInvites.tokens, request)
