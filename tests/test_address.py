"""Database addresses: paths and URLs, their options, and invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import address
from holdfast.errors import InvalidInput


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("agents.db", ("sqlite", "agents.db", False)),
        ("./a b.db", ("sqlite", "./a b.db", False)),
        ("/abs/agents.db", ("sqlite", "/abs/agents.db", False)),
        ("C:\\agents.db", ("sqlite", "C:\\agents.db", False)),
        (":memory:", ("sqlite", ":memory:", False)),
        ("sqlite:///agents.db", ("sqlite", "agents.db", False)),
        ("sqlite:////abs/agents.db", ("sqlite", "/abs/agents.db", False)),
        ("sqlite:///a%20b%3F.db", ("sqlite", "a b?.db", False)),
        ("sqlite:///agents.db?mode=ro", ("sqlite", "agents.db", True)),
        ("SQLITE:///agents.db", ("sqlite", "agents.db", False)),
        ("sqlite://", ("sqlite", ":memory:", False)),
        ("postgresql:///agents", ("postgres", "postgresql:///agents", False)),
        ("postgres://u:p@h:5/d?x=y", ("postgres", "postgres://u:p@h:5/d?x=y", False)),
    ],
)
def test_an_address_is_parsed(url: str, expected: tuple[str, str, bool]) -> None:
    parsed = address.parse(url)
    assert (parsed.engine, parsed.place, parsed.read_only) == expected


@pytest.mark.parametrize(
    "url",
    ["", None, 0, "mysql://h/d", "http://x", "sqlite:agents.db", "sqlite://host/agents.db", "sqlite:///a.db?mode=rw",
     "sqlite:///a.db?cache=shared", "postgresql:agents", "sqlite:///a.db?library=other"],
)  # fmt: skip
def test_an_invalid_address_is_rejected(url: Any) -> None:
    with pytest.raises(InvalidInput):
        address.parse(url)


@pytest.mark.parametrize(
    ("url", "library", "expected"),
    [
        ("a.db", None, "apsw"),
        ("a.db", "stdlib", "stdlib"),
        ("sqlite:///a.db", "stdlib", "stdlib"),
        ("sqlite:///a.db?library=stdlib", None, "stdlib"),
        ("sqlite:///a.db?library=stdlib", "apsw", "apsw"),
        ("sqlite:///a.db?library=apsw&mode=ro", None, "apsw"),
    ],
)
def test_the_library_argument_overrides_the_address(url: str, library: Any, expected: str) -> None:
    assert address.parse(url, library=library).library == expected
