"""Push configurations of A2A tasks: whom to tell, and how, that a task went on.

A configuration is kept as it was given; what it says of how to prove who is calling is in it too, so whoever can read it can
call. Those of one ``user`` are not seen by another. They are hidden, restored and purged with their task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.queries import Queries
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded
from ..objects.registration import register_tenant


class A2APushConfig(Struct, frozen=True):
    """Whom to tell about one task."""

    id: str
    task_id: str
    user: Annotated[str, Column("user_id")]
    config: dict[str, Any]
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "a2a_push_configs.sql", A2APushConfig)


class AsyncA2APushConfigs(TenantStore):
    """The push configurations of one tenant's tasks. Those of one ``user`` are not seen by another."""

    @writes
    async def save(
        self,
        connection: Connection,
        task_id: str,
        config: Mapping[str, Any],
        *,
        id: str | None = None,
        user: str | None = None,
    ) -> A2APushConfig:
        """Keep a configuration, in place of the one with its id; without an id, that is the task's. The task may come later.

        Raises:
            InvalidText: it is not JSON.
            LimitExceeded: it is over ``metadata_bytes``.
        """
        if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
            raise InvalidInput("a push configuration is a dictionary with string keys")
        stored = text.dump(dict(config), depth=self._scope.limits.json_depth)
        self._scope.limits.check("metadata_bytes", text.size(stored), "push configuration")
        name = scopes.name(task_id if id is None else id, "id of a push configuration", self._scope.limits)
        params = self._at(task_id, user) | {"id": name, "config": stored, "now_at": self._scope.clock.now_us()}
        await register_tenant(connection, params)
        row = await queries.save.one(connection, params)
        assert row is not None
        return mapper(A2APushConfig, connection.dialect)([row])[0]

    @reads
    async def list(self, connection: Connection, task_id: str, *, user: str | None = None) -> Sequence[A2APushConfig]:
        """The configurations of a task, the one made first first."""
        return await self._listed(connection, queries.list, self._at(task_id, user))

    @reads
    async def of_everybody(self, connection: Connection, task_id: str) -> Sequence[A2APushConfig]:
        """The configurations of a task, whoever made them; for the one who tells them."""
        return await self._listed(connection, queries.of_everybody, self._at(task_id, None))

    @writes
    async def delete(
        self, connection: Connection, task_id: str, *, id: str | None = None, user: str | None = None
    ) -> int:
        """Remove one configuration of a task, or all of them; how many those were."""
        params, clause = self._at(task_id, user), ""
        if id is not None:
            params["id"] = scopes.name(id, "id of a push configuration", self._scope.limits)
            clause = "\n  AND id = :id"
        return len(await queries.delete.all(connection, params, clause))

    async def _listed(self, connection: Connection, query: Any, params: dict[str, Any]) -> Sequence[A2APushConfig]:
        most = self._scope.limits.list_rows
        rows = await query.all(connection, {**params, "limit": most + 1})
        if len(rows) > most:
            raise LimitExceeded(f"this task has more than list_rows = {most:,} push configurations")
        return mapper(A2APushConfig, connection.dialect)(rows)

    def _at(self, task_id: str, user: str | None) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            task_id=scopes.name(task_id, "task id", limits),
            user_id="" if user is None else scopes.name(user, "user", limits),
        )


class A2APushConfigs(Blocking[AsyncA2APushConfigs]):
    """The push configurations of one tenant's tasks. Those of one ``user`` are not seen by another."""

    save = blocking(AsyncA2APushConfigs.save)
    list = blocking(AsyncA2APushConfigs.list)
    of_everybody = blocking(AsyncA2APushConfigs.of_everybody)
    delete = blocking(AsyncA2APushConfigs.delete)
