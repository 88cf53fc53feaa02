"""``HoldfastSaver``: a LangGraph checkpointer for ``invoke`` and ``ainvoke``."""

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
from .retention import ThreadRetention
from .schemas import enable_schema_allowlist
from .serializer import Name, StrictSerializer
from .translate import Translator

enable_schema_allowlist()

T = TypeVar("T")
Config = Any


class HoldfastSaver(BaseCheckpointSaver):
    """Stores the checkpoints of graphs incrementally: a step costs only its new data.

    Synchronous methods use a synchronous handle, and asynchronous methods an asynchronous handle of the running event loop, both
    on the same database. The first call that needs a handle opens it. An in-memory database and a joined synchronous transaction
    have only one connection; with these, asynchronous methods run in threads.

    Args:
        where: a path, ``sqlite:///path``, ``":memory:"`` or ``postgresql://...``; or the handle of a tenant,
            ``hf.tenant("acme")`` of a ``Holdfast`` or an ``AsyncHoldfast``. Your handle serves the calls of its own style, and
            you close it yourself; for the other style the saver opens a handle on the same database. ``close`` or ``aclose``
            closes the handles that the saver opened.
        tenant: the tenant, if ``where`` is an address.
        user: separates the threads of this user from those of other users of the tenant.
        allow: classes of your own that may be serialized, in addition to messages, standard Python types and the types in the
            schemas of a graph.
        single_writer: two processes that drive one thread cannot fork it: the second one gets ``Conflict``. Continuing from an
            older checkpoint still creates a fork, for the subgraphs too. To fence a single call, put the result of
            ``leases.claim`` into the config as ``lease``; then only the holder of that run can write.
        encryption_key: 32 bytes, or their hexadecimal digits or base64. Content is then encrypted, and content that is not
            encrypted is rejected. Of several keys, the first one encrypts and all of them decrypt.
        retention: the checkpoints of a thread that are kept. The default is all.

    Raises:
        InvalidInput: ``where`` is neither an address nor a tenant handle, or a key is invalid.
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
        retention: ThreadRetention | None = None,
        serde: Any = None,
    ) -> None:
        self._database = Database(where, tenant)
        super().__init__(serde=serde or StrictSerializer(allow))
        cipher = None if encryption_key is None else Cipher(encryption_key)
        translator = Translator(user=user, single_writer=single_writer, cipher=cipher)
        self._operations = Operations(translator, retention or ThreadRetention(), self._database.limits)

    def close(self) -> None:
        """Close the handles that this saver opened. The next call opens them again.

        A running event loop closes its own handle shortly afterwards; ``aclose`` waits for it.
        """
        self._database.close()

    async def aclose(self) -> None:
        """Close the handles that this saver opened: that of the running event loop and the synchronous one."""
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
        """Open the database and migrate its schema; otherwise the first call does so."""
        self._database.sync_store()

    async def asetup(self) -> None:
        """``setup`` for asyncio."""
        await self._database.async_store()

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version of a channel: a number, or text in threads whose versions come from another saver."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    # Reading

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return the checkpoint of a config, or the newest one of its thread, with its pending writes."""
        return self._run(self._operations.get_tuple(config, self.serde))

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of one thread, or without a config those of all threads, newest first."""
        listing = self._operations.listing(config, filter, before, limit)
        while not listing.is_over:
            for checkpoint in self._run(listing.next_page()):
                yield listing.tuple_of(checkpoint, self.serde)

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        """Return the writes of a checkpoint's ancestors to some channels, back to the last saved value of each."""
        return self._run(self._operations.history(config, channels, self.serde))

    # Writing

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """Save a checkpoint as the successor of the config's checkpoint.

        Raises:
            Conflict: with ``single_writer``, another writer was first; the message names its checkpoint.
        """
        return self._run(self._operations.put(config, checkpoint, metadata, new_versions, self.serde))

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Save the writes of a task to the config's checkpoint."""
        self._run(self._operations.put_writes(config, writes, task_id, task_path, self.serde))

    # Removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its checkpoints."""
        self._run(self._operations.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, except those that a delta channel of another run needs."""
        self._run(self._operations.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. Both threads share the stored pieces.

        Raises:
            AlreadyExists: the target already has checkpoints.
        """
        self._run(self._operations.copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        """Delete all but the newest ``keep`` checkpoints of every namespace, or with ``"delete"`` all checkpoints.

        Ancestors that a delta channel of a kept checkpoint needs are also kept.
        """
        self._run(self._operations.prune(thread_ids, strategy, keep))

    def retain(self, thread_ids: Sequence[str]) -> int:
        """Delete the checkpoints of threads that the ``retention`` does not keep, and return their number.

        Saving does so periodically. The newest checkpoint of every namespace is kept, with its writes and the ancestors that its
        delta channels need, except in calls of subgraphs that ended before the oldest checkpoint that is kept of the root graph.
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
            for checkpoint in await self._arun(listing.next_page()):
                yield listing.tuple_of(checkpoint, self.serde)

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
        """Execute the calls of an operation on the synchronous handle."""
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
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _arun(self, operation: Operation[T]) -> T:
        """Execute the calls of an operation on the asynchronous handle of the running event loop."""
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
        except StopIteration as stop:
            result: T = stop.value
            return result
