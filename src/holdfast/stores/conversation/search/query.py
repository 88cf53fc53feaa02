"""What is searched for: how a query is read, and what it and a message's words become in the two full-text indexes.

A query is words, all of which must be there; ``"several words"`` next to each other; ``-not`` for what must not be there; and
``begin*`` for every word that begins so. Everything else is taken literally, so nothing anybody types is an error, except to
type no word at all.

Both indexes hold the same words, each with a tag of its tenant in front. So the words of a tenant lie together, a search costs
what that tenant has and not what all have, and nothing of another tenant can be found, counted or weighed. That is also why
hits are not ordered by SQLite's ``bm25``: it weighs words by how often everybody uses them. Instead a long message that
says a word less than once in 400 words is known to mention it *in passing*, and comes after the others; of equals, the
newest is first. So the order is the same on both engines, and a page costs the same wherever it starts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from ....engines.dialect import Dialect
from ....errors import InvalidInput
from ....limits import Limits
from .searchable_text import BREAK, Term, is_at, words_of

PASSING = 400
"""A message of more words than this mentions a word in passing if it says it less than once in so many words."""
MAX_OCCURRENCES = 255
"""Occurrences of one word in a message that phrases can be found by. PostgreSQL keeps no more."""

# What begins with one of these, after the tag, is no word that anybody wrote: none of them is part of a word.
_IN_PASSING, _IN_SESSION, _NOTHING = "\x80", "\x81", "\x82"

_PART = re.compile(r'(?P<not>-?)(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))(?P<rest>\*?)')


class SearchQuery(Struct, frozen=True):
    """What must be there, and what must not."""

    wanted: tuple[Term, ...]
    unwanted: tuple[Term, ...] = ()


def parse(query: str, limits: Limits) -> SearchQuery:
    """A query as its terms.

    Raises:
        InvalidInput: there is no word in it that must be there.
        LimitExceeded: it has more than ``query_words`` words.
    """
    if not isinstance(query, str):
        raise InvalidInput(f"query must be text, not {type(query).__name__}")
    limits.check("query_chars", len(query), "query")
    wanted: list[Term] = []
    unwanted: list[Term] = []
    for part in _PART.finditer(query.replace(BREAK, " ")):
        text = part["word"] if part["phrase"] is None else part["phrase"]
        words = tuple(words_of(text))
        if words:
            prefix = bool(part["rest"]) or (part["phrase"] is None and text.endswith("*"))
            (unwanted if part["not"] else wanted).append(Term(words, prefix))
    if not wanted:
        raise InvalidInput("query must have at least one word that is to be found")
    limits.check("query_words", sum(len(term.words) for term in [*wanted, *unwanted]), "words of the query")
    return SearchQuery(tuple(dict.fromkeys(wanted)), tuple(dict.fromkeys(unwanted)))


@lru_cache(1_024)
def tag_of(tenant: str, dialect: Dialect = Dialect.SQLITE) -> str:
    """What stands in front of every word of a tenant.

    On PostgreSQL, which keeps a tenant's rows apart anyway, it need only be different for most.
    """
    tag = base64.b32encode(hashlib.blake2b(tenant.encode(), digest_size=5).digest()).decode().lower()
    return tag if dialect is Dialect.SQLITE else tag[:3]


def matching(query: SearchQuery, tenant: str, session_id: str | None, dialect: Dialect) -> tuple[str, str]:
    """The query for an index: for messages that are about all of its words, and for those that mention some in passing."""
    write = _FTS5 if dialect is Dialect.SQLITE else _TSQUERY
    tag = tag_of(tenant, dialect)

    def terms(found: Sequence[Term], mark: str = "") -> list[str]:
        return [write.term([f"{tag}{mark}{word}" for word in term.words], term.prefix) for term in found]

    wanted = terms(query.wanted)
    if session_id is not None:
        wanted.append(write.term([f"{tag}{_in_session(session_id)}"], False))
    passing = terms([each for term in query.wanted for each in _single_words(term)], _IN_PASSING)
    unwanted = terms(query.unwanted)
    some_passing = write.any(passing)
    return write.all_but(wanted, [*passing, *unwanted]), write.all_but([*wanted, some_passing], unwanted)


def _single_words(term: Term) -> list[Term]:
    last = len(term.words) - 1
    return [Term((word,), term.prefix and place == last) for place, word in enumerate(term.words)]


class Matcher:
    """Decides for the words of one message what an index decides for many: for messages that are not indexed yet."""

    def __init__(self, query: SearchQuery) -> None:
        self._wanted, self._unwanted = query.wanted, query.unwanted
        self._single = [each for term in query.wanted for each in _single_words(term)]
        self._has_phrase = any(len(term.words) > 1 for term in (*query.wanted, *query.unwanted))

    def rank(self, words: Sequence[str]) -> int | None:
        """0 for a message that is about all of the words, 1 if it mentions some in passing, ``None`` if it does not match."""
        counts = Counter(words)
        gaps = counts.pop(BREAK, 0)
        there = _Vocabulary(counts)
        kept = _known_occurrences(words, counts) if self._has_phrase else None
        wanted = all(there.has(term, kept) for term in self._wanted)
        if not wanted or any(there.has(term, kept) for term in self._unwanted):
            return None
        passing = _Vocabulary(_in_passing(counts, len(words) - gaps))
        return int(any(passing.has(term) for term in self._single))


class _Vocabulary:
    """Distinct words, in which words and beginnings of words are looked up."""

    def __init__(self, words: Collection[str]) -> None:
        self._words = words
        self._sorted: list[str] | None = None

    def has(self, term: Term, kept: Sequence[str] | None = None) -> bool:
        """Whether a term is there; ``kept`` are all words in their order, for terms of several."""
        *whole, last = term.words
        if not all(word in self._words for word in whole) or not (
            self._begins(last) if term.prefix else last in self._words
        ):
            return False
        return not whole or any(is_at(kept or (), place, term) for place in _places(kept or (), whole[0]))

    def _begins(self, beginning: str) -> bool:
        if self._sorted is None:
            self._sorted = sorted(self._words)
        place = bisect_left(self._sorted, beginning)
        return place < len(self._sorted) and self._sorted[place].startswith(beginning)


def _places(words: Sequence[str], word: str) -> Iterator[int]:
    return (place for place, each in enumerate(words) if each == word)


def _in_passing(counts: Mapping[str, int], words: int) -> list[str]:
    return [word for word, count in counts.items() if count * PASSING < words]


class _Writer(Struct, frozen=True):
    """How a query is written for one index."""

    both: str
    either: str
    but: str
    term: Callable[[Sequence[str], bool], str]

    def any(self, parts: Sequence[str]) -> str:
        """One of these."""
        return f"({self.either.join(parts)})"

    def all_but(self, parts: Sequence[str], unwanted: Sequence[str]) -> str:
        """All of these and none of those."""
        return f"({self.both.join(parts)})" + (f"{self.but}{self.any(unwanted)}" if unwanted else "")


def _fts5_term(words: Sequence[str], prefix: bool) -> str:
    return f'"{" ".join(words)}"{" *" if prefix else ""}'


def _tsquery_term(words: Sequence[str], prefix: bool) -> str:
    return f"({' <-> '.join(map(_lexeme, words))}{':*' if prefix else ''})"


_FTS5 = _Writer(" AND ", " OR ", " NOT ", _fts5_term)
_TSQUERY = _Writer(" & ", " | ", " & !", _tsquery_term)


def stored_words(words: Sequence[str], tenant: str, session_id: str, dialect: Dialect) -> str:
    """The words of a message as they are stored: on SQLite without tags, on PostgreSQL as a tsvector."""
    counts = Counter(words)
    gaps = counts.pop(BREAK, 0)
    passing = [f"{_IN_PASSING}{word}" for word in _in_passing(counts, len(words) - gaps)]
    besides = [_in_session(session_id), *passing]
    kept = _known_occurrences(words, counts)
    if dialect is Dialect.SQLITE:
        return " ".join([*kept, *besides])
    return _tsvector(kept, besides, tag_of(tenant, dialect))


def tagged(words: str, tenant: str) -> str:
    """Words as SQLite stores them, as its index holds them: ``remove`` in search.sql says the same in SQL."""
    return f" {words}".replace(" ", f" {tag_of(tenant)}")


def _in_session(session_id: str) -> str:
    return f"{_IN_SESSION}{session_id.replace('-', '')}"


def _known_occurrences(words: Sequence[str], counts: Counter[str]) -> list[str]:
    """The words, with a placeholder for breaks and for those that are there too often to be kept."""
    if BREAK not in words and max(counts.values(), default=0) <= MAX_OCCURRENCES:
        return list(words)
    seen: Counter[str] = Counter()
    kept: list[str] = []
    for word in words:
        seen[word] += 1
        kept.append(_NOTHING if word == BREAK or seen[word] > MAX_OCCURRENCES else word)
    return kept


def _tsvector(words: Sequence[str], besides: Sequence[str], tag: str) -> str:
    places: dict[str, list[str]] = {}
    for place, word in enumerate(words, 1):
        if word != _NOTHING:
            places.setdefault(word, []).append(str(place))
    kept = [f"{_lexeme(tag + word)}:{','.join(found)}" for word, found in places.items()]
    return " ".join([*kept, *(_lexeme(tag + word) for word in besides)])


def _lexeme(word: str) -> str:
    """A word holds no quote and no backslash."""
    return f"'{word}'"
