"""File identity: a database file that was removed or replaced is detected."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from holdfast.errors import InvalidInput, Unavailable
from holdfast.file_identity import FileIdentity


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    path.write_bytes(b"")
    return path


def test_a_file_with_changed_content_is_the_same_file(file: Path) -> None:
    presence = FileIdentity(str(file))
    for content in (b"x", b"longer", b""):
        file.write_bytes(content)
        presence.check()
    os.rename(file, file.with_suffix(".old"))
    os.rename(file.with_suffix(".old"), file)
    presence.check()


def test_a_missing_or_replaced_file_is_unavailable_until_it_is_back(file: Path) -> None:
    presence = FileIdentity(f"sqlite:///{file}")
    kept = file.with_suffix(".kept")
    os.rename(file, kept)
    with pytest.raises(Unavailable, match=re.escape(str(file))) as refused:
        presence.check()
    assert isinstance(refused.value.__cause__, FileNotFoundError)
    file.write_bytes(b"another")
    with pytest.raises(Unavailable, match=re.escape(str(file))) as refused:
        presence.check()
    assert refused.value.__cause__ is None, "the file exists, but is another one"
    os.replace(kept, file)
    presence.check()


def test_only_database_files_are_checked(tmp_path: Path) -> None:
    for url in (":memory:", "sqlite://", "postgresql:///agents"):
        FileIdentity(url).check()
    with pytest.raises(Unavailable):
        FileIdentity(str(tmp_path / "absent.db"))
    with pytest.raises(InvalidInput):
        FileIdentity("")
