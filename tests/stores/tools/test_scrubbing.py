"""Removing credentials from output."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.crypto import MASK
from holdfast.stores.tools.scrubbing import MIN_SCRUBBED_CHARS, Scrubber

SECRET = 'p/ss+w"rd?ü~1'
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal, upper case": lambda text: text.encode().hex().upper(),
    "URL": lambda text: quote(text, safe=""),
    "URL with slashes": quote,
    "URL, lower case": lambda text: re.sub("%..", lambda match: match[0].lower(), quote(text, safe="")),
    "form": quote_plus,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON, not ASCII": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_every_form(form: str) -> None:
    assert Scrubber([SECRET]).scrub(f"a{FORMS[form](SECRET)}b").replace("=", "") == f"a{MASK}b"


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "user :"])
@pytest.mark.parametrize("after", ["", "@", "@h", "@ho"])
def test_a_secret_is_found_within_the_base64_of_a_longer_text(before: str, after: str) -> None:
    encoded = b64encode(f"{before}{SECRET}{after}".encode()).decode()
    scrubbed = Scrubber([SECRET]).scrub(encoded)
    assert MASK in scrubbed
    left = b64encode(SECRET.encode()).decode()
    assert not any(left[at : at + 8] in scrubbed for at in range(len(left) - 8))
    assert len(scrubbed) - len(MASK) <= len(b64encode(f"{before}{after}".encode())) + 4


def test_each_line_of_a_secret_is_found() -> None:
    secret = "-----BEGIN KEY-----\nMIIBOgIBAAJBAKj34\nshort\n-----END KEY-----\n"
    assert Scrubber([secret]).scrub("  MIIBOgIBAAJBAKj34\r\n  short\r\n") == f"  {MASK}\r\n  short\r\n"
    assert Scrubber([secret]).scrub(f"<{secret}>") == f"<{MASK}>"


def test_overlapping_secrets_leave_nothing_behind() -> None:
    assert Scrubber(["abcdef", "defghi"]).scrub("-abcdefghi-abcdef-") == f"-{MASK}-{MASK}-"
    assert Scrubber(["abcdefgh", "cdefgh"]).scrub("abcdefgh") == MASK
    assert Scrubber(["ababab"]).scrub("-abababab-") == f"-{MASK}-"


def test_a_short_secret_is_left_alone() -> None:
    short, long = "x" * (MIN_SCRUBBED_CHARS - 1), "y" * MIN_SCRUBBED_CHARS
    assert Scrubber([short, long, ""]).scrub(f"{short} {long}") == f"{short} {MASK}"
    assert Scrubber([]).scrub("text") == "text"


def test_a_scrubber_does_not_show_secrets() -> None:
    scrubber = Scrubber([SECRET])
    stream = scrubber.stream()
    stream.feed(SECRET[:-1])
    assert SECRET[:6] not in f"{scrubber!r} {stream!r} {scrubber} {stream}"


@given(
    secrets=st.lists(st.text("ab", min_size=MIN_SCRUBBED_CHARS, max_size=9), max_size=3),
    pieces=st.lists(st.text("ab-", max_size=12), max_size=12),
)
def test_the_pieces_of_a_stream_make_no_difference(secrets: list[str], pieces: list[str]) -> None:
    scrubber = Scrubber(secrets)
    stream = scrubber.stream()
    result = "".join([*map(stream.feed, pieces), stream.finish()])
    assert result == scrubber.scrub("".join(pieces))
    assert not any(secret in result for secret in secrets)


def test_a_stream_keeps_back_only_what_could_begin_a_secret() -> None:
    stream = Scrubber(["secret-token"]).stream()
    assert stream.feed("the token is sec") == "the token is "
    assert stream.feed("ond: secret-toke") == "second: "
    assert stream.feed("n") == MASK
    assert stream.feed("!") + stream.finish() == "!"
