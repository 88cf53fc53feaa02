"""The key ring and ``Secret``: values decrypt only in their context, and nothing discloses a secret."""

from __future__ import annotations

import base64
import copy
import json
import logging
import pickle
import pprint
import string
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.crypto import MASK, PREFIX, VARIABLE, KeyRing, Secret, mask_secret, new_key
from holdfast.errors import Corrupt, DecryptionFailed, HoldfastError, InvalidInput, MissingKey
from tests.core.disclosure import everything_about
from tests.errors import raises

PLAIN = "sk-very-secret"
KEY, OTHER = bytes(range(32)), bytes(32)
RING = KeyRing(KEY)
CONTEXT = ["acme", "channel_instances", "row-1", "credentials"]

texts = st.text(st.characters())  # lone surrogates and NUL among them
contexts = st.lists(texts, min_size=4, max_size=6)


def body_of(stored: str) -> bytes:
    return base64.b64decode(stored.removeprefix(PREFIX), validate=True)


def stored_as(body: bytes) -> str:
    return PREFIX + base64.b64encode(body).decode()


@given(texts, contexts)
def test_a_value_decrypts_in_its_context(plain: str, context: list[str]) -> None:
    encrypted = RING.encrypt(Secret(plain), context)
    assert encrypted.isascii()
    assert RING.decrypt(encrypted, context) == plain


@given(texts, contexts, contexts)
def test_a_value_does_not_decrypt_in_another_context(plain: str, context: list[str], other: list[str]) -> None:
    encrypted = RING.encrypt(Secret(plain), context)
    if context != other:
        with pytest.raises(DecryptionFailed):
            RING.decrypt(encrypted, other)


@pytest.mark.parametrize("part", range(4), ids=["tenant", "table", "row", "column"])
def test_a_value_cannot_be_moved_to_another_row_or_column(part: int) -> None:
    moved = [*CONTEXT]
    moved[part] += "-2"
    with pytest.raises(DecryptionFailed, match="encryption_key"):
        RING.decrypt(RING.encrypt(Secret(PLAIN), CONTEXT), moved)


def test_the_parts_of_a_context_are_separated() -> None:
    encrypted = RING.encrypt(Secret(PLAIN), ["ab", "c", "d", "e"])
    with pytest.raises(DecryptionFailed):
        RING.decrypt(encrypted, ["a", "bc", "d", "e"])


def test_the_stored_form_is_key_id_nonce_ciphertext_and_tag_of_aes_256_gcm() -> None:
    nonce = bytes(range(100, 112))
    encrypted = KeyRing(KEY, nonces=lambda count: nonce[:count]).encrypt(Secret(PLAIN), CONTEXT)
    body = body_of(encrypted)
    assert encrypted == stored_as(body)
    assert len(body) == 6 + 12 + len(PLAIN) + 16
    assert (body[:6].hex(), body[6:18]) == (RING.key_ids[0], nonce)
    associated = b"".join(len(item).to_bytes(4, "big") + item.encode() for item in CONTEXT)
    assert AESGCM(KEY).decrypt(nonce, body[18:], associated) == PLAIN.encode()


def test_nonces_are_unique() -> None:
    nonces = {body_of(RING.encrypt(Secret(PLAIN), CONTEXT))[6:18] for _ in range(1_000)}
    assert len(nonces) == 1_000


def test_every_flipped_bit_is_detected() -> None:
    body = body_of(RING.encrypt(Secret(PLAIN), CONTEXT))
    for bit in range(len(body) * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecryptionFailed):
            RING.decrypt(stored_as(bytes(changed)), CONTEXT)


def test_every_changed_character_is_detected() -> None:
    encrypted = RING.encrypt(Secret(PLAIN + "x"), CONTEXT)
    assert encrypted.endswith("="), "its base64 has unused bits at the end"
    for at in range(len(PREFIX), len(encrypted)):
        for character in f"{string.ascii_letters}{string.digits}+/=-_ \n!":
            changed = encrypted[:at] + character + encrypted[at + 1 :]
            if changed != encrypted:
                with pytest.raises(DecryptionFailed):
                    RING.decrypt(changed, CONTEXT)


def test_a_truncated_or_lengthened_value_is_detected() -> None:
    encrypted = RING.encrypt(Secret(PLAIN), CONTEXT)
    for changed in [
        *(encrypted[:end] for end in range(len(PREFIX), len(encrypted))),
        encrypted + "A",
        encrypted + "AAAA",
    ]:
        with pytest.raises(DecryptionFailed):
            RING.decrypt(changed, CONTEXT)


@given(texts)
def test_text_without_the_prefix_is_returned_unchanged(plain: str) -> None:
    if not plain.startswith(PREFIX):
        assert RING.decrypt(plain, CONTEXT) == plain
        assert KeyRing().decrypt(plain, CONTEXT) == plain
        assert not RING.is_current(plain)


def test_text_with_a_changed_prefix_is_returned_unchanged() -> None:
    encrypted = RING.encrypt(Secret(PLAIN), CONTEXT)
    for at in range(len(PREFIX)):
        changed = f"{encrypted[:at]}#{encrypted[at + 1 :]}"
        assert RING.decrypt(changed, CONTEXT) == changed


@given(st.binary(max_size=80))
def test_random_bytes_never_decrypt(body: bytes) -> None:
    for written in (stored_as(body), PREFIX + body.decode("latin-1")):
        with pytest.raises(DecryptionFailed):
            RING.decrypt(written, CONTEXT)


def test_another_key_decrypts_nothing_and_the_error_names_the_keys() -> None:
    encrypted = RING.encrypt(Secret(PLAIN), CONTEXT)
    with pytest.raises(DecryptionFailed) as caught:
        KeyRing(OTHER).decrypt(encrypted, CONTEXT)
    assert RING.key_ids[0] in str(caught.value)
    assert KeyRing(OTHER).key_ids[0] in str(caught.value)
    with pytest.raises(DecryptionFailed, match=VARIABLE):
        KeyRing().decrypt(encrypted, CONTEXT)


def test_a_key_with_the_id_of_another_decrypts_nothing() -> None:
    body = body_of(RING.encrypt(Secret(PLAIN), CONTEXT))
    both = KeyRing([KEY, OTHER])
    with pytest.raises(DecryptionFailed):
        both.decrypt(stored_as(bytes.fromhex(both.key_ids[1]) + body[6:]), CONTEXT)


def test_of_several_keys_the_first_encrypts_and_all_decrypt() -> None:
    old = RING.encrypt(Secret(PLAIN), CONTEXT)
    rotated = KeyRing([OTHER, KEY])
    assert rotated.decrypt(old, CONTEXT) == PLAIN
    assert (rotated.is_current(old), RING.is_current(old)) == (False, True)
    new = rotated.encrypt(Secret(PLAIN), CONTEXT)
    assert rotated.is_current(new)
    assert new.startswith(rotated.current_prefix)
    assert KeyRing(OTHER).decrypt(new, CONTEXT) == PLAIN


def test_the_error_for_a_missing_key_says_how_to_create_one() -> None:
    with pytest.raises(MissingKey, match="holdfast secrets new-key") as caught:
        KeyRing().encrypt(Secret(PLAIN), CONTEXT)
    assert VARIABLE in str(caught.value)
    with pytest.raises(MissingKey):
        KeyRing().require()
    KeyRing().check()
    RING.require()
    assert KeyRing().is_current("plain"), "nothing can be renewed without a key"


FORMS = [KEY, KEY.hex(), KEY.hex().upper(), base64.b64encode(KEY).decode(), base64.urlsafe_b64encode(KEY).decode()]


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_a_key_are_equal(form: str | bytes) -> None:
    assert KeyRing(form).key_ids == RING.key_ids
    assert KeyRing([OTHER, form]).key_ids[1:] == RING.key_ids


def test_32_characters_are_one_key_even_with_commas_and_blanks() -> None:
    raw = "a, b" * 8
    assert KeyRing(raw).key_ids == KeyRing(raw.encode()).key_ids


@pytest.mark.parametrize("separator", [",", " ", "\n", ", ", "\n\n"])
def test_a_text_may_contain_several_keys(separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = separator.join([KEY.hex(), base64.b64encode(OTHER).decode(), "k" * 32]) + separator
    monkeypatch.setenv(VARIABLE, written)
    expected = [*KeyRing([KEY, OTHER, "k" * 32]).key_ids]
    assert KeyRing(written).key_ids == KeyRing.from_environment().key_ids == KeyRing.of(None).key_ids == expected


def test_without_a_variable_or_with_an_empty_one_the_ring_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not KeyRing.from_environment()
    monkeypatch.setenv(VARIABLE, "")
    assert not KeyRing.from_environment()
    monkeypatch.setenv(VARIABLE, "k" * 32)
    assert not KeyRing.of(())
    assert KeyRing.of(RING) is RING


@pytest.mark.parametrize(
    "key",
    ["", " ", "short", "g" * 64, "=" * 44, "k" * 33, "\u00e9" * 32, bytes(31), 7, None, [7], [KEY, "short"], [""]],
)
def test_an_invalid_key_is_rejected_without_being_shown(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(InvalidInput, field="encryption_key") as caught:
        KeyRing(key)
    assert not (isinstance(key, str) and key.strip() and key in str(caught.value))
    if isinstance(key, str) and key:
        monkeypatch.setenv(VARIABLE, key)
        with raises(InvalidInput, field="HOLDFAST_ENCRYPTION_KEY"):
            KeyRing.from_environment()


def test_new_keys_are_valid_and_unique() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(bytes.fromhex(key)) == 32 for key in keys)


def test_a_ring_does_not_show_its_keys() -> None:
    visible = f"{RING} {RING!r} {pprint.pformat(RING)}"
    assert RING.key_ids[0] in visible
    assert KEY.hex() not in visible
    assert repr(KEY) not in visible
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(RING)


# Secrets are not shown anywhere.


class Holder(msgspec.Struct):
    secret: Secret[Any]


WAYS: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "format": lambda value: f"{value} {value!r} {value:}",
    "percent": lambda value: "%s %r" % (value, value),  # noqa: UP031
    "pprint": pprint.pformat,
    "struct": lambda value: repr(Holder(value)),
    "container": lambda value: repr({"a": [value, (value,)]}),
    "attributes": lambda value: repr({name: getattr(value, name) for name in value.__slots__}),
    "hash": lambda value: str(hash(value)),
    "masked": lambda value: msgspec.json.encode(Holder(value), enc_hook=mask_secret).decode(),
}


@pytest.mark.parametrize("value", [PLAIN, {"token": PLAIN}])
@pytest.mark.parametrize("way", WAYS)
def test_printing_a_secret_does_not_show_it(way: str, value: Any) -> None:
    assert PLAIN not in WAYS[way](Secret(value))
    assert hash(Secret(value)) == hash(Secret("other"))


@pytest.mark.parametrize("value", [PLAIN, {"token": PLAIN}])
def test_no_encoder_accepts_a_secret(value: Any) -> None:
    secret = Secret(value)
    for refuse in (json.dumps, msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins, pickle.dumps):
        with pytest.raises(TypeError) as caught:
            refuse(Holder(secret) if refuse is not json.dumps else secret)  # type: ignore[operator]
        assert PLAIN not in everything_about(caught.value)
    with pytest.raises(TypeError):
        mask_secret(object())


def test_a_log_shows_the_mask(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("holdfast.test").warning("%s %r", Secret(PLAIN), Secret(PLAIN))
    assert PLAIN not in caplog.text
    assert MASK in caplog.text


def test_secrets_are_revealed_compared_and_copied() -> None:
    secret = Secret(PLAIN)
    assert secret.reveal() == PLAIN
    assert (secret == Secret(PLAIN), secret == Secret("other"), secret == PLAIN) == (True, False, False)
    assert copy.copy(secret) is copy.deepcopy(secret) is secret


@pytest.mark.parametrize("value", [None, 7, b"bytes", [PLAIN], Secret(PLAIN)])
def test_invalid_secrets_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Secret(value)
    assert PLAIN not in str(caught.value)


def test_no_error_refers_to_a_secret() -> None:
    encrypted = RING.encrypt(Secret(PLAIN), CONTEXT)
    body = body_of(encrypted)
    attempts: list[Callable[[], Any]] = [
        lambda: KeyRing().encrypt(Secret(PLAIN), CONTEXT),
        lambda: KeyRing(OTHER).decrypt(encrypted, CONTEXT),
        lambda: RING.decrypt(stored_as(body[:-1] + bytes([body[-1] ^ 1])), CONTEXT),
        lambda: RING.decrypt(encrypted + "A", CONTEXT),
        lambda: RING.decrypt(encrypted, [*CONTEXT[:3], "other"]),
    ]
    for attempt in attempts:
        with pytest.raises(HoldfastError) as caught:
            attempt()
        told = everything_about(caught.value)
        assert "self" in told, "it contains frames of the package"
        assert [value for value in (PLAIN, KEY.hex(), repr(KEY)) if value in told] == []


# Repeatable encryption.


def test_equal_content_gives_equal_bytes_for_one_key_and_purpose() -> None:
    one = RING.encrypt_repeatably(b"content", "piece")
    assert one == KeyRing([KEY, OTHER]).encrypt_repeatably(b"content", "piece")
    others = [
        RING.encrypt_repeatably(b"content", "state"),
        RING.encrypt_repeatably(b"other", "piece"),
        KeyRing(OTHER).encrypt_repeatably(b"content", "piece"),
    ]
    assert one not in others
    assert KeyRing([OTHER, KEY]).decrypt_repeatable(one, "piece") == b"content"


def test_changed_content_and_another_purpose_are_detected() -> None:
    sealed = RING.encrypt_repeatably(b"content", "piece")
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            RING.decrypt_repeatable(bytes(changed), "piece")
    for wrong in (lambda: RING.decrypt_repeatable(sealed, "state"), lambda: RING.decrypt_repeatable(b"", "piece")):
        with pytest.raises(DecryptionFailed):
            wrong()
    with pytest.raises(MissingKey):
        KeyRing().encrypt_repeatably(b"content", "piece")
