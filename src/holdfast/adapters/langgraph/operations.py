"""The methods of a saver without I/O: generators that yield calls of the checkpoint store and return the result.

Each operation is written once. ``HoldfastSaver`` executes its calls on a synchronous or an asynchronous handle, sends the
results back, and throws the errors of the store into the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import CheckpointTuple, get_serializable_checkpoint_metadata

from holdfast import Limits, Page
from holdfast.errors import InvalidInput, NotFound, Stale, Unavailable
from holdfast.types import Checkpoint

from .fencing import SubgraphFailures
from .object_cache import MAX_THREADS, ObjectCache
from .retention import ThreadRetention
from .translate import DeltaHistory, StoreRequest, Translator

T = TypeVar("T")
Config = Any
RETAIN_EVERY = 32
"""Number of saved checkpoints of a thread after which its old ones are removed, if a retention is configured."""
FEW_ANCESTORS, MANY_ANCESTORS = 16, 1_024
"""Minimum and maximum number of ancestors to read at once, if the store does not know how far back a value is."""
PAGE_ROWS = 50
"""Checkpoints in one page of a list."""


class StoreCall(NamedTuple):
    """A method of the checkpoint store, and its arguments."""

    method: str
    arguments: Mapping[str, Any]


Operation = Generator[StoreCall, Any, T]


class Operations:
    """The operations of one saver and its clones."""

    def __init__(self, translator: Translator, retention: ThreadRetention, limits: Limits) -> None:
        self._translator, self._retention, self._limits = translator, retention, limits
        self._failures = SubgraphFailures()
        self._lock = Lock()
        self._saved: dict[str, int] = {}

    # Reading

    def get_tuple(self, config: Config, serde: Any) -> Operation[CheckpointTuple | None]:
        """Return the checkpoint of a config, or the newest one of its thread."""
        request = self._translator.find(config)
        checkpoint = yield StoreCall("find", request.arguments)
        if checkpoint is None:
            return None
        after = self._translator.after(request)
        for newest in () if after is None else (yield StoreCall("list", after)):
            self._translator.choose(request.arguments, checkpoint.id, newest.id)
        return self._translator.tuple_of(checkpoint, serde, request)

    def history(self, config: Config, channels: Sequence[str], serde: Any) -> Operation[Mapping[str, Any]]:
        """Return the writes of a checkpoint's ancestors to some channels.

        The first call goes back as far as the store knows that a channel has no value. For states that a graph has saved, it is
        the only call.
        """
        if not channels:
            return {}
        request = self._translator.find(config).arguments
        at = {name: request[name] for name in ("thread_id", "namespace", "user")}
        history = DeltaHistory(self._translator, channels, serde)
        chain: Sequence[Checkpoint] = yield StoreCall("history", {**at, "id": request["id"], "channels": channels})
        ancestors, least = chain[1:], FEW_ANCESTORS
        if chain:
            history.skip(chain[0])
        while chain and history.add(ancestors) and chain[-1].parent is not None:
            chain = yield StoreCall("history", {**at, "id": chain[-1].parent, "channels": channels, "least": least})
            ancestors, least = chain, min(4 * least, MANY_ANCESTORS)
        return history.result()

    def listing(self, config: Config | None, filter: Any, before: Config | None, limit: int | None) -> Listing:
        """Return a list of checkpoints, newest first, that is read page by page."""
        return Listing(self._translator, self._limits, (config, filter, before), limit)

    # Writing

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any, serde: Any) -> Operation[Config]:
        """Save a checkpoint."""
        plain = get_serializable_checkpoint_metadata(config, metadata)

        def request(use_cache: bool) -> StoreRequest:
            return self._translator.put(config, checkpoint, plain, serde, new_versions or {}, use_cache=use_cache)

        with self._failures.guard(config):
            saved = yield from self._save("put", request)
        if not saved.arguments["namespace"] and self._is_due(saved.arguments["thread_id"]):
            try:
                yield from self.retain([saved.arguments["thread_id"]])
            except Unavailable:
                pass  # the checkpoint is saved; old ones are removed after a later one
        return saved.config(checkpoint["id"])

    def put_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str, serde: Any
    ) -> Operation[None]:
        """Save the writes of a task."""

        def request(use_cache: bool) -> StoreRequest:
            return self._translator.put_writes(config, writes, task_id, task_path, serde, use_cache=use_cache)

        with self._failures.guard(config):
            yield from self._save("put_writes", request)

    def _save(self, method: str, make_request: Callable[[bool], StoreRequest]) -> Operation[StoreRequest]:
        """Execute a request that refers to cached places; if these are stale, execute it without cached places."""
        request = make_request(True)
        try:
            saved = yield StoreCall(method, request.arguments)
        except Stale:
            request = make_request(False)
            saved = yield StoreCall(method, request.arguments)
        self._translator.learn(request, saved)
        return request

    # Removing and copying

    def delete_thread(self, thread_id: str) -> Operation[None]:
        """Remove a thread."""
        self._translator.cache.drop(str(thread_id))
        yield self._call("delete", thread_id=str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> Operation[None]:
        """Remove the checkpoints of some runs."""
        yield self._call("delete_runs", run_ids=[str(run_id) for run_id in run_ids])

    def copy_thread(self, source: str, target: str) -> Operation[None]:
        """Copy a thread."""
        try:
            yield self._call("copy", source=str(source), target=str(target))
        except NotFound:
            return  # LangGraph may copy threads that have no checkpoint yet

    def prune(self, thread_ids: Sequence[str], strategy: str, keep: int) -> Operation[None]:
        """Remove all but the newest checkpoints."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"strategy must be keep_latest or delete, not {strategy!r}", field="strategy")
        names = [str(thread_id) for thread_id in thread_ids]
        yield self._call("prune", thread_ids=names, keep=keep if strategy == "keep_latest" else 0)

    def retain(self, thread_ids: Sequence[str]) -> Operation[int]:
        """Remove the checkpoints that the retention does not keep, and return their number."""
        if not self._retention.is_configured:
            return 0
        names = [str(thread_id) for thread_id in thread_ids]
        return int((yield self._call("prune", thread_ids=names, **self._retention.arguments())))

    def _is_due(self, thread_id: str) -> bool:
        """Count a saved checkpoint, and return whether the old ones of its thread are due for removal."""
        if not self._retention.is_configured:
            return False
        with self._lock:
            count = self._saved.pop(thread_id, 0)
            self._saved[thread_id] = count + 1
            if len(self._saved) > MAX_THREADS:
                del self._saved[next(iter(self._saved))]
        return count % RETAIN_EVERY == 0

    def _call(self, method: str, **arguments: Any) -> StoreCall:
        return StoreCall(method, {**arguments, "user": self._translator.user})


class Listing:
    """A list of checkpoints that is read page by page. A message that many of them contain is decoded once."""

    def __init__(self, translator: Translator, limits: Limits, query: tuple[Any, Any, Any], limit: int | None) -> None:
        self._translator, self._limits = translator, limits
        self._arguments, self._limit = translator.list(*query), limit
        self._left = limit
        self._cursor: str | None = None
        self._seen = ObjectCache(recognises=False)
        self.is_over = limit is not None and limit <= 0

    def next_page(self) -> Operation[Page[Checkpoint]]:
        """Return the next page of stored checkpoints."""
        is_first = self._cursor is None
        rows = self._limits.page(min(PAGE_ROWS, self._left or PAGE_ROWS))
        page: Page[Checkpoint] = yield StoreCall("list", {**self._arguments, "limit": rows, "cursor": self._cursor})
        if is_first:
            yield from self._choose(page)
        self._left = None if self._left is None else self._left - len(page)
        self._cursor = page.next
        self.is_over = page.next is None or self._left == 0
        return page

    def tuple_of(self, checkpoint: Checkpoint, serde: Any) -> CheckpointTuple:
        """Convert a checkpoint of a page."""
        return self._translator.tuple_in_list(checkpoint, serde, self._seen)

    def _choose(self, page: Page[Checkpoint]) -> Operation[None]:
        """Record that a subgraph is rewound to the first checkpoint of a page, or to its beginning."""
        newest = self._translator.newest(self._arguments, self._limit)
        for head in () if newest is None else (yield StoreCall("list", newest)):
            self._translator.choose(self._arguments, page[0].id if page else None, head.id)
