"""Removing secrets from the output of a program.

A secret is found as it is, each of its lines on its own, and in the forms in which programs print values: base64 (also within a
longer text), hexadecimal digits, percent-encoding, and as part of a JSON string. A form that cannot be derived from the secret
alone, such as its digest, its encryption or its reverse, is not found. A secret or line with fewer than ``MIN_SCRUBBED_CHARS``
characters is left alone: ``true`` or ``8080`` would be removed from everywhere.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from ...core.crypto import MASK

MIN_SCRUBBED_CHARS = 6
"""Secrets with fewer characters are not removed."""
Span = tuple[int, int]


class Scrubber:
    """Replaces secrets in texts with a mask.

    ``scrub`` takes a whole text. For output that arrives in pieces, ``stream`` returns an object that keeps back what could be
    the beginning of a secret until the next piece arrives.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
        forms = {form for part in parts if len(part) >= MIN_SCRUBBED_CHARS for form in _forms(part)}
        self._forms = tuple(forms)
        self._longest = max(map(len, forms), default=0)

    def scrub(self, text: str) -> str:
        """Return the text with each secret replaced by a mask."""
        stream = self.stream()
        return stream.feed(text) + stream.finish()

    def stream(self) -> ScrubbedStream:
        """Return a new stream."""
        return ScrubbedStream(self)

    def find(self, text: str) -> list[Span]:
        """Return where secrets are, in order; overlapping ones are one span."""
        return _merged(span for form in self._forms for span in _occurrences(form, text))

    def find_beginning(self, text: str) -> int:
        """Return where the end of the text is the beginning of a secret; the length of the text if it is not."""
        possible = range(max(0, len(text) - self._longest + 1), len(text))
        return next((at for at in possible if self._begins(text[at:])), len(text))

    def _begins(self, tail: str) -> bool:
        return any(form.startswith(tail) and form != tail for form in self._forms)

    def __repr__(self) -> str:
        return f"Scrubber({len(self._forms)} forms)"


class ScrubbedStream:
    """Replaces secrets in a text that arrives in pieces. The result is the same however the text is divided."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._held, self._masked = "", 0
        """The text that was held back, and how much of its beginning belongs to a secret whose mask was returned."""

    def feed(self, piece: str) -> str:
        """Take the next piece of the text; return the text that contains no secret, up to the possible beginning of one."""
        self._held += piece
        return self._take(self._scrubber.find_beginning(self._held))

    def finish(self) -> str:
        """Return the rest of the text, after its last piece."""
        return self._take(len(self._held))

    def _take(self, end: int) -> str:
        """Return the first ``end`` characters, in which every secret that begins there ends in the text that is held."""
        if end == 0:
            return ""
        begun = [(0, self._masked)] if self._masked else []
        spans = _merged([*begun, *self._scrubber.find(self._held)])
        result, at = [], 0
        for start, stop in spans:
            if start >= end:
                break
            result.append(self._held[at:start])
            if not (start == 0 and self._masked):
                result.append(MASK)
            at = stop
        result.append(self._held[at:end])
        self._held, self._masked = self._held[end:], max(0, at - end)
        return "".join(result)


def _occurrences(form: str, text: str) -> Iterator[Span]:
    at = text.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = text.find(form, at + 1)


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return merged


def _forms(secret: str) -> Iterator[str]:
    """Return the texts that reveal a secret."""
    yield secret
    data = secret.encode("utf-8", "surrogatepass")
    yield from (data.hex(), data.hex().upper(), data.hex(" "), data.hex(":"))
    for encoded in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield from (encoded, _lower_escapes(encoded))
    for is_ascii in (True, False):
        in_json = json.dumps(secret, ensure_ascii=is_ascii)[1:-1]
        yield from (in_json, in_json.replace("/", "\\/"))
    for offset in range(3):
        yield from _base64_within(data, offset)


def _lower_escapes(encoded: str) -> str:
    """Return percent-encoded text with escapes such as ``%2f`` instead of ``%2F``."""
    head, *rest = encoded.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _base64_within(data: bytes, offset: int) -> Iterator[str]:
    """Return the characters of base64 that only this data determines, if it begins so many bytes after a group of three."""
    encoded = b64encode(bytes(offset) + data).decode().rstrip("=")
    first = -(-offset * 8 // 6)  # the characters before it also depend on the bytes before
    last = (offset + len(data)) * 8 // 6
    for part in (
        encoded[first:last],
        encoded[first:],
    ):  # with the last character too, where the text ends with the secret
        yield from (part, part.replace("+", "-").replace("/", "_"))
