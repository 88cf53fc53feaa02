"""The stored form of objects: digests, compression, and the detection of damage."""

from __future__ import annotations

import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast, Limits
from holdfast.core import objects
from holdfast.core.compression_dictionary import WORDS
from holdfast.errors import Corrupt, LimitExceeded, NotFound
from holdfast.stores.execution.checkpoints.task_writes import Write
from tests.errors import raises

TEXT = b"The quick brown fox jumps over the lazy dog, and then again. " * 40


@given(st.binary(max_size=2_000) | st.integers(0, 400).map(lambda n: TEXT[:n] * 3))
def test_a_body_round_trips(body: bytes) -> None:
    for length in (objects.SHORT_BYTES, objects.DIGEST_BYTES):
        packed = objects.pack(body, length)
        assert len(packed.digest) == length
        assert len(packed.body) <= len(body)
        assert objects.unpack(packed.digest, packed.codec, packed.body) == body


@given(st.lists(st.binary(max_size=300) | st.integers(0, 400).map(lambda n: TEXT[:n] * 20), max_size=12))
def test_several_bodies_are_unpacked_at_once(bodies: list[bytes]) -> None:
    for length in (objects.SHORT_BYTES, objects.DIGEST_BYTES):
        packed = [objects.pack(body, length) for body in bodies]
        assert objects.unpack_all([(item.digest, item.codec, item.body) for item in packed]) == bodies


@pytest.mark.parametrize("column", ["digest", "codec", "body"])
@pytest.mark.parametrize("at", range(4))
def test_one_damaged_body_among_several_is_detected(at: int, column: str) -> None:
    bodies = [TEXT, b"short", TEXT * 20, TEXT[::-1]]
    rows = [[packed.digest, packed.codec, packed.body] for packed in map(objects.pack, bodies)]
    number = ["digest", "codec", "body"].index(column)
    was = rows[at][number]
    rows[at][number] = 7 if isinstance(was, int) else was[:-1] + bytes([was[-1] ^ 1])
    with pytest.raises(Corrupt):
        objects.unpack_all([tuple(row) for row in rows])


def test_swapped_bodies_are_detected() -> None:
    one, other = objects.pack(TEXT), objects.pack(TEXT[::-1])
    with pytest.raises(Corrupt, match=f"{one.digest.hex()}|{other.digest.hex()}"):
        objects.unpack_all([(one.digest, other.codec, other.body), (other.digest, one.codec, one.body)])


def test_a_body_is_compressed_where_that_helps() -> None:
    assert objects.pack(TEXT).codec == objects.ZSTD_DICT
    assert objects.pack(TEXT * 10).codec == objects.ZSTD
    assert objects.pack(b"short").codec == objects.RAW
    noise = Random(1).randbytes(5_000)
    assert (objects.pack(noise).codec, objects.pack(noise).body) == (objects.RAW, noise)


def test_a_digest_is_blake3_and_a_short_one_its_prefix() -> None:
    empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert objects.digest_of(b"").hex() == empty
    assert objects.digest_of(b"", 16).hex() == empty[:32]


def test_the_preset_dictionary_is_never_changed() -> None:
    """A body can only be read with the dictionary it was compressed with: another dictionary needs another codec."""
    assert objects.digest_of(WORDS).hex() == WORDS_DIGEST


WORDS_DIGEST = "23710de883edeb0933c399dbac4d1321b235490e9ee1bfe7af2854ebce6e6238"


@pytest.mark.parametrize(
    "body", [b"short body", TEXT, TEXT * 20, Random(2).randbytes(3_000)], ids=["raw", "words", "zstd", "noise"]
)
def test_every_flipped_bit_is_detected(body: bytes) -> None:
    packed, random = objects.pack(body), Random(len(body))
    for _ in range(300):
        place = random.randrange(len(packed.body) * 8)
        flipped = bytearray(packed.body)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(Corrupt):
            objects.unpack(packed.digest, packed.codec, bytes(flipped))


@pytest.mark.parametrize("codec", [3, 9, 255])
def test_an_unknown_codec_is_rejected(codec: int) -> None:
    with pytest.raises(Corrupt, match=str(codec)):
        objects.unpack(b"\x00" * 32, codec, b"x")


def test_a_frame_that_claims_to_be_huge_is_rejected_before_it_is_unpacked() -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(objects.MAX_UNPACKED + 1))
    assert len(bomb) < 10_000
    bomb += zlib.crc32(bomb).to_bytes(4, "big")
    with pytest.raises(Corrupt, match=f"{objects.MAX_UNPACKED + 1:,}"):
        objects.unpack(b"\x00" * 32, objects.ZSTD, bomb)


def test_threads_do_not_share_a_compressor() -> None:
    bodies = [TEXT[n:] * 2 for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(objects.pack, bodies * 4))
    assert [objects.unpack(item.digest, item.codec, item.body) for item in packed] == bodies * 4


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A database with objects and checkpoints."""
    path, random = tmp_path / "a.db", Random(7)
    with Holdfast(str(path)) as holdfast:
        acme = holdfast.tenant("acme")
        acme.objects.put([random.randbytes(9_000), TEXT * 30, b"small"], holder="me")
        for step in range(5):
            pieces = [TEXT[:300], random.randbytes(200), random.randbytes(9_000)]
            acme.checkpoints.put("t", id=f"{step}", state=random.randbytes(40), pieces=pieces)
            acme.checkpoints.put_writes("t", id=f"{step}", task_id="x", new=[Write(0, "c", b"v" * 30, [b"p" * 100])])
    return path


def read_all(path: Path) -> None:
    with Holdfast(str(path)) as holdfast:
        acme = holdfast.tenant("acme")
        acme.checkpoints.list("t")
        for damage in acme.objects.verify().damaged:
            assert damage.holders in (["me"], ["lg_log:1"])
            raise Corrupt(damage.reason)


def flip(path: Path, table: str, column: str, random: Random) -> None:
    """Flip one bit of one value."""
    connection = apsw.Connection(str(path))
    bodies = sorted(body for (body,) in connection.execute(f"SELECT {column} FROM {table}") if body)
    body = random.choice(bodies)
    place = random.randrange(len(body) * 8)
    flipped = bytearray(body)
    flipped[place // 8] ^= 1 << place % 8
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (bytes(flipped), body))
    connection.close()


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("objects", "body"), ("objects", "digest"), ("lg_piece", "body"), ("lg_piece", "digest"),
        ("lg_checkpoint", "checkpoint"), ("lg_checkpoint", "pieces"),
        ("lg_checkpoint_write", "writes"), ("lg_checkpoint_write", "pieces"),
    ],
)  # fmt: skip
def test_flipped_bits_in_a_database_are_detected(filled: Path, tmp_path: Path, table: str, column: str) -> None:
    read_all(filled)
    random = Random(11)
    for number in range(12):
        copy = tmp_path / f"{number}.db"
        shutil.copy(filled, copy)
        flip(copy, table, column, random)
        with pytest.raises((Corrupt, NotFound)):
            read_all(copy)


def test_a_body_over_the_maximum_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_UNPACKED", 1_000)
    for body in (b"a" * 1_000, Random(1).randbytes(1_000)):
        packed = objects.pack(body)
        assert objects.unpack(packed.digest, packed.codec, packed.body) == body
        with raises(LimitExceeded, maximum=1000):
            objects.pack(body + b"a")
    with Holdfast(":memory:", limits=Limits(content_bytes=10_000)) as opened:
        acme = opened.tenant("acme")
        with raises(LimitExceeded, maximum=1000):
            acme.objects.put([b"a" * 1_001], holder="me")
        with raises(LimitExceeded, maximum=1000):
            acme.checkpoints.put("t", id="1", state=b"", pieces=[b"a" * 1_001])


@pytest.mark.parametrize("size", [0, 1, objects.COMPRESS_FROM - 1])
def test_a_short_body_is_stored_uncompressed(size: int) -> None:
    packed = objects.pack(b"a" * size)
    assert (packed.codec, packed.body, packed.size_bytes, packed.length) == (objects.RAW, b"a" * size, size, size)


@pytest.mark.parametrize(
    ("size", "codec"),
    [
        (objects.COMPRESS_FROM, objects.ZSTD_DICT),
        (objects.MAX_DICT_BODY, objects.ZSTD_DICT),
        (objects.MAX_DICT_BODY + 1, objects.ZSTD),
    ],
)
def test_the_preset_dictionary_is_used_up_to_a_maximum_size(size: int, codec: int) -> None:
    for level in (objects.LEVEL, objects.BULK_LEVEL):
        packed = objects.pack(b"a" * size, level=level)
        assert packed.codec == codec
        assert objects.unpack(packed.digest, codec, packed.body) == b"a" * size


def test_a_body_in_a_pack_keeps_its_length_and_digest() -> None:
    packed = objects.pack(b"body" * 100)
    in_pack = packed.without_body()
    assert (packed.is_in_pack, in_pack.is_in_pack) == (False, True)
    assert (in_pack.body, in_pack.length, in_pack.size_bytes, in_pack.digest) == (
        b"",
        packed.length,
        400,
        packed.digest,
    )
    assert in_pack.without_body() == in_pack


@pytest.mark.parametrize("stored", [b"", b"\x00", b"\x00" * 4, b"\x00" * 40], ids=len)
@pytest.mark.parametrize("codec", [objects.ZSTD, objects.ZSTD_DICT])
def test_bytes_that_are_not_compressed_data_are_corrupt(codec: int, stored: bytes) -> None:
    with pytest.raises(Corrupt):
        objects.unpack(b"\x00" * 32, codec, stored)


def test_a_body_under_the_digest_of_another_is_corrupt() -> None:
    one, other = objects.pack(b"one"), objects.pack(b"other")
    with pytest.raises(Corrupt, match=one.digest.hex()):
        objects.unpack(one.digest, other.codec, other.body)
