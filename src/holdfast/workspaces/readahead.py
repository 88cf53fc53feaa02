"""Reading the next objects while the current ones are being written: decompressing takes as long as writing does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from ..engines.protocol import Engine
from ..offload import work
from ..sync_runner import step
from ..trees.prefetch import ObjectBodies, ObjectRequest

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

Read = Callable[[Sequence[bytes]], Coroutine[Any, Any, ObjectBodies]]


class ReadAhead:
    """Fetches objects, and the next ones in the background. In a caller's own transaction nothing is read ahead."""

    def __init__(self, engine: Engine, read: Read) -> None:
        self._engine, self._read = engine, read
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[Sequence[bytes], Callable[[], Awaitable[ObjectBodies]]] | None = None

    async def get(self, wanted: ObjectRequest) -> ObjectBodies:
        """Return the objects needed now."""
        prefetched = self._next
        if prefetched is None or prefetched[0] != wanted.now:
            fetched = await self._read(wanted.now)
        else:
            self._next, fetched = None, await prefetched[1]()
        if self._next is None and wanted.next and not self._engine.joined:
            self._next = (wanted.next, self._start(wanted.next))
        return fetched

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        elif self._next is not None:
            try:
                await self._next[1]()
            except Exception:  # noqa: S110  # its result is not needed
                pass

    def _start(self, digests: Sequence[bytes]) -> Callable[[], Awaitable[ObjectBodies]]:
        if not self._engine.blocking:
            import asyncio

            task = asyncio.ensure_future(self._read(digests))

            async def awaited() -> ObjectBodies:
                return await task

            return awaited
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-ahead")
        future = self._pool.submit(lambda: step(self._read(digests)))

        async def waited() -> ObjectBodies:
            return future.result()

        return waited


async def drive(engine: Engine, steps: Generator[ObjectRequest, ObjectBodies, T], read: Read) -> T:
    """Run a generator that requests objects, in threads where needed, and return its result."""
    read_ahead = ReadAhead(engine, read)
    try:
        reply = await work(engine, partial(_step, steps, None))
        while not isinstance(reply, _Done):
            reply = await work(engine, partial(_step, steps, await read_ahead.get(reply)))
        return reply.value
    finally:
        await work(engine, steps.close)
        await read_ahead.close()


class _Done(Struct, Generic[T], frozen=True):
    value: T


def _step(steps: Generator[ObjectRequest, ObjectBodies, T], sent: ObjectBodies | None) -> ObjectRequest | _Done[T]:
    try:
        return next(steps) if sent is None else steps.send(sent)
    except StopIteration as stop:
        return _Done(stop.value)
