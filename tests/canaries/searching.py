"""Canaries: secrets that are recognized wherever they appear, in any of several encodings.

All canaries begin and end with the same marks, so one search finds each of them, and a part of one too.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from urllib.parse import quote_from_bytes

HEAD, TAIL = b"Kq7zXw9Lp2", b"m4Rt8Vn3Bd"
STRANGE = '"\u00e9/+& '
"""Between the marks: characters that JSON, URLs and terminals encode."""


def canary(number: int) -> str:
    """Return a secret that no other number has."""
    return f"{HEAD.decode()}{number:04}{STRANGE}{TAIL.decode()}"


def encodings(mark: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the forms in which a mark can appear, each with the name of its encoding."""
    yield "plain", mark
    yield "reversed", mark[::-1]
    yield "hexadecimal", mark.hex().encode()
    yield "hexadecimal", mark.hex().upper().encode()
    for shift in range(3):
        # The first and the last characters also depend on the bytes around the mark.
        first, last = -(-shift * 8 // 6), (shift + len(mark)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield "base64", encode(bytes(shift) + mark)[first:last]
    yield "URL-encoded", b"".join(b"%%%02X" % byte for byte in mark)
    yield "URL-encoded", b"".join(b"%%%02x" % byte for byte in mark)
    yield "JSON-escaped", b"".join(b"\\u%04x" % byte for byte in mark)
    yield "UTF-16", mark.decode().encode("utf-16-le")


NEEDLES = sorted({(name, form) for mark in (HEAD, TAIL) for name, form in encodings(mark)})
AROUND = 60
"""Bytes shown around a find."""


def find(data: bytes) -> list[str]:
    """Return a description of each encoding in which the data contains a part of a canary."""
    places = [(name, data.find(form)) for name, form in NEEDLES]
    return [f"{name}: {data[max(0, at - AROUND) : at + AROUND]!r}" for name, at in places if at >= 0]


def encoded(text: str) -> dict[str, bytes]:
    """Return a text in each encoding that a search must recognize."""
    data = text.encode()
    return {
        "plain": data,
        "reversed": data[::-1],
        "hexadecimal": data.hex().encode(),
        "base64": b64encode(data),
        "base64 within other data": b64encode(b"user:" + data),
        "URL-encoded": quote_from_bytes(data, safe="").encode(),
        "URL-encoded throughout": b"".join(b"%%%02X" % byte for byte in data),
        "JSON-escaped": "".join(f"\\u{ord(char):04x}" for char in text).encode(),
        "UTF-16": text.encode("utf-16-le"),
        "the first half": data[: len(data) // 2],
        "the second half": data[len(data) // 2 :],
    }
