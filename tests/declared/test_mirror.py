"""A mirror has the objects of the cluster, whatever happens between: bookmarks, broken watches, forgotten versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.declared.mirror import Expired, Mirror, ObjectList, WatchFailed

NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.sampled_from([("bookmark", ""), ("watch", ""), ("break", ""), ("forget", "")]),
    ),
    max_size=40,
)


class FakeCluster:
    """What a cluster knows: its objects, and the events since the last time it forgot them."""

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.forgotten = 0

    def happen(self, kind: str, name: str) -> None:
        if kind == "delete" and name not in self.objects:
            return
        self.version += 1
        item = item_of(name, self.version)
        types = {"put": "MODIFIED" if name in self.objects else "ADDED", "delete": "DELETED", "bookmark": "BOOKMARK"}
        if kind == "put":
            self.objects[name] = item
        elif kind == "delete":
            del self.objects[name]
        self.events.append((self.version, {"type": types[kind], "object": item}))

    def list(self) -> ObjectList:
        return ObjectList(str(self.version), [*self.objects.values()])

    def since(self, version: str) -> list[dict[str, Any]]:
        if int(version) < self.forgotten:
            return [{"type": "ERROR", "object": {"kind": "Status", "code": 410}}]
        return [event for number, event in self.events if number > int(version)]


def item_of(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}}


def follow(mirror: Mirror, cluster: FakeCluster, most: int | None = None) -> bool:
    """List if necessary, and take over events; return whether anything was reported as changed."""
    changed = False
    if mirror.version is None:
        changed |= mirror.replace(cluster.list())
    assert mirror.version is not None
    try:
        for event in cluster.since(mirror.version)[:most]:
            changed |= mirror.take(event)
    except Expired:
        changed |= follow(mirror, cluster)
    return changed


@given(STEPS, st.integers(0, 3))
def test_a_mirror_has_the_objects_of_the_cluster(steps: list[tuple[str, str]], most: int) -> None:
    cluster, mirror = FakeCluster(), Mirror()
    for kind, name in steps:
        if kind in ("put", "delete", "bookmark"):
            cluster.happen(kind, name)
        elif kind == "forget":
            cluster.forgotten = cluster.version
            cluster.events.clear()
        else:
            before = dict(mirror.objects)
            was_complete = mirror.is_complete
            changed = follow(mirror, cluster, most if kind == "break" else None)
            if mirror.objects != before or not was_complete:
                assert changed, "a change is always reported"
    follow(mirror, cluster)
    assert {name: item for (_, name), item in mirror.objects.items()} == cluster.objects
    assert mirror.is_complete
    assert not follow(mirror, cluster), "nothing has changed since"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "ADDED"},
        {"type": "ADDED", "object": []},
        {"type": "ADDED", "object": {"metadata": {"name": "a"}}},
        {"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}},
        {"type": "ADDED", "object": {"metadata": []}},
        {"type": "RENAMED", "object": item_of("a", 2)},
        {"type": "ERROR", "object": {"code": 500, "reason": "InternalError"}},
        {"type": "ERROR", "object": None},
    ],
)
def test_an_event_that_makes_no_sense_ends_the_watch_and_changes_nothing(event: dict[str, Any]) -> None:
    mirror = Mirror()
    mirror.replace(ObjectList("1", [item_of("a", 1)]))
    with pytest.raises(WatchFailed):
        mirror.take(event)
    assert (mirror.version, [*mirror.objects]) == ("1", [("ns", "a")])
