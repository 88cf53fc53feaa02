"""Translates between LangGraph's configs, checkpoints and writes, and the calls of the checkpoint store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from msgspec import Struct

from holdfast import Filter, Write
from holdfast.errors import InvalidInput
from holdfast.types import CachedPieces, Checkpoint, StoredPieces

from .checkpoint_state import dump_checkpoint, load_checkpoint
from .codec import Decoder, Encoder, Piece, dump_value, load_value
from .encryption import Cipher, NoCipher
from .fencing import ForkPoints
from .object_cache import CachedThread, ObjectCache, SerializedObject

Config = Any
DELTA_COUNTERS = "counters_since_delta_snapshot"
"""Key in the metadata of most checkpoints: the delta channels that have no snapshot in the checkpoint."""
_OWN_CHANNELS = ("__start__", "__pregel_", "branch:to:")
"""Prefixes of LangGraph's internal channels, which are mostly empty and never delta channels."""


class StoreRequest(Struct):
    """Arguments for one call of the store, and the objects to cache when it has succeeded."""

    arguments: dict[str, Any]
    serialized: Sequence[tuple[int, SerializedObject]] = ()
    """Objects, each with the number of the piece that it became."""
    shape: bytes | None = None
    """The first piece, if it is a shape that the cache does not have."""
    cached: CachedThread | None = None
    """The cached thread that determined which pieces the store need not read."""

    def config(self, id: str) -> Config:
        """Return the config of a checkpoint in the same thread and namespace."""
        return _config(self.arguments["thread_id"], self.arguments["namespace"], id)


class Translator:
    """Creates the requests and decodes the results of one saver."""

    def __init__(self, *, user: str | None, single_writer: bool, cipher: Cipher | None = None) -> None:
        self.user, self._single_writer = user, single_writer
        self._cipher: Cipher | NoCipher = cipher or NoCipher()
        self.cache = ObjectCache()
        self.fork_points = ForkPoints()

    def find(self, config: Config) -> StoreRequest:
        """Return the request for the checkpoint of a config."""
        thread, namespace = _thread_and_namespace(config)
        id = get_checkpoint_id(config) or None
        cached = self.cache.find(thread)
        held = None if cached is None else CachedPieces(cached.stamp, cached.held())
        arguments = {"thread_id": thread, "namespace": namespace, "id": id, "user": self.user, "cached": held}
        return StoreRequest(arguments, cached=cached)

    def after(self, request: StoreRequest) -> dict[str, Any] | None:
        """Return arguments that list the newest checkpoint after one requested by id; ``None`` without ``single_writer``."""
        if not self._single_writer or request.arguments["id"] is None:
            return None
        at = {name: request.arguments[name] for name in ("thread_id", "namespace", "user")}
        return at | {"where": [Filter("gt", request.arguments["id"], column="id")], "limit": 1}

    def newest(self, arguments: Mapping[str, Any], limit: int | None) -> dict[str, Any] | None:
        """Return arguments that list the newest checkpoint of a subgraph, if the query is for its last one before another.

        That is how LangGraph rewinds a subgraph together with its graph.
        """
        is_replayed = arguments["thread_id"] and arguments["namespace"] and arguments["before"] and limit == 1
        if not self._single_writer or not is_replayed:
            return None
        return {name: arguments[name] for name in ("thread_id", "namespace", "user")} | {"limit": 1}

    def choose(self, arguments: Mapping[str, Any], id: str | None, head: str) -> None:
        """Record that an older checkpoint was read, or that no checkpoint is old enough."""
        if id != head:
            self.fork_points.choose((arguments["thread_id"], arguments["namespace"], id or ""), head)

    def put(
        self,
        config: Config,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        serde: Any,
        new_versions: Mapping[str, Any],
        *,
        use_cache: bool,
    ) -> StoreRequest:
        """Return the request that saves a checkpoint."""
        thread, namespace = _thread_and_namespace(config)
        parent = get_checkpoint_id(config) or None
        cached = self.cache.find(thread) if use_cache else None
        encoder = Encoder(serde, cached)
        state = dump_checkpoint(checkpoint, encoder, _untouched(checkpoint, metadata, new_versions))
        arguments = {
            "thread_id": thread,
            "namespace": namespace,
            "id": checkpoint["id"],
            "parent": parent,
            "state": self._cipher.seal(state, "state"),
            "pieces": self._seal(encoder.pieces),
            "stamp": None if cached is None else cached.stamp,
            "metadata": metadata,
            **_channels(checkpoint, metadata, new_versions, has_parent=bool(parent)),
            "user": self.user,
            "lease": _lease(config),
            # A deliberate fork is allowed; a writer that continues from a checkpoint that is no longer the newest gets Conflict.
            "only_after_head": self._single_writer and metadata.get("source") != "fork",
            "known_head": self.fork_points.head((thread, namespace, parent or "")),
        }
        return StoreRequest(arguments, encoder.serialized, encoder.shape)

    def put_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        serde: Any,
        *,
        use_cache: bool,
    ) -> StoreRequest:
        """Return the request that saves the writes of a task."""
        thread, namespace = _thread_and_namespace(config)
        cached = self.cache.find(thread) if use_cache else None
        new: list[Write] = []
        serialized: list[tuple[int, SerializedObject]] = []
        count = 0
        for number, (channel, value) in enumerate(writes):
            encoder = Encoder(serde, cached)
            state = self._cipher.seal(dump_value(value, encoder), "value")
            new.append(Write(WRITES_IDX_MAP.get(channel, number), channel, state, self._seal(encoder.pieces)))
            serialized += [(count + at, entry) for at, entry in encoder.serialized]
            count += len(encoder.pieces)
        arguments = {
            "thread_id": thread,
            "namespace": namespace,
            "id": str(config["configurable"]["checkpoint_id"]),
            "task_id": task_id,
            "task_path": task_path,
            "new": new,
            "stamp": None if cached is None else cached.stamp,
            "user": self.user,
            "lease": _lease(config),
        }
        return StoreRequest(arguments, serialized)

    def learn(self, request: StoreRequest, saved: StoredPieces) -> None:
        """Cache the objects of a saved request with the places of their pieces."""
        thread = self.cache.under(request.arguments["thread_id"], saved.stamp)
        if request.shape is not None:
            thread.keep_shape(saved.positions[0], request.shape)
        for number, serialized in request.serialized:
            thread.learn(serialized, saved.positions[number])
        if self._single_writer and "parent" in request.arguments:
            at = request.arguments
            self.fork_points.forget((at["thread_id"], at["namespace"], at["parent"] or ""))

    def list(self, config: Config | None, filter: Mapping[str, Any] | None, before: Config | None) -> dict[str, Any]:
        """Return the arguments that list checkpoints."""
        configurable = {} if config is None else config["configurable"]
        thread = configurable.get("thread_id")
        return {
            "thread_id": None if thread is None else str(thread),
            "namespace": configurable.get("checkpoint_ns"),
            "id": configurable.get("checkpoint_id") or None,
            "before": None if before is None else get_checkpoint_id(before),
            "metadata": filter,
            "user": self.user,
        }

    def tuple_of(self, row: Checkpoint, serde: Any, request: StoreRequest) -> CheckpointTuple:
        """Convert a checkpoint that was read. Its objects are new, and are recognized when the graph saves them."""
        if request.arguments["id"] is None:
            self.fork_points.forget((row.thread_id, row.namespace, row.id))
        cached = request.cached
        # The pieces that were not read are in this thread, even if the cache has replaced it in the meantime.
        thread = cached if cached and cached.stamp == row.stamp else self.cache.under(row.thread_id, row.stamp)
        thread.begin_read()
        return self._tuple(row, serde, thread)

    def tuple_in_list(self, row: Checkpoint, serde: Any, seen: ObjectCache) -> CheckpointTuple:
        """Convert a checkpoint of a list, in which a message that several checkpoints contain is decoded once."""
        thread = seen.under(row.thread_id, row.stamp)
        return self._tuple(row, serde, thread)

    def _tuple(self, row: Checkpoint, serde: Any, thread: CachedThread) -> CheckpointTuple:
        parent = None if row.parent is None else _config(row.thread_id, row.namespace, row.parent)
        return CheckpointTuple(
            config=_config(row.thread_id, row.namespace, row.id),
            checkpoint=self.checkpoint(row, serde, thread),
            metadata=row.metadata,
            parent_config=parent,
            pending_writes=self.writes(row, serde, None),
        )

    def checkpoint(self, row: Checkpoint, serde: Any, thread: CachedThread | None) -> dict[str, Any]:
        """Decode LangGraph's checkpoint."""
        decoder = Decoder(serde, self._open(row.pieces), _places(row), thread)
        return load_checkpoint(row.id, self._cipher.open(row.state, "state"), decoder)

    def writes(self, row: Checkpoint, serde: Any, channels: set[str] | None) -> Any:
        """Decode the writes to a checkpoint, in the order in which a graph applies them: by path, task and index."""
        return [
            (task.task_id, write.channel, self._value(write, serde))
            for task in row.tasks
            for write in task.writes
            if channels is None or write.channel in channels
        ]

    def _value(self, write: Write, serde: Any) -> Any:
        return load_value(self._cipher.open(write.value, "value"), self._open(_bodies(write.pieces)), serde)

    def _seal(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if isinstance(self._cipher, NoCipher):
            return pieces
        return [self._cipher.seal(piece, "piece") if isinstance(piece, bytes) else piece for piece in pieces]

    def _open(self, pieces: Sequence[Any]) -> Sequence[Any]:
        """Decrypt pieces. ``None``, for a piece that the cache has, is kept."""
        if isinstance(self._cipher, NoCipher):
            return pieces
        return [None if piece is None else self._cipher.open(piece, "piece") for piece in pieces]


class DeltaHistory:
    """Collects the writes of a checkpoint's ancestors to some channels, each back to where its value was saved."""

    def __init__(self, translator: Translator, channels: Sequence[str], serde: Any) -> None:
        self._translator, self._serde = translator, serde
        self._writes: dict[str, list[Any]] = {name: [] for name in channels}
        self._seeds: dict[str, Any] = {}
        self._missing = set(channels)
        self._seen: set[str] = set()

    def add(self, ancestors: Iterable[Checkpoint]) -> bool:
        """Add ancestors, nearest first, and return whether further ones are needed."""
        for ancestor in ancestors:
            if ancestor.id in self._seen:  # a checkpoint was saved again as a descendant of itself
                return False
            self._seen.add(ancestor.id)
            for write in reversed(self._translator.writes(ancestor, self._serde, self._missing)):
                self._writes[write[1]].append(write)
            values = self._translator.checkpoint(ancestor, self._serde, None)["channel_values"]
            for name in [name for name in self._missing if name in values]:
                self._seeds[name] = values[name]
                self._missing.discard(name)
            if not self._missing:
                return False
        return True

    def skip(self, checkpoint: Checkpoint) -> None:
        """Exclude the checkpoint whose ancestors are added."""
        self._seen.add(checkpoint.id)

    def result(self) -> dict[str, Any]:
        """Return for each channel the writes, oldest first, and the value before them, if any."""
        return {
            name: {"writes": writes[::-1], **({"seed": self._seeds[name]} if name in self._seeds else {})}
            for name, writes in self._writes.items()
        }


def _untouched(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Mapping[str, Any]) -> set[str]:
    """Return the channels whose values are unchanged since they were read: an input is saved before any node runs."""
    if metadata.get("source") != "input":
        return set()
    return checkpoint["channel_values"].keys() - new_versions.keys()


def _channels(
    checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Mapping[str, Any], *, has_parent: bool
) -> dict[str, Any]:
    """Return for the store which channels have their value at an ancestor, have changed, or contain a snapshot.

    They are derived from the checkpoint itself, because not every release of LangGraph includes them in the metadata. Only
    channels that early releases read although the checkpoint has no version of them are added from the metadata.
    """
    values = checkpoint["channel_values"]
    counted = [name for name in metadata.get(DELTA_COUNTERS) or () if name not in values]
    missing = sorted({*channels_elsewhere(checkpoint), *counted}) if has_parent else []
    return {
        "leans": missing,
        "changed": [name for name in missing if name in new_versions],
        "snapshots": [name for name, value in values.items() if type(value) is _DeltaSnapshot],
    }


def channels_elsewhere(checkpoint: Mapping[str, Any]) -> list[str]:
    """Return the channels with a version but without a value: they are empty, or their value is saved with an ancestor."""
    missing = checkpoint["channel_versions"].keys() - checkpoint["channel_values"].keys()
    return sorted(name for name in missing if not name.startswith(_OWN_CHANNELS)) if missing else []


def _bodies(pieces: Sequence[Piece]) -> list[bytes]:
    return [piece for piece in pieces if isinstance(piece, bytes)]


def _places(row: Checkpoint) -> list[int]:
    return list(chain.from_iterable(range(first, last + 1) for first, last in row.positions))


def _thread_and_namespace(config: Config) -> tuple[str, str]:
    configurable = config["configurable"]
    if "thread_id" not in configurable:
        raise InvalidInput(
            "the config contains no thread_id: pass {'configurable': {'thread_id': ...}}", field="thread_id"
        )
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _lease(config: Config) -> tuple[str, int] | None:
    """Return the id and epoch of the leased run in a config."""
    lease = config["configurable"].get("lease")
    if lease is None or (isinstance(lease, tuple) and len(lease) == 2):
        return lease
    if hasattr(lease, "id") and hasattr(lease, "epoch"):
        return lease.id, lease.epoch
    raise InvalidInput(
        "the lease in a config must be the result of leases.claim, or a pair of run id and epoch", field="lease"
    )


def _config(thread_id: str, namespace: str, id: str) -> Config:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id}}
