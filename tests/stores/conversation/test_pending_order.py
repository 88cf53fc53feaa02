"""The order of pending messages in a group, compared with a list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast import FixedClock, Holdfast, NewPendingMessage, SeededIds, TenantHandle

ROOMS = (("telegram", "-100"), ("telegram", "-1001"))
rooms = st.sampled_from([0, 0, 1])
calls = st.one_of(
    st.tuples(st.just("append"), st.lists(rooms, min_size=1, max_size=5)),
    st.tuples(st.just("compact"), st.tuples(rooms, st.sets(st.integers(0, 12), max_size=6))),
    st.tuples(st.just("clear"), rooms),
    st.tuples(st.just("time"), st.sampled_from([-3_600, 0, 1])),
)


class Plain:
    """Two lists of bodies."""

    def __init__(self) -> None:
        self.said = 0
        self.rooms: list[list[str]] = [[], []]

    def append(self, chosen: list[int]) -> list[str]:
        bodies = []
        for room in chosen:
            self.said += 1
            self.rooms[room].append(str(self.said))
            bodies.append(str(self.said))
        return bodies

    def compact(self, room: int, chosen: set[int]) -> list[str]:
        existing = self.rooms[room]
        removed = sorted(place for place in chosen if place < len(existing))
        bodies = [existing[place] for place in removed]
        if removed:
            existing[removed[0]] = f"({' '.join(bodies)})"
            for place in reversed(removed[1:]):
                del existing[place]
        return bodies


def waiting(acme: TenantHandle, room: int) -> list[Any]:
    return [*acme.pending_messages.list_by_key(*ROOMS[room])]


@given(st.lists(calls, max_size=25))
def test_pending_messages_keep_their_order(history: list[tuple[str, Any]]) -> None:
    clock, plain = FixedClock(), Plain()
    with Holdfast(":memory:", ids=SeededIds(1), clock=clock) as hf:
        acme = hf.tenant("acme")
        for what, how in history:
            _make(acme, clock, plain, what, how)
            for room, expected in enumerate(plain.rooms):
                existing = waiting(acme, room)
                assert [message.body for message in existing] == expected
                assert [message.seq for message in existing] == sorted({message.seq for message in existing})
                assert [message.is_summary for message in existing] == [body.startswith("(") for body in expected]
        groups = {group.name: group for group in acme.pending_messages.list_groups()}
        assert {*groups} == {name for name, room in zip(ROOMS, plain.rooms, strict=True) if room}
        for name, existing in zip(ROOMS, plain.rooms, strict=True):
            if existing:
                assert groups[name].message_count == len(existing)
                assert groups[name].has_summary == existing[-1].startswith("(")


def _make(acme: TenantHandle, clock: FixedClock, plain: Plain, what: str, how: Any) -> None:
    if what == "append":
        before = [waiting(acme, room) for room in range(2)]
        bodies = zip(how, plain.append(how), strict=True)
        created = acme.pending_messages.append_batch(
            [
                NewPendingMessage(channel_name=ROOMS[room][0], history_key=ROOMS[room][1], body=body)
                for room, body in bodies
            ]
        )
        for room in range(2):
            new = [message.seq for message in created if message.history_key == ROOMS[room][1]]
            assert new == [*range(new[0], new[0] + len(new))] if new else True
            assert not new or not before[room] or new[0] > before[room][-1].seq
    elif what == "compact":
        room, chosen = how
        existing = waiting(acme, room)
        ids = [existing[place].id for place in sorted(chosen) if place < len(existing)]
        words = plain.compact(room, chosen)
        assert (acme.pending_messages.compact(ids, f"({' '.join(words)})") is None) == (not ids)
    elif what == "clear":
        assert acme.pending_messages.delete_by_key(*ROOMS[how]) == len(plain.rooms[how])
        plain.rooms[how].clear()
    else:
        clock.advance(how)
