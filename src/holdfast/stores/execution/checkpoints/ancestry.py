"""Selects the checkpoints that pruning keeps: those that the rules keep, and the ancestors that they need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ....clock import MICROSECONDS
from ....core import text
from ....engines.protocol import Row
from ....errors import InvalidInput
from .channel_marks import ChannelMarks, decode_marks
from .compact_columns import decode_id

Key = tuple[str, str]
"""Namespace and id of a checkpoint."""
_CALL = re.compile(r":[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\||$)")
"""Part of a namespace that names one call of a subgraph; the next call gets another namespace."""


class CheckpointNode(Struct, frozen=True):
    """One checkpoint among its relatives, and the channels with writes to it."""

    namespace: str
    id: str
    parent: str | None
    marks: ChannelMarks
    run_id: str | None
    is_young: bool = False
    written_channels: frozenset[str] = frozenset()

    @property
    def key(self) -> Key:
        """Its namespace and id."""
        return self.namespace, self.id


def nodes_of(rows: Iterable[Row], written_channels: Mapping[Key, frozenset[str]]) -> list[CheckpointNode]:
    """Return the checkpoints of a thread, the newest first."""
    return [
        CheckpointNode(
            namespace=ns,
            id=decode_id(id),
            parent=None if parent is None else decode_id(parent),
            marks=decode_marks(text.load(leans)) if leans else ChannelMarks(),
            run_id=run,
            is_young=bool(is_young),
            written_channels=written_channels.get((ns, decode_id(id)), frozenset()),
        )
        for ns, id, parent, leans, run, is_young in rows
    ]


class PruningRules(Struct, frozen=True):
    """What pruning keeps of a thread: every checkpoint that one of these rules names. Needed ancestors are kept in addition.

    Raises:
        InvalidInput: a number is invalid.
    """

    keep: int = 0
    younger_than_s: int | None = None
    runs: int | None = None
    without_runs: frozenset[str] | None = None
    """If this is set, everything but the checkpoints of these runs is kept."""
    without_past_calls: bool = False
    """Drop the newest checkpoint of a subgraph call that ended before all kept checkpoints of the graph itself."""

    def __post_init__(self) -> None:
        for name in ("keep", "younger_than_s", "runs"):
            value = getattr(self, name)
            if (value is None and name != "keep") or (type(value) is int and 0 <= value < 2**31):
                continue
            raise InvalidInput(f"{name} must be a whole number of at least 0, not {value!r}", field=name)

    def since_us(self, now_us: int) -> int:
        """Return the time after which every checkpoint is kept."""
        return now_us if self.younger_than_s is None else now_us - self.younger_than_s * MICROSECONDS

    def select(self, nodes: Sequence[CheckpointNode]) -> set[Key]:
        """Return the checkpoints that the rules keep; ``nodes`` are those of a thread, the newest first."""
        if self.without_runs is not None:
            return {node.key for node in nodes if node.run_id not in self.without_runs}
        runs = dict.fromkeys(node.run_id for node in nodes if node.run_id is not None)
        last_runs = set(list(runs)[: self.runs or 0])
        young = {node.key for node in nodes if self.younger_than_s is not None and node.is_young}
        named = young | {node.key for node in nodes if node.run_id in last_runs}
        latest = newest(nodes, self.keep)
        past = _past_calls(nodes, latest | named) if self.without_past_calls else frozenset()
        return named | {key for key in latest if key[0] not in past}


def _past_calls(nodes: Sequence[CheckpointNode], kept: Iterable[Key]) -> frozenset[str]:
    """Return the namespaces of subgraph calls whose newest checkpoint is older than all kept ones of the graph itself."""
    oldest = min((id for namespace, id in kept if not namespace), default="")
    latest = {node.namespace: node.id for node in reversed(nodes)}
    return frozenset(namespace for namespace, id in latest.items() if id < oldest and _CALL.search(namespace))


def newest(nodes: Sequence[CheckpointNode], count: int) -> set[Key]:
    """Return the ``count`` newest checkpoints of each namespace."""
    counts: dict[str, int] = {}
    keys: set[Key] = set()
    for node in nodes:
        counts[node.namespace] = counts.get(node.namespace, 0) + 1
        if counts[node.namespace] <= count:
            keys.add(node.key)
    return keys


def with_required_ancestors(nodes: Sequence[CheckpointNode], kept: Iterable[Key]) -> set[Key]:
    """Return the kept checkpoints and all ancestors that they need."""
    by_key = {node.key: node for node in nodes}
    needed = set(kept)
    for key in list(needed):
        needed |= _required_ancestors(by_key[key], by_key)
    return needed


def _required_ancestors(node: CheckpointNode, by_key: Mapping[Key, CheckpointNode]) -> set[Key]:
    """Return the ancestors back to the last one with a value, or part of a value, that the checkpoint itself lacks."""
    path: list[Key] = []
    seen, depth = {node.key}, 0
    missing, ancestor = node.marks.leans, node
    is_written, has_changed = node.written_channels, node.marks.changed
    while missing and ancestor.parent is not None and (ancestor.namespace, ancestor.parent) in by_key:
        ancestor = by_key[ancestor.namespace, ancestor.parent]
        if ancestor.key in seen:
            break  # a cycle, which no graph creates
        seen.add(ancestor.key)
        path.append(ancestor.key)
        is_written |= ancestor.written_channels
        resolved = missing - ancestor.marks.leans
        # A channel that changed since, without a write or a snapshot, was emptied.
        if (
            missing & ancestor.written_channels
            or resolved & (is_written | ancestor.marks.snapshots)
            or resolved - has_changed
        ):
            depth = len(path)
        missing &= ancestor.marks.leans
        has_changed |= ancestor.marks.changed
    return set(path[:depth])
