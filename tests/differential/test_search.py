"""Search compared with a model that reads everything: both engines find exactly the same messages, in the same order.

The same random actions run on SQLite and on PostgreSQL, with the same ids and times. The model lists the messages that live
sessions show and searches their words one by one, without an index.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, NewMessage, PoolOptions, TenantHandle
from holdfast.errors import InvalidInput
from holdfast.limits import Limits
from holdfast.stores.conversation.search.query import MAX_OCCURRENCES, WORDS_PER_MENTION, SearchQuery, parse
from holdfast.stores.conversation.search.searchable_text import BREAK, Term, text_of, words_of
from holdfast.types import Message, SearchHit
from tests.differential.sides import StepIds

WORDS = (
    "red green blue fish fishing Fisch FISH café cafe Straße strasse don't e-mail snake_case 42 4200 北京 京北 東京 🚀 ﬁn fin"
    " naïve naive हिन्दी ไทย x y z"
).split()
ODD = (
    "\x00",
    "\ud800",
    "\u0301",
    "\u200b",
    "\U0010f800",
    '"',
    "'",
    "*",
    "-",
    ":",
    "\\",
    "\n",
    "(",
    ")",
    "&",
    "|",
    "\x01",
    "\x80",
)
KINDS = ("message", "message", "message", "adk.event", "x")


class Work:
    """Messages and queries from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def text(self) -> str:
        """Return a few words; sometimes so many that words are mentioned in passing, exceed MAX_OCCURRENCES, or are cut off."""
        size = self.random.choice((0, 1, 2, 3, 5, 8, 12, 20, 500))
        words = [self.word() for _ in range(size)]
        if self.random.randrange(40) == 0:
            words = [self.word()] * (MAX_OCCURRENCES + 3) + words
        if self.random.randrange(60) == 0:
            words = ["filler"] * 9_990 + words
        return self.random.choice((" ", " ", ", ", "\n")).join(words)

    def word(self) -> str:
        if self.random.randrange(25) == 0:
            return self.random.choice(ODD)
        return self.random.choice(WORDS)

    def message(self) -> NewMessage:
        kind = self.random.choice(KINDS)
        if kind == "message":
            text = self.text()
            result = {"type": "tool_result", "tool_use_id": "t", "content": self.text()}
            use = {"type": "tool_use", "id": "t", "name": self.word(), "input": {"a": self.text()}}
            content = self.random.choice((text, text, [{"type": "text", "text": text}, use], [result]))
            return NewMessage(role="user", content=content)
        return NewMessage(kind=kind, content={"id": self.word(), "parts": [self.text(), {"text": self.text(), "n": 1}]})

    def query(self) -> str:
        parts = [self._part() for _ in range(self.random.choice((1, 1, 1, 2, 2, 3)))]
        return " ".join(parts)

    def _part(self) -> str:
        sign = self.random.choice(("", "", "", "", "-"))
        star = self.random.choice(("", "", "", "*"))
        if self.random.randrange(3) == 0:
            return f'{sign}"{" ".join(self.word() for _ in range(self.random.choice((1, 2, 2, 3))))}"{star}'
        word = self.word()
        return f"{sign}{word[: self.random.randrange(1, len(word) + 1)] if star else word}{star}"


class Read:
    """A message and its words."""

    def __init__(self, message: Message) -> None:
        self.message = message
        words = words_of(text_of(message.kind, message.content))
        counts = Counter(word for word in words if word != BREAK)
        self.words = set(counts)
        self.passing = [word for word, count in counts.items() if count * WORDS_PER_MENTION < counts.total()]
        seen: Counter[str] = Counter()
        self.kept: list[str] = []
        for word in words:
            seen[word] += 1
            self.kept.append(word if seen[word] <= MAX_OCCURRENCES else "")

    def score(self, query: SearchQuery) -> float:
        """Return the score of the message, or 0 if it does not match."""
        if not all(map(self._has, query.required)) or any(map(self._has, query.excluded)):
            return 0
        for term in query.required:
            for place, term_word in enumerate(term.words, 1):
                prefix = term.prefix and place == len(term.words)
                if any(_is(word, term_word, prefix) for word in self.passing):
                    return 0.5
        return 1.0

    def _has(self, term: Term) -> bool:
        size = len(term.words)
        if size == 1:
            return any(_is(word, term.words[0], term.prefix) for word in self.words)
        if not self.words.issuperset(term.words[:-1]):
            return False
        return any(
            all(_is(self.kept[start + n], term.words[n], term.prefix and n == size - 1) for n in range(size))
            for start in range(len(self.kept) - size + 1)
        )


def _is(word: str, term_word: str, prefix: bool) -> bool:
    return word.startswith(term_word) if prefix else word == term_word


class Pair:
    """The same tenant on both engines."""

    def __init__(self, *urls: str) -> None:
        self.clock = FixedClock()
        self.ids = [StepIds() for _ in urls]
        pool = PoolOptions(min_connections=1, max_connections=2)
        self._opened = [
            Holdfast(url, clock=self.clock, ids=ids, pool=pool, auto_migrate=True)
            for url, ids in zip(urls, self.ids, strict=True)
        ]
        self.handles = [hf.tenant("acme") for hf in self._opened]
        self._step = 0

    def both(self, store: str, method: str, *args: Any, **kwargs: Any) -> Any:
        self._step += 1
        answers = []
        for ids, handle in zip(self.ids, self.handles, strict=True):
            ids.begin(self._step)
            answers.append(getattr(getattr(handle, store), method)(*args, **kwargs))
        assert answers[0] == answers[1], f"{store}.{method}{args}{kwargs}"
        return answers[0]

    def close(self) -> None:
        for hf in self._opened:
            hf.close()


@pytest.fixture
def pair(postgres_url: str) -> Iterator[Pair]:
    opened = Pair(":memory:", postgres_url)
    yield opened
    opened.close()


def test_both_engines_find_the_same_as_the_model(pair: Pair) -> None:
    hits = sum(_compare(pair, seed, rounds=3, queries=60) for seed in range(2))
    assert hits > 500, "too few messages were found for a meaningful comparison"


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_both_engines_find_the_same_as_the_model_for_a_long_time(pair: Pair) -> None:
    first = int.from_bytes(os.urandom(4))
    for seed in range(first, first + 40):
        _compare(pair, seed, rounds=10, queries=200)


def _compare(pair: Pair, seed: int, *, rounds: int, queries: int) -> int:
    work, hits = Work(seed), 0
    sessions = [pair.both("sessions", "create", user=user).id for user in ("ada", "ada", "grace", None)]
    for _ in range(rounds):
        for _ in range(12):
            _change(pair, work, sessions)
        documents = [Read(message) for message in _everything(pair.handles[0])]
        for _ in range(queries):
            hits += _search(pair, work.query(), documents, seed)
    for session in sessions:
        pair.both("sessions", "purge", session)
    return hits


def _change(pair: Pair, work: Work, sessions: Sequence[str]) -> None:
    """Make a random change of the searchable messages."""
    pair.clock.advance(work.random.choice((0, 0.0005, 0.002, 60)))
    session = work.random.choice(sessions)
    if all(listed_session.id != session for listed_session in pair.handles[0].sessions.list()):
        pair.both("sessions", "restore", session)
        return
    messages = [*pair.handles[0].messages.list(session)]
    roll = work.random.randrange(10)
    if roll < 5 or not messages:
        pair.both("messages", "append_many", session, [work.message() for _ in range(work.random.randrange(1, 12))])
    elif roll == 5:
        changed = work.random.choice([message for message in messages if message.kind == "message"] or messages)
        pair.both("messages", "update", changed.id, content=work.text())
    elif roll == 6:
        pair.both("messages", "delete", session, [work.random.choice(messages).id for _ in range(3)])
    elif roll == 7:
        pair.both("branches", "rewind", session, to=work.random.choice(messages).seq)
    elif roll == 8 and (branches := pair.handles[0].branches.list(session)):
        pair.both("branches", "switch", session, work.random.choice(branches).number)
    else:
        pair.both("sessions", "delete", session)


def _everything(handle: TenantHandle) -> list[Message]:
    return [message for session in handle.sessions.list() for message in handle.messages.list(session.id)]


def _search(pair: Pair, typed: str, documents: Sequence[Read], seed: int) -> int:
    try:
        query = parse(typed, Limits())
    except InvalidInput:
        for handle in pair.handles:
            with pytest.raises(InvalidInput):
                handle.messages.search(typed)
        return 0
    expected = {document.message.id: score for document in documents if (score := document.score(query))}
    results = [_pages(handle, typed) for handle in pair.handles]
    for hits in results:
        assert {hit.message.id: hit.score for hit in hits} == expected, f"seed {seed}: {typed!r}"
        assert len(hits) == len(expected), f"seed {seed}: {typed!r} finds a message twice"
    assert results[0] == results[1], f"seed {seed}: the engines differ about {typed!r}"
    by_id = {document.message.id: document.message for document in documents}
    assert all(hit.message == by_id[hit.message.id] for hit in results[0])
    ranked = [(-hit.score, -hit.message.created_at.timestamp()) for hit in results[0]]
    assert ranked == sorted(ranked, key=lambda rank: (rank[0], round(rank[1] * 1_000 + 0.5))), typed
    return len(expected)


def _pages(handle: TenantHandle, typed: str) -> list[SearchHit]:
    hits: list[SearchHit] = []
    cursor: str | None = None
    while True:
        page = handle.messages.search(typed, limit=25, cursor=cursor)
        hits += page
        if page.next is None:
            return hits
        cursor = page.next
