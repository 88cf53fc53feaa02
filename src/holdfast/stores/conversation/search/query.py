"""Search queries: how a query is parsed, and how it and a message's words are written for the two full-text indexes.

A query consists of words, all of which must occur; ``"several words"`` must occur next to each other; ``-not`` must not occur;
and ``begin*`` matches every word with that beginning. All other characters are taken literally, so no input is a syntax error,
except a query without any word.

Both indexes contain the same words, each prefixed with a tag of its tenant. So the words of one tenant are adjacent in the index,
the cost of a search depends on the size of its tenant only, and messages of other tenants cannot be found, counted or weighed.
That is also why results are not ordered by SQLite's ``bm25``: it weighs words by their frequency in all tenants. Instead, a long
message in which a word is less than one in 400 words mentions it *in passing*, and comes after the others; otherwise newer
messages come first. So the order is the same on both engines, and each page costs the same.
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

WORDS_PER_MENTION = 400
"""A message mentions a word *in passing* if the word occurs less than once per this number of words."""
MAX_OCCURRENCES = 255
"""Occurrences of one word in a message that phrase searches use. PostgreSQL keeps no more."""

# Index terms that begin with one of these, after the tag, are not words of a message: no word contains these characters.
_IN_PASSING, _IN_SESSION, _GAP = "\x80", "\x81", "\x82"

_PART = re.compile(r'(?P<not>-?)(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))(?P<rest>\*?)')


class SearchQuery(Struct, frozen=True):
    """The terms that must occur in a message, and those that must not."""

    required: tuple[Term, ...]
    excluded: tuple[Term, ...] = ()


def parse(query: str, limits: Limits) -> SearchQuery:
    """Parse a query.

    Raises:
        InvalidInput: the query has no word that must occur.
        LimitExceeded: the query has more than ``query_chars`` characters or ``query_words`` words.
    """
    if not isinstance(query, str):
        raise InvalidInput(f"query must be text, not {type(query).__name__}", field="query")
    limits.check("query_chars", len(query), "query")
    required: list[Term] = []
    excluded: list[Term] = []
    for part in _PART.finditer(query.replace(BREAK, " ")):
        text = part["word"] if part["phrase"] is None else part["phrase"]
        words = tuple(words_of(text))
        if words:
            prefix = bool(part["rest"]) or (part["phrase"] is None and text.endswith("*"))
            (excluded if part["not"] else required).append(Term(words, prefix))
    if not required:
        raise InvalidInput("query must have at least one word without a minus sign", field="query")
    limits.check("query_words", sum(len(term.words) for term in [*required, *excluded]), "words of the query")
    return SearchQuery(tuple(dict.fromkeys(required)), tuple(dict.fromkeys(excluded)))


@lru_cache(1_024)
def tag_of(tenant: str, dialect: Dialect = Dialect.SQLITE) -> str:
    """Return the prefix of every word of a tenant.

    On PostgreSQL a short tag is enough: it need not be unique, because queries select the tenant's rows anyway.
    """
    tag = base64.b32encode(hashlib.blake2b(tenant.encode(), digest_size=5).digest()).decode().lower()
    return tag if dialect is Dialect.SQLITE else tag[:3]


def index_queries(query: SearchQuery, tenant: str, session_id: str | None, dialect: Dialect) -> tuple[str, str]:
    """Return two index queries: for messages about all of the words, and for those that mention some in passing."""
    syntax = _FTS5 if dialect is Dialect.SQLITE else _TSQUERY
    tag = tag_of(tenant, dialect)

    def terms(some_terms: Sequence[Term], mark: str = "") -> list[str]:
        return [syntax.term([f"{tag}{mark}{word}" for word in term.words], term.prefix) for term in some_terms]

    required = terms(query.required)
    if session_id is not None:
        required.append(syntax.term([f"{tag}{_in_session(session_id)}"], False))
    passing = terms([word_term for term in query.required for word_term in _single_words(term)], _IN_PASSING)
    excluded = terms(query.excluded)
    any_passing = syntax.any(passing)
    return syntax.all_but(required, [*passing, *excluded]), syntax.all_but([*required, any_passing], excluded)


def _single_words(term: Term) -> list[Term]:
    last = len(term.words) - 1
    return [Term((word,), term.prefix and index == last) for index, word in enumerate(term.words)]


class Matcher:
    """Matches a query against the words of one message, with the same result as an index; for messages not indexed yet."""

    def __init__(self, query: SearchQuery) -> None:
        self._required, self._excluded = query.required, query.excluded
        self._single = [word_term for term in query.required for word_term in _single_words(term)]
        self._has_phrase = any(len(term.words) > 1 for term in (*query.required, *query.excluded))

    def rank(self, words: Sequence[str]) -> int | None:
        """Return 0 for a message about all of the words, 1 if it mentions some in passing, ``None`` if it does not match."""
        counts = Counter(words)
        gaps = counts.pop(BREAK, 0)
        vocabulary = _Vocabulary(counts)
        kept = _limit_occurrences(words, counts) if self._has_phrase else None
        matches = all(vocabulary.has(term, kept) for term in self._required)
        if not matches or any(vocabulary.has(term, kept) for term in self._excluded):
            return None
        passing = _Vocabulary(_mentioned_in_passing(counts, len(words) - gaps))
        return int(any(passing.has(term) for term in self._single))


class _Vocabulary:
    """A set of words for lookups by word and by the beginning of a word."""

    def __init__(self, words: Collection[str]) -> None:
        self._words = words
        self._sorted: list[str] | None = None

    def has(self, term: Term, kept: Sequence[str] | None = None) -> bool:
        """Return whether a term occurs. For terms of several words, ``kept`` are all words in their order."""
        *whole, last = term.words
        if not all(word in self._words for word in whole) or not (
            self._begins(last) if term.prefix else last in self._words
        ):
            return False
        return not whole or any(is_at(kept or (), position, term) for position in _positions_of(kept or (), whole[0]))

    def _begins(self, beginning: str) -> bool:
        if self._sorted is None:
            self._sorted = sorted(self._words)
        index = bisect_left(self._sorted, beginning)
        return index < len(self._sorted) and self._sorted[index].startswith(beginning)


def _positions_of(words: Sequence[str], word: str) -> Iterator[int]:
    return (index for index, other in enumerate(words) if other == word)


def _mentioned_in_passing(counts: Mapping[str, int], words: int) -> list[str]:
    return [word for word, count in counts.items() if count * WORDS_PER_MENTION < words]


class _QuerySyntax(Struct, frozen=True):
    """The query syntax of one index."""

    both: str
    either: str
    but: str
    term: Callable[[Sequence[str], bool], str]

    def any(self, parts: Sequence[str]) -> str:
        """Return a query for at least one of these."""
        return f"({self.either.join(parts)})"

    def all_but(self, parts: Sequence[str], excluded: Sequence[str]) -> str:
        """Return a query for all of ``parts`` and none of ``excluded``."""
        return f"({self.both.join(parts)})" + (f"{self.but}{self.any(excluded)}" if excluded else "")


def _fts5_term(words: Sequence[str], prefix: bool) -> str:
    return f'"{" ".join(words)}"{" *" if prefix else ""}'


def _tsquery_term(words: Sequence[str], prefix: bool) -> str:
    return f"({' <-> '.join(map(_lexeme, words))}{':*' if prefix else ''})"


_FTS5 = _QuerySyntax(" AND ", " OR ", " NOT ", _fts5_term)
_TSQUERY = _QuerySyntax(" & ", " | ", " & !", _tsquery_term)


def words_to_store(words: Sequence[str], tenant: str, session_id: str, dialect: Dialect) -> str:
    """Return the words of a message in the form that is stored: on SQLite without tags, on PostgreSQL as a tsvector."""
    counts = Counter(words)
    gaps = counts.pop(BREAK, 0)
    passing = [f"{_IN_PASSING}{word}" for word in _mentioned_in_passing(counts, len(words) - gaps)]
    extra_terms = [_in_session(session_id), *passing]
    kept = _limit_occurrences(words, counts)
    if dialect is Dialect.SQLITE:
        return " ".join([*kept, *extra_terms])
    return _tsvector(kept, extra_terms, tag_of(tenant, dialect))


def add_tags(words: str, tenant: str) -> str:
    """Add the tenant's tag to words in SQLite's stored form. ``index`` and ``remove`` in search.sql take the result."""
    return f" {words}".replace(" ", f" {tag_of(tenant)}")


def _in_session(session_id: str) -> str:
    return f"{_IN_SESSION}{session_id.replace('-', '')}"


def _limit_occurrences(words: Sequence[str], counts: Counter[str]) -> list[str]:
    """Return the words with a placeholder for breaks and for occurrences over ``MAX_OCCURRENCES``."""
    if BREAK not in words and max(counts.values(), default=0) <= MAX_OCCURRENCES:
        return list(words)
    seen: Counter[str] = Counter()
    kept: list[str] = []
    for word in words:
        seen[word] += 1
        kept.append(_GAP if word == BREAK or seen[word] > MAX_OCCURRENCES else word)
    return kept


def _tsvector(words: Sequence[str], extra_terms: Sequence[str], tag: str) -> str:
    positions: dict[str, list[str]] = {}
    for position, word in enumerate(words, 1):
        if word != _GAP:
            positions.setdefault(word, []).append(str(position))
    lexemes = [f"{_lexeme(tag + word)}:{','.join(at)}" for word, at in positions.items()]
    return " ".join([*lexemes, *(_lexeme(tag + word) for word in extra_terms)])


def _lexeme(word: str) -> str:
    """Quote a word. Words contain no quote and no backslash."""
    return f"'{word}'"
