"""What words a message has, and how a piece of it is shown.

Words are made here and not by a database, so that both engines find exactly the same messages. A word is a run of letters and
digits of any script, in one case and without diacritics: ``Café`` and ``CAFE`` are the same word. In scripts that are written
without spaces (Chinese, Japanese, Thai ...) every character is a word of its own, and what is typed as one word is looked for
as a phrase; an emoji is a word as well.

Of a message, the text, the names and inputs of tool calls and the results of tools can be found; of other kinds, all texts in
their JSON. Metadata, ids and binary data cannot. Of a very long message, the beginning can be found: see the numbers below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any
from unicodedata import category, combining, normalize

from msgspec import Struct

CHARS_MOST = 200_000
"""Characters of a message that can be found, from its beginning."""
WORDS_MOST = 10_000
"""Words of a message that can be found, from its beginning. PostgreSQL counts places up to 16,383."""
WORDS_BYTES_MOST = 200_000
"""Bytes of the words of a message. PostgreSQL keeps at most a megabyte of them with all that belongs to them."""
WORD_CHARS = 64
"""Characters of a word that count. What is longer is a number or a key, and found by its beginning."""
SNIPPET_CHARS = 160
"""About how much of a message is shown with a hit."""
LEAD_CHARS = 40
"""About how much of that comes before the first word that was found."""
SPANS_MOST = 500
"""Places of found words in a message that are looked at to choose what is shown."""

BREAK = "\x01"
"""Stands between the texts of a message, as a word that nobody can type, so that no phrase reaches across."""
_SILENT = frozenset(
    {"type", "id", "role", "data", "signature", "encrypted_content", "media_type", "status", "cache_control"}
)
"""Keys whose texts are no part of what was said."""
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x9FFF),  # Han
    (0x20000, 0x3FFFF),
)
_SPACES = re.compile(rf"[\s{BREAK}]+")
_PICTURES = ((0x2600, 0x27BF), (0x1F000, 0x1FAFF))


class _Folding(dict[int, str]):
    """What each character counts as; worked out when it is first seen. For ``str.translate``."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        folded = normalize("NFKD", normalize("NFKD", char).casefold()).casefold()
        self[code] = found = "".join(map(_as_part_of_a_word, folded))
        return found


def _as_part_of_a_word(char: str) -> str:
    code, kind = ord(char), category(char)
    if char == BREAK:
        return BREAK
    if kind == "Cf" or 0xFE00 <= code <= 0xFE0F or _is_diacritic(char):
        return ""
    if (kind[0] in "LM" or char.isalnum()) and any(first <= code <= last for first, last in _UNSPACED):
        return f" {char} "
    if kind[0] == "M" or char.isalnum():
        return char
    return f" {char} " if any(first <= code <= last for first, last in _PICTURES) else " "


def _is_diacritic(char: str) -> bool:
    """Marks that a reader can do without: accents, and the vowel points of Hebrew and Arabic."""
    kind = combining(char)
    return 10 <= kind <= 35 or kind >= 200


_FOLDING = _Folding({code: _as_part_of_a_word(chr(code).casefold()) for code in range(128)})


def words_of(text: str) -> list[str]:
    """The words of a text, in order, each as often as it is there."""
    words = text[:CHARS_MOST].translate(_FOLDING).split()[:WORDS_MOST]
    if max(map(len, words), default=0) > WORD_CHARS:
        words = [word[:WORD_CHARS] for word in words]
    if len(words) * WORD_CHARS * 4 > WORDS_BYTES_MOST:
        sizes = accumulate(len(word.encode()) for word in words)
        words = words[: sum(size <= WORDS_BYTES_MOST for size in sizes)]
    return words


def text_of(kind: str, content: Any) -> str:
    """All that can be found of a message, as one text."""
    pieces = _said(content) if kind == "message" else _texts(content)
    return f" {BREAK} ".join(piece.replace(BREAK, " ") for piece in pieces if piece)


def _said(blocks: Any) -> Iterator[str]:
    """The texts of content blocks."""
    for block in blocks if isinstance(blocks, list) else [blocks]:
        if not isinstance(block, dict):
            yield from _texts(block)
        elif block.get("type") == "text":
            yield from _texts(block.get("text"))
        elif block.get("type") == "tool_result":
            yield from _said(block.get("content"))
        elif block.get("type") == "tool_use":
            yield from _texts(block.get("name"))
            yield from _texts(block.get("input"), every=True)
        else:
            yield from _texts(block)


def _texts(value: Any, *, every: bool = False) -> Iterator[str]:
    """The texts in a JSON value that are part of what was said; or ``every`` one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, every=every)
    elif isinstance(value, dict):
        for key, item in value.items():
            if every or (key not in _SILENT and not key.endswith("_id")):
                yield from _texts(item, every=every)


Span = tuple[int, int, int]
"""Where something was found: where it starts, where it ends, and which term it is."""


class Term(Struct, frozen=True):
    """Words that stand next to each other; the last may be only the beginning of one."""

    words: tuple[str, ...]
    prefix: bool = False


class Marker:
    """Shows the part of a text in which most of the terms are, with marks around what was found."""

    def __init__(self, terms: Sequence[Term], start: str, end: str) -> None:
        self._terms, self._marks = terms, (start, end)

    def snippet(self, text: str) -> str:
        """A piece of the text on one line, cut between words where possible, with an ellipsis where it was cut."""
        text = text[:CHARS_MOST]
        spans = self._spans(text)
        first, last = _window(text, _densest(spans))
        shown: list[str] = []
        at = first
        for start, end, _ in spans:
            if start >= at and end <= last:
                shown += (text[at:start], self._marks[0], text[start:end], self._marks[1])
                at = end
        shown.append(text[at:last])
        window = text[first:last]
        if "  " in window or not window.isprintable():
            shown[::2] = [_SPACES.sub(" ", part) for part in shown[::2]]  # the others are the marks
        return f"{'…' if first else ''}{''.join(shown).strip()}{'…' if last < len(text) else ''}"

    def _spans(self, text: str) -> list[Span]:
        """Where in the text something was found, in order."""
        folded, places = _folded(text)
        found: list[Span] = []
        for number, term in enumerate(self._terms):
            for start, end in islice(_occurrences(folded, term), SPANS_MOST):
                if places is not None:
                    start, end = places[start], _between(text, places[end - 1] + 1)
                found.append((start, end, number))
        if len(self._terms) > 1:
            found.sort(key=_first_and_longest)
        return found


def _first_and_longest(span: Span) -> tuple[int, int]:
    return span[0], -span[1]


def _occurrences(folded: str, term: Term) -> Iterator[tuple[int, int]]:
    """Where a term is in a text as it counts. By hand, because a pattern for each search takes longer to make than to use."""
    first = term.words[0]
    start = folded.find(first)
    while start >= 0:
        if not start or folded[start - 1] == " ":
            end = _end_of(folded, start, term)
            if end:
                yield start, end
        start = folded.find(first, start + 1)


def _end_of(folded: str, at: int, term: Term) -> int:
    """Where the term ends that begins here, or 0 if it does not."""
    for place, word in enumerate(term.words, 1):
        if not folded.startswith(word, at):
            return 0
        end = folded.find(" ", at)
        at, begun = (len(folded) if end < 0 else end), at + len(word)
        if at > begun and len(word) < WORD_CHARS and not (term.prefix and place == len(term.words)):
            return 0
        if place < len(term.words):
            while folded.startswith(" ", at):
                at += 1
    return at


def _folded(text: str) -> tuple[str, list[int] | None]:
    """The text as it counts, and for each character of that where it comes from; nothing, where that is the same place."""
    if text.isascii():
        return text.translate(_FOLDING), None
    parts = [_FOLDING[ord(char)] for char in text]
    return "".join(parts), [place for place, part in enumerate(parts) for _ in part]


def _densest(spans: Sequence[Span]) -> int:
    """Where the stretch begins that has most of the terms; among equals, the one with most words, then the first."""
    if len(spans) < 2:
        return spans[0][0] if spans else 0
    best, best_at, last = (0, 0), 0, 0
    for place, (start, _, _) in enumerate(spans[:SPANS_MOST]):
        while last < len(spans) and spans[last][1] <= start + SNIPPET_CHARS - LEAD_CHARS:
            last += 1
        within = spans[place : max(last, place + 1)]
        count = (len({term for _, _, term in within}), len(within))
        if count > best:
            best, best_at = count, start
    return best_at


def _window(text: str, found: int) -> tuple[int, int]:
    """What is shown around a place: whole words, if they are not too long."""
    if len(text) <= SNIPPET_CHARS:
        return 0, len(text)
    first = max(0, min(found - LEAD_CHARS, len(text) - SNIPPET_CHARS))
    if first:
        space = text.find(" ", first, found)
        first = _between(text, first) if space < 0 else space + 1
    last = min(len(text), first + SNIPPET_CHARS)
    if last < len(text):
        space = text.rfind(" ", last - LEAD_CHARS, last)
        last = _between(text, last) if space <= found else space
    return first, last


def _between(text: str, place: int) -> int:
    """The next place that does not tear a mark from its letter."""
    while place < len(text) and category(text[place])[0] == "M":
        place += 1
    return place
