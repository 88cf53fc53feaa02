"""``is_paired`` never answers when it cannot know."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import Closed, HoldfastError


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_failure_to_find_out_whether_a_sender_is_paired_is_an_error(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = str(tmp_path / "a.db") if engine == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url) as hf:
        pairing = hf.tenant("acme").pairing
        assert pairing.is_paired("42", "telegram") is False
        if engine == "sqlite":
            apsw.Connection(url).execute("DROP TABLE paired_devices")
        else:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER TABLE paired_devices RENAME TO hidden")
        try:
            with pytest.raises(HoldfastError):
                pairing.is_paired("42", "telegram")
        finally:
            if engine == "postgres":
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("ALTER TABLE hidden RENAME TO paired_devices")
    with pytest.raises(Closed):
        pairing.is_paired("42", "telegram")
