"""Core blocks: the few texts an agent has before its eyes at every turn, such as ``persona`` and ``human``.

They are kept for an agent, saved and loaded as a whole or one by one. Each has a version that rises with every change, and a
size of its own that it cannot outgrow. Whoever changes the blocks of an agent holds the agent, so two changes at once happen
one after the other: nothing that was appended is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.queries import Queries
from ...core.records import check_version
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Conflict, InvalidInput, LimitExceeded, NotFound
from ...limits import Limits
from .agents import has_agent, lock_agent


class Block(Struct, frozen=True):
    """One block of an agent's core memory."""

    agent: Annotated[str, Column("agent_id")]
    label: str
    value: str
    description: str
    limit_bytes: int
    version: int
    created_at: datetime
    updated_at: datetime


class NewBlock(Struct, frozen=True, kw_only=True):
    """A block to save; without ``limit_bytes`` it may grow to ``Limits.block_bytes``."""

    label: str
    value: str = ""
    description: str = ""
    limit_bytes: int | None = None


queries = Queries(__package__, "blocks.sql", Block)


class AsyncBlocks(TenantStore):
    """The core blocks of one tenant's agents."""

    @reads
    async def list(self, connection: Connection, agent_id: str) -> Sequence[Block]:
        """All blocks of an agent, in their order.

        Raises:
            NotFound: there is no such agent.
        """
        params = self._params(agent_id)
        blocks = await _list(connection, params)
        if not blocks and not await has_agent(connection, params):
            raise NotFound(f"there is no agent {agent_id!r} here")
        return blocks

    @reads
    async def get(self, connection: Connection, agent_id: str, label: str) -> Block:
        """One block.

        Raises:
            NotFound: there is none.
        """
        found = await _find(connection, self._params(agent_id, label))
        if found is None:
            raise _missing(agent_id, label)
        return found

    @reads
    async def find(self, connection: Connection, agent_id: str, label: str) -> Block | None:
        """One block, or ``None``."""
        return await _find(connection, self._params(agent_id, label))

    @writes
    async def save(
        self,
        connection: Connection,
        agent_id: str,
        blocks: Sequence[NewBlock],
        *,
        expected: Sequence[Block] | None = None,
    ) -> Sequence[Block]:
        """Make these all the blocks of an agent, in this order; others are removed, and one that stays as it is keeps its
        version.

        With ``expected``, only if its blocks are still those.

        Raises:
            NotFound: there is no such agent.
            Conflict: its blocks are no longer as ``expected``.
            LimitExceeded: there are too many, or one is larger than it may be.
        """
        stored = [self._stored(block) for block in _check_list(blocks)]
        self._scope.limits.check("blocks", len(stored), "blocks")
        if len({block["label"] for block in stored}) < len(stored):
            raise InvalidInput("two blocks have the same label")
        params = self._at_now(agent_id)
        await lock_agent(connection, params)
        there = {block.label: block for block in await _list(connection, params)}
        if expected is not None and _versions(there.values()) != _versions(_check_list(expected, Block)):
            raise Conflict(f"the blocks of agent {agent_id!r} have been changed since; read them again")
        for label in there.keys() - {text.unescape(block["label"]) for block in stored}:
            await queries.delete.all(connection, {**params, "label": text.escape(label)})
        for place, block in enumerate(stored, 1):
            await _write(connection, {**params, **block}, there.get(text.unescape(block["label"])))
            await queries.put.all(connection, {**params, **block, "place": place})
        return await _list(connection, params)

    @writes
    async def set(
        self,
        connection: Connection,
        agent_id: str,
        label: str,
        value: str,
        *,
        description: str | None = None,
        limit_bytes: int | None = None,
        version: int | None = None,
    ) -> Block:
        """Give a block this value; made if it is not there. What else is not given stays.

        With ``version``, only if it is still that one; 0 means that it must not be there yet.

        Raises:
            NotFound: there is no such agent.
            Conflict: it has another version by now.
            LimitExceeded: the value is larger than the block may be.
        """
        params = self._at_now(agent_id, label)
        await lock_agent(connection, params)
        there = await _find(connection, params)
        check_version(0 if there is None else there.version, version, f"block {label!r} of agent {agent_id!r}")
        if there is not None:
            description = there.description if description is None else description
            limit_bytes = there.limit_bytes if limit_bytes is None else limit_bytes
        new = NewBlock(label=label, value=value, description=description or "", limit_bytes=limit_bytes)
        return await self._save_block(connection, params, new, there)

    @writes
    async def append(
        self, connection: Connection, agent_id: str, label: str, value: str, *, separator: str = "\n"
    ) -> Block:
        """Add to the end of a block; made if it is not there. Of several at once, none is lost.

        Raises:
            NotFound: there is no such agent.
            LimitExceeded: the block would be larger than it may be.
        """
        if not isinstance(value, str) or not isinstance(separator, str):
            raise InvalidInput("what is appended to a block must be text")
        params = self._at_now(agent_id, label)
        await lock_agent(connection, params)
        there = await _find(connection, params)
        if there is None:
            return await self._save_block(connection, params, NewBlock(label=label, value=value), None)
        whole = f"{there.value}{separator}{value}" if there.value else value
        new = NewBlock(label=label, value=whole, description=there.description, limit_bytes=there.limit_bytes)
        return await self._save_block(connection, params, new, there)

    @writes
    async def delete(self, connection: Connection, agent_id: str, label: str, *, version: int | None = None) -> None:
        """Remove a block. With ``version``, only if it is still that one.

        Raises:
            NotFound: there is no such agent, or it has no such block.
            Conflict: the block has another version by now.
        """
        params = self._params(agent_id, label)
        await lock_agent(connection, params)
        there = await _find(connection, params)
        if there is None:
            raise _missing(agent_id, label)
        check_version(there.version, version, f"block {label!r} of agent {agent_id!r}")
        await queries.delete.all(connection, params)

    async def _save_block(
        self, connection: Connection, params: dict[str, Any], new: NewBlock, there: Block | None
    ) -> Block:
        stored = self._stored(new)
        if there is None:
            self._scope.limits.check("blocks", len(await _list(connection, params)) + 1, "blocks")
        return await _write(connection, {**params, **stored}, there)

    def _stored(self, block: NewBlock) -> dict[str, Any]:
        """A block, checked and in the form that is stored."""
        limits = self._scope.limits
        limit_bytes = limits.block_bytes if block.limit_bytes is None else _size(block.limit_bytes, limits)
        value = scopes.free_text(block.value, "the value of a block", limits, limit="block_bytes")
        if text.size(value) > limit_bytes:
            raise LimitExceeded(
                f"block {block.label!r}: {text.size(value):,} bytes are over its limit_bytes = {limit_bytes:,}"
            )
        return {
            "label": scopes.name(block.label, "label", limits),
            "value": value,
            "description": scopes.free_text(block.description, "description", limits),
            "limit_bytes": limit_bytes,
        }

    def _params(self, agent_id: str, label: str | None = None) -> dict[str, Any]:
        limits = self._scope.limits
        params = self._scope.params(id=scopes.name(agent_id, "agent id", limits))
        if label is not None:
            params["label"] = scopes.name(label, "label", limits)
        return params

    def _at_now(self, agent_id: str, label: str | None = None) -> dict[str, Any]:
        return {**self._params(agent_id, label), "now_at": self._scope.clock.now_us()}


class Blocks(Blocking[AsyncBlocks]):
    """The core blocks of one tenant's agents."""

    list = blocking(AsyncBlocks.list)
    get = blocking(AsyncBlocks.get)
    find = blocking(AsyncBlocks.find)
    save = blocking(AsyncBlocks.save)
    set = blocking(AsyncBlocks.set)
    append = blocking(AsyncBlocks.append)
    delete = blocking(AsyncBlocks.delete)


async def _list(connection: Connection, params: dict[str, Any]) -> list[Block]:
    return mapper(Block, connection.dialect)(await queries.list.all(connection, params))


async def _find(connection: Connection, params: dict[str, Any]) -> Block | None:
    row = await queries.get.one(connection, params)
    return None if row is None else _block(connection, row)


async def _write(connection: Connection, params: dict[str, Any], there: Block | None) -> Block:
    """Make a block, or change it if anything differs."""
    if there is not None:
        new = (text.unescape(params["value"]), text.unescape(params["description"]), params["limit_bytes"])
        if new == (there.value, there.description, there.limit_bytes):
            return there
    query = queries.create if there is None else queries.update
    row = await query.one(connection, params)
    assert row is not None  # its agent is held
    return _block(connection, row)


def _versions(blocks: Any) -> list[tuple[str, int]]:
    return sorted((block.label, block.version) for block in blocks)


def _check_list(blocks: Any, kind: type[Struct] = NewBlock) -> Any:
    if (
        isinstance(blocks, (str, bytes))
        or not isinstance(blocks, Sequence)
        or not all(isinstance(block, kind) for block in blocks)
    ):
        raise InvalidInput(f"blocks must be a list of {kind.__name__}")
    return blocks


def _size(limit_bytes: int, limits: Limits) -> int:
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 1:
        raise InvalidInput(f"limit_bytes must be a whole number from 1 on, not {limit_bytes!r}")
    limits.check("block_bytes", limit_bytes, "limit_bytes")
    return limit_bytes


def _block(connection: Connection, row: Row) -> Block:
    return mapper(Block, connection.dialect)([row])[0]


def _missing(agent_id: str, label: str) -> NotFound:
    return NotFound(f"agent {agent_id!r} has no block {label!r}")
