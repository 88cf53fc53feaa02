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
from itertools import accumulate
from typing import Any
from unicodedata import category, combining, normalize

from msgspec import Struct

MAX_CHARS = 200_000
"""Characters of a message that can be found, from its beginning."""
MAX_WORDS = 10_000
"""Words of a message that can be found, from its beginning. PostgreSQL counts places up to 16,383."""
MAX_WORDS_BYTES = 200_000
"""Bytes of the words of a message. PostgreSQL keeps at most a megabyte of them with all that belongs to them."""
WORD_CHARS = 64
"""Characters of a word that count. What is longer is a number or a key, and found by its beginning."""
SNIPPET_CHARS = 160
"""About how much of a message is shown with a hit."""
LEAD_CHARS = 40
"""About how much of that comes before the first word that was found."""
MAX_SPANS = 500
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
    words = text[:MAX_CHARS].translate(_FOLDING).split()[:MAX_WORDS]
    if max(map(len, words), default=0) > WORD_CHARS:
        words = [word[:WORD_CHARS] for word in words]
    if len(words) * WORD_CHARS * 4 > MAX_WORDS_BYTES:
        sizes = accumulate(len(word.encode()) for word in words)
        words = words[: sum(size <= MAX_WORDS_BYTES for size in sizes)]
    return words


def text_of(kind: str, content: Any, *, most: int | None = None) -> str:
    """The text of a message; with ``most``, as many of its pieces as are needed to have so many characters."""
    pieces: list[str] = []
    for piece in _said(content) if kind == "message" else _texts(content):
        if piece:
            pieces.append(piece.replace(BREAK, " "))
            if most is not None and (most := most - len(piece)) <= 0:
                break
    return f" {BREAK} ".join(pieces)


def searchable(kind: str, content: Any) -> str:
    """The part of a message's text that can be found: its beginning, if it is very long."""
    return text_of(kind, content, most=MAX_CHARS)[:MAX_CHARS]


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
"""Where something was found: where it starts, where it ends, and which terms begin there, as bits."""


class Term(Struct, frozen=True):
    """Words that stand next to each other; the last may be only the beginning of one."""

    words: tuple[str, ...]
    prefix: bool = False


class Marker:
    """Shows the part of a text in which most of the terms are, with marks around what was found.

    Each distinct word of a text is looked up once, so the time grows with the text and not with the number of terms.
    """

    def __init__(self, terms: Sequence[Term], start: str, end: str) -> None:
        self._marks = (start, end)
        self._words: dict[str, int] = {}
        self._beginnings: dict[int, dict[str, int]] = {}
        self._phrases: dict[str, list[tuple[int, Term]]] = {}
        for number, term in enumerate(terms):
            first, bit = term.words[0], 1 << number
            if len(term.words) > 1:
                self._phrases.setdefault(first, []).append((bit, term))
            else:
                same = self._beginnings.setdefault(len(first), {}) if term.prefix else self._words
                same[first] = same.get(first, 0) | bit

    def snippet(self, text: str) -> str:
        """A piece of the text on one line, cut between words where possible, with an ellipsis where it was cut."""
        text = text[:MAX_CHARS]
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
        """Where in the text something was found, in order: for each place, the longest term that begins there."""
        folded, places = _folded(text)
        words = folded.split(None, MAX_WORDS)[:MAX_WORDS]
        kept = words if max(map(len, words), default=0) <= WORD_CHARS else [word[:WORD_CHARS] for word in words]
        terms = {word: found for word in {*kept} if (found := self._terms_of(word)) or word in self._phrases}
        spans: list[Span] = []
        padded, at = f" {folded} ", 0
        for place, word in enumerate(kept):
            if word not in terms:
                continue
            found, count = terms[word], 1
            for bit, phrase in self._phrases.get(word, ()):
                if is_at(kept, place, phrase):
                    found, count = found | bit, max(count, len(phrase.words))
            if not found:
                continue
            at = start = padded.find(f" {words[place]} ", at)
            end = start + len(words[place])
            for follower in words[place + 1 : place + count]:
                end = folded.index(follower, end) + len(follower)
            if places is not None:
                start, end = places[start], _between(text, places[end - 1] + 1)
            spans.append((start, end, found))
            if len(spans) == MAX_SPANS:
                break
            at += len(words[place])
        return spans

    def _terms_of(self, word: str) -> int:
        """The terms of one word that this word is, as bits."""
        found = self._words.get(word, 0)
        for length, beginnings in self._beginnings.items():
            if length <= len(word):
                found |= beginnings.get(word[:length], 0)
        return found


def is_at(words: Sequence[str], place: int, phrase: Term) -> bool:
    """Whether the words from a place on are those of a phrase."""
    *whole, last = phrase.words
    after = place + len(whole)
    if after >= len(words) or [*words[place:after]] != whole:
        return False
    return words[after].startswith(last) if phrase.prefix else words[after] == last


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
    for place, (start, _, _) in enumerate(spans):
        while last < len(spans) and spans[last][1] <= start + SNIPPET_CHARS - LEAD_CHARS:
            last += 1
        within = spans[place : max(last, place + 1)]
        terms = 0
        for _, _, found in within:
            terms |= found
        count = (terms.bit_count(), len(within))
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
