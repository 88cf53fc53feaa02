"""The key file: readable by its owner only, created once and completely, never overwritten."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import key_file
from holdfast.core.crypto import KeyRing, new_key
from holdfast.errors import InvalidInput, NotFound
from tests.errors import raises


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / key_file.NAME


def test_a_key_file_is_created_once_and_readable_by_its_owner_only(path: Path) -> None:
    assert not key_file.read(path)
    before = os.umask(0)
    try:
        assert key_file.make(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text()
    assert not key_file.make(path)
    assert path.read_text() == written
    assert key_file.read(path).key_ids == KeyRing(written.strip()).key_ids
    assert [entry.name for entry in path.parent.iterdir()] == [key_file.NAME]


def test_of_concurrent_creators_one_succeeds_and_all_read_the_same_key(path: Path) -> None:
    def make(number: int) -> tuple[bool, list[str]]:
        return key_file.make(path), key_file.read(path).key_ids

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(make, range(8)))
    assert sum(made for made, _ in results) == 1
    assert len({tuple(ids) for _, ids in results}) == 1
    assert [entry.name for entry in path.parent.iterdir()] == [key_file.NAME]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_key_that_another_process_creates_at_the_same_moment_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The other process is first just before this one opens its temporary file, or just after."""

    class Late(key_file.NewFile):
        def __init__(self, path: Path) -> None:
            if moment == "before":
                make(path)
            super().__init__(path)
            if moment == "after":
                make(path)

    def make(path: Path) -> None:
        path.write_text("ab" * 32)
        path.chmod(0o600)

    monkeypatch.setattr(key_file, "NewFile", Late)
    assert key_file.make(path) is False
    assert path.read_text() == "ab" * 32


def test_nothing_is_overwritten_on_a_file_system_without_hard_links(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: str) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert key_file.make(path)
    written = path.read_text()
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # as if another process created it a moment later
    with pytest.raises(InvalidInput):
        key_file.make(path)
    assert path.read_text() == written
    assert [entry.name for entry in path.parent.iterdir()] == [key_file.NAME]


def test_a_process_that_dies_while_writing_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(file: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", die)
        with pytest.raises(KeyboardInterrupt):
            key_file.make(path)
    assert not path.exists()
    assert key_file.make(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601, 0o620])
def test_a_file_that_others_can_access_is_refused(path: Path, mode: int) -> None:
    key_file.make(path)
    path.chmod(mode)
    with raises(InvalidInput, field="key_file") as caught:
        key_file.read(path)
    assert f"chmod 600 {path}" in str(caught.value)
    assert path.read_text().strip() not in str(caught.value)
    path.chmod(0o400)
    assert key_file.read(path)


def test_several_keys_are_several_lines_with_the_current_one_first(path: Path) -> None:
    new, old = new_key(), new_key()
    path.write_text(f"{new}\n{old}\n")
    path.chmod(0o600)
    assert key_file.read(path).key_ids == KeyRing([new, old]).key_ids


@pytest.mark.parametrize("content", ["", "\n", "no key", "0" * 63, "0" * 100_000, "é" * 32])
def test_an_invalid_key_is_refused_with_the_name_of_the_file(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match=key_file.NAME):
        key_file.read(path)


def test_a_path_that_is_not_a_regular_file_is_refused(path: Path) -> None:
    path.mkdir(mode=0o700)
    with pytest.raises(InvalidInput, match=key_file.NAME):
        key_file.read(path)
    path.rmdir()
    os.mkfifo(path, 0o600)
    with raises(InvalidInput, field="key_file") as refused:
        key_file.read(path)
    assert refused.value.__cause__ is None
    path.unlink()
    path.symlink_to("nowhere")
    with raises(InvalidInput, field="key_file") as refused:
        key_file.read(path)
    assert isinstance(refused.value.__cause__, OSError)
    assert not key_file.make(path), "the existing path is not replaced"
    with pytest.raises(NotFound):
        key_file.make(path.parent / "nowhere" / "x")
