"""The filter language on both engines, compared with an oracle over many filters and documents."""

from __future__ import annotations

import math
import os
from random import Random
from typing import Any

import pytest

from holdfast import Filter, FixedClock, Holdfast, Limits, NewMessage, PoolOptions, SeededIds, column, meta
from holdfast.errors import InvalidFilter
from tests.contract.cases.values import NUMBERS, TEXTS
from tests.models.oracle import MESSAGE_COLUMNS, SESSION_COLUMNS, check, matches

DOCUMENTS = 250
FILTERS = 400
INJECTIONS = (
    "' OR '1'='1",
    "'; DROP TABLE messages; --",
    "') UNION SELECT * FROM sessions --",
    "a' || (SELECT id FROM tenants) || '",
    "$1",
    ":tenant_id",
    "?1",
    "%s%s%n",
    "\\",
    "'::jsonb",
    '") , (1) --',
    "a\x00b",
    "\ud800'; --",
    "$.a",
    "$[0]",
    "a.b",
    '"a"',
    "#",
    "{}",
    "[0]",
    "*",
    "",
)
KEYS = (
    "a",
    "b",
    "tags",
    "$",
    "a.b",
    "'",
    '"',
    "",
    "\U0001f600",
    "\x00",
    "\ud800",
    "\U0010f000",
    "\U0010f801",
    "'; --",
    "[0]",
)
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "contains")


class Maker:
    """Generates documents and filters from a seed, with few values, so that filters match."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def text(self) -> str:
        kind = self.random.randrange(4)
        if kind == 0:
            return self.random.choice(TEXTS)
        if kind == 1:
            return self.random.choice(INJECTIONS)
        letters = "ab" if kind == 2 else "a\x00\ud800\udfff\U0010f000\U0010f801\U0010f802\U0010f841é\U0001f600\uffff"
        return "".join(self.random.choices(letters, k=self.random.randrange(4)))

    def number(self) -> int | float:
        kind = self.random.randrange(5)
        if kind == 0:
            return self.random.choice(NUMBERS)
        if kind == 1:
            return float(self.random.randint(-3, 3))
        if kind == 2:
            return round(self.random.uniform(-2, 2), 1)
        if kind == 3:
            return math.nextafter(self.random.choice([0.1, 0.3, 1.0, 2.5]), self.random.choice([-9, 9]))
        return self.random.randint(-3, 3)

    def scalar(self) -> Any:
        return self.random.choice(
            [self.text, self.text, self.number, self.number, lambda: self.random.choice([True, False, None])]
        )()

    def value(self, depth: int = 2) -> Any:
        kind = self.random.randrange(8)
        if kind == 0 and depth:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        if kind == 1 and depth:
            return {self.random.choice(KEYS): self.value(depth - 1) for _ in range(self.random.randrange(3))}
        return self.scalar()

    def document(self) -> dict[str, Any]:
        keys = [
            self.random.choice(KEYS) if self.random.random() < 0.8 else self.text()
            for _ in range(self.random.randrange(5))
        ]
        return {key: self.value() for key in keys}

    def filter(self) -> Filter:
        key = self.random.choice(KEYS) if self.random.random() < 0.8 else self.text()
        if self.random.randrange(6) == 0:
            return meta(key).is_in([self.scalar() for _ in range(self.random.randrange(5))])
        return Filter(self.random.choice(OPERATORS), self.scalar(), meta=key)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "postgres"])
def holdfast(request: pytest.FixtureRequest) -> Any:
    url = ":memory:" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    request.node.user_properties.append(("leg", f"{request.param} against the filter oracle"))
    pool = PoolOptions(min_connections=1, max_connections=2)
    with Holdfast(url, clock=FixedClock(), ids=SeededIds(), pool=pool) as hf:
        yield hf


def test_metadata_filters_match_the_same_rows_as_the_oracle(holdfast: Holdfast) -> None:
    compared = sum(_compare_metadata(holdfast, seed=seed, documents=DOCUMENTS, filters=FILTERS) for seed in range(4))
    assert compared >= 100_000


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_metadata_filters_match_the_same_rows_as_the_oracle_for_a_long_time(holdfast: Holdfast) -> None:
    first = int.from_bytes(os.urandom(4))
    for seed in range(first, first + 60):
        _compare_metadata(holdfast, seed=seed, documents=400, filters=1_000)


def _compare_metadata(holdfast: Holdfast, *, seed: int, documents: int, filters: int) -> int:
    """Return how many documents the filters matched."""
    make, tenant = Maker(seed), holdfast.tenant(f"tenant {seed}")
    sessions = [tenant.sessions.create(metadata=make.document()) for _ in range(documents)]
    compared = hits = 0
    for _ in range(filters):
        where = [make.filter() for _ in range(make.random.choice([1, 1, 1, 2, 3]))]
        try:
            check(where, SESSION_COLUMNS, Limits())
        except InvalidFilter:
            with pytest.raises(InvalidFilter):
                tenant.sessions.list(where=where)
            continue
        found = {session.id for session in tenant.sessions.list(where=where)}
        wanted = {session.id for session in sessions if matches(session, where)}
        odd = [session.metadata for session in sessions if (session.id in found) != (session.id in wanted)]
        assert not odd, f"seed {seed}: {where} is wrong about {odd[0]}"
        assert tenant.sessions.count(where=where) == len(wanted)
        compared += documents
        hits += len(wanted)
    assert hits > compared // 100, "the filters hardly ever match: they prove nothing"
    return compared


def test_column_filters_match_the_same_rows_as_the_oracle(holdfast: Holdfast) -> None:
    make, tenant = Maker(2), holdfast.tenant("columns")
    clock = holdfast._setting.clock
    assert isinstance(clock, FixedClock)
    for number in range(60):
        clock.advance(make.random.choice([0, 0.000001, 1, 61, -7]))
        made = tenant.sessions.create(key=f"{make.text()}{number}", user=make.text() or None, agent=make.text() or None)
        new = [NewMessage(role="user", content="x", token_count=n) for n in range(make.random.randrange(4))]
        tenant.messages.append_many(made.id, new)
    _compare_columns(make, [*tenant.sessions.list()], SESSION_COLUMNS, lambda where: tenant.sessions.list(where=where))


def test_message_filters_match_the_same_rows_as_the_oracle(holdfast: Holdfast) -> None:
    make, tenant = Maker(3), holdfast.tenant("messages")
    session = tenant.sessions.create()
    for number in range(80):
        kind, role = make.random.choice([("message", "user"), ("message", "system"), ("x.y", None), ("x", "assistant")])
        tenant.messages.append(
            session.id,
            kind=kind,
            role=role,
            content=[],
            metadata=make.document(),
            token_count=number % 5,
            is_preserved=number % 2 == 0,
            is_summary=number % 3 == 0,
        )
    rows = [*tenant.messages.list(session.id)]
    _compare_columns(make, rows, MESSAGE_COLUMNS, lambda where: tenant.messages.list(session.id, where=where))


def test_content_filters_match_the_same_rows_as_the_oracle(holdfast: Holdfast) -> None:
    """Filter for parts of stored contents: unchanged, reduced, and altered."""
    make, tenant = Maker(5), holdfast.tenant("contents")
    session = tenant.sessions.create()
    for _ in range(120):
        blocks = [{"type": make.text(), **make.document()} for _ in range(make.random.randrange(4))]
        kind, content = make.random.choice([("message", blocks), ("x", make.document()), ("x", make.value(3))])
        role = "user" if kind == "message" else None
        tenant.messages.append(session.id, kind=kind, role=role, content=content)
    fork = tenant.branches.fork(session.id, at=100)
    tenant.branches.switch(session.id, fork.number)  # so that the log is read through a view as well
    tenant.branches.switch(session.id, 0)
    rows = [*tenant.messages.list(session.id)]
    hits = 0
    for _ in range(400):
        where = [Filter("contains", _part(make, make.random.choice(rows).content), column="content")]
        if make.random.randrange(4) == 0:
            where.append(column("seq").gt(make.random.randrange(120)))
        try:
            check(where, MESSAGE_COLUMNS, Limits())
        except InvalidFilter:
            with pytest.raises(InvalidFilter):
                tenant.messages.list(session.id, where=where)
            continue
        found = {row.id for row in tenant.messages.list(session.id, where=where)}
        odd = [row for row in rows if (row.id in found) != matches(row, where)]
        assert not odd, f"{where} is wrong about {odd[0]}"
        assert tenant.messages.count(session.id, where=where) == len(found)
        hits += len(found)
    assert hits > 400


def _part(make: Maker, whole: Any) -> Any:
    """Return a part of a value, or a part that is slightly altered."""
    chance = make.random.random()
    if chance < 0.05:
        return make.scalar()
    if isinstance(whole, dict):
        kept = {key: _part(make, item) for key, item in whole.items() if make.random.random() < 0.7}
        return kept if chance < 0.95 else {**kept, make.text(): make.scalar()}
    if isinstance(whole, list):
        items = [_part(make, item) for item in whole if make.random.random() < 0.7]
        make.random.shuffle(items)
        chosen = items[0] if items and chance < 0.5 and isinstance(items[0], dict) else items
        return chosen if chance < 0.95 else items * 2
    return whole if chance < 0.9 or not isinstance(whole, int) else float(whole) if abs(whole) < 10**15 else whole


def _compare_columns(make: Maker, rows: list[Any], columns: Any, listed: Any) -> None:
    hits = 0
    for _ in range(300):
        where = [_column_filter(make, rows, columns) for _ in range(make.random.choice([1, 1, 2]))]
        if make.random.randrange(3) == 0:
            where.append(make.filter())
        try:
            check(where, columns, Limits())
        except InvalidFilter:
            with pytest.raises(InvalidFilter):
                listed(where)
            continue
        found = {row.id for row in listed(where)}
        odd = [row for row in rows if (row.id in found) != matches(row, where)]
        assert not odd, f"{where} is wrong about {odd[0]}"
        hits += len(found)
    assert hits > 300


def _column_filter(make: Maker, rows: list[Any], columns: Any) -> Filter:
    """Return a filter on a column, usually with the value of a row."""
    name = make.random.choice([each for each in columns if columns[each] != "json"])
    values = [getattr(make.random.choice(rows), name) for _ in range(3)]
    if make.random.randrange(8) == 0:
        values[0] = make.scalar() if columns[name] != "id" else None
    if make.random.randrange(5) == 0:
        return column(name).is_in(values)
    return Filter(make.random.choice(OPERATORS), values[0], column=name)  # type: ignore[arg-type]


def test_no_filter_causes_a_database_error(holdfast: Holdfast) -> None:
    tenant = holdfast.tenant("injected")
    for text in INJECTIONS:
        tenant.sessions.create(metadata={text: text, "a": [text], "b": {"c": text}})
    for text in INJECTIONS:
        for operator in OPERATORS:
            tenant.sessions.list(where=[Filter(operator, text, meta=text)])  # type: ignore[arg-type]
            tenant.sessions.list(where=[Filter(operator, text, column="key")])  # type: ignore[arg-type]
        assert len(tenant.sessions.list(where=[meta(text).eq(text)])) == 1
        assert len(tenant.sessions.list(where=[meta("a").contains(text)])) == 1
        assert len(tenant.sessions.list(metadata={text: text})) == 1
        with pytest.raises(InvalidFilter):
            tenant.sessions.list(where=[Filter("eq", text, column=text)])
        with pytest.raises(InvalidFilter):
            tenant.sessions.list(where=[Filter(text, text, meta=text)])  # type: ignore[arg-type]
    assert tenant.sessions.count() == len(INJECTIONS)
