"""Context files: the files that are part of an agent's prompt, such as ``SOUL.md``, ``TOOLS.md`` and ``USER.md``.

A file is kept at *agent level*, for all users, or as the *copy* of one user. The agent's type decides which of them applies:

===========  =============  ===============================  =============================  ==============================
agent type   file           read for a user                  written for a user             written without a user
===========  =============  ===============================  =============================  ==============================
open         any            the user's copy, else the        the user's copy                the template, for users without
                            agent's file as a template                                      a copy
predefined   ``USER.md``    the user's copy, else the        the user's copy                the template, for users without
                            agent's file as a template                                      a copy
predefined   any other      the agent's file                 ``Forbidden``                  the agent's file
===========  =============  ===============================  =============================  ==============================

Read without a user, a file is the agent's own. Deleting works like writing: without the copy, the template applies again.
``seed`` copies the templates that a user has no copy of, and ``propagate`` copies a changed template over the copies. A copy that
does not apply, because the agent was open when it was written, stays and applies again if the agent becomes open.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from msgspec import Struct

from ...core import actor_context, text
from ...core import scope as scopes
from ...core.actor_context import ActorContext
from ...core.blocking import Blocking, blocking
from ...core.overlay import OverlayTable
from ...core.queries import Queries
from ...core.records import Limited, check_version
from ...core.rows import Column, mapper
from ...core.scope import Scope
from ...core.store import TenantStore, in_steps, reads, writes_with_actor
from ...engines.heavy_calls import HeavyCall
from ...engines.protocol import Connection, Row
from ...errors import Forbidden, InvalidInput, NotFound
from ...limits import MIB
from ..objects.activity import log_change
from .agents import lock_agent

USER_FILE = "USER.md"
"""The file of which each user of a predefined agent has a copy."""
PROPAGATED_BYTES = 64 * MIB
"""Bytes that one transaction of ``propagate`` writes."""


class ContextFile(Struct, frozen=True):
    """A file of an agent's prompt. ``user`` is empty if it is the agent's own file."""

    agent: Annotated[str, Column("agent_id"), Limited("name_bytes", empty=False)]
    user: Annotated[str, Column("user_id"), Limited("name_bytes")]
    file_name: Annotated[str, Limited("file_name_bytes", empty=False)]
    content: Annotated[str, Limited("context_file_bytes")]
    version: int
    created_at: datetime
    updated_at: datetime


FILES = OverlayTable(
    "context_files",
    ContextFile,
    name_field="file_name",
    level="user",
    noun="context file",
    condition=f"""EXISTS (SELECT 1 FROM agents AS a
              WHERE a.tenant_id = :tenant_id AND a.id = context_files.agent_id AND a.deleted_at IS NULL
                AND (a.agent_type <> 'predefined' OR context_files.user_id = '' OR context_files.file_name = '{USER_FILE}'))""",
)
"""The files that apply."""
queries = Queries(__package__, "context_files.sql", ContextFile)


class AsyncContextFiles(TenantStore):
    """The context files of one tenant's agents. The acting user does not choose the copy: pass ``user``."""

    @reads
    async def get(self, connection: Connection, agent: str, file_name: str, *, user: str | None = None) -> ContextFile:
        """Return a file as it applies to a user; without a user, the agent's own.

        Raises:
            NotFound: the agent or the file does not exist.
        """
        file = await self._find(connection, agent, file_name, user)
        if file is None:
            raise _missing(agent, file_name, user)
        return file

    @reads
    async def find(
        self, connection: Connection, agent: str, file_name: str, *, user: str | None = None
    ) -> ContextFile | None:
        """Return a file as it applies to a user; without a user, the agent's own; or ``None``."""
        return await self._find(connection, agent, file_name, user)

    @reads
    async def list(self, connection: Connection, agent: str, *, user: str | None = None) -> Sequence[ContextFile]:
        """List the files that apply to a user, by name; without a user, the agent's own.

        Raises:
            NotFound: the agent does not exist.
        """
        params = _params(self._scope, agent, user)
        files = await FILES.union(connection, self._scope, _levels(user), equal={"agent": agent})
        if not files:
            await _type_of(connection, params)
        return files

    @writes_with_actor
    async def set(
        self,
        connection: Connection,
        acting: ActorContext,
        agent: str,
        file_name: str,
        content: str,
        *,
        user: str | None = None,
        version: int | None = None,
    ) -> ContextFile:
        """Write a user's copy of a file; without a user, the agent's own file. Create it if it does not exist.

        With ``version``, only if it still has this version; 0 means that it must not exist yet.

        Raises:
            NotFound: the agent does not exist.
            Forbidden: the agent keeps this file for all users: leave ``user`` out.
            Conflict: it has another version.
            LimitExceeded: the content is too large, or there are more than ``context_files``.
        """
        params = _file_params(self._scope, agent, file_name, user) | {"now_at": self._scope.clock.now_us()}
        params |= FILES.params({"content": content}, self._scope.limits)
        await _check_copy(connection, params, file_name, user)
        existing = await self._lock(connection, params)
        if existing is None:
            await lock_agent(connection, {**params, "id": params["agent_id"]})
            existing = await self._lock(connection, params)  # another caller may have created it
        check_version(0 if existing is None else existing.version, version, _named(agent, file_name, user))
        if existing is not None and existing.content == content:
            return existing
        if existing is None:
            row = await queries.count.one(connection, params)
            assert row is not None
            self._scope.limits.check("context_files", row[0] + 1, "context files")
        query = queries.create if existing is None else queries.update
        file = _file(connection, await query.one(connection, params))
        await self._log(connection, acting, "created" if existing is None else "changed", file)
        return file

    @writes_with_actor
    async def delete(
        self,
        connection: Connection,
        acting: ActorContext,
        agent: str,
        file_name: str,
        *,
        user: str | None = None,
        version: int | None = None,
    ) -> None:
        """Delete a user's copy of a file; without a user, the agent's own file. With ``version``, only if it still has that.

        Raises:
            NotFound: the agent or the file does not exist.
            Forbidden: the agent keeps this file for all users: leave ``user`` out.
            Conflict: it has another version.
        """
        params = _file_params(self._scope, agent, file_name, user)
        await _check_copy(connection, params, file_name, user)
        file = await self._lock(connection, params)
        if file is None:
            raise _missing(agent, file_name, user)
        check_version(file.version, version, _named(agent, file_name, user))
        await queries.delete.all(connection, params)
        await self._log(connection, acting, "deleted", file)

    @in_steps
    async def propagate(self, agent: str, file_name: str) -> int:
        """Copy the agent's file over the copies that users have, and return their number. Users without a copy get none.

        Many copies take several transactions, each of them complete; after an interruption, another call copies the rest.

        Raises:
            NotFound: the agent does not exist, or it has no such file of its own.
        """
        params, acting = _file_params(self._scope, agent, file_name), actor_context.now(self._scope)
        count, after = 0, ""
        while True:
            batch = partial(self._propagate, acting=acting, params=params, after=after)
            users = await self._engine.write(HeavyCall(batch))
            if not users:
                return count
            count, after = count + len(users), users[-1]

    @writes_with_actor
    async def seed(self, connection: Connection, acting: ActorContext, agent: str, user: str) -> Sequence[ContextFile]:
        """Copy the templates that a user has no copy of, and return the new copies: on the user's first contact.

        The templates are the agent's own files if it is open; if it is predefined, ``USER.md`` alone.

        Raises:
            NotFound: the agent does not exist.
        """
        return await seed(connection, self._scope, acting, agent, user)

    async def _find(self, connection: Connection, agent: str, file_name: str, user: str | None) -> ContextFile | None:
        _file_params(self._scope, agent, file_name, user)
        return await FILES.first(connection, self._scope, file_name, _levels(user), equal={"agent": agent})

    async def _propagate(
        self, connection: Connection, acting: ActorContext, params: dict[str, Any], after: str
    ) -> Sequence[str]:
        """Copy the agent's file over the next copies; return the users of all of them, including those that were equal."""
        agent_type = await _type_of(connection, params)
        template = await self._lock(connection, params)
        if template is None:
            raise _missing(text.unescape(params["agent_id"]), text.unescape(params["file_name"]), None)
        if not _is_copied(agent_type, template.file_name):
            return []
        content = text.escape(template.content)
        limit = min(self._scope.limits.batch_rows, max(1, PROPAGATED_BYTES // (text.size(content) or 1)))
        page = {**params, "after": after, "limit": limit}
        users = [row[0] for row in await queries.copies.all(connection, page)]
        if users:
            page |= {"content": content, "last": users[-1], "now_at": self._scope.clock.now_us()}
            changed = await queries.overwrite.all(connection, page)
            if changed:
                await self._log(connection, acting, "propagated", template, copies=len(changed))
        return users

    async def _lock(self, connection: Connection, params: dict[str, Any]) -> ContextFile | None:
        row = await queries.lock.one(connection, params)
        return None if row is None else _file(connection, row)

    async def _log(
        self, connection: Connection, acting: ActorContext, action: str, file: ContextFile, **details: Any
    ) -> None:
        await _log(connection, self._scope, acting, action, f"{file.agent}/{file.file_name}", file.user, details)


class ContextFiles(Blocking[AsyncContextFiles]):
    """The context files of one tenant's agents. The acting user does not choose the copy: pass ``user``."""

    get = blocking(AsyncContextFiles.get)
    find = blocking(AsyncContextFiles.find)
    list = blocking(AsyncContextFiles.list)
    set = blocking(AsyncContextFiles.set)
    delete = blocking(AsyncContextFiles.delete)
    propagate = blocking(AsyncContextFiles.propagate)
    seed = blocking(AsyncContextFiles.seed)


async def seed(
    connection: Connection, scope: Scope, acting: ActorContext, agent: str, user: str
) -> Sequence[ContextFile]:
    """Implement ``seed``; for other stores, in their transaction.

    Raises:
        NotFound: the agent does not exist.
    """
    params = _params(scope, agent, None) | {"user_file": USER_FILE, "now_at": scope.clock.now_us()}
    params["user_id"] = scopes.name(user, "user", scope.limits)
    files = mapper(ContextFile, connection.dialect)(await queries.seed.all(connection, params))
    if not files:
        await _type_of(connection, params)
        return []
    files.sort(key=lambda file: file.file_name)
    await _log(connection, scope, acting, "seeded", agent, user, {"files": [file.file_name for file in files]})
    return files


def _params(scope: Scope, agent: str, user: str | None) -> dict[str, Any]:
    """Check the names of an agent and a user, and return them in their stored form."""
    return scope.params(
        agent_id=scopes.name(agent, "agent", scope.limits),
        user_id="" if user is None else scopes.name(user, "user", scope.limits),
    )


def _file_params(scope: Scope, agent: str, file_name: str, user: str | None = None) -> dict[str, Any]:
    """Check the arguments that name a file, and return them in their stored form."""
    stored_name = scopes.name(file_name, "file_name", scope.limits, limit="file_name_bytes")
    # Callers write context files into workspaces: a name must not lead to another directory.
    if file_name in (".", "..") or any(char in "/\\" or not char.isprintable() for char in file_name):
        raise InvalidInput(
            f"file_name must be the name of a file, without a directory, not {file_name!r}", field="file_name"
        )
    return _params(scope, agent, user) | {"file_name": stored_name}


def _levels(user: str | None) -> list[str]:
    return [""] if user is None else [user, ""]


def _is_copied(agent_type: str, file_name: str) -> bool:
    """Return whether each user of an agent of this type has a copy of the file."""
    return agent_type != "predefined" or file_name == USER_FILE


async def _type_of(connection: Connection, params: dict[str, Any]) -> str:
    row = await queries.agent_type.one(connection, params)
    if row is None:
        agent = text.unescape(params["agent_id"])
        raise NotFound(f"agent {agent!r} does not exist", noun="agent", key=agent)
    return text.unescape(row[0])


async def _check_copy(connection: Connection, params: dict[str, Any], file_name: str, user: str | None) -> None:
    """Check that an agent exists and, for a write of a user's copy, that the agent keeps copies of the file."""
    if not _is_copied(await _type_of(connection, params), file_name) and user is not None:
        agent = text.unescape(params["agent_id"])
        raise Forbidden(
            f"{file_name!r} of the predefined agent {agent!r} is kept at agent level, for all users: leave user out."
            f" Only {USER_FILE} can be written for a user",
            reason="agent_level",
        )


async def _log(
    connection: Connection,
    scope: Scope,
    acting: ActorContext,
    action: str,
    subject: str,
    user: str,
    details: dict[str, Any],
) -> None:
    details = {"user": user, **details} if user else details
    subject = text.cut(subject, scope.limits.key_bytes)
    await log_change(connection, scope, acting, f"context_file.{action}", "context_file", subject, details)


def _file(connection: Connection, row: Row | None) -> ContextFile:
    assert row is not None  # the agent or the file is locked
    return mapper(ContextFile, connection.dialect)([row])[0]


def _named(agent: str, file_name: str, user: str | None) -> str:
    return f"context file {file_name!r} of agent {agent!r}" + ("" if user is None else f", user {user!r}")


def _missing(agent: str, file_name: str, user: str | None) -> NotFound:
    return NotFound(f"{_named(agent, file_name, user)} does not exist", noun="context file", key=file_name)
