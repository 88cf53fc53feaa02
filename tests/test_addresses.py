"""Parsing of database addresses; errors about malformed ones do not quote them."""

from __future__ import annotations

import pytest

from holdfast import address
from holdfast.errors import InvalidInput
from tests.errors import raises

SECRET = "Sekret9"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///agents",
        "postgresql://",
        "POSTGRES://db/agents",
        "postgresql://ada@/agents?host=%2Fvar%2Frun&port=6432",
        "postgresql://ada@/agents?host=/var/run",
        "postgresql://ada:p%40%23%3F%2F%25%20@db:5432/my%20agents?options=-c%20a%3Db",
        "postgresql://ada:a:b,c!$&'()*+;=~@one:1,two:2,[::1]:3/agents",
        "postgresql://[2001:db8::1]/agents",
        "postgresql://ada:pässwort@db/agents",
    ],
)
def test_a_well_formed_address_is_unchanged(url: str) -> None:
    assert address.parse(url) == address.Address("postgres", url)


@pytest.mark.parametrize(
    "mark", ["%", "%zz", "%00", " ", "\t", "\n", "@", "#", "?", "/", "[", "]", "?a=", "/a?b=", "\u2100"]
)
@pytest.mark.parametrize("where", ["u:Sek{}ret9@127.0.0.1:5999/db", "u:{}Sekret9@db/db", "u:Sekret9{}@db/db"])
def test_a_password_that_is_not_percent_encoded_is_refused_and_not_quoted(mark: str, where: str) -> None:
    url = f"postgresql://{where.format(mark)}"
    with raises(InvalidInput, field="url") as caught:
        address.parse(url)
    assert "ret9" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert address.redacted(url) == "postgresql://..."


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql:u:{SECRET}@db/agents",
        f"postgres:u:{SECRET}@db/agents",
        f"host=db password={SECRET}",
        f"password = {SECRET}",
        f"u:{SECRET}://db/agents",
        f"mysql://u:{SECRET}@db/agents",
        f"sqlite://u:{SECRET}@db/agents",
        f"sqlite:///agents.db?key={SECRET}",
        f"postgresql://u:{SECRET}",
        f"postgresql://u:{SECRET}/db",
        "postgresql://u:p@db:99999/db",
        "postgresql://u:p@[::1/db",
    ],
)
def test_an_invalid_address_is_refused_and_not_quoted(url: str) -> None:
    with raises(InvalidInput, field="url") as caught:
        address.parse(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in address.redacted(url)


@pytest.mark.parametrize("wrong", [b"x.db", 7, "a\0b.db", "\udcff.db", "sqlite:///dir#1.db"])
def test_invalid_text_and_ambiguous_paths_are_refused(wrong: object) -> None:
    with raises(InvalidInput, field="url"):
        address.parse(wrong)


def test_a_path_may_contain_a_hash() -> None:
    assert address.parse("dir#1.db").place == "dir#1.db"
    assert address.parse("sqlite:///dir%231.db").place == "dir#1.db"
