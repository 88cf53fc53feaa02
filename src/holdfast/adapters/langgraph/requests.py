"""Between LangGraph's configs, checkpoints and writes on one side, and calls of our checkpoint store on the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from msgspec import Struct, structs

from holdfast import Checkpoint, Filter, Held, Stored, Write, Written
from holdfast.errors import InvalidInput

from .codec import Decoder, Encoder, Piece, dump_checkpoint, dump_value, load_checkpoint, load_value
from .encryption import Cipher, Plain
from .fencing import Choices
from .memory import Learnt, Memory, Thread
from .turns import Turns

Config = Any
DELTA_COUNTERS = "counters_since_delta_snapshot"
"""In the metadata of most checkpoints: the delta channels that have no snapshot there."""
_OWN_CHANNELS = ("__start__", "__pregel_", "branch:to:")
"""Prefixes of the channels that LangGraph makes for itself: mostly empty, and never delta channels."""


class Task(NamedTuple):
    """What a task wrote: the arguments of ``put_writes``."""

    config: Config
    writes: Sequence[tuple[str, Any]]
    id: str
    path: str


class Request(Struct):
    """Arguments for one call of the store, and what is to be remembered when it has been answered."""

    arguments: dict[str, Any]
    learnt: Sequence[tuple[int, Learnt]] = ()
    """Objects, each with the number of the piece that it became."""
    shape: bytes | None = None
    """The first piece, if it is to be remembered as it is."""
    known: Thread | None = None
    """What was remembered of the thread when the store was told which pieces it need not read."""

    def config(self, id: str) -> Config:
        """The config of a checkpoint in the same thread and namespace."""
        return _config(self.arguments["thread_id"], self.arguments["namespace"], id)


class Requests:
    """Makes requests and reads answers for one saver."""

    def __init__(self, *, user: str | None, single_writer: bool, cipher: Cipher | None = None) -> None:
        self.user, self._single_writer = user, single_writer
        self._cipher: Cipher | Plain = cipher or Plain()
        self.memory = Memory()
        self._turns = Turns()
        self.choices = Choices()

    def find(self, config: Config) -> Request:
        """The checkpoint that a config speaks of."""
        thread, namespace = _place(config)
        id = get_checkpoint_id(config) or None
        known = self.memory.find(thread)
        held = None if known is None else Held(known.stamp, known.places())
        arguments = {"thread_id": thread, "namespace": namespace, "id": id, "user": self.user, "held": held}
        return Request(arguments, known=known)

    def remembers(self, config: Config) -> bool:
        """Whether anything is known of the thread that a config speaks of."""
        return self.memory.find(thread_of(config)) is not None

    def turn(self, config: Config, *, alone: bool) -> AbstractContextManager[None]:
        """Write to the thread that a config speaks of."""
        return self._turns.of(thread_of(config), alone=alone)

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
        remembering: bool,
    ) -> Request:
        """Save a checkpoint."""
        thread, namespace = _place(config)
        parent = get_checkpoint_id(config) or None
        known = self._known(config, remembering=remembering)
        encoder = Encoder(serde, known)
        state = dump_checkpoint(checkpoint, encoder, _untouched(checkpoint, metadata, new_versions))
        arguments = {
            "thread_id": thread,
            "namespace": namespace,
            "id": checkpoint["id"],
            "parent": parent,
            "state": self._cipher.seal(state, "state"),
            "pieces": self._sealed(encoder.pieces),
            "stamp": None if known is None else known.stamp,
            "next_place": None if known is None else known.next_place,
            "metadata": metadata,
            **_channels(checkpoint, metadata, new_versions, has_parent=bool(parent)),
            "user": self.user,
            "lease": _lease(config),
            "written": [],
            # A fork is made on purpose, and who goes on from what was the newest before is told so.
            "only_after_head": self._single_writer and metadata.get("source") != "fork",
            "known_head": self.choices.head((thread, namespace, parent or "")),
        }
        return Request(arguments, encoder.learnt, encoder.shape)

    def put_writes(self, task: Task, serde: Any, *, remembering: bool) -> Request:
        """Save what a task wrote."""
        written, learnt = self._written(task, serde, remembering=remembering)
        thread, known = thread_of(task.config), self._known(task.config, remembering=remembering)
        arguments = {
            **structs.asdict(written),
            "thread_id": thread,
            "stamp": None if known is None else known.stamp,
            "next_place": None if known is None else known.next_place,
            "user": self.user,
            "lease": _lease(task.config),
        }
        return Request(arguments, learnt)

    def add(self, request: Request, task: Task, serde: Any, *, remembering: bool) -> None:
        """Have what a task wrote saved together with a checkpoint.

        Raises:
            InvalidInput: they are not written under the same lease, which is looked at once for all.
        """
        if _lease(task.config) != request.arguments["lease"]:
            raise InvalidInput("a checkpoint and what a task wrote are under different leases")
        written, learnt = self._written(task, serde, remembering=remembering)
        before = [*request.arguments["pieces"], *_pieces(request.arguments["written"])]
        request.arguments["written"].append(written)
        request.learnt = [*request.learnt, *((len(before) + at, each) for at, each in learnt)]

    def _written(self, task: Task, serde: Any, *, remembering: bool) -> tuple[Written, Sequence[tuple[int, Learnt]]]:
        """What a task wrote as the store takes it, and objects with the numbers of the pieces that they became."""
        known = self._known(task.config, remembering=remembering)
        new: list[Write] = []
        learnt: list[tuple[int, Learnt]] = []
        count = 0
        for number, (channel, value) in enumerate(task.writes):
            encoder = Encoder(serde, known)
            state = dump_value(value, encoder)
            sealed = self._cipher.seal(state, "value")
            pieces = self._sealed(encoder.pieces)
            new.append(Write(WRITES_IDX_MAP.get(channel, number), channel, sealed, pieces))
            learnt += [(count + at, each) for at, each in encoder.learnt]
            count += len(pieces)
        id, namespace = str(task.config["configurable"]["checkpoint_id"]), _place(task.config)[1]
        return Written(id, task.id, new, task.path, namespace), learnt

    def _known(self, config: Config, *, remembering: bool) -> Thread | None:
        return self.memory.find(thread_of(config)) if remembering else None

    def learn(self, request: Request, stored: Stored) -> None:
        """Remember where the pieces of what was saved lie."""
        thread = self.memory.under(request.arguments["thread_id"], stored.stamp)
        thread.ends_before(stored.next_place)
        if request.shape is not None:
            thread.keep(stored.places[0], request.shape)
        for number, learnt in request.learnt:
            thread.learn(learnt, stored.places[number])
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
        """A checkpoint that was read, with new objects in it, which are recognised when they come back."""
        if request.arguments["id"] is None:
            self.choices.forget((found.thread_id, found.namespace, found.id))
        known = request.known
        # What was not read is in this one, even if another is remembered by now.
        thread = known if known and known.stamp == found.stamp else self.memory.under(found.thread_id, found.stamp)
        thread.turn()
        return self._tuple(found, serde, thread)

    def listed(self, found: Checkpoint, serde: Any, seen: Memory) -> CheckpointTuple:
        """One checkpoint of a list, in which each message is decoded once, however many checkpoints have it."""
        thread = seen.under(found.thread_id, found.stamp)
        return self._tuple(found, serde, thread)

    def history(self, ancestors: Iterable[Checkpoint], channels: Sequence[str], serde: Any) -> dict[str, Any]:
        """What ancestors, the nearest first, wrote to some channels, oldest first, each back to where its value was saved."""
        remaining = set(channels)
        written: dict[str, list[Any]] = {name: [] for name in channels}
        seeds: dict[str, Any] = {}
        for each in ancestors:
            for write in reversed(self._writes(each, serde, remaining)):
                written[write[1]].append(write)
            values = self._checkpoint(each, serde, None)["channel_values"]
            for name in [name for name in remaining if name in values]:
                seeds[name] = values[name]
                remaining.discard(name)
            if not remaining:
                break
        found: dict[str, Any] = {name: {"writes": written[name][::-1]} for name in channels}
        for name, seed in seeds.items():
            found[name]["seed"] = seed
        return found

    def _tuple(self, found: Checkpoint, serde: Any, thread: Thread) -> CheckpointTuple:
        parent = None if found.parent is None else _config(found.thread_id, found.namespace, found.parent)
        return CheckpointTuple(
            config=_config(found.thread_id, found.namespace, found.id),
            checkpoint=self._checkpoint(found, serde, thread),
            metadata=found.metadata,
            parent_config=parent,
            pending_writes=self._writes(found, serde, None),
        )

    def _checkpoint(self, found: Checkpoint, serde: Any, thread: Thread | None) -> dict[str, Any]:
        decoder = Decoder(serde, self._opened(found.pieces), _places(found), thread)
        return load_checkpoint(found.id, self._cipher.open(found.state, "state"), decoder)

    def _writes(self, found: Checkpoint, serde: Any, channels: set[str] | None) -> Any:
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


def _pieces(written: Sequence[Written]) -> list[Any]:
    return [piece for each in written for write in each.new for piece in write.pieces]


def _bodies(pieces: Sequence[Piece]) -> list[bytes]:
    return [each for each in pieces if isinstance(each, bytes)]


def _places(found: Checkpoint) -> list[int]:
    return list(chain.from_iterable(range(first, last + 1) for first, last in found.places))


def thread_of(config: Config) -> str:
    """The thread that a config speaks of."""
    return _place(config)[0]


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
