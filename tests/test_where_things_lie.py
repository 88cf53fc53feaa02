"""Where things lie: a database that is still there, its schema, packs in a folder, bodies under digests, names in a scope."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, Limits, NewAgent, address, ids, schema
from holdfast.clock import FixedClock, Stopwatch, monotonic_s
from holdfast.core import objects, packs
from holdfast.core.packs import PackPlace, folder_of
from holdfast.core.scope import Scope, Setting, free_text, metadata, name
from holdfast.errors import (
    Corrupt,
    HoldfastError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    PackStorageMissing,
    SchemaMismatch,
    Unavailable,
)
from holdfast.file_identity import Presence
from holdfast.sync_runner import step

# The file of a database


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    path.write_bytes(b"")
    return path


def test_a_file_that_stays_is_there_however_it_is_changed(file: Path) -> None:
    presence = Presence(str(file))
    for content in (b"x", b"longer", b""):
        file.write_bytes(content)
        presence.check()
    os.rename(file, file.with_suffix(".old"))
    os.rename(file.with_suffix(".old"), file)
    presence.check()


def test_a_file_that_is_gone_or_replaced_is_noticed_until_it_is_back(file: Path) -> None:
    presence = Presence(f"sqlite:///{file}")
    kept = file.with_suffix(".kept")
    os.rename(file, kept)
    with pytest.raises(Unavailable, match="is no longer there: No such file"):
        presence.check()
    file.write_bytes(b"another")
    with pytest.raises(Unavailable, match="was replaced by another file; start again"):
        presence.check()
    os.replace(kept, file)
    presence.check()


def test_what_is_no_file_answers_for_itself(tmp_path: Path) -> None:
    for url in (":memory:", "sqlite://", "postgresql:///agents"):
        Presence(url).check()
    with pytest.raises(Unavailable):
        Presence(str(tmp_path / "absent.db"))
    with pytest.raises(InvalidInput):
        Presence("")


@pytest.mark.parametrize(
    ("url", "library", "wanted"),
    [
        ("a.db", None, "apsw"),
        ("a.db", "stdlib", "stdlib"),
        ("sqlite:///a.db", "stdlib", "stdlib"),
        ("sqlite:///a.db?library=stdlib", None, "stdlib"),
        ("sqlite:///a.db?library=stdlib", "apsw", "apsw"),
        ("sqlite:///a.db?library=apsw&mode=ro", None, "apsw"),
    ],
)
def test_a_library_that_is_given_goes_before_one_in_the_address(url: str, library: Any, wanted: str) -> None:
    assert address.parse(url, library=library).library == wanted


# The schema


def test_a_database_goes_up_in_steps_and_down_again(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    first = schema.migrate_up(url, to=1)
    assert [(each.version, each.applied) for each in first] == [(1, True)]
    assert [each.version for each in schema.migration_status(url) if each.applied] == [1]
    missing = schema.check_integrity(url)
    assert missing[0] == "migration 2 is not applied"
    rest = schema.migrate_up(url)
    assert len(missing) == len(rest)
    assert schema.migrate_up(url) == []
    assert schema.check_integrity(url) == []
    undone = schema.migrate_down(url, to=rest[-2].version)
    assert [(each.version, each.applied) for each in undone] == [(rest[-1].version, False)]


@pytest.mark.parametrize(
    "call", [schema.migration_status, schema.check_integrity, lambda url: schema.migrate_down(url, to=0)]
)
def test_a_database_that_is_not_there_is_not_made_by_looking(tmp_path: Path, call: Any) -> None:
    with pytest.raises(Unavailable):
        call(str(tmp_path / "absent.db"))
    assert list(tmp_path.iterdir()) == []


def test_only_postgres_can_be_spread(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    schema.migrate_up(url)
    with pytest.raises(InvalidInput):
        schema.distribute(url)


def test_a_row_without_its_parent_is_named_once(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    with Holdfast(url) as hf:
        for number in range(3):
            hf.tenant("acme").agents.create(NewAgent(name="A", id=str(number)))
            hf.tenant("acme").blocks.set(str(number), "persona", "x")
    raw = apsw.Connection(url)
    raw.execute("PRAGMA foreign_keys = OFF; DELETE FROM agents")
    raw.close()
    said = schema.check_integrity(url)
    assert said
    assert len(said) == len(set(said))
    assert all(each.endswith("a row points to no row of agents") for each in said)


def test_a_file_that_is_no_database_is_said_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(Random(3).randbytes(9_000))
    (said,) = schema.check_integrity(str(path))
    assert "not a database" in said
    assert len(path.read_bytes()) == 9_000


def test_an_edited_migration_is_an_error_and_no_finding(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    schema.migrate_up(url)
    raw = apsw.Connection(url)
    raw.execute(
        "UPDATE schema_migrations SET version = 9999 WHERE version = (SELECT max(version) FROM schema_migrations)"
    )
    raw.close()
    with pytest.raises(SchemaMismatch):
        schema.check_integrity(url)


# Packs


def run(blocking: bool, call: Coroutine[Any, Any, Any]) -> Any:
    async def whole() -> Any:
        return await call

    return step(call) if blocking else asyncio.run(whole())


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("kind", ["folder", "address", "memory"])
def test_a_pack_is_written_read_listed_and_removed(tmp_path: Path, blocking: bool, kind: str) -> None:
    where = {"folder": str(tmp_path / "p"), "address": f"file://{tmp_path}/p", "memory": "memory:///"}[kind]
    place = PackPlace(where)
    assert run(blocking, place.names("t", blocking=blocking)) == []
    run(blocking, place.write("t/1", b"0123456789", blocking=blocking))
    run(blocking, place.write("u/1", b"other", blocking=blocking))
    assert run(blocking, place.names("t", blocking=blocking)) == ["t/1"]
    assert run(blocking, place.read("t/1", [(0, 3), (8, 2), (0, 10)], blocking=blocking)) == [
        b"012",
        b"89",
        b"0123456789",
    ]
    assert run(blocking, place.read("absent", [], blocking=blocking)) == []
    with pytest.raises(Corrupt, match="the pack t/1 is damaged: it ends too early"):
        run(blocking, place.read("t/1", [(8, 3)], blocking=blocking))
    with pytest.raises(NotFound, match="there is no pack absent"):
        run(blocking, place.read("absent", [(0, 1)], blocking=blocking))
    for _ in range(2):
        run(blocking, place.remove(["t/1", "absent"], blocking=blocking))
    assert run(blocking, place.names("t", blocking=blocking)) == []
    assert run(blocking, place.read("u/1", [(0, 5)], blocking=blocking)) == [b"other"]


def test_a_folder_that_is_made_when_needed_is_not_made_by_looking(tmp_path: Path) -> None:
    place = PackPlace(tmp_path / "deep" / "p", when_needed=True)
    assert step(place.names("t", blocking=True)) == []
    step(place.remove(["t/1"], blocking=True))
    with pytest.raises(PackStorageMissing, match="--packs"):
        step(place.read("t/1", [(0, 1)], blocking=True))
    assert not (tmp_path / "deep").exists()
    step(place.write("t/1", b"x", blocking=True))
    assert (tmp_path / "deep" / "p" / "t" / "1").read_bytes() == b"x"


@pytest.mark.parametrize("where", ["", None, 7, b"x", "http://host/p", "ftp://host", "://"], ids=repr)
def test_a_place_that_nobody_knows_is_refused_even_before_it_is_needed(where: Any) -> None:
    with pytest.raises(InvalidInput):
        PackPlace(where, when_needed=True)


def test_folders_of_tenants_can_be_told_apart_and_say_nothing() -> None:
    names = ["acme", "Acme", "a/b", "..", "\U0010f800", "x" * 255]
    folders = [folder_of(each) for each in names]
    assert len(set(folders)) == len(names)
    assert all(len(each) == 2 * packs.TENANT_BYTES and int(each, 16) >= 0 for each in folders)


# Bodies


@pytest.mark.parametrize("size", [0, 1, objects.COMPRESS_FROM - 1])
def test_a_short_body_is_kept_as_it_is(size: int) -> None:
    packed = objects.pack(b"a" * size)
    assert (packed.codec, packed.body, packed.size_bytes, packed.length) == (objects.RAW, b"a" * size, size, size)


@pytest.mark.parametrize(
    ("size", "codec"),
    [
        (objects.COMPRESS_FROM, objects.ZSTD_WORDS),
        (objects.MAX_WORDS, objects.ZSTD_WORDS),
        (objects.MAX_WORDS + 1, objects.ZSTD),
    ],
)
def test_words_are_referred_to_in_bodies_up_to_their_size(size: int, codec: int) -> None:
    for level in (objects.LEVEL, objects.BULK_LEVEL):
        packed = objects.pack(b"a" * size, level=level)
        assert packed.codec == codec
        assert objects.unpack(packed.digest, codec, packed.body) == b"a" * size


def test_a_body_that_went_to_a_pack_knows_its_length_and_nothing_else_changes() -> None:
    packed = objects.pack(b"body" * 100)
    gone = packed.without_body()
    assert (packed.is_elsewhere, gone.is_elsewhere) == (False, True)
    assert (gone.body, gone.length, gone.size_bytes, gone.digest) == (b"", packed.length, 400, packed.digest)
    assert gone.without_body() == gone


@pytest.mark.parametrize("stored", [b"", b"\x00", b"\x00" * 4, b"\x00" * 40], ids=len)
@pytest.mark.parametrize("codec", [objects.ZSTD, objects.ZSTD_WORDS])
def test_bytes_that_no_compressor_wrote_are_corrupt(codec: int, stored: bytes) -> None:
    with pytest.raises(Corrupt):
        objects.unpack(b"\x00" * 32, codec, stored)


def test_a_body_under_the_digest_of_another_is_corrupt() -> None:
    one, other = objects.pack(b"one"), objects.pack(b"other")
    with pytest.raises(Corrupt, match=f"the stored body {one.digest.hex()} is damaged"):
        objects.unpack(one.digest, other.codec, other.body)


# Names in a scope


@pytest.mark.parametrize(("value", "error"), [(None, InvalidInput), (7, InvalidInput), (b"", InvalidInput),
                                              ("é" * 4, LimitExceeded), ("\x00" * 2, LimitExceeded)], ids=repr)  # fmt: skip
def test_a_text_is_measured_as_it_is_stored_and_may_be_empty(value: Any, error: type[HoldfastError]) -> None:
    limits = Limits(text_bytes=7, name_bytes=7)
    assert (free_text("", "note", limits), free_text("é" * 3, "note", limits)) == ("", "é" * 3)
    for check in (free_text, name):
        with pytest.raises(error, match="note"):
            check(value, "note", limits)
    with pytest.raises(InvalidInput, match="note must not be empty"):
        name("", "note", limits)


@pytest.mark.parametrize("value", [[], "", 0, False, (), set(), [("a", 1)], {1: 1}, {None: 1}], ids=repr)
def test_what_is_empty_and_no_dictionary_is_no_metadata(value: Any) -> None:
    with pytest.raises(InvalidInput, match="metadata must be a dictionary with string keys"):
        metadata(value, Limits())
    assert metadata(None, Limits()) == metadata({}, Limits()) == "{}"


def test_a_scope_shares_what_its_setting_shares() -> None:
    setting = Setting(clock=FixedClock(), ids=ids.SeededIds(), session_dependents=(), limits=Limits(), count_tokens=len)
    one, other = Scope("a", setting), Scope("b", setting)
    one.shared["x"] = 1
    assert other.shared is setting.shared
    assert (other.count_tokens, other.clock, other.packs, other.caches) == (len, setting.clock, None, None)
    assert Setting(clock=FixedClock(), ids=ids.SeededIds(), session_dependents=(), limits=Limits()).shared == {}


# Time and chance


def test_a_stopwatch_counts_waiting_and_the_other_clock_never_goes_back() -> None:
    before, watch = monotonic_s(), Stopwatch()
    assert watch.waited_s() > -0.1
    assert monotonic_s() >= before


@pytest.mark.parametrize("size", [1, 16, 24])
def test_a_token_has_two_digits_for_each_byte_and_is_never_the_same(size: int) -> None:
    found = {ids.new_token(16 + size) for _ in range(20)}
    assert len(found) == 20
    assert {len(each) for each in found} == {2 * (16 + size)}
    key = ids.new_api_key()
    assert (key[:3], len(key), ids.new_api_key() != key) == ("hf_", 51, True)


def test_a_coroutine_that_waits_is_ended_and_said() -> None:
    left = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            left.append(True)

    with pytest.raises(RuntimeError, match="a blocking call suspended"):
        step(waits())
    assert left == [True]
