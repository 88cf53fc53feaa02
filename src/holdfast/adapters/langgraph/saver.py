"""``HoldfastSaver``: one object that keeps the checkpoints of graphs, for ``invoke`` and ``ainvoke`` alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from holdfast import AsyncTenantHandle, TenantHandle
from holdfast.encryption import Keys
from holdfast.errors import HoldfastError

from .database import Database
from .encryption import Cipher
from .operations import Operation, Operations
from .retention import Retention
from .schemas import ask_for_schemas
from .serializer import Name, StrictSerializer
from .translate import Translator

ask_for_schemas()

T = TypeVar("T")
Config = Any


class HoldfastSaver(BaseCheckpointSaver):
    """Checkpoints of graphs, in which a step costs what is new in it.

    Synchronous methods use a synchronous handle, asynchronous ones an asynchronous handle of the running event loop, both on the
    same database. A handle is opened by the first call that needs it. A database in memory has one connection: there,
    and in a synchronous transaction of your own, asynchronous methods run in threads.

    Args:
        where: a path, ``sqlite:///path``, ``":memory:"`` or ``postgresql://...``; or the handle of a tenant,
            ``hf.tenant("acme")`` of a ``Holdfast`` or an ``AsyncHoldfast``. Your handle serves the calls of its own style, and
            stays yours; for the other style the saver opens one on the same database. ``close`` or ``aclose`` closes
            the handles that the saver opened.
        tenant: whose checkpoints, where ``where`` is an address.
        user: keeps the threads of this user apart from everybody else's in the tenant.
        allow: classes of your own that may be saved and read, beside messages, the types of Python's own library, and those
            that the schemas of a graph name.
        single_writer: two processes that drive one thread cannot fork it: the one that comes second gets ``Conflict``.
            Going back to an older checkpoint still forks, for the subgraphs too. The same for one call: put what
            ``leases.claim`` gave into the config as ``lease``; then only the holder of that run can write.
        encryption_key: 32 bytes, or as hexadecimal digits or base64; then content is encrypted, and nothing else is read.
            Of several keys, the first one encrypts and all of them decrypt.
        retention: what is kept of a thread; without it, everything.

    Raises:
        InvalidInput: ``where`` is neither an address nor the handle of a tenant, or the key is none.
    """

    def __init__(
        self,
        where: str | TenantHandle | AsyncTenantHandle,
        *,
        tenant: str = "default",
        user: str | None = None,
        allow: Iterable[type | Name] = (),
        single_writer: bool = False,
        encryption_key: Keys | None = None,
        retention: Retention | None = None,
        serde: Any = None,
    ) -> None:
        self._database = Database(where, tenant)
        super().__init__(serde=serde or StrictSerializer(allow))
        cipher = None if encryption_key is None else Cipher(encryption_key)
        translator = Translator(user=user, single_writer=single_writer, cipher=cipher)
        self._operations = Operations(translator, retention or Retention(), self._database.limits)

    def close(self) -> None:
        """Close the handles that this saver opened; the next call opens them again.

        The handle of a running event loop is closed by that loop, a moment later; ``aclose`` waits for it.
        """
        self._database.close()

    async def aclose(self) -> None:
        """Close the handles that this saver opened, of the running event loop and the synchronous one."""
        await self._database.aclose()
        await asyncio.to_thread(self._database.close)

    def __enter__(self) -> HoldfastSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> HoldfastSaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def setup(self) -> None:
        """Open the database and bring its schema up to date; the first call does it too."""
        self._database.sync_store()

    async def asetup(self) -> None:
        """``setup`` for asyncio."""
        await self._database.async_store()

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version of a channel after this one: a number, or the text that other savers use, where a thread has that."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    # Reading

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """The checkpoint a config speaks of, or the newest of its thread, with the writes to it."""
        return self._run(self._operations.get_tuple(config, self.serde))

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest first; of one thread, or with no config of all."""
        listing = self._operations.listing(config, filter, before, limit)
        while not listing.is_over:
            for found in self._run(listing.next_page()):
                yield listing.tuple_of(found, self.serde)

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        """What the ancestors of a checkpoint wrote to some channels, back to the last saved value of each."""
        return self._run(self._operations.history(config, channels, self.serde))

    # Writing

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """Save a checkpoint after the one the config speaks of.

        Raises:
            Conflict: with ``single_writer``, another writer was first; the message names its checkpoint.
        """
        return self._run(self._operations.put(config, checkpoint, metadata, new_versions, self.serde))

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Save what a task wrote to the checkpoint the config speaks of."""
        self._run(self._operations.put_writes(config, writes, task_id, task_path, self.serde))

    # Removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with everything in it."""
        self._run(self._operations.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs, except those that a delta channel of another run needs."""
        self._run(self._operations.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. Nothing it consists of is copied: both threads share it.

        Raises:
            AlreadyExists: the target has checkpoints of its own.
        """
        self._run(self._operations.copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        """Remove all but the newest ``keep`` checkpoints of every namespace, or with ``"delete"`` all of them.

        Ancestors that a delta channel of a kept checkpoint needs are kept as well.
        """
        self._run(self._operations.prune(thread_ids, strategy, keep))

    def retain(self, thread_ids: Sequence[str]) -> int:
        """Remove what the ``retention`` does not keep of these threads; how many checkpoints that were.

        Saving does it too, now and then. The newest checkpoint of every namespace stays, with what is written to it and what
        its delta channels need, except in calls of subgraphs that ended before all that is kept of the graph itself.
        """
        return self._run(self._operations.retain(thread_ids))

    # The same for asyncio

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """``get_tuple`` for asyncio."""
        return await self._arun(self._operations.get_tuple(config, self.serde))

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """``list`` for asyncio."""
        listing = self._operations.listing(config, filter, before, limit)
        while not listing.is_over:
            for found in await self._arun(listing.next_page()):
                yield listing.tuple_of(found, self.serde)

    async def aget_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        """``get_delta_channel_history`` for asyncio."""
        return await self._arun(self._operations.history(config, channels, self.serde))

    async def aput(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """``put`` for asyncio."""
        return await self._arun(self._operations.put(config, checkpoint, metadata, new_versions, self.serde))

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """``put_writes`` for asyncio."""
        await self._arun(self._operations.put_writes(config, writes, task_id, task_path, self.serde))

    async def adelete_thread(self, thread_id: str) -> None:
        """``delete_thread`` for asyncio."""
        await self._arun(self._operations.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """``delete_for_runs`` for asyncio."""
        await self._arun(self._operations.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """``copy_thread`` for asyncio."""
        await self._arun(self._operations.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        """``prune`` for asyncio."""
        await self._arun(self._operations.prune(thread_ids, strategy, keep))

    async def aretain(self, thread_ids: Sequence[str]) -> int:
        """``retain`` for asyncio."""
        return await self._arun(self._operations.retain(thread_ids))

    def _run(self, operation: Operation[T]) -> T:
        """Carry out the calls of an operation on the synchronous handle."""
        try:
            call = next(operation)
            store = self._database.sync_store()
            while True:
                try:
                    answer = getattr(store, call.method)(**call.arguments)
                except HoldfastError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _arun(self, operation: Operation[T]) -> T:
        """Carry out the calls of an operation on the asynchronous handle of the running event loop."""
        try:
            call = next(operation)
            store = await self._database.async_store()
            while True:
                try:
                    answer = await getattr(store, call.method)(**call.arguments)
                except HoldfastError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
