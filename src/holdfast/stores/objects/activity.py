"""Activity log: which action was done on which subject, by which user and for which reason.

Entries are only added; they never change, and they are removed with their tenant. Stores log their own actions with
``record_all``, in the transaction of the action, so that an action and its entry exist together or not at all. All other
callers use ``record``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...core import scope as scopes
from ...core import text
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
    """One logged action. ``actor`` is empty if a worker or a policy did it."""

    id: Id
    actor_type: Annotated[str, Limited("name_bytes")]
    """user, agent, api_key or system, or a type that the caller chose."""
    actor: Annotated[str, Limited("name_bytes")]
    action: Annotated[str, Limited("name_bytes", empty=False)]
    """Two words, such as ``checkpoint.deleted``."""
    subject_kind: Annotated[str, Limited("name_bytes")]
    subject_id: Annotated[str, Limited("key_bytes")]
    reason: Annotated[str, Limited("text_bytes")]
    details: Annotated[dict[str, Any], Limited("metadata_bytes")]
    address: Annotated[str, Limited("name_bytes")]
    """The network address of the actor, if the action was an HTTP request."""
    created_at: datetime


class NewActivity(Struct, frozen=True, kw_only=True):
    """An action to log."""

    action: str
    actor_type: str = "system"
    actor: str = ""
    subject_kind: str = ""
    subject_id: str = ""
    reason: str = ""
    details: Mapping[str, Any] = {}
    address: str = ""


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
    """The activity log of one tenant."""

    @writes_with_actor
    async def record(
        self,
        connection: Connection,
        acting: ActorContext,
        action: str,
        *,
        actor: str | None = None,
        actor_type: str | None = None,
        subject_kind: str = "",
        subject_id: str = "",
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        address: str | None = None,
        id: str | None = None,
    ) -> Activity:
        """Log an action. ``actor``, ``actor_type`` and ``address`` default to those of the actor context.

        With an ``id`` chosen by the caller, the call can be repeated: the same id with the same content returns the first entry.

        Raises:
            InvalidInput: the action is empty.
            Conflict: another entry has this id.
        """
        acting_type, acting_name = acting.actor() if actor is None else ("user" if actor else "system", actor)
        activity = NewActivity(
            action=action,
            actor_type=acting_type if actor_type is None else actor_type,
            actor=acting_name,
            subject_kind=subject_kind,
            subject_id=subject_id,
            reason=reason,
            details=details or {},
            address=(acting.address or "") if address is None else address,
        )
        await register_tenant(connection, self._scope.params(now_at=self._scope.clock.now_us()))
        return await LOG.append(connection, self._scope, activity, id=id)

    @reads
    async def get(self, connection: Connection, activity_id: Id) -> Activity:
        """Return one entry.

        Raises:
            NotFound: it does not exist.
        """
        return await LOG.get(connection, self._scope, activity_id)

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        actor: str | None = None,
        actor_type: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        subject_id: str | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Activity]:
        """List entries, the newest first. With ``limit``, one page.

        Raises:
            InvalidFilter: a filter or the cursor is invalid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        equal = {
            "actor": actor,
            "actor_type": actor_type,
            "action": action,
            "subject_kind": subject_kind,
            "subject_id": subject_id,
        }
        return await LOG.list(connection, self._scope, equal, where=where, limit=limit, cursor=cursor)

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        actor: str | None = None,
        actor_type: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        subject_id: str | None = None,
        where: Sequence[Filter] = (),
    ) -> int:
        """Count the entries that ``list`` would return.

        Raises:
            InvalidFilter: a filter is invalid.
        """
        equal = {
            "actor": actor,
            "actor_type": actor_type,
            "action": action,
            "subject_kind": subject_kind,
            "subject_id": subject_id,
        }
        return await LOG.count(connection, self._scope, equal, where=where)


class Activities(Blocking[AsyncActivities]):
    """The activity log of one tenant."""

    record = blocking(AsyncActivities.record)
    get = blocking(AsyncActivities.get)
    list = blocking(AsyncActivities.list)
    count = blocking(AsyncActivities.count)


async def record_all(connection: Connection, scope: scopes.Scope, activities: Sequence[NewActivity]) -> None:
    """Log actions of a store, in the transaction of the actions.

    Raises:
        InvalidInput: an action is empty.
    """
    await LOG.append_all(connection, scope, activities)


async def log_change(
    connection: Connection,
    scope: scopes.Scope,
    acting: ActorContext,
    action: str,
    subject_kind: str,
    subject_id: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Log a change that a store made, in the transaction of the change. ``details`` must not contain a secret."""
    await LOG.append_all(connection, scope, [change_by(acting, action, subject_kind, subject_id, details)])


def change_by(
    acting: ActorContext, action: str, subject_kind: str, subject_id: str, details: Mapping[str, Any] | None = None
) -> NewActivity:
    """Return the entry for a change that a store made. ``details`` must not contain a secret."""
    actor_type, actor = acting.actor()
    if acting.api_key and actor_type != "api_key":
        details = {**(details or {}), "api_key": acting.api_key}
    return NewActivity(
        action=action,
        actor_type=actor_type,
        actor=actor,
        subject_kind=subject_kind,
        subject_id=subject_id,
        details=details or {},
        address=acting.address or "",
    )


class Audited:
    """Mixin of record stores and grant stores whose changes are logged: ``class AsyncProviders(Audited, AsyncRecords[...])``.

    An entry names the record, the action, and the fields that were changed or revealed; it never contains their values. The
    actions are ``provider.created``, ``.changed``, ``.deleted``, ``.restored`` and ``.revealed``, and of a grant ``.granted``
    and ``.revoked``.
    """

    _scope: scopes.Scope
    _subject: Callable[[Any], tuple[str, Sequence[str]]]

    async def _on_change(
        self, connection: Connection, acting: ActorContext, action: str, row: Any, fields: Sequence[str]
    ) -> None:
        noun, key = self._subject(row)
        kind = noun.replace(" ", "_").lower()
        subject = text.cut("/".join(key), self._scope.limits.key_bytes)  # a composite key can be longer than one name
        details = {"fields": list(fields)} if fields else {}
        await log_change(connection, self._scope, acting, f"{kind}.{action}", kind, subject, details)
