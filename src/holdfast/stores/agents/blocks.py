"""Core blocks: the short texts that are part of an agent's prompt at every turn, such as ``persona`` and ``human``.

The blocks of an agent are saved and loaded together or one by one. Each has a version, which every change increases, and a size
limit of its own. Every change locks the agent, so concurrent changes run one after the other and no append is lost.
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
    """A block to save. Without ``limit_bytes``, its limit is ``Limits.block_bytes``."""

    label: str
    value: str = ""
    description: str = ""
    limit_bytes: int | None = None


queries = Queries(__package__, "blocks.sql", Block)


class AsyncBlocks(TenantStore):
    """The core blocks of one tenant's agents."""

    @reads
    async def list(self, connection: Connection, agent_id: str) -> Sequence[Block]:
        """List the blocks of an agent in their order.

        Raises:
            NotFound: the agent does not exist.
        """
        params = self._params(agent_id)
        blocks = await _list(connection, params)
        if not blocks and not await has_agent(connection, params):
            raise NotFound(f"agent {agent_id!r} does not exist", noun="agent", key=agent_id)
        return blocks

    @reads
    async def get(self, connection: Connection, agent_id: str, label: str) -> Block:
        """Return one block.

        Raises:
            NotFound: the agent or the block does not exist.
        """
        block = await _find(connection, self._params(agent_id, label))
        if block is None:
            raise _missing(agent_id, label)
        return block

    @reads
    async def find(self, connection: Connection, agent_id: str, label: str) -> Block | None:
        """Return one block, or ``None``."""
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
        """Replace all blocks of an agent by these, in this order. Other blocks are deleted; unchanged ones keep their version.

        With ``expected``, only if the agent's blocks still have these versions.

        Raises:
            NotFound: the agent does not exist.
            Conflict: the agent's blocks are not those of ``expected``.
            LimitExceeded: there are too many blocks, or one is over its size limit.
        """
        rows = [self._row(row) for row in _check_list(blocks)]
        self._scope.limits.check("blocks", len(rows), "blocks")
        if len({row["label"] for row in rows}) < len(rows):
            raise InvalidInput("two blocks have the same label", field="blocks")
        params = self._params_now(agent_id)
        await lock_agent(connection, params)
        existing = {row.label: row for row in await _list(connection, params)}
        if expected is not None and _versions(existing.values()) != _versions(_check_list(expected, Block)):
            raise Conflict(
                f"the blocks of agent {agent_id!r} were changed after they were read; read them again", reason="changed"
            )
        for label in existing.keys() - {text.unescape(row["label"]) for row in rows}:
            await queries.delete.all(connection, {**params, "label": text.escape(label)})
        for position, row in enumerate(rows, 1):
            await _write(connection, {**params, **row}, existing.get(text.unescape(row["label"])))
            await queries.put.all(connection, {**params, **row, "place": position})
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
        """Set the value of a block; create the block if it does not exist. Arguments that are not given stay unchanged.

        With ``version``, only if the block still has this version; 0 means that it must not exist yet.

        Raises:
            NotFound: the agent does not exist.
            Conflict: the block has another version.
            LimitExceeded: the value is over the block's size limit.
        """
        params = self._params_now(agent_id, label)
        await lock_agent(connection, params)
        existing = await _find(connection, params)
        check_version(0 if existing is None else existing.version, version, f"block {label!r} of agent {agent_id!r}")
        if existing is not None:
            description = existing.description if description is None else description
            limit_bytes = existing.limit_bytes if limit_bytes is None else limit_bytes
        block = NewBlock(label=label, value=value, description=description or "", limit_bytes=limit_bytes)
        return await self._save_block(connection, params, block, existing)

    @writes
    async def append(
        self, connection: Connection, agent_id: str, label: str, value: str, *, separator: str = "\n"
    ) -> Block:
        """Append to a block; create the block if it does not exist. No concurrent append is lost.

        Raises:
            NotFound: the agent does not exist.
            LimitExceeded: the block would be over its size limit.
        """
        if not isinstance(value, str) or not isinstance(separator, str):
            raise InvalidInput("value and separator must be text", field="value")
        params = self._params_now(agent_id, label)
        await lock_agent(connection, params)
        existing = await _find(connection, params)
        if existing is None:
            return await self._save_block(connection, params, NewBlock(label=label, value=value), None)
        new_value = f"{existing.value}{separator}{value}" if existing.value else value
        block = NewBlock(
            label=label, value=new_value, description=existing.description, limit_bytes=existing.limit_bytes
        )
        return await self._save_block(connection, params, block, existing)

    @writes
    async def delete(self, connection: Connection, agent_id: str, label: str, *, version: int | None = None) -> None:
        """Delete a block. With ``version``, only if the block still has this version.

        Raises:
            NotFound: the agent or the block does not exist.
            Conflict: the block has another version.
        """
        params = self._params(agent_id, label)
        await lock_agent(connection, params)
        existing = await _find(connection, params)
        if existing is None:
            raise _missing(agent_id, label)
        check_version(existing.version, version, f"block {label!r} of agent {agent_id!r}")
        await queries.delete.all(connection, params)

    async def _save_block(
        self, connection: Connection, params: dict[str, Any], block: NewBlock, existing: Block | None
    ) -> Block:
        row = self._row(block)
        if existing is None:
            self._scope.limits.check("blocks", len(await _list(connection, params)) + 1, "blocks")
        return await _write(connection, {**params, **row}, existing)

    def _row(self, block: NewBlock) -> dict[str, Any]:
        """Check a block and return its column values."""
        limits = self._scope.limits
        limit_bytes = limits.block_bytes if block.limit_bytes is None else _check_limit_bytes(block.limit_bytes, limits)
        value = scopes.free_text(block.value, "value", limits, limit="block_bytes")
        if text.size(value) > limit_bytes:
            raise LimitExceeded(
                f"block {block.label!r}: {text.size(value):,} bytes are over its limit_bytes = {limit_bytes:,}",
                field="value",
                limit="limit_bytes",
                maximum=limit_bytes,
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

    def _params_now(self, agent_id: str, label: str | None = None) -> dict[str, Any]:
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


async def _write(connection: Connection, params: dict[str, Any], existing: Block | None) -> Block:
    """Create a block, or update it if anything differs."""
    if existing is not None:
        new_values = (text.unescape(params["value"]), text.unescape(params["description"]), params["limit_bytes"])
        if new_values == (existing.value, existing.description, existing.limit_bytes):
            return existing
    query = queries.create if existing is None else queries.update
    row = await query.one(connection, params)
    assert row is not None  # its agent is locked
    return _block(connection, row)


def _versions(blocks: Any) -> list[tuple[str, int]]:
    return sorted((block.label, block.version) for block in blocks)


def _check_list(blocks: Any, kind: type[Struct] = NewBlock) -> Any:
    if (
        isinstance(blocks, (str, bytes))
        or not isinstance(blocks, Sequence)
        or not all(isinstance(block, kind) for block in blocks)
    ):
        raise InvalidInput(f"blocks must be a list of {kind.__name__}", field="blocks")
    return blocks


def _check_limit_bytes(limit_bytes: int, limits: Limits) -> int:
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 1:
        raise InvalidInput(f"limit_bytes must be a whole number from 1 on, not {limit_bytes!r}", field="limit_bytes")
    limits.check("block_bytes", limit_bytes, "limit_bytes")
    return limit_bytes


def _block(connection: Connection, row: Row) -> Block:
    return mapper(Block, connection.dialect)([row])[0]


def _missing(agent_id: str, label: str) -> NotFound:
    return NotFound(f"block {label!r} of agent {agent_id!r} does not exist", noun="block", key=label)
