"""Activity: what was done, to what, by whom and why.

A log that only grows: nothing in it is ever changed, and it goes with its tenant. What a store does on its own account it notes
with ``note``, in the transaction of the deed, so that there is never one without the other. Everybody else has ``record``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...core import scope as scopes
from ...core.actor_context import ActorContext
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter
from ...core.logs import LogTable
from ...core.paging import Page
from ...core.records import Limited
from ...core.registration import register_tenant
from ...core.store import TenantStore, reads, writes_with_actor
from ...engines.protocol import Connection
from ...ids import Id


class Activity(Struct, frozen=True):
    """One thing that was done. ``actor`` is empty when nobody in particular did it."""

    id: Id
    actor: Annotated[str, Limited("name_bytes")]
    action: Annotated[str, Limited("name_bytes", empty=False)]
    """In two words, such as ``checkpoint.deleted``."""
    subject_kind: Annotated[str, Limited("name_bytes")]
    subject_id: Annotated[str, Limited("key_bytes")]
    reason: Annotated[str, Limited("text_bytes")]
    details: Annotated[dict[str, Any], Limited("metadata_bytes")]
    created_at: datetime


class Deed(Struct, frozen=True, kw_only=True):
    """Something that is about to be noted."""

    action: str
    actor: str = ""
    subject_kind: str = ""
    subject_id: str = ""
    reason: str = ""
    details: Mapping[str, Any] = {}


LOG = LogTable(
    "activity",
    Activity,
    noun="activity",
    nouns="activities",
    indexes={
        "subject_kind": "activity_by_subject",
        "actor": "activity_by_actor",
        "action": "activity_by_action",
        "": "activity_by_time",
    },
)


class AsyncActivities(TenantStore):
    """What was done in one tenant."""

    @writes_with_actor
    async def record(
        self,
        connection: Connection,
        acting: ActorContext,
        action: str,
        *,
        actor: str | None = None,
        subject_kind: str = "",
        subject_id: str = "",
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> Activity:
        """Note what was done; without an ``actor``, by the user who is acting.

        With an ``id`` of the caller's the call can be repeated: the same id with the same content returns what is there.

        Raises:
            InvalidInput: the action is empty.
            Conflict: something else was recorded under this id.
        """
        actor = (acting.user or "") if actor is None else actor
        deed = Deed(
            action=action,
            actor=actor,
            subject_kind=subject_kind,
            subject_id=subject_id,
            reason=reason,
            details=details or {},
        )
        await register_tenant(connection, self._scope.params(now_at=self._scope.clock.now_us()))
        return await LOG.append(connection, self._scope, deed, id=id)

    @reads
    async def get(self, connection: Connection, activity_id: Id) -> Activity:
        """One entry.

        Raises:
            NotFound: there is none.
        """
        return await LOG.get(connection, self._scope, activity_id)

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        subject_id: str | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Activity]:
        """What was done, the newest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there is more than ``list_rows``.
        """
        equal = {"actor": actor, "action": action, "subject_kind": subject_kind, "subject_id": subject_id}
        return await LOG.list(connection, self._scope, equal, where=where, limit=limit, cursor=cursor)

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        subject_id: str | None = None,
        where: Sequence[Filter] = (),
    ) -> int:
        """How much matches, by what ``list`` takes.

        Raises:
            InvalidFilter: a filter is not understood.
        """
        equal = {"actor": actor, "action": action, "subject_kind": subject_kind, "subject_id": subject_id}
        return await LOG.count(connection, self._scope, equal, where=where)


class Activities(Blocking[AsyncActivities]):
    """What was done in one tenant."""

    record = blocking(AsyncActivities.record)
    get = blocking(AsyncActivities.get)
    list = blocking(AsyncActivities.list)
    count = blocking(AsyncActivities.count)


async def note(connection: Connection, scope: scopes.Scope, deeds: Sequence[Deed]) -> None:
    """Note what is being done; for other stores, in the transaction of the deed itself.

    Raises:
        InvalidInput: an action is empty.
    """
    await LOG.append_all(connection, scope, deeds)
