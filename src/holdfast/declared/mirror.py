"""A copy of the objects of one kind in a cluster, kept up to date by a list and the events of a watch. No I/O.

The rules are those of Kubernetes: a list has a resource version, and a watch from that version delivers every later change.
Each event, a bookmark included, carries the version to go on from. If the cluster has forgotten that version (status 410),
the objects must be listed again; an object that is missing in the new list was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

Object = Mapping[str, Any]
_GONE = 410


class ObjectList(Struct, frozen=True):
    """All objects of a kind at one resource version."""

    version: str
    objects: Sequence[Object]


class Expired(Exception):
    """The cluster no longer knows the resource version: the objects must be listed again."""


class WatchFailed(Exception):
    """The cluster ended a watch with an error."""


class Mirror:
    """The objects of one kind."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        """The objects by namespace and name."""
        self.version: str | None = None
        """The resource version of the last event or list; ``None`` if the objects must be listed."""
        self.is_complete = False
        """Whether the objects were listed at least once."""

    def replace(self, listing: ObjectList) -> bool:
        """Take over a list; return whether an object was created, changed or deleted.

        Raises:
            WatchFailed: an object has no name.
        """
        objects: dict[tuple[str, str], Object] = {_name(item): item for item in listing.objects}
        changed = objects != self.objects or not self.is_complete
        self.objects, self.version, self.is_complete = objects, listing.version, True
        return changed

    def take(self, event: Mapping[str, Any]) -> bool:
        """Take over an event; return whether an object was created, changed or deleted.

        Raises:
            Expired: the watch began at a version that the cluster no longer knows.
            WatchFailed: the event is an error, or not one of a watch.
        """
        kind, item = event.get("type"), event.get("object")
        if kind == "ERROR":
            if isinstance(item, Mapping) and item.get("code") == _GONE:
                self.version = None
                raise Expired
            reason = item.get("reason", "") if isinstance(item, Mapping) else ""
            raise WatchFailed(f"the watch ended with the error {reason or 'unknown'}")
        metadata = item.get("metadata") if isinstance(item, Mapping) else None
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        if not (isinstance(item, Mapping) and isinstance(version, str)):
            raise WatchFailed("an event of the watch has no object with a resource version")
        if kind == "BOOKMARK":
            self.version = version
            return False
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise WatchFailed("an event of the watch has an unknown type")
        name = _name(item)
        before = self.objects.get(name)
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = item
        self.version = version
        return self.objects.get(name) != before


def _name(item: Any) -> tuple[str, str]:
    try:
        return item["metadata"].get("namespace", ""), item["metadata"]["name"]
    except (KeyError, TypeError, AttributeError):
        raise WatchFailed("an object of the cluster has no name") from None
