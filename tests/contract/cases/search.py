"""Search: searchable text, queries, and the order of results."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.core.paging import Page
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.search.index import BATCH_MESSAGES
from holdfast.stores.conversation.search.search import SearchHit
from holdfast.stores.conversation.sessions import Session
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

STRANGE = [
    *"""
"a
a"
"a" b"
a -
a --
a -b-c
- a
a*b
a**
a *
(a
a)
a OR
NOT a
a AND
NEAR(a b)
a:b
words:a
{a b}:c
^a
a + b
a & !b
a | b
a <-> b
a:*
'a'
a'b
a\\b
%a_
a;b
'; DROP TABLE messages; --
$1 a
:a ?1
""".split("\n")[1:-1],
    "a\x00b",
    "\ud800a",
    "a\n\tb",
    "\U0010ffffa",
]
"""Queries that contain a word and syntax of the engines; none may be an error."""
NOTHING = ["", "  ", "*", "-", "!?", '""', "\x00", "\ud800", '" "', "-a", '-"a b"', "...", "-a -b*"]
"""Queries without a word to find."""


async def session_with(acme: AsyncTenantHandle, *texts: str, **about: Any) -> Session:
    """Create a session with these messages."""
    session = await acme.sessions.create(**about)
    await acme.messages.append_many(session.id, [NewMessage(role="user", content=text) for text in texts])
    return session


async def matching_texts(acme: AsyncTenantHandle, query: str, **how: Any) -> list[str]:
    """Return the texts of all hits, sorted, for cases that do not test the order."""
    return sorted(hit.message.content[0]["text"] for hit in await acme.messages.search(query, **how))


@contract()
async def a_hit_has_the_message_its_score_and_a_snippet(world: World) -> None:
    acme = world.tenant()
    session = await session_with(acme, "The build went through", "The deployment failed at the gate")
    (hit,) = await acme.messages.search("failed deployment")
    assert hit == SearchHit(
        await acme.messages.get(hit.message.id), session.id, 1.0, "The **deployment** **failed** at the gate"
    )
    assert hit.message.seq == 2
    assert await acme.messages.search("failed build") == []
    assert len(await acme.messages.search("the")) == 2
    assert await acme.messages.search("depl") == []
    (marked,) = await acme.messages.search("gate", start_mark="<b>", end_mark="</b>")
    assert marked.snippet == "The deployment failed at the <b>gate</b>"
    (bare,) = await acme.messages.search("gate", start_mark="", end_mark="")
    assert bare.snippet == "The deployment failed at the gate"


@contract()
async def case_diacritics_and_normal_forms_are_ignored(world: World) -> None:
    acme = world.tenant()
    texts = ["Crème BRÛLÉE", "Straße", "ﬁne ２０２６", "북한산", "Ελλάς", "re\u0301sume\u0301", "i\u0307stanbul"]
    await session_with(acme, *texts)
    for query, text in {
        "creme brulee": texts[0],
        "CRÈME": texts[0],
        "strasse": texts[1],
        "FINE 2026": texts[2],
        "북한산": texts[3],
        "ελλασ": texts[4],
        "résumé": texts[5],
        "İSTANBUL": texts[6],
    }.items():
        assert await matching_texts(acme, query) == [text], query


@contract()
async def scripts_without_spaces_are_searched_by_character(world: World) -> None:
    acme = world.tenant()
    await session_with(acme, "我住在北京市", "東京タワー", "ประเทศไทย", "ship it 🚀🚀")
    assert await matching_texts(acme, "北京") == ["我住在北京市"]
    assert await matching_texts(acme, "京北") == []
    assert await matching_texts(acme, "京") == ["我住在北京市", "東京タワー"]
    assert await matching_texts(acme, "タワー") == ["東京タワー"]
    assert await matching_texts(acme, "เทศ") == ["ประเทศไทย"]
    assert await matching_texts(acme, "🚀") == ["ship it 🚀🚀"]
    (hit,) = await acme.messages.search("北京")
    assert hit.snippet == "我住在**北京**市"


@contract()
async def a_query_has_only_words_phrases_exclusions_and_prefixes(world: World) -> None:
    acme = world.tenant()
    one, two, three = "red fish blue fish", "blue red fish, old", "new fishing rod"
    await session_with(acme, one, two, three)
    for query, texts in {
        '"red fish"': [one, two],
        '"fish red"': [],
        '"blue fish" red': [one],
        "red-fish": [one, two],
        "fish -old": [one],
        'fish -"red fish"': [],
        "fish*": [one, two, three],
        "fish* -red": [three],
        '"new fi"*': [three],
        '"ew fi"*': [],
        "fi* -fishi*": [one, two],
        "FISH": [one, two],
        "fish OR rod": [],
        "fish AND red": [],
    }.items():
        assert await matching_texts(acme, query) == sorted(texts), query


@contract()
async def no_query_is_a_syntax_error(world: World) -> None:
    acme = world.tenant()
    await session_with(acme, "a b c", "or and not near words drop table messages")
    for query in STRANGE:
        assert isinstance(await acme.messages.search(query), Page), query
    assert await matching_texts(acme, "(a") == ["a b c"]
    assert await matching_texts(acme, "a:b ^c") == ["a b c"]
    assert await matching_texts(acme, '"a b') == ["a b c"]
    assert len(await acme.messages.search("near NOT and")) == 1
    for query in NOTHING:
        with raises(InvalidInput, field="query"):
            await acme.messages.search(query)


@contract(limits=Limits(query_words=3, query_chars=40, page_rows=5))
async def invalid_search_arguments_are_refused(world: World) -> None:
    acme = world.tenant()
    session = await session_with(acme, "a b c d")
    assert len(await acme.messages.search('"a b" c', limit=5)) == 1
    for query in ("a b c d", '"a b c" -d', "x" * 41):
        with raises(LimitExceeded):
            await acme.messages.search(query)
    with raises(LimitExceeded):
        await acme.messages.search("a", limit=6)
    wrong: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": True},
        {"limit": "1"},
        {"session_id": "x"},
        {"user": ""},
        {"agent": 7},
        {"start_mark": None},
        {"end_mark": 1},
    ]
    for arguments in wrong:
        with raises(InvalidInput):
            await acme.messages.search("a", **{"limit": 5, **arguments})
    no_texts: list[Any] = [None, 7, ["a"], b"a"]
    for no_text in no_texts:
        with raises(InvalidInput):
            await acme.messages.search(no_text, limit=5)
    listed = await acme.messages.list(session.id, limit=1)
    for cursor in ("", "x", listed.next or "none", "lKZzZWFyY2gFzwAAAZk"):
        with raises(InvalidFilter):
            await acme.messages.search("a", limit=5, cursor=cursor)
    with raises(NotFound):
        await acme.messages.search("a", limit=5, session_id=uuid_of("unknown"))


@contract()
async def only_the_text_of_a_conversation_is_searchable(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create(metadata={"note": "sessionnote"})
    use = {
        "type": "tool_use",
        "id": "call_one",
        "name": "web_search",
        "input": {"query": "alpha", "more": [{"id": "beta"}]},
    }
    result = {
        "type": "tool_result",
        "tool_use_id": "call_one",
        "content": [{"type": "text", "text": "gamma"}, {"type": "image"}],
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "delta"}}
    thought = {"type": "thinking", "thinking": "epsilon", "signature": "zeta"}
    plain = {"type": "tool_result", "tool_use_id": "call_two", "content": "eta"}
    blocks = [{"type": "text", "text": "theta"}, use, result, image, thought, plain]
    await acme.messages.append(session.id, role="assistant", content=blocks, metadata={"note": "metanote"})
    event = {"type": "event", "id": "iota", "parts": [{"text": "kappa", "n": 7}, None], "author": "lambda"}
    await acme.messages.append(session.id, kind="adk.event", content=event)
    await acme.messages.append(session.id, kind="bare", content="omega")
    searchable = (
        "alpha",
        "beta",
        "gamma",
        "epsilon",
        "eta",
        "theta",
        "kappa",
        "lambda",
        "omega",
        '"web search"',
        "web_search",
    )
    for word in searchable:
        assert len(await acme.messages.search(word)) == 1, word
    unsaid = ("delta", "zeta", "iota", "call_one", "metanote", "sessionnote", "text", "event", "base64", "assistant")
    for word in unsaid:
        assert await acme.messages.search(word) == [], word
    assert await acme.messages.search('"theta web"') == [], "a phrase does not match across two texts"
    assert len(await acme.messages.search("theta web")) == 1


@contract()
async def a_search_finds_everything_appended_before_it(world: World) -> None:
    acme = world.tenant()
    sessions = [await session_with(acme, f"first of {number}") for number in range(4)]
    assert len(await acme.messages.search("first")) == 4
    for number, session in enumerate(sessions):
        await acme.messages.append(session.id, role="user", content=f"then of {number}")
        assert len(await acme.messages.search("then")) == number + 1
    assert await acme.messages.search("later") == []
    await session_with(acme, *(f"later {number}" for number in range(1_200)))
    page, seen = await acme.messages.search("later", limit=1_000), 1_000
    assert len(page) == seen
    assert page.complete
    assert len(await acme.messages.search("later", limit=1_000, cursor=page.next)) == 200
    assert await matching_texts(acme, "later 1199") == ["later 1199"]


@contract(limits=Limits(search_tail=10))
async def a_search_reports_whether_everything_was_searched(world: World) -> None:
    acme = world.tenant()
    few = await session_with(acme, "word")
    many = await session_with(acme, *(f"word {number}" for number in range(BATCH_MESSAGES + 50)))
    page = await acme.messages.search("word", limit=1_000)
    assert not page.complete
    assert page.sessions_behind > 0
    assert BATCH_MESSAGES <= len(page) <= BATCH_MESSAGES + 11
    assert (await acme.messages.search("word", session_id=few.id)).complete
    page = await acme.messages.search("word", session_id=many.id, limit=1_000)
    assert (len(page), page.complete, page.sessions_behind) == (BATCH_MESSAGES + 50, True, 0)
    page = await acme.messages.search("word", limit=1_000)
    assert (len(page), page.complete, page.sessions_behind) == (BATCH_MESSAGES + 51, True, 0)


@contract()
async def a_search_can_be_limited_to_a_session_a_user_or_an_agent(world: World) -> None:
    acme = world.tenant()
    ada = await session_with(acme, "word of ada", user="ada", agent="helper")
    grace = await session_with(acme, "word of grace", user="grace", agent="helper")
    await session_with(acme, "word without user")
    assert await matching_texts(acme, "word") == ["word of ada", "word of grace", "word without user"]
    assert await matching_texts(acme, "word", session_id=ada.id) == ["word of ada"]
    assert await matching_texts(acme, "word", session_id=ada.id.upper(), user="ada") == ["word of ada"]
    assert await matching_texts(acme, "word", session_id=ada.id, user="grace") == []
    assert await matching_texts(acme, "word", user="grace") == ["word of grace"]
    assert await matching_texts(acme, "word", agent="helper") == ["word of ada", "word of grace"]
    assert await matching_texts(acme, "word", agent="helper", user="absent") == []
    await acme.sessions.update(grace.id, agent="other")
    assert await matching_texts(acme, "word", agent="helper") == ["word of ada"]


@contract()
async def the_newest_comes_first_and_pages_neither_repeat_nor_skip(world: World) -> None:
    acme = world.tenant()
    sessions = [await acme.sessions.create() for _ in range(3)]
    created: list[str] = []
    for number in range(30):
        if number % 4:
            world.clock.advance(0.5)
        session = sessions[number % 3 if number % 4 else 0]
        created.append((await acme.messages.append(session.id, role="user", content=f"page {number}")).id)
    whole = await acme.messages.search("page", limit=100)
    assert whole.next is None
    times = [hit.message.created_at for hit in whole]
    assert times == sorted(times, reverse=True)
    for session in sessions:
        own = [hit.message.seq for hit in whole if hit.session_id == session.id]
        assert own == sorted(own, reverse=True), "within a session the order is that of the log"
    pages: list[SearchHit] = []
    cursor: str | None = None
    while True:
        page = await acme.messages.search("page", limit=7, cursor=cursor)
        pages += page
        world.clock.advance(1)
        # Messages appended in between are newer than the page and do not shift it.
        await acme.messages.append(sessions[0].id, role="user", content="page, later")
        if page.next is None:
            break
        cursor = page.next
    assert [hit.message.id for hit in pages] == [hit.message.id for hit in whole]
    assert {hit.message.id for hit in pages} == set(created)


@contract()
async def messages_that_mention_a_word_in_passing_come_last(world: World) -> None:
    acme = world.tenant()
    short, dump = "about zebras", "x " * 900 + "zebras " + "y " * 900
    about = "zebras " * 20 + "z " * 900
    await session_with(acme, short, about)
    world.clock.advance(60)
    await session_with(acme, dump)
    hits = await acme.messages.search("zebras")
    assert [hit.score for hit in hits] == [1.0, 1.0, 0.5]
    assert hits[2].snippet == "…" + "x " * 19 + "**zebras** " + "y " * 56 + "y…"
    assert {hit.message.content[0]["text"] for hit in hits[:2]} == {short, about}
    first = await acme.messages.search("zebr*", limit=2)
    rest = await acme.messages.search("zebr*", limit=2, cursor=first.next)
    assert [hit.message.id for hit in [*first, *rest]] == [hit.message.id for hit in hits]
    assert rest.next is None


@contract()
async def a_changed_message_is_found_by_its_new_text(world: World) -> None:
    acme = world.tenant()
    session = await session_with(acme, "one", "two", "three")
    ids = [message.id for message in await acme.messages.list(session.id)]
    assert len(await acme.messages.search("two")) == 1
    await acme.messages.update(ids[1], content="secondly")
    await acme.messages.update(ids[2], metadata={"n": 1})
    assert await acme.messages.search("two") == []
    assert await matching_texts(acme, "secondly") == ["secondly"]
    await acme.messages.update(ids[1], content="at last")
    assert await matching_texts(acme, "last") == ["at last"]
    assert await acme.messages.search("secondly") == []
    await acme.messages.append(session.id, role="user", content="four")
    assert await matching_texts(acme, "four") == ["four"]
    assert await matching_texts(acme, "three") == ["three"]


@contract()
async def deleted_messages_are_not_found(world: World) -> None:
    acme = world.tenant()
    session = await session_with(acme, "keep this", "lose this", "never searched")
    lost = (await acme.messages.list(session.id))[1]
    assert await matching_texts(acme, "this") == ["keep this", "lose this"]
    assert await acme.messages.delete(session.id, [lost.id]) == 1
    assert await matching_texts(acme, "this") == ["keep this"]
    again = await acme.messages.append(session.id, role="user", content="back as this", id=lost.id)
    assert again.seq == 4
    assert await matching_texts(acme, "this") == ["back as this", "keep this"]
    other = await session_with(acme, "this was purged")
    assert len(await acme.messages.search("this")) == 3
    await acme.sessions.purge(other.id)
    assert await matching_texts(acme, "purged") == []
    assert len(await acme.messages.search("this")) == 2


@contract()
async def deleted_sessions_are_not_searched_until_they_are_restored(world: World) -> None:
    acme = world.tenant()
    one, two = await session_with(acme, "word one"), await session_with(acme, "word two")
    assert len(await acme.messages.search("word")) == 2
    await acme.messages.append(one.id, role="user", content="word unseen")
    await acme.sessions.delete(one.id)
    assert await matching_texts(acme, "word") == ["word two"]
    with raises(NotFound):
        await acme.messages.search("word", session_id=one.id)
    await acme.sessions.restore(one.id)
    assert await matching_texts(acme, "word") == ["word one", "word two", "word unseen"]
    assert await matching_texts(acme, "word", session_id=two.id) == ["word two"]


@contract()
async def a_search_finds_the_messages_of_the_current_branch(world: World) -> None:
    acme = world.tenant()
    session = await session_with(acme, "start word", "middle word", "end word")
    assert len(await acme.messages.search("word")) == 3
    await acme.branches.rewind(session.id, to=1)
    assert await matching_texts(acme, "word") == ["start word"]
    await acme.messages.append(session.id, role="user", content="other word")
    assert await matching_texts(acme, "word") == ["other word", "start word"]
    assert await matching_texts(acme, "word", session_id=session.id, limit=1) == ["other word"]
    await acme.branches.redo(session.id)
    assert await matching_texts(acme, "word") == ["end word", "middle word", "start word"]
    await acme.messages.append(session.id, role="user", content="last word")
    await acme.branches.switch(session.id, 1)
    await acme.messages.append(session.id, role="user", content="more word")
    assert await matching_texts(acme, "word") == ["more word", "other word", "start word"]
    await acme.branches.switch(session.id, 0)
    assert await matching_texts(acme, "word") == ["end word", "last word", "middle word", "start word"]


@contract()
async def a_page_is_filled_although_other_branches_match(world: World) -> None:
    acme = world.tenant()
    await session_with(acme, "deep word")
    world.clock.advance(60)
    session = await session_with(acme, "first word", *(f"hidden word {number}" for number in range(40)))
    await acme.branches.rewind(session.id, to=1)
    assert await matching_texts(acme, "word", limit=2) == ["deep word", "first word"]
    first = await acme.messages.search("word", limit=1)
    assert [hit.message.content[0]["text"] for hit in first] == ["first word"]
    second = await acme.messages.search("word", limit=1, cursor=first.next)
    assert [hit.message.content[0]["text"] for hit in second] == ["deep word"]


@contract()
async def a_search_never_finds_messages_of_another_tenant(world: World) -> None:
    mine, theirs = world.tenant("acme"), world.tenant("zenith")
    for handle, text in ((mine, "alpha beta"), (theirs, "alpha gamma")):
        await handle.sessions.create(id=uuid_of("s"))
        await handle.messages.append(uuid_of("s"), role="user", content=text, id=uuid_of("m"))
    for _ in range(2):
        assert await matching_texts(mine, "alpha") == ["alpha beta"]
        assert await matching_texts(theirs, "alpha") == ["alpha gamma"]
        assert await matching_texts(mine, "gamma") == []
        assert await matching_texts(theirs, "alpha -beta") == ["alpha gamma"]
    await mine.messages.delete(uuid_of("s"), [uuid_of("m")])
    assert await matching_texts(mine, "alpha") == []
    assert await matching_texts(theirs, "alpha") == ["alpha gamma"]


@contract("tenants")
async def a_deleted_tenant_leaves_nothing_in_the_index(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    await session_with(acme, "shared word")
    await session_with(zenith, "shared word")
    assert len(await acme.messages.search("word")) == len(await zenith.messages.search("word")) == 1
    await world.tenants.delete("acme", cascade=True)
    assert await acme.messages.search("word") == []
    assert len(await zenith.messages.search("word")) == 1
    await session_with(acme, "another")
    assert await acme.messages.search("word") == []
    assert await matching_texts(acme, "another") == ["another"]


@contract("joining")
async def a_search_in_a_transaction_sees_its_changes(world: World) -> None:
    acme = world.tenant()
    session = await session_with(acme, "uncommitted word")
    assert await matching_texts(acme, "word") == ["uncommitted word"]
    await world.caller.rollback()
    await world.caller.begin()
    assert await matching_texts(acme, "word") == []
    assert await acme.sessions.list() == []
    session = await session_with(acme, "committed word")
    await world.caller.commit()
    await world.caller.begin()
    assert await matching_texts(acme, "word") == ["committed word"]
    await acme.sessions.purge(session.id)
    await world.caller.commit()
    await world.caller.begin()
    assert await matching_texts(acme, "word") == []


@contract("concurrency")
async def concurrent_searches_and_appends_lose_and_duplicate_nothing(world: World) -> None:
    acme = world.tenant()
    sessions = [await session_with(acme, "word, first") for _ in range(4)]

    async def append_and_search(number: int) -> bool:
        created = await acme.messages.append(sessions[number % 4].id, role="user", content=f"word {number}")
        return created.id in [hit.message.id for hit in await acme.messages.search(f"word {number}")]

    results = await world.together(*[partial(append_and_search, number) for number in range(24)])
    assert results == [True] * 24, results
    hits = await acme.messages.search("word", limit=100)
    assert len(hits) == len({hit.message.id for hit in hits}) == 28
