"""Merging and unmerging of contacts, compared with a model of sets; and the range of a prefix search."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import FixedClock, Holdfast, SeededIds, TenantHandle
from holdfast.limits import SEARCH_CHARS
from holdfast.stores.conversation.contacts import _prefix_range, _search_key

PEOPLE = 9
numbers = st.lists(st.integers(0, PEOPLE - 1), max_size=4)
histories = st.lists(st.tuples(st.sampled_from(["merge", "merge", "unmerge"]), numbers), max_size=14)
Groups = set[frozenset[int]]


def joined(groups: Groups, chosen: set[int]) -> Groups:
    """Model of merge: every group that contains one of them becomes part of one group."""
    if len(chosen) < 2:
        return groups
    touched = {group for group in groups if group & chosen}
    return (groups - touched) | {frozenset(chosen.union(*touched))}


def parted(groups: Groups, chosen: set[int]) -> Groups:
    """Model of unmerge: exactly these are removed, and a group of one is dissolved."""
    left = {group - chosen for group in groups}
    return {group for group in left if len(group) > 1}


def groups_of(acme: TenantHandle) -> tuple[Groups, dict[frozenset[int], str]]:
    """Return the groups, and the ``merged_id`` of each."""
    results: dict[str, set[int]] = {}
    for contact in acme.contacts.list():
        if contact.merged_id is not None:
            results.setdefault(contact.merged_id, set()).add(int(contact.sender_id))
    return {frozenset(item) for item in results.values()}, {frozenset(item): id for id, item in results.items()}


@given(histories)
@example([("merge", [0, 1]), ("merge", [2, 3]), ("merge", [1, 2])])
@example([("merge", [0, 1, 2]), ("unmerge", [0, 1])])
def test_merges_and_unmerges_match_the_model(history: list[tuple[str, list[int]]]) -> None:
    with Holdfast(":memory:", ids=SeededIds(1), clock=FixedClock()) as hf:
        acme = hf.tenant("acme")
        ids = [acme.contacts.upsert("telegram", str(number)).id for number in range(PEOPLE)]
        expected: Groups = set()
        for what, chosen in history:
            before = expected
            if what == "merge":
                expected = joined(before, {*chosen})
                merged_id = acme.contacts.merge([ids[number] for number in chosen])
                assert (merged_id is None) == (len({*chosen}) < 2)
            else:
                expected = parted(before, {*chosen})
                merged_id = None
                out = acme.contacts.unmerge([ids[number] for number in chosen])
                assert out == sum(any(number in group for group in before) for number in {*chosen})
            result, names = groups_of(acme)
            assert result == expected
            assert merged_id is None or names[next(group for group in result if {*chosen} <= group)] == merged_id


@given(st.permutations(range(4)))
def test_the_oldest_group_is_kept_in_any_order(order: list[int]) -> None:
    with Holdfast(":memory:", ids=SeededIds(1), clock=FixedClock()) as hf:
        acme = hf.tenant("acme")
        ids = [acme.contacts.upsert("telegram", str(number)).id for number in range(4)]
        first = acme.contacts.merge(ids[:2])
        second = acme.contacts.merge(ids[2:])
        assert first is not None
        assert second is not None
        assert acme.contacts.merge([ids[number] for number in order]) == min(first, second)


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)


@given(name=texts, search=texts.filter(bool))
@example(name="\U0010ffff" * 200, search="\U0010ffff" * SEARCH_CHARS)
@example(name="x" + "\U0010ffff" * 99, search="x")
@example(name="a\U0010ffff", search="a")
@example(name="straße", search="STRASS")
@example(name="\ud800\x00", search="\ud800")
def test_the_range_of_a_prefix_contains_exactly_the_texts_with_it(name: str, search: str) -> None:
    """Both engines compare by code point, as Python does once everything is escaped."""
    expected = _prefix_range(search)
    inside = expected["prefix"] <= _search_key(name) < expected["beyond"]
    assert inside == name.casefold().startswith(search.casefold())
