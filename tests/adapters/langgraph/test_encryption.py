"""With a key, content is encrypted, and plain content is rejected."""

from __future__ import annotations

import base64
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.adapters.langgraph.encryption import Cipher, NoCipher
from holdfast.errors import Corrupt, DecryptionFailed, InvalidInput
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import chat_graph, say, text, thread
from tests.errors import raises

KEY, OTHER = bytes(range(32)), bytes(32)


def contents(saver: Any) -> list[str]:
    return [message.content for message in chat_graph(saver).get_state(thread()).values.get("messages", [])]


def test_an_encrypted_conversation_continues(savers: Savers) -> None:
    for turn in (1, 2, 3):
        chat_graph(savers(encryption_key=KEY)).invoke(say(turn), thread())
    assert contents(savers(encryption_key=KEY.hex())) == [text(n) for n in range(1, 7)]
    assert contents(savers(encryption_key=base64.b64encode(KEY).decode())) == [text(n) for n in range(1, 7)]


def test_the_database_contains_no_plain_content(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with HoldfastSaver(str(path), encryption_key=KEY) as saver:
        for turn in (1, 2):
            chat_graph(saver).invoke(say(turn), thread())
        chat_graph(saver).update_state(thread(), {"notes": {"secret key": "secret value"}})
    raw = path.read_bytes()
    for needle in (text(1)[:40].encode(), b"secret value", b"secret key", b"HumanMessage"):
        assert needle not in raw
    connection = sqlite3.connect(path)
    for table, column in (("lg_piece", "body"), ("lg_checkpoint", "checkpoint")):
        rows = connection.execute(f"SELECT {column} FROM {table}").fetchall()
        assert rows
        assert all(bytes(row[0]).startswith(b"\xc1HE1") for row in rows)
    connection.close()


def test_equal_content_is_still_stored_once(tmp_path: Path) -> None:
    def pieces(**options: Any) -> int:
        path = tmp_path / f"{len(options)}.db"
        with HoldfastSaver(str(path), **options) as saver:
            for turn in range(1, 6):
                chat_graph(saver).invoke(say(turn), thread())
        connection = sqlite3.connect(path)
        (count,) = connection.execute("SELECT COUNT(*) FROM lg_piece").fetchone()
        connection.close()
        return int(count)

    assert pieces() == pieces(encryption_key=KEY)


def test_rows_that_are_not_encrypted_are_refused(savers: Savers) -> None:
    chat_graph(savers()).invoke(say(1), thread())
    with raises(Corrupt, __class__=Corrupt):
        savers(encryption_key=KEY).get_tuple(thread())
    with raises(Corrupt, __class__=Corrupt):
        list(savers(encryption_key=KEY).list(thread()))
    with raises(Corrupt, __class__=Corrupt):
        chat_graph(savers(encryption_key=KEY)).invoke(say(2), thread())


def test_a_write_that_is_not_encrypted_is_refused(savers: Savers) -> None:
    chat_graph(savers(encryption_key=KEY)).invoke(say(1), thread())
    newest = savers(encryption_key=KEY).get_tuple(thread())
    assert newest is not None
    savers().put_writes(newest.config, [("turns", 99)], "another task")
    with raises(Corrupt, __class__=Corrupt):
        savers(encryption_key=KEY).get_tuple(thread())


def test_content_cannot_be_read_without_its_key(savers: Savers) -> None:
    chat_graph(savers(encryption_key=KEY)).invoke(say(1), thread())
    with pytest.raises(DecryptionFailed):
        savers(encryption_key=OTHER).get_tuple(thread())
    with raises(InvalidInput, field="encryption_key"):
        savers().get_tuple(thread())


def test_a_conversation_continues_with_a_new_key_followed_by_the_old_one(savers: Savers) -> None:
    chat_graph(savers(encryption_key=OTHER)).invoke(say(1), thread())
    chat_graph(savers(encryption_key=[KEY, OTHER])).invoke(say(2), thread())
    assert contents(savers(encryption_key=[OTHER, KEY])) == [text(n) for n in range(1, 5)]
    with pytest.raises(DecryptionFailed):
        savers(encryption_key=KEY).get_tuple(thread())


def test_an_empty_list_of_keys_is_refused() -> None:
    with raises(InvalidInput, field="encryption_key"):
        HoldfastSaver(":memory:", encryption_key=[])


@pytest.mark.parametrize("key", ["", "short", b"short", "g" * 64, "!" * 44, 7, bytes(31)])
def test_an_invalid_key_is_refused(key: Any) -> None:
    with raises(InvalidInput, field="encryption_key"):
        HoldfastSaver(":memory:", encryption_key=key)


def test_every_flipped_bit_of_encrypted_content_is_detected() -> None:
    cipher = Cipher(KEY)
    for content in (b"", b"short", b"long and again " * 40):
        sealed = cipher.seal(content, "piece")
        assert cipher.open(sealed, "piece") == content
        assert cipher.seal(content, "piece") == sealed
        for place in range(0, len(sealed) * 8, 5):
            flipped = bytearray(sealed)
            flipped[place // 8] ^= 1 << place % 8
            with pytest.raises(Corrupt):
                cipher.open(bytes(flipped), "piece")
        with pytest.raises(Corrupt):
            cipher.open(sealed, "state")
        with pytest.raises(InvalidInput):
            NoCipher().open(sealed, "piece")


def test_langgraphs_encrypted_serializer_is_refused_with_the_alternative(savers: Savers) -> None:
    class Reversing:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "reversed", plaintext[::-1]

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            return ciphertext[::-1]

    saver = savers(serde=EncryptedSerializer(Reversing()))
    with raises(InvalidInput, field="serde"):
        chat_graph(saver).invoke(say(1), thread(), durability="sync")
