"""Between LangGraph's configs, checkpoints and writes, and the calls of the checkpoint store."""

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

from .codec import Decoder, Encoder, Piece, dump_checkpoint, dump_value, load_checkpoint, load_value
from .encryption import Cipher, Plain
from .fencing import Choices
from .object_cache import CachedThread, Learnt, ObjectCache

Config = Any
DELTA_COUNTERS = "counters_since_delta_snapshot"
"""In the metadata of most checkpoints: the delta channels that have no snapshot there."""
_OWN_CHANNELS = ("__start__", "__pregel_", "branch:to:")
"""Prefixes of the channels that LangGraph makes for itself: mostly empty, and never delta channels."""


class Request(Struct):
    """Arguments for one call of the store, and what the cache learns when it has been answered."""

    arguments: dict[str, Any]
    learnt: Sequence[tuple[int, Learnt]] = ()
    """Objects, each with the number of the piece that it became."""
    shape: bytes | None = None
    """The first piece, if it is a shape that the cache does not have."""
    cached: CachedThread | None = None
    """The cached thread when the store was told which pieces it need not read."""

    def config(self, id: str) -> Config:
        """The config of a checkpoint in the same thread and namespace."""
        return _config(self.arguments["thread_id"], self.arguments["namespace"], id)


class Translator:
    """Makes requests and reads answers for one saver."""

    def __init__(self, *, user: str | None, single_writer: bool, cipher: Cipher | None = None) -> None:
        self.user, self._single_writer = user, single_writer
        self._cipher: Cipher | Plain = cipher or Plain()
        self.cache = ObjectCache()
        self.choices = Choices()

    def find(self, config: Config) -> Request:
        """The checkpoint that a config speaks of."""
        thread, namespace = _place(config)
        id = get_checkpoint_id(config) or None
        cached = self.cache.find(thread)
        held = None if cached is None else CachedPieces(cached.stamp, cached.held())
        arguments = {"thread_id": thread, "namespace": namespace, "id": id, "user": self.user, "cached": held}
        return Request(arguments, cached=cached)

    def after(self, request: Request) -> dict[str, Any] | None:
        """Arguments for a list of the newest checkpoint after one that was asked for by its id, where that matters."""
        if not self._single_writer or request.arguments["id"] is None:
            return None
        at = {name: request.arguments[name] for name in ("thread_id", "namespace", "user")}
        return at | {"where": [Filter("gt", request.arguments["id"], column="id")], "limit": 1}

    def newest(self, arguments: Mapping[str, Any], limit: int | None) -> dict[str, Any] | None:
        """Arguments for a list of the newest checkpoint of a subgraph that is asked for its last one before a moment.

        That is how LangGraph takes a subgraph back together with its graph.
        """
        is_replayed = arguments["thread_id"] and arguments["namespace"] and arguments["before"] and limit == 1
        if not self._single_writer or not is_replayed:
            return None
        return {name: arguments[name] for name in ("thread_id", "namespace", "user")} | {"limit": 1}

    def choose(self, arguments: Mapping[str, Any], id: str | None, head: str) -> None:
        """An older checkpoint was asked for, or none was found that is old enough."""
        if id != head:
            self.choices.choose((arguments["thread_id"], arguments["namespace"], id or ""), head)

    def put(
        self,
        config: Config,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        serde: Any,
        new_versions: Mapping[str, Any],
        *,
        use_cache: bool,
    ) -> Request:
        """Save a checkpoint."""
        thread, namespace = _place(config)
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
            "pieces": self._sealed(encoder.pieces),
            "stamp": None if cached is None else cached.stamp,
            "metadata": metadata,
            **_channels(checkpoint, metadata, new_versions, has_parent=bool(parent)),
            "user": self.user,
            "lease": _lease(config),
            # A fork is made on purpose, and who goes on from what was the newest before is told so.
            "only_after_head": self._single_writer and metadata.get("source") != "fork",
            "known_head": self.choices.head((thread, namespace, parent or "")),
        }
        return Request(arguments, encoder.learnt, encoder.shape)

    def put_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        serde: Any,
        *,
        use_cache: bool,
    ) -> Request:
        """Save what a task wrote."""
        thread, namespace = _place(config)
        cached = self.cache.find(thread) if use_cache else None
        new: list[Write] = []
        learnt: list[tuple[int, Learnt]] = []
        count = 0
        for number, (channel, value) in enumerate(writes):
            encoder = Encoder(serde, cached)
            state = self._cipher.seal(dump_value(value, encoder), "value")
            new.append(Write(WRITES_IDX_MAP.get(channel, number), channel, state, self._sealed(encoder.pieces)))
            learnt += [(count + at, each) for at, each in encoder.learnt]
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
        return Request(arguments, learnt)

    def learn(self, request: Request, stored: StoredPieces) -> None:
        """Let the cache learn where the pieces of a saved request are."""
        thread = self.cache.under(request.arguments["thread_id"], stored.stamp)
        if request.shape is not None:
            thread.keep_shape(stored.positions[0], request.shape)
        for number, learnt in request.learnt:
            thread.learn(learnt, stored.positions[number])
        if self._single_writer and "parent" in request.arguments:
            at = request.arguments
            self.choices.forget((at["thread_id"], at["namespace"], at["parent"] or ""))

    def list(self, config: Config | None, filter: Mapping[str, Any] | None, before: Config | None) -> dict[str, Any]:
        """Arguments for a list."""
        given = {} if config is None else config["configurable"]
        thread = given.get("thread_id")
        return {
            "thread_id": None if thread is None else str(thread),
            "namespace": given.get("checkpoint_ns"),
            "id": given.get("checkpoint_id") or None,
            "before": None if before is None else get_checkpoint_id(before),
            "metadata": filter,
            "user": self.user,
        }

    def tuple_of(self, found: Checkpoint, serde: Any, request: Request) -> CheckpointTuple:
        """A checkpoint that was read. Its objects are new, and are recognised when the graph hands them over."""
        if request.arguments["id"] is None:
            self.choices.forget((found.thread_id, found.namespace, found.id))
        cached = request.cached
        # Pieces that were not read are in this one, even if the cache has another one by now.
        thread = cached if cached and cached.stamp == found.stamp else self.cache.under(found.thread_id, found.stamp)
        thread.begin_read()
        return self._tuple(found, serde, thread)

    def listed(self, found: Checkpoint, serde: Any, seen: ObjectCache) -> CheckpointTuple:
        """One checkpoint of a list, in which each message is decoded once, however many checkpoints have it."""
        thread = seen.under(found.thread_id, found.stamp)
        return self._tuple(found, serde, thread)

    def _tuple(self, found: Checkpoint, serde: Any, thread: CachedThread) -> CheckpointTuple:
        parent = None if found.parent is None else _config(found.thread_id, found.namespace, found.parent)
        return CheckpointTuple(
            config=_config(found.thread_id, found.namespace, found.id),
            checkpoint=self.checkpoint(found, serde, thread),
            metadata=found.metadata,
            parent_config=parent,
            pending_writes=self.writes(found, serde, None),
        )

    def checkpoint(self, found: Checkpoint, serde: Any, thread: CachedThread | None) -> dict[str, Any]:
        """The checkpoint as LangGraph has it."""
        decoder = Decoder(serde, self._opened(found.pieces), _places(found), thread)
        return load_checkpoint(found.id, self._cipher.open(found.state, "state"), decoder)

    def writes(self, found: Checkpoint, serde: Any, channels: set[str] | None) -> Any:
        """The writes to a checkpoint in the order in which a graph applies them: by path, task and index."""
        return [
            (task.task_id, each.channel, self._value(each, serde))
            for task in found.tasks
            for each in task.writes
            if channels is None or each.channel in channels
        ]

    def _value(self, write: Write, serde: Any) -> Any:
        return load_value(self._cipher.open(write.value, "value"), self._opened(_bodies(write.pieces)), serde)

    def _sealed(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if isinstance(self._cipher, Plain):
            return pieces
        return [self._cipher.seal(each, "piece") if isinstance(each, bytes) else each for each in pieces]

    def _opened(self, pieces: Sequence[Any]) -> Sequence[Any]:
        """Pieces as they were; ``None`` stays where the caller has one."""
        if isinstance(self._cipher, Plain):
            return pieces
        return [None if each is None else self._cipher.open(each, "piece") for each in pieces]


class History:
    """What the ancestors of a checkpoint wrote to some channels, each back to where its value was saved."""

    def __init__(self, translator: Translator, channels: Sequence[str], serde: Any) -> None:
        self._translator, self._serde = translator, serde
        self._writes: dict[str, list[Any]] = {name: [] for name in channels}
        self._seeds: dict[str, Any] = {}
        self._missing = set(channels)
        self._seen: set[str] = set()

    def add(self, ancestors: Iterable[Checkpoint]) -> bool:
        """Add ancestors, the nearest first; whether further ones are needed."""
        for ancestor in ancestors:
            if ancestor.id in self._seen:  # a checkpoint was saved again, under a descendant of its own
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
        """Leave out the checkpoint whose ancestors are added."""
        self._seen.add(checkpoint.id)

    def result(self) -> dict[str, Any]:
        """Per channel the writes, the oldest first, and the value before them, if there is one."""
        return {
            name: {"writes": writes[::-1], **({"seed": self._seeds[name]} if name in self._seeds else {})}
            for name, writes in self._writes.items()
        }


def _untouched(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Mapping[str, Any]) -> set[str]:
    """The channels that have what was read: an input is saved before any node has seen the state."""
    if metadata.get("source") != "input":
        return set()
    return checkpoint["channel_values"].keys() - new_versions.keys()


def _channels(
    checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Mapping[str, Any], *, has_parent: bool
) -> dict[str, Any]:
    """The channels whose value may be with an ancestor, or that later checkpoints add to, for the store.

    They follow from the checkpoint itself, because not every release of LangGraph says it in the metadata. Only a channel that
    early releases read although the checkpoint has no version of it is in the metadata alone; so it is added from there.
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
    """The channels that a checkpoint knows and has no value of: they are empty, or their value is with its ancestors."""
    missing = checkpoint["channel_versions"].keys() - checkpoint["channel_values"].keys()
    return sorted(name for name in missing if not name.startswith(_OWN_CHANNELS)) if missing else []


def _bodies(pieces: Sequence[Piece]) -> list[bytes]:
    return [each for each in pieces if isinstance(each, bytes)]


def _places(found: Checkpoint) -> list[int]:
    return list(chain.from_iterable(range(first, last + 1) for first, last in found.positions))


def _place(config: Config) -> tuple[str, str]:
    given = config["configurable"]
    if "thread_id" not in given:
        raise InvalidInput("the config names no thread: pass {'configurable': {'thread_id': ...}}")
    return str(given["thread_id"]), given.get("checkpoint_ns") or ""


def _lease(config: Config) -> tuple[str, int] | None:
    """The run that a config says its user holds: what ``leases.claim`` gave, or its id and epoch."""
    lease = config["configurable"].get("lease")
    if lease is None or (isinstance(lease, tuple) and len(lease) == 2):
        return lease
    if hasattr(lease, "id") and hasattr(lease, "epoch"):
        return lease.id, lease.epoch
    raise InvalidInput("the lease in a config is what leases.claim gave, or the id of the run and its epoch")


def _config(thread_id: str, namespace: str, id: str) -> Config:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id}}
