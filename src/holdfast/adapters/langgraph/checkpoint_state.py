"""Encodes a checkpoint as a small state and pieces that checkpoints share.

The values of the channels become skeletons and pieces (see ``codec``). The names of channels and nodes are the *shape*. They are
the same in almost every step of a graph, so the shape is a piece too: the first one. The state holds the rest: the skeletons, the
versions as distances to the newest one, and the time as its distance to the creation time in the id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.clock import from_us, to_us
from holdfast.errors import Corrupt

from .codec import Decoder, Encoder, pack, unpack

FORMAT = 1
_VERSION_6 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_GREGORIAN_US = 12_219_292_800_000_000
"""Microseconds from the epoch of UUID timestamps (1582-10-15) to 1970."""


def dump_checkpoint(checkpoint: Mapping[str, Any], encoder: Encoder, untouched: Collection[str] = ()) -> bytes:
    """Encode a checkpoint and return its state. The shape is the first piece.

    Args:
        untouched: channels whose value has not changed since it was read.
    """
    versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
    values, updated = checkpoint["channel_values"], checkpoint.get("updated_channels")
    names = list(
        dict.fromkeys([*versions, *values, *(name for node in seen.values() for name in node), *(updated or ())])
    )
    number = {name: at for at, name in enumerate(names)}
    shape = [
        checkpoint["v"],
        names,
        [number[name] for name in versions],
        [[node, [number[name] for name in channels]] for node, channels in seen.items()],
        [number[name] for name in values],
    ]
    encoder.begin(pack(shape))
    standard = {"v", "id", "ts", "channel_versions", "versions_seen", "channel_values", "updated_channels"}
    extra = {key: value for key, value in checkpoint.items() if key not in standard}
    own, of_seen = list(versions.values()), [version for node in seen.values() for version in node.values()]
    newest = _newest([*own, *of_seen])
    state = [
        FORMAT,
        _moment(checkpoint["ts"], checkpoint["id"]),
        newest,
        _relative(own, newest),
        _relative(of_seen, newest),
        None if updated is None else [number[name] for name in updated],
        [encoder.bounded(value, untouched=name in untouched) for name, value in values.items()],
    ]
    if extra or "updated_channels" not in checkpoint:
        state += [encoder.bounded(extra), "updated_channels" in checkpoint]
    return pack(state)


def load_checkpoint(id: str, state: bytes, decoder: Decoder) -> dict[str, Any]:
    """Decode a checkpoint.

    Raises:
        Corrupt: the state or its pieces are damaged, or written in an unknown format.
    """
    form, moment, newest, versions, seen_versions, updated, nodes, *extra = unpack(state)
    if form != FORMAT:
        raise Corrupt(f"checkpoint {id} is written in format {form}, which this release does not support")
    v, names, channels, seen, valued = unpack(decoder.shape())
    versions, rest = _relative(versions, newest), iter(_relative(seen_versions, newest))
    checkpoint = {
        "v": v,
        "ts": moment if isinstance(moment, str) else from_us(moment + _created_us(id)).isoformat(),
        "id": id,
        "channel_values": {names[at]: decoder.value(node) for at, node in zip(valued, nodes, strict=True)},
        "channel_versions": {names[at]: version for at, version in zip(channels, versions, strict=True)},
        "versions_seen": {node: {names[at]: next(rest) for at in numbers} for node, numbers in seen},
        "updated_channels": None if updated is None else [names[at] for at in updated],
    }
    if extra:
        checkpoint |= decoder.value(extra[0])
        if not extra[1]:
            del checkpoint["updated_channels"]
    return checkpoint


def _moment(ts: str, id: str) -> int | str:
    """Encode a timestamp as microseconds after the creation of the id, if that is lossless."""
    try:
        us = to_us(datetime.fromisoformat(ts))
        return us - _created_us(id) if from_us(us).isoformat() == ts else ts
    except (ValueError, TypeError, OverflowError):
        return ts


def _created_us(id: str) -> int:
    """Return the creation time in a UUID of version 6, as LangGraph uses, in microseconds; 0 for other ids."""
    if not _VERSION_6.fullmatch(id):
        return 0
    return int(f"{id[:8]}{id[9:13]}{id[15:18]}", 16) // 10 - _GREGORIAN_US


def _newest(versions: Sequence[Any]) -> int | None:
    """Return the highest version, if all versions are integers."""
    return max(versions) if versions and all(type(version) is int for version in versions) else None


def _relative(versions: Sequence[Any], newest: int | None) -> Sequence[Any]:
    """Convert versions to their distances to the newest, which are small numbers, and back."""
    return versions if newest is None else [newest - version for version in versions]
