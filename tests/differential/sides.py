"""The same call on the model, on SQLite and on PostgreSQL, and the comparison of what they say."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast import FixedClock, Holdfast, Limits, PoolOptions, SeededIds
from holdfast.core.paging import Page
from holdfast.errors import HoldfastError, InvalidInput
from tests.contract.cases.values import same
from tests.models.model import Model


class StepIds:
    """Ids that follow from the number of the step, so that a call that drew one more cannot shift all that come after."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, step: int) -> None:
        """Start the ids of a step."""
        self._source = SeededIds(step, start_ms=1_700_000_000_000 + 1_000 * step)

    def new(self) -> str:
        """The next id of the step."""
        return self._source.new()


class Cursor(Struct, frozen=True):
    """Where a page ended: each side has a cursor of its own."""

    of: tuple[Any, ...]


class Sides:
    """Three stores that must not be told apart."""

    def __init__(self, limits: Limits, *urls: str) -> None:
        self.clock, self.step, self.differed = FixedClock(), 0, False
        self._ids = [StepIds() for _ in range(len(urls) + 1)]
        pool = PoolOptions(min_connections=1, max_connections=2)
        self._model = Model(clock=self.clock, ids=self._ids[0], limits=limits)
        self._opened = [
            Holdfast(url, clock=self.clock, ids=ids, limits=limits, pool=pool, auto_migrate=True)
            for url, ids in zip(urls, self._ids[1:], strict=True)
        ]
        self._sides = [self._model, *self._opened]

    def close(self) -> None:
        """Close what was opened."""
        for each in self._opened:
            each.close()

    def call(self, tenant: str | None, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call on every side, compare, and return what the model said; its errors are returned, not raised."""
        self.step += 1
        self.differed = True
        outcomes = [self._one(number, tenant, name, args, kwargs) for number in range(len(self._sides))]
        model, *engines = [shape(outcome) for outcome in outcomes]
        what = f"step {self.step}: {tenant!r} {name} {args!r} {kwargs!r}"
        for engine in engines:
            assert same(engine, model), f"{what}\nmodel:  {model}\nengine: {engine}"
        said = {f"{type(outcome).__name__}: {outcome}" for outcome in outcomes[1:] if isinstance(outcome, Exception)}
        assert len(said) <= 1, f"{what}: the engines say it differently: {said}"
        if isinstance(outcomes[0], Page):
            nexts = [outcome.next for outcome in outcomes]
            assert len({*nexts[1:]}) <= 1, f"{what}: the engines' cursors differ"
            outcomes[0].next = None if nexts[0] is None else Cursor(tuple(nexts))  # type: ignore[assignment]
        self.differed = False
        return outcomes[0]

    def _one(self, number: int, tenant: str | None, name: str, args: Any, kwargs: Any) -> Any:
        self._ids[number].begin(self.step)
        side: Any = self._sides[number]
        own = {key: value.of[number] if isinstance(value, Cursor) else value for key, value in kwargs.items()}
        try:
            target = side if tenant is None else side.tenant(tenant)
            for part in name.split("."):
                target = getattr(target, part)
            return target(*args, **own)
        except HoldfastError as error:
            return error


def shape(value: Any) -> Any:
    """An answer as plain data: rows by their fields, errors by their type, a page with whether there is more."""
    if isinstance(value, InvalidInput):
        return {"error": "InvalidInput"}  # of several faults in one call, the model may name another one first
    if isinstance(value, Exception):
        return {"error": type(value).__name__}
    if isinstance(value, Page):
        return {"rows": [shape(each) for each in value], "more": value.next is not None}
    if isinstance(value, list):
        return [shape(each) for each in value]
    if isinstance(value, Struct):
        return {field: shape(getattr(value, field)) for field in value.__struct_fields__} | {"is": type(value).__name__}
    return value.isoformat() if isinstance(value, datetime) else value
