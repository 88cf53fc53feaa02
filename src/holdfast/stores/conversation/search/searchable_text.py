"""The searchable words of a message, and the snippet of it that a search result shows.

Words are split here and not by a database, so that both engines find exactly the same messages. A word is a run of letters and
digits of any script, case-folded and without diacritics: ``Café`` and ``CAFE`` are the same word. In scripts written without
spaces (Chinese, Japanese, Thai ...) every character is a word, and a query word is searched as a phrase. An emoji is a word as
well.

Searchable are the text of a message, the names and inputs of tool calls and the results of tools; of other kinds of messages, all
strings in their JSON. Metadata, ids and binary data are not. Of a very long message, only the beginning is searchable: see the
limits below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any
from unicodedata import category, combining, normalize

from msgspec import Struct

MAX_CHARS = 200_000
"""Searchable characters of a message, from its beginning."""
MAX_WORDS = 10_000
"""Searchable words of a message, from its beginning. PostgreSQL stores positions up to 16,383."""
MAX_WORDS_BYTES = 200_000
"""Bytes of the words of a message. A tsvector of PostgreSQL has at max_chars a megabyte, including its overhead."""
WORD_CHARS = 64
"""Indexed characters of a word. Longer words are numbers or keys, and are found by their beginning."""
SNIPPET_CHARS = 160
"""Approximate length of a snippet."""
LEAD_CHARS = 40
"""Approximate length of a snippet before the first matching word."""
MAX_SPANS = 500
"""Matches in a message that are considered in choosing the snippet."""

BREAK = "\x01"
"""A word that cannot be typed, put between the texts of a message so that no phrase matches across them."""
_UNSEARCHED_KEYS = frozenset(
    {"type", "id", "role", "data", "signature", "encrypted_content", "media_type", "status", "cache_control"}
)
"""Keys whose strings are not part of the conversation."""
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
    """The folded form of each character, computed at first use. For ``str.translate``."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        folded = normalize("NFKD", normalize("NFKD", char).casefold()).casefold()
        self[code] = replacement = "".join(map(_as_part_of_a_word, folded))
        return replacement


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
    """Return whether a mark can be ignored: accents, and the vowel points of Hebrew and Arabic."""
    kind = combining(char)
    return 10 <= kind <= 35 or kind >= 200


_FOLDING = _Folding({code: _as_part_of_a_word(chr(code).casefold()) for code in range(128)})


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, including repetitions."""
    words = text[:MAX_CHARS].translate(_FOLDING).split()[:MAX_WORDS]
    if max(map(len, words), default=0) > WORD_CHARS:
        words = [word[:WORD_CHARS] for word in words]
    if len(words) * WORD_CHARS * 4 > MAX_WORDS_BYTES:
        sizes = accumulate(len(word.encode()) for word in words)
        words = words[: sum(size <= MAX_WORDS_BYTES for size in sizes)]
    return words


def text_of(kind: str, content: Any, *, max_chars: int | None = None) -> str:
    """Return the text of a message; with ``max_chars``, only as many of its strings as reach that length."""
    texts: list[str] = []
    for text in _block_texts(content) if kind == "message" else _texts(content):
        if text:
            texts.append(text.replace(BREAK, " "))
            if max_chars is not None and (max_chars := max_chars - len(text)) <= 0:
                break
    return f" {BREAK} ".join(texts)


def searchable(kind: str, content: Any) -> str:
    """Return the searchable part of a message's text: all of it, or its beginning if it is very long."""
    return text_of(kind, content, max_chars=MAX_CHARS)[:MAX_CHARS]


def _block_texts(blocks: Any) -> Iterator[str]:
    """Yield the strings of content blocks."""
    for block in blocks if isinstance(blocks, list) else [blocks]:
        if not isinstance(block, dict):
            yield from _texts(block)
        elif block.get("type") == "text":
            yield from _texts(block.get("text"))
        elif block.get("type") == "tool_result":
            yield from _block_texts(block.get("content"))
        elif block.get("type") == "tool_use":
            yield from _texts(block.get("name"))
            yield from _texts(block.get("input"), every=True)
        else:
            yield from _texts(block)


def _texts(value: Any, *, every: bool = False) -> Iterator[str]:
    """Yield the strings in a JSON value that are part of the conversation; with ``every``, all strings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, every=every)
    elif isinstance(value, dict):
        for key, item in value.items():
            if every or (key not in _UNSEARCHED_KEYS and not key.endswith("_id")):
                yield from _texts(item, every=every)


Span = tuple[int, int, int]
"""A match: its start, its end, and the terms that begin there, as bits."""


class Term(Struct, frozen=True):
    """Adjacent words. With ``prefix``, the last is the beginning of a word."""

    words: tuple[str, ...]
    prefix: bool = False


class Marker:
    """Makes the snippet of a text with max_chars of the terms, with marks around the matches.

    Each distinct word of a text is looked up once, so the time depends on the length of the text and not on the number of terms.
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
                terms_by_word = self._beginnings.setdefault(len(first), {}) if term.prefix else self._words
                terms_by_word[first] = terms_by_word.get(first, 0) | bit

    def snippet(self, text: str) -> str:
        """Return a part of the text on one line, cut between words where possible, with an ellipsis at each cut."""
        text = text[:MAX_CHARS]
        spans = self._spans(text)
        first, last = _window(text, _densest(spans))
        parts: list[str] = []
        at = first
        for start, end, _ in spans:
            if start >= at and end <= last:
                parts += (text[at:start], self._marks[0], text[start:end], self._marks[1])
                at = end
        parts.append(text[at:last])
        window = text[first:last]
        if "  " in window or not window.isprintable():
            parts[::2] = [_SPACES.sub(" ", part) for part in parts[::2]]  # the others are the marks
        return f"{'…' if first else ''}{''.join(parts).strip()}{'…' if last < len(text) else ''}"

    def _spans(self, text: str) -> list[Span]:
        """Return the matches in the text in order; for each start, the longest term that begins there."""
        folded, source_indexes = _folded(text)
        words = folded.split(None, MAX_WORDS)[:MAX_WORDS]
        kept = words if max(map(len, words), default=0) <= WORD_CHARS else [word[:WORD_CHARS] for word in words]
        terms = {word: bits for word in {*kept} if (bits := self._terms_of(word)) or word in self._phrases}
        spans: list[Span] = []
        padded, search_from = f" {folded} ", 0
        for position, word in enumerate(kept):
            if word not in terms:
                continue
            bits, count = terms[word], 1
            for bit, phrase in self._phrases.get(word, ()):
                if is_at(kept, position, phrase):
                    bits, count = bits | bit, max(count, len(phrase.words))
            if not bits:
                continue
            search_from = start = padded.find(f" {words[position]} ", search_from)
            end = start + len(words[position])
            for follower in words[position + 1 : position + count]:
                end = folded.index(follower, end) + len(follower)
            if source_indexes is not None:
                start, end = source_indexes[start], _between(text, source_indexes[end - 1] + 1)
            spans.append((start, end, bits))
            if len(spans) == MAX_SPANS:
                break
            search_from += len(words[position])
        return spans

    def _terms_of(self, word: str) -> int:
        """Return the single-word terms that match a word, as bits."""
        bits = self._words.get(word, 0)
        for length, beginnings in self._beginnings.items():
            if length <= len(word):
                bits |= beginnings.get(word[:length], 0)
        return bits


def is_at(words: Sequence[str], position: int, phrase: Term) -> bool:
    """Return whether a phrase matches the words from ``position`` on."""
    *whole, last = phrase.words
    after = position + len(whole)
    if after >= len(words) or [*words[position:after]] != whole:
        return False
    return words[after].startswith(last) if phrase.prefix else words[after] == last


def _folded(text: str) -> tuple[str, list[int] | None]:
    """Return the folded text, and the index in the text of each of its characters; ``None`` if the indexes are the same."""
    if text.isascii():
        return text.translate(_FOLDING), None
    parts = [_FOLDING[ord(char)] for char in text]
    return "".join(parts), [index for index, part in enumerate(parts) for _ in part]


def _densest(spans: Sequence[Span]) -> int:
    """Return the start of the range with the most distinct terms; among equals, with the most matches; else the first."""
    if len(spans) < 2:
        return spans[0][0] if spans else 0
    best, best_start, last = (0, 0), 0, 0
    for index, (start, _, _) in enumerate(spans):
        while last < len(spans) and spans[last][1] <= start + SNIPPET_CHARS - LEAD_CHARS:
            last += 1
        within = spans[index : max(last, index + 1)]
        terms = 0
        for _, _, term_bits in within:
            terms |= term_bits
        count = (terms.bit_count(), len(within))
        if count > best:
            best, best_start = count, start
    return best_start


def _window(text: str, match_start: int) -> tuple[int, int]:
    """Return the range to show around a match: whole words, if they are not too long."""
    if len(text) <= SNIPPET_CHARS:
        return 0, len(text)
    first = max(0, min(match_start - LEAD_CHARS, len(text) - SNIPPET_CHARS))
    if first:
        space = text.find(" ", first, match_start)
        first = _between(text, first) if space < 0 else space + 1
    last = min(len(text), first + SNIPPET_CHARS)
    if last < len(text):
        space = text.rfind(" ", last - LEAD_CHARS, last)
        last = _between(text, last) if space <= match_start else space
    return first, last


def _between(text: str, index: int) -> int:
    """Return the next index that does not separate a combining mark from its letter."""
    while index < len(text) and category(text[index])[0] == "M":
        index += 1
    return index
