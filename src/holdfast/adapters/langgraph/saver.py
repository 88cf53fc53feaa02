"""``HoldfastSaver``: one object that keeps the checkpoints of graphs, for ``invoke`` and ``ainvoke`` alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)

from holdfast import Checkpoint, Page, Stored, TenantHandle
from holdfast.clock import Stopwatch
from holdfast.encryption import Keys
from holdfast.errors import InvalidInput, NotFound, Stale, Unavailable
from holdfast.haste import BUSY_WAIT_S, Pace, WouldWait, can_hurry, hastily

from .company import Company
from .encryption import Cipher
from .fencing import Failures
from .memory import THREADS_MOST, Memory
from .opening import Opening
from .requests import Request, Requests, Task, thread_of
from .retention import Retention
from .schemas import ask_for_schemas
from .serializer import Name, StrictSerializer

ask_for_schemas()

T = TypeVar("T")
Config = Any
RETAIN_EVERY = 32
"""Checkpoints of a thread after which what need not be kept is removed."""
LONG_S = 0.05
"""A call that takes longer is not made in the event loop the next dozen times, whatever it did."""
ANCESTORS_FIRST, ANCESTORS_AT_ONCE = 16, 1_024
"""Ancestors that are read at a time where the store does not know how far back a value is: few at first, then more."""
PAGE = 50
"""Checkpoints that are read at a time when they are listed."""


class HoldfastSaver(BaseCheckpointSaver):
    """Checkpoints of graphs, in which a step costs what is new in it.

    Args:
        where: a path, ``sqlite:///path``, ``":memory:"`` or ``postgresql://...``, which is opened when it is first needed and
            let go of by ``close``; or the handle of a tenant, ``hf.tenant("acme")``, which stays yours.
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
        where: str | TenantHandle,
        *,
        tenant: str = "default",
        user: str | None = None,
        allow: Iterable[type | Name] = (),
        single_writer: bool = False,
        encryption_key: Keys | None = None,
        retention: Retention | None = None,
        serde: Any = None,
    ) -> None:
        if not isinstance(where, (str, TenantHandle)):
            raise InvalidInput(f"HoldfastSaver takes a path, a URL or hf.tenant(name), not {type(where).__name__}")
        super().__init__(serde=serde or StrictSerializer(allow))
        self._opening = Opening(where, tenant)
        cipher = None if encryption_key is None else Cipher(encryption_key)
        self._requests = Requests(user=user, single_writer=single_writer, cipher=cipher)
        self._retention = retention or Retention()
        self._counting = Lock()
        self._puts: dict[str, int] = {}
        self._pace = Pace()
        self._company = Company()
        self._failures = Failures()

    def close(self) -> None:
        """Let go of the database, if this saver has opened it. It is opened again when it is needed."""
        self._opening.close()

    def __enter__(self) -> HoldfastSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> HoldfastSaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def setup(self) -> None:
        """Open the database and bring its schema up to date; the first call does it too."""
        self._store()

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version of a channel after this one: a number, or the text that other savers use, where a thread has that."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    # Reading

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """The checkpoint a config speaks of, or the newest of its thread, with the writes to it."""
        request = self._requests.find(config)
        found = self._store().find(**request.arguments)
        if found is None:
            return None
        after = self._requests.after(request)
        for newest in () if after is None else self._store().list(**after):
            self._requests.choose(request.arguments, found.id, newest.id)
        return self._requests.tuple_of(found, self.serde, request)

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest first; of one thread, or with no config of all."""
        cursor, left, seen = None, limit, Memory(follows=False)
        while left is None or left > 0:
            page = self._page(config, filter, before, left, cursor)
            if cursor is None:
                self._choose(config, before, limit, page)
            yield from (self._requests.listed(each, self.serde, seen) for each in page)
            left, cursor = None if left is None else left - len(page), page.next
            if cursor is None:
                return

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        """What the ancestors of a checkpoint wrote to some channels, back to the last saved value of each."""
        if not channels:
            return {}
        return self._requests.history(self._ancestors(config, channels), channels, self.serde)

    # Writing

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """Save a checkpoint after the one the config speaks of.

        Raises:
            Conflict: with ``single_writer``, another writer was first; the message names its checkpoint.
        """
        with self._failures.noticed(config):
            return self._put_with((), config, checkpoint, metadata, new_versions)

    def _put_with(
        self, written: Sequence[Task], config: Config, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> Config:
        """Save a checkpoint, and in the same transaction what tasks wrote."""
        stored = get_serializable_checkpoint_metadata(config, metadata)

        def step(remembering: bool) -> Request:
            new = self._requests.put(
                config, checkpoint, stored, self.serde, new_versions or {}, remembering=remembering
            )
            for task in written:
                self._requests.add(new, task, self.serde, remembering=remembering)
            return new

        with self._requests.turn(config, alone=True):
            request = self._save(self._store().put, step)
        self._retain_now_and_then(request.arguments["thread_id"], request.arguments["namespace"])
        return request.config(checkpoint["id"])

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Save what a task wrote to the checkpoint the config speaks of."""
        task = Task(config, writes, task_id, task_path)
        with self._failures.noticed(config), self._requests.turn(config, alone=False):
            self._save(
                self._store().put_writes,
                lambda remembering: self._requests.put_writes(task, self.serde, remembering=remembering),
            )

    def _save(self, save: Callable[..., Stored], step: Callable[[bool], Request]) -> Request:
        """Save a step that is made with what is remembered of its thread; if that is worth nothing any more, without."""
        request = step(True)
        try:
            stored = save(**request.arguments)
        except Stale:
            request = step(False)
            stored = save(**request.arguments)
        self._requests.learn(request, stored)
        return request

    # Removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with everything in it."""
        self._requests.memory.forget(str(thread_id))
        self._store().delete(str(thread_id), user=self._requests.user)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs, except those that a delta channel of another run needs."""
        self._store().delete_runs([str(each) for each in run_ids], user=self._requests.user)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. Nothing it consists of is copied: both threads share it.

        Raises:
            AlreadyExists: the target has checkpoints of its own.
        """
        try:
            self._store().copy(str(source_thread_id), str(target_thread_id), user=self._requests.user)
        except NotFound:
            return  # nothing to copy is nothing wrong

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        """Remove all but the newest ``keep`` checkpoints of every namespace, or with ``"delete"`` all of them.

        Ancestors that a delta channel of a kept checkpoint needs are kept as well.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"prune knows the strategies keep_latest and delete, not {strategy!r}")
        most = keep if strategy == "keep_latest" else 0
        self._store().prune([str(each) for each in thread_ids], keep=most, user=self._requests.user)

    def retain(self, thread_ids: Sequence[str]) -> int:
        """Remove what the ``retention`` does not keep of these threads; how many checkpoints that were.

        Saving does it too, now and then. The newest checkpoint of every namespace stays, with what is written to it and what
        its delta channels need, except in calls of subgraphs that ended before all that is kept of the graph itself.
        """
        if not self._retention.is_asked_for:
            return 0
        names = [str(each) for each in thread_ids]
        return int(self._store().prune(names, user=self._requests.user, **self._retention.arguments()))

    def _retain_now_and_then(self, thread_id: str, namespace: str) -> None:
        if not self._retention.is_asked_for or namespace:
            return
        with self._counting:
            count = self._puts.pop(thread_id, 0)
            self._puts[thread_id] = count + 1
            if len(self._puts) > THREADS_MOST:
                del self._puts[next(iter(self._puts))]
        if count % RETAIN_EVERY == 0:
            try:
                self.retain([thread_id])
            except Unavailable:
                return  # it is done the next time; what was to be saved is saved

    # The same for asyncio: in a thread, so that the event loop waits for nobody; what every step needs, there if it is quick

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """``get_tuple`` for asyncio."""
        return await self._soon(self.get_tuple, config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """``list`` for asyncio."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        nothing: Any = object()
        while (each := await asyncio.to_thread(next, found, nothing)) is not nothing:
            yield each

    async def aget_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        """``get_delta_channel_history`` for asyncio."""
        return await self._away(lambda: self.get_delta_channel_history(config=config, channels=channels))

    async def aput(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """``put`` for asyncio."""
        with self._failures.noticed(config):
            return await self._company.save_checkpoint(
                thread_of(config),
                lambda written: self._put_soon(written, config, checkpoint, metadata, new_versions),
            )

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """``put_writes`` for asyncio."""
        handle, task = self._opening.handle, Task(config, writes, task_id, task_path)
        with self._failures.noticed(config):
            if handle is None or not can_hurry(handle) or not await self._company.saved_with_checkpoint(task):
                await self._soon(self.put_writes, *task)

    async def adelete_thread(self, thread_id: str) -> None:
        """``delete_thread`` for asyncio."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """``delete_for_runs`` for asyncio."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """``copy_thread`` for asyncio."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        """``prune`` for asyncio."""
        await self._away(lambda: self.prune(thread_ids, strategy=strategy, keep=keep))

    async def aretain(self, thread_ids: Sequence[str]) -> int:
        """``retain`` for asyncio."""
        return await asyncio.to_thread(self.retain, thread_ids)

    async def _put_soon(self, written: Sequence[Task], *args: Any) -> Config:
        put = partial(self._put_with, written) if written else self.put
        if self._retention.is_asked_for:  # which may have a lot to remove
            return await asyncio.to_thread(put, *args)
        return await self._soon(put, *args)

    async def _soon(self, call: Callable[..., T], config: Config, *args: Any) -> T:
        """Make a call in the event loop while such calls are quick and the thread of the graph is known, and elsewhere if not:
        handing it to a thread and back takes as long as the call itself."""
        handle = self._opening.handle
        if self._pace.quick() and handle is not None and can_hurry(handle) and self._requests.remembers(config):
            try:
                with hastily():
                    return self._timed(call, config, *args)
            except WouldWait:
                self._pace.observe(BUSY_WAIT_S)
        return await asyncio.to_thread(self._timed, call, config, *args)

    def _timed(self, call: Callable[..., T], *args: Any) -> T:
        watch = Stopwatch()
        try:
            return call(*args)
        finally:
            self._pace.observe(watch.waited_s() if watch.passed_s() < LONG_S else BUSY_WAIT_S)

    async def _away(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    def _page(
        self, config: Config | None, filter: Any, before: Config | None, left: int | None, cursor: str | None
    ) -> Page[Checkpoint]:
        arguments, there = self._requests.list(config, filter, before), self._opening.open()
        found: Page[Checkpoint] = there.checkpoints.list(
            limit=there.limits.page(min(PAGE, left or PAGE)), cursor=cursor, **arguments
        )
        return found

    def _choose(self, config: Config | None, before: Config | None, limit: int | None, page: Page[Checkpoint]) -> None:
        """Note that a subgraph is taken back to the checkpoint that was found, or to its beginning."""
        arguments = self._requests.list(config, None, before)
        newest = self._requests.newest(arguments, limit)
        for head in () if newest is None else self._store().list(**newest):
            self._requests.choose(arguments, page[0].id if page else None, head.id)

    def _ancestors(self, config: Config, channels: Sequence[str]) -> Iterator[Checkpoint]:
        """The ancestors of a checkpoint, the nearest first, read as they are asked for.

        The first query goes as far back as the store knows that a channel has no value. That is all for what a graph saves.
        """
        asked = self._requests.find(config).arguments
        at = {name: asked[name] for name in ("thread_id", "namespace", "user")}
        chain = self._store().history(**at, id=asked["id"], channels=channels)
        ancestors, least, seen = chain[1:], ANCESTORS_FIRST, {each.id for each in chain[:1]}
        while chain:
            for each in ancestors:
                if each.id in seen:  # a checkpoint was saved again, under a descendant of its own
                    return
                seen.add(each.id)
                yield each
            if chain[-1].parent is None:
                return
            chain = self._store().history(**at, id=chain[-1].parent, channels=channels, least=least)
            ancestors, least = chain, min(4 * least, ANCESTORS_AT_ONCE)

    def _store(self) -> Any:
        return self._opening.open().checkpoints
