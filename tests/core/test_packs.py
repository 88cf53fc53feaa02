"""Pack storage: packs in a directory, at a file address and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import packs
from holdfast.core.packs import PackStorage, folder_of
from holdfast.errors import Corrupt, InvalidInput, NotFound, PackStorageMissing
from holdfast.sync_runner import step
from tests.errors import raises


def run(blocking: bool, call: Coroutine[Any, Any, Any]) -> Any:
    async def awaited() -> Any:
        return await call

    return step(call) if blocking else asyncio.run(awaited())


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("kind", ["folder", "address", "memory"])
def test_a_pack_is_written_read_listed_and_removed(tmp_path: Path, blocking: bool, kind: str) -> None:
    address = {"folder": str(tmp_path / "p"), "address": f"file://{tmp_path}/p", "memory": "memory:///"}[kind]
    storage = PackStorage(address)
    assert run(blocking, storage.names("t", blocking=blocking)) == []
    run(blocking, storage.write("t/1", b"0123456789", blocking=blocking))
    run(blocking, storage.write("u/1", b"other", blocking=blocking))
    assert run(blocking, storage.names("t", blocking=blocking)) == ["t/1"]
    assert run(blocking, storage.read("t/1", [(0, 3), (8, 2), (0, 10)], blocking=blocking)) == [
        b"012",
        b"89",
        b"0123456789",
    ]
    assert run(blocking, storage.read("absent", [], blocking=blocking)) == []
    with pytest.raises(Corrupt, match="t/1"):
        run(blocking, storage.read("t/1", [(8, 3)], blocking=blocking))
    with raises(NotFound, noun="pack", key="absent"):
        run(blocking, storage.read("absent", [(0, 1)], blocking=blocking))
    for _ in range(2):
        run(blocking, storage.remove(["t/1", "absent"], blocking=blocking))
    assert run(blocking, storage.names("t", blocking=blocking)) == []
    assert run(blocking, storage.read("u/1", [(0, 5)], blocking=blocking)) == [b"other"]


def test_a_folder_that_is_made_when_needed_is_not_made_by_a_read(tmp_path: Path) -> None:
    storage = PackStorage(tmp_path / "deep" / "p", when_needed=True)
    assert step(storage.names("t", blocking=True)) == []
    step(storage.remove(["t/1"], blocking=True))
    with pytest.raises(PackStorageMissing, match="--packs"):
        step(storage.read("t/1", [(0, 1)], blocking=True))
    assert not (tmp_path / "deep").exists()
    step(storage.write("t/1", b"x", blocking=True))
    assert (tmp_path / "deep" / "p" / "t" / "1").read_bytes() == b"x"


@pytest.mark.parametrize("where", ["", None, 7, b"x", "http://host/p", "ftp://host", "://"], ids=repr)
def test_an_unknown_address_is_rejected_even_before_it_is_needed(where: Any) -> None:
    with pytest.raises(InvalidInput):
        PackStorage(where, when_needed=True)


def test_folders_of_tenants_are_distinct_and_do_not_reveal_the_name() -> None:
    names = ["acme", "Acme", "a/b", "..", "\U0010f800", "x" * 255]
    folders = [folder_of(name) for name in names]
    assert len(set(folders)) == len(names)
    assert all(len(folder) == 2 * packs.TENANT_BYTES and int(folder, 16) >= 0 for folder in folders)
