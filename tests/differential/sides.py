"""Make the same call on the model, on SQLite and on PostgreSQL, and compare the results."""

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
    """Ids derived from the number of the step, so that an additional id in one call does not change the ids of later calls."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, step: int) -> None:
        """Start the ids of a step."""
        self._source = SeededIds(step, start_ms=1_700_000_000_000 + 1_000 * step)

    def new(self) -> str:
        """Return the next id of the step."""
        return self._source.new()


class Cursor(Struct, frozen=True):
    """The end of a page, with a separate cursor for each side."""

    of: tuple[Any, ...]


class Sides:
    """Three implementations that must return the same results."""

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
        """Close both handles."""
        for value in self._opened:
            value.close()

    def call(self, tenant: str | None, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call on every side, compare the results, and return the model's result or error."""
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
    """Return a result as plain data: rows as their fields, errors as their type, a page with whether another one follows."""
    if isinstance(value, InvalidInput):
        return {"error": "InvalidInput"}  # if several arguments are invalid, the model may report another one first
    if isinstance(value, Exception):
        return {"error": type(value).__name__}
    if isinstance(value, Page):
        return {"rows": [shape(item) for item in value], "more": value.next is not None}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, Struct):
        return {field: shape(getattr(value, field)) for field in value.__struct_fields__} | {"is": type(value).__name__}
    return value.isoformat() if isinstance(value, datetime) else value
