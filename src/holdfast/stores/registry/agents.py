"""Agents: who acts in a session and how, as it was defined.

An agent has an id, which is any name of the caller's choosing, and a version, which rises with every change. Its runs and
sessions name it by its id and need no definition; its core blocks of memory do, and are deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, Conflict, InvalidInput, LimitExceeded, NotFound
from ...limits import Limits
from ..objects.registration import register_tenant


class Agent(Struct, frozen=True):
    """A definition. ``model`` and ``system`` are empty where it has none of its own."""

    id: str
    name: str
    agent_type: str
    description: str
    model: str
    system: str
    tool_ids: list[str]
    tags: list[str]
    metadata: dict[str, Any]
    version: int
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "agents.sql", Agent)


class AsyncAgents(TenantStore):
    """The agents of one tenant."""

    @writes
    async def create(
        self,
        connection: Connection,
        name: str,
        *,
        id: str | None = None,
        agent_type: str = "open",
        description: str = "",
        model: str = "",
        system: str = "",
        tool_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Agent:
        """A new agent. Without an id it gets one.

        With an ``id`` of the caller's the call can be repeated: the same id with the same definition returns what is there.

        Raises:
            AlreadyExists: there is another agent with this id.
        """
        stored = _stored(
            self._scope.limits,
            name=name,
            agent_type=agent_type,
            description=description,
            model=model,
            system=system,
            tool_ids=tool_ids,
            tags=tags,
            metadata=metadata,
        )
        params = self._at_now(self._scope.ids.new() if id is None else id, **stored)
        await register_tenant(connection, params)
        row = await queries.create.one(connection, params)
        if row is not None:
            await _add_tags(connection, params)
            return _agent(connection, row)
        there = await find_agent(connection, params)
        if there is None or not _same(there, stored):
            raise AlreadyExists(f"there is another agent with the id {id!r}; update it or upsert it")
        return there

    @writes
    async def upsert(
        self,
        connection: Connection,
        agent_id: str,
        *,
        name: str,
        agent_type: str = "open",
        description: str = "",
        model: str = "",
        system: str = "",
        tool_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Agent:
        """The agent with this id, made or wholly changed to what is given. What changes nothing leaves the version alone."""
        stored = _stored(
            self._scope.limits,
            name=name,
            agent_type=agent_type,
            description=description,
            model=model,
            system=system,
            tool_ids=tool_ids,
            tags=tags,
            metadata=metadata,
        )
        params = self._at_now(agent_id, **stored)
        await register_tenant(connection, params)
        row = await queries.create.one(connection, params)
        if row is not None:
            await _add_tags(connection, params)
            return _agent(connection, row)
        return await _change(connection, await lock_agent(connection, params), params, stored)

    @reads
    async def get(self, connection: Connection, agent_id: str) -> Agent:
        """One agent.

        Raises:
            NotFound: there is none.
        """
        found = await find_agent(connection, self._params(agent_id))
        if found is None:
            raise _missing(agent_id)
        return found

    @reads
    async def find(self, connection: Connection, agent_id: str) -> Agent | None:
        """One agent, or ``None``."""
        return await find_agent(connection, self._params(agent_id))

    @reads
    async def list(
        self, connection: Connection, *, tag: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[Agent]:
        """All agents, or those with a tag, in the order of their ids. With ``limit``, a page; its ``next`` is the cursor of the
        one after.

        Raises:
            InvalidFilter: the cursor is not understood.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        (after,) = decode_cursor(cursor, "agents", str) if cursor is not None else ("",)
        params = self._scope.params(after=text.escape(after), limit=rows_to_read(limit, limits))
        query = queries.list
        if tag is not None:
            query, params["tag"] = queries.list_tagged, scopes.name(tag, "tag", limits)
        agents = mapper(Agent, connection.dialect)(await query.all(connection, params))
        if limit is None and len(agents) > limits.list_rows:
            raise LimitExceeded(f"there are more than list_rows = {limits.list_rows:,} agents: page them with limit=")
        if limit is None or len(agents) <= limit:
            return Page(agents)
        return Page(agents[:limit], encode_cursor("agents", agents[limit - 1].id))

    @writes
    async def update(
        self,
        connection: Connection,
        agent_id: str,
        *,
        name: str | None = None,
        agent_type: str | None = None,
        description: str | None = None,
        model: str | None = None,
        system: str | None = None,
        tool_ids: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> Agent:
        """Change what is given; an empty text takes a model or a prompt away. With ``version``, only if it is still that one.

        Raises:
            NotFound: there is no such agent.
            Conflict: it has another version by now.
        """
        changes = {
            "name": name,
            "agent_type": agent_type,
            "description": description,
            "model": model,
            "system": system,
            "tool_ids": tool_ids,
            "tags": tags,
            "metadata": metadata,
        }
        given = {field: value for field, value in changes.items() if value is not None}
        stored = _stored(self._scope.limits, **given)
        params = self._at_now(agent_id)
        there = await lock_agent(connection, params)
        check_version(there.version, version, f"agent {agent_id!r}")
        return await _change(connection, there, params, stored)

    @writes
    async def delete(self, connection: Connection, agent_id: str, *, version: int | None = None) -> None:
        """Remove an agent with its core blocks. With ``version``, only if it is still that one.

        Its sessions and runs stay: they name it and need no definition.

        Raises:
            NotFound: there is no such agent.
            Conflict: it has another version by now.
        """
        params = self._params(agent_id)
        there = await lock_agent(connection, params)
        check_version(there.version, version, f"agent {agent_id!r}")
        await queries.delete_tags.all(connection, params)
        await queries.delete_blocks.all(connection, params)
        await queries.delete.all(connection, params)

    def _params(self, agent_id: str) -> dict[str, Any]:
        return self._scope.params(id=scopes.name(agent_id, "agent id", self._scope.limits))

    def _at_now(self, agent_id: str, **values: Any) -> dict[str, Any]:
        return {**self._params(agent_id), "now_at": self._scope.clock.now_us(), **values}


class Agents(Blocking[AsyncAgents]):
    """The agents of one tenant."""

    create = blocking(AsyncAgents.create)
    upsert = blocking(AsyncAgents.upsert)
    get = blocking(AsyncAgents.get)
    find = blocking(AsyncAgents.find)
    list = blocking(AsyncAgents.list)
    update = blocking(AsyncAgents.update)
    delete = blocking(AsyncAgents.delete)


async def find_agent(connection: Connection, params: Mapping[str, Any]) -> Agent | None:
    """One agent, or ``None``; for other stores too."""
    row = await queries.get.one(connection, params)
    return None if row is None else _agent(connection, row)


async def lock_agent(connection: Connection, params: Mapping[str, Any]) -> Agent:
    """One agent, held until the transaction ends, so that what belongs to it is changed by one at a time; for other stores
    too.

    Raises:
        NotFound: there is none.
    """
    row = await queries.lock.one(connection, params)
    if row is None:
        raise _missing(text.unescape(params["id"]))
    return _agent(connection, row)


def check_version(there: int, expected: int | None, what: str) -> None:
    """Refuse a change that was made for another version; for other stores too.

    Raises:
        Conflict: it was.
    """
    if expected is None:
        return
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise InvalidInput(f"version must be a whole number, not {expected!r}")
    if there != expected:
        raise Conflict(f"{what} is at version {there} by now, not {expected}; read it again")


async def _change(connection: Connection, there: Agent, params: Mapping[str, Any], changes: Mapping[str, Any]) -> Agent:
    """Write what differs, if anything does."""
    if _same(there, changes):
        return there
    kept = {field: text.dump(getattr(there, field)) for field in ("tool_ids", "tags", "metadata")}
    kept |= {field: text.escape(getattr(there, field)) for field in _TEXTS}
    whole = {**params, **kept, **changes}
    row = await queries.update.one(connection, whole)
    assert row is not None  # it is held
    if "tags" in changes:
        await queries.delete_tags.all(connection, whole)
        await _add_tags(connection, whole)
    return _agent(connection, row)


async def _add_tags(connection: Connection, params: Mapping[str, Any]) -> None:
    tags = [text.escape(tag) for tag in text.load(params["tags"])]
    if tags:
        await queries.add_tag.many(connection, [{**params, "tag": tag} for tag in tags])


_TEXTS = ("name", "agent_type", "description", "model", "system")


def _stored(limits: Limits, **given: Any) -> dict[str, Any]:
    """What was given, checked and in the form that is stored."""
    stored: dict[str, Any] = {}
    for field, value in given.items():
        if field == "metadata":
            stored[field] = scopes.metadata(value, limits)
        elif field in ("tool_ids", "tags"):
            stored[field] = _names(value, field, limits)
        elif field in ("name", "agent_type"):
            stored[field] = scopes.name(value, field, limits)
        else:
            stored[field] = scopes.free_text(value, field, limits, limit=_SIZES[field])
    return stored


_SIZES = {"description": "text_bytes", "model": "name_bytes", "system": "system_bytes"}


def _names(values: object, what: str, limits: Limits) -> str:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{what} must be a list of names")
    limits.check({"tool_ids": "tools", "tags": "tags"}[what], len(values), what)
    for value in values:
        scopes.name(value, what, limits)
    return text.dump(list(dict.fromkeys(values)))  # each once, in the order given


def _same(there: Agent, stored: Mapping[str, Any]) -> bool:
    """Whether an agent is already what was given."""
    for field, value in stored.items():
        given = text.unescape(value) if field in _TEXTS else text.load(value)
        if not text.identical(given, getattr(there, field)):
            return False
    return True


def _agent(connection: Connection, row: Row) -> Agent:
    return mapper(Agent, connection.dialect)([row])[0]


def _missing(agent_id: str) -> NotFound:
    return NotFound(f"there is no agent {agent_id!r} here")
