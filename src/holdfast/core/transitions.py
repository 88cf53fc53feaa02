"""State machines: a table whose rows change state only by named moves.

Rows are created in the initial state. Fields marked ``References(...)`` name records that must exist at that time. Every move is
one compare-and-set statement that names the states it may start from, so of two callers that try the same move one succeeds and
the other gets ``Conflict``. ``transition_stores.py`` has the stores.

A machine with a ``Lease`` also has work that one holder does at a time:

* ``claim`` takes the oldest row that is ready or whose lease has expired, counts an attempt and raises the row's *epoch*. Every
  move resets the attempts to 0, so only consecutive claims without a result count.
* The holder passes its epoch with every move. Once another claim has raised it, the old holder gets ``Fenced``, whatever its
  clock says; clocks only decide when a lease has expired.
* ``recover`` makes rows with an expired lease ready again or, after ``max_attempts`` claims, moves them into the failed state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from ..clock import MICROSECONDS
from ..engines.protocol import Connection
from ..errors import Conflict, Fenced, InvalidInput
from . import scope as scopes
from .filters import Filter
from .queries import Query, parse
from .records.fields import References
from .records.references import check_references, reference_queries
from .registration import register_tenant
from .scope import Scope
from .tables import ListTable, R

_MS_US = MICROSECONDS // 1_000


class Move(Struct, frozen=True):
    """One move: the state it leads to from each state it may start from, and the fields it sets.

    A move ``by_holder`` requires the epoch of the claim. Any other move out of the held state raises the epoch, which fences the
    holder off.
    """

    states: Mapping[str, str]
    sets: tuple[str, ...] = ()
    by_holder: bool = False


class Lease(Struct, frozen=True):
    """The states of work that one holder does at a time.

    The row type has the fields ``holder`` (text), ``lease_until`` (time or ``None``), ``epoch`` and ``attempts`` (numbers). With
    ``due``, a row can be claimed from the time in that field on, and a row without a time cannot be claimed.
    """

    ready: str
    held: str
    failed: str
    max_attempts: int
    due: str | None = None


class TransitionTable(ListTable[R]):
    """One table whose rows change state. Its primary key is ``(tenant_id, id)``; the state is in the field ``status``.

    Rows are listed by the time of their creation, where the row type has it, the oldest first.

    Args:
        initial: the state of new rows.
        indexes: as in ``ListTable``.
    """

    _LEASE = """
-- name: claim
UPDATE {table} SET status = '{held}', holder = :holder, lease_until = :lease_until_at, epoch = epoch + 1,
    attempts = attempts + 1{touched}
WHERE tenant_id = :tenant_id AND id = (
    SELECT id FROM {table}
    WHERE tenant_id = :tenant_id AND ({claimable}) AND attempts < {max_attempts}{visible}/*where*/
    ORDER BY {claim_order}
    LIMIT 1 /*pg FOR UPDATE SKIP LOCKED*/)
RETURNING {returned};

-- name: renew
UPDATE {table} SET lease_until = :lease_until_at
WHERE tenant_id = :tenant_id AND id = :id AND status = '{held}' AND epoch = :epoch{visible}
RETURNING {returned};

-- name: recover
UPDATE {table} SET status = CASE WHEN attempts < {max_attempts} THEN '{ready}' ELSE '{failed}' END,
    holder = '', lease_until = NULL, epoch = epoch + 1{touched}
WHERE tenant_id = :tenant_id AND status = '{held}' AND id IN (
    SELECT id FROM {table} WHERE tenant_id = :tenant_id AND status = '{held}' AND lease_until <= :now_at
    ORDER BY lease_until, id
    LIMIT :limit /*pg FOR UPDATE SKIP LOCKED*/)
RETURNING {returned};
"""

    def __init__(
        self,
        name: str,
        row: type[R],
        *,
        noun: str,
        moves: Mapping[str, Move],
        initial: str = "pending",
        lease: Lease | None = None,
        condition: str = "",
        indexes: Mapping[str, str] | None = None,
    ) -> None:
        order = ("created_at", "id") if "created_at" in row.__struct_fields__ else ("id",)
        super().__init__(name, row, noun=noun, condition=condition, order=order, indexes=indexes)
        self.moves, self.initial, self.lease = moves, initial, lease
        self.references = tuple(field for field in self.fields.values() if field.marker(References))
        if lease is not None:
            due = self.column(lease.due) if lease.due else ""
            ready = f"status = '{lease.ready}'" + (f" AND {due} <= :now_at" if due else "")
            self.parts |= {
                "ready": lease.ready,
                "held": lease.held,
                "failed": lease.failed,
                "max_attempts": str(lease.max_attempts),
                "claimable": f"({ready}) OR (status = '{lease.held}' AND lease_until <= :now_at)",
                "claim_order": f"{due}, id" if due else "id",
                "touched": ", updated_at = :now_at" if "updated_at" in self.fields else "",
            }

    @cached_property
    def by_name(self) -> dict[str, Query]:
        """All statements of this table, including one for each move."""
        source = self.template + (self._LEASE if self.lease else "")
        text = source.format_map(self.parts) + "".join(self._move(name, move) for name, move in self.moves.items())
        queries = reference_queries(self.references)
        text += "".join(f"\n-- name: {name}\n{sql};\n" for name, sql in queries.items())
        return parse(text, self.row)

    def _move(self, name: str, move: Move) -> str:
        """Return the statement of a move; see ``Move`` for its checks."""
        steps = " ".join(f"WHEN '{old}' THEN '{new}'" for old, new in move.states.items())
        sets = [f"status = CASE status {steps} END", *(f"{self.column(f)} = :{self.parameter(f)}" for f in move.sets)]
        sets += ["updated_at = :now_at"] if "updated_at" in self.fields else []
        held = ""
        sets += ["attempts = 0"] if self.lease else []
        if self.lease is not None and self.lease.held in move.states:
            sets += ["holder = ''", "lease_until = NULL"]
            sets += [] if move.by_holder else ["epoch = epoch + 1"]
            held = " AND epoch = :epoch" if move.by_holder else ""
        states = ", ".join(f"'{state}'" for state in move.states)
        return (
            f"\n-- name: move_{name}\nUPDATE {self.name} SET {', '.join(sets)}\n"
            f"WHERE tenant_id = :tenant_id AND id = :id AND status IN ({states}){held}{self.parts['visible']}\n"
            f"RETURNING {self.parts['returned']};\n"
        )

    async def create(
        self, connection: Connection, scope: Scope, values: Mapping[str, Any], *, id: str | None = None
    ) -> tuple[R, bool]:
        """Create a row; return it, and whether it is new. Repeating a call with the same id and values returns the stored row.

        Fields without a value are ``None``.

        Raises:
            InvalidInput: a value is not valid.
            NotFound: a record that the row refers to does not exist.
            Conflict: a row with this id and other content exists.
        """
        leased = {"holder": "", "epoch": 0, "attempts": 0} if self.lease else {}
        fields = {**dict.fromkeys(self.fields), **leased, **values, "status": self.initial}
        fields["id"] = scope.ids.new() if id is None else id
        stamps = {name: scope.clock.now_us() for name in ("created_at", "updated_at") if name in self.fields}
        plain = {name: value for name, value in fields.items() if name not in stamps}
        params = scope.params(**self.params(plain, scope.limits), **stamps, now_at=scope.clock.now_us())
        await register_tenant(connection, params)
        await check_references(connection, self.by_name, self.references, params, self.noun)
        return await self.add(connection, params, [*values])

    async def move(
        self,
        connection: Connection,
        scope: Scope,
        id: str,
        name: str,
        *,
        epoch: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> R:
        """Make a move and set its fields; a field without a value becomes ``None``.

        Raises:
            NotFound: the row does not exist.
            Conflict: the row is in a state that the move cannot start from.
            Fenced: another claim has taken the row since.
            InvalidInput: the move does not exist, or a value is not valid.
        """
        move = self.moves.get(name)
        if move is None:
            raise InvalidInput(f"a {self.noun} has no move {name!r}; moves: {', '.join(self.moves)}", field="name")
        self._check_epoch(name, move, epoch)
        fields = {**dict.fromkeys(move.sets), **(values or {})}
        if unknown := fields.keys() - {*move.sets}:
            raise InvalidInput(f"{name} does not set {', '.join(sorted(unknown))} of a {self.noun}", field="values")
        params = scope.params(**self.params({"id": id, **fields}, scope.limits))
        params |= {"epoch": epoch, "now_at": scope.clock.now_us()}
        row = await self.one(connection, f"move_{name}", params)
        if row is None:
            await self._refuse(connection, params, name, [*move.states], epoch)
        assert row is not None
        return row

    async def claim(
        self,
        connection: Connection,
        scope: Scope,
        holder: str,
        *,
        ttl_ms: int,
        equal: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
    ) -> R | None:
        """Take the oldest row that is ready or whose lease has expired, for ``ttl_ms``; return ``None`` if no row can be claimed.

        Raises:
            InvalidInput: the holder, the time or a filter is not valid.
        """
        now, until = self._until(scope, ttl_ms)
        params = scope.params(holder=scopes.name(holder, "holder", scope.limits), now_at=now, lease_until_at=until)
        clause = self.where(equal or {}, where, params, connection, scope)
        rows = await self.by_name["claim"].all(connection, params, clause)
        return self.rows(connection, rows)[0] if rows else None

    async def renew(self, connection: Connection, scope: Scope, id: str, *, epoch: int, ttl_ms: int) -> R:
        """Extend the lease of a row to ``ttl_ms`` from now.

        Raises:
            NotFound: the row does not exist.
            Conflict: the row is not held.
            Fenced: another claim has taken the row since.
        """
        assert self.lease is not None
        _, until = self._until(scope, ttl_ms)
        params = scope.params(**self.params({"id": id, "epoch": epoch}, scope.limits), lease_until_at=until)
        row = await self.one(connection, "renew", params)
        if row is None:
            await self._refuse(connection, params, "renew", [self.lease.held], epoch)
        assert row is not None
        return row

    async def recover(self, connection: Connection, scope: Scope, *, limit: int | None = None) -> list[R]:
        """End expired leases, at most ``batch_rows``: rows become ready again, or failed after ``max_attempts`` claims.

        Returns the changed rows. Call it until it returns none.
        """
        params = scope.params(now_at=scope.clock.now_us(), limit=limit or scope.limits.batch_rows)
        return self.rows(connection, await self.by_name["recover"].all(connection, params))

    def _check_epoch(self, name: str, move: Move, epoch: int | None) -> None:
        if move.by_holder == (epoch is None):
            needed = "needs the epoch of the claim" if move.by_holder else "takes no epoch"
            raise InvalidInput(f"{name} of a {self.noun} {needed}", field="epoch")
        if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 2**62):
            raise InvalidInput(f"epoch must be the whole number that the claim returned, not {epoch!r}", field="epoch")

    def _until(self, scope: Scope, ttl_ms: int) -> tuple[int, int]:
        if not isinstance(ttl_ms, int) or isinstance(ttl_ms, bool) or ttl_ms < 1:
            raise InvalidInput(f"ttl_ms must be a whole number from 1 on, not {ttl_ms!r}", field="ttl_ms")
        scope.limits.check("lease_ms", ttl_ms, "ttl_ms")
        now = scope.clock.now_us()
        return now, now + ttl_ms * _MS_US

    async def _refuse(
        self, connection: Connection, params: Mapping[str, Any], name: str, states: Sequence[str], epoch: int | None
    ) -> None:
        """Raise the error that explains why a statement changed nothing."""
        row: Any = await self.one(connection, "get", params)
        if row is None:
            raise self.missing(params["id"])
        if epoch is not None and epoch != row.epoch:
            raise Fenced(f"{self.noun} {row.id} is {row.status} at epoch {row.epoch}; epoch {epoch} cannot {name} it")
        raise Conflict(f"{self.noun} {row.id} is {row.status}; {name} requires {' or '.join(states)}", reason="status")
