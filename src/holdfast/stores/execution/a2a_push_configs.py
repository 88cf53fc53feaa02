"""Push configurations of A2A tasks: which receiver to notify of a task's progress, and how.

A configuration contains the credentials of its receiver. It is encrypted if an encryption key is configured, and otherwise stored
as plain text, because A2A works without a key. It belongs to a user, who is part of its key, and is hidden, restored and purged
with its task.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ...core.blocking import blocking
from ...core.crypto import Secret
from ...core.queries import Queries
from ...core.records import AsyncRecords, Filterable, Key, KeyOptional, Limited, Records
from ...core.rows import Column
from ...core.store import writes
from ...engines.protocol import Connection


class A2APushConfig(Struct, frozen=True):
    """The push configuration of one task."""

    task_id: Annotated[str, Key(), Limited("name_bytes", empty=False), Filterable()]
    id: Annotated[str, Key(), Limited("name_bytes", empty=False), Filterable()]
    user: Annotated[str, Key(), Column("user_id"), Limited("name_bytes"), Filterable()]
    config: Annotated[Secret[dict[str, Any]] | None, KeyOptional()]
    """``None`` after an import, because an export contains no secrets."""
    created_at: datetime
    updated_at: datetime


class NewA2APushConfig(Struct, frozen=True):
    """A configuration to store. Its id defaults to the id of its task; the task may be stored later."""

    task_id: str
    config: Secret[dict[str, Any]] | None
    id: str | UnsetType = UNSET
    user: str = ""


class A2APushConfigChange(Struct, frozen=True):
    """The fields of a configuration to change."""

    config: Secret[dict[str, Any]] | UnsetType | None = UNSET


queries = Queries(__package__, "a2a_push_configs.sql")


class AsyncA2APushConfigs(AsyncRecords[A2APushConfig, NewA2APushConfig, A2APushConfigChange]):
    """The push configurations of one tenant's tasks, oldest first."""

    table, noun = "a2a_push_configs", "push configuration"
    order = ("created_at",)
    live = "deleted_with = ''"

    @writes
    async def clear(self, connection: Connection, task_id: str, *, id: str | None = None, user: str = "") -> int:
        """Delete one of a user's configurations for a task, or all of them; return how many were deleted."""
        params = self._at((task_id, task_id if id is None else id, user))
        clause = "" if id is None else "\n  AND id = :id"
        return len(await queries.clear.all(connection, params, clause))

    def _prepare(self, new: NewA2APushConfig) -> NewA2APushConfig:
        return replace(new, id=new.task_id) if new.id is UNSET else new


class A2APushConfigs(Records[A2APushConfig, NewA2APushConfig, A2APushConfigChange]):
    """The push configurations of one tenant's tasks, oldest first."""

    clear = blocking(AsyncA2APushConfigs.clear)
