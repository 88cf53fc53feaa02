"""Session keys: the documented texts, parsing as their exact inverse, and clear errors."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CronKey, DirectKey, GroupKey, Holdfast, MainKey, SessionKey, SubagentKey, TeamKey
from holdfast.errors import InvalidInput, LimitExceeded
from tests.errors import raises

DOCUMENTED = [
    (
        SessionKey.direct(agent="default", channel="telegram", peer="386246614"),
        "agent:default:telegram:direct:386246614",
    ),
    (
        SessionKey.group(agent="default", channel="telegram", peer="-100123456"),
        "agent:default:telegram:group:-100123456",
    ),
    (SessionKey.subagent(agent="default", label="my-task"), "agent:default:subagent:my-task"),
    (SessionKey.cron(agent="default", job="reminder", run="abc123"), "agent:default:cron:reminder:run:abc123"),
    (SessionKey.main(agent="default"), "agent:default:main"),
    (SessionKey.main(agent="default", name="inbox"), "agent:default:inbox"),
    (SessionKey.team(agent="default", team_id="t1", chat="c1"), "agent:default:team:t1:c1"),
    (SessionKey.ws(agent="X", conversation="conv-7"), "agent:X:ws:direct:conv-7"),
]
KINDS = (SubagentKey, CronKey, TeamKey, DirectKey, GroupKey, MainKey)
RESERVED = ("subagent", "cron", "team")

# Characters that matter to the forms are frequent; others occur too.
_last = st.one_of(
    st.text(min_size=1),
    st.lists(st.sampled_from(["agent", "direct", "group", "run", "", *RESERVED, "x"]), min_size=2).map(":".join),
).filter(bool)
_inner = _last.map(lambda text: text.replace(":", "")).filter(bool)
_channel = _inner.filter(lambda text: text not in RESERVED)
KEYS = st.one_of(
    st.builds(DirectKey, agent=_inner, channel=_channel, peer=_last),
    st.builds(GroupKey, agent=_inner, channel=_channel, peer=_last),
    st.builds(SubagentKey, agent=_inner, label=_last),
    st.builds(CronKey, agent=_inner, job=_inner, run=_last),
    st.builds(TeamKey, agent=_inner, team_id=_inner, chat=_last),
    st.builds(MainKey, agent=_inner, name=_channel),
)


@pytest.mark.parametrize(("key", "text"), DOCUMENTED)
def test_a_key_has_exactly_the_documented_text(key: SessionKey, text: str) -> None:
    assert str(key) == text
    assert SessionKey.parse(text) == key


@given(KEYS)
def test_parse_is_the_inverse_of_str(key: SessionKey) -> None:
    assert SessionKey.parse(str(key)) == key


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(["agent", "a", "", "direct", "group", "run", *RESERVED]), max_size=8).map(":".join),
    )
)
def test_a_text_is_parsed_exactly_or_rejected(text: str) -> None:
    try:
        key = SessionKey.parse(text)
    except InvalidInput:
        return
    assert str(key) == text


def test_no_text_matches_two_keys() -> None:
    parts = ["a", "direct", "run", *RESERVED]
    texts: dict[str, SessionKey] = {}
    for kind in KINDS:
        for values in itertools.product([*parts, "b:c", "direct:d", "run:e"], repeat=len(kind.__struct_fields__)):
            try:
                key = kind(**dict(zip(kind.__struct_fields__, values, strict=True)))
            except InvalidInput:
                continue
            assert texts.setdefault(str(key), key) == key
    assert len(texts) > 500


@pytest.mark.parametrize(
    "peer", ["5511:9@s.whatsapp.net", "-100123:topic:7", "a\nb", "\x00", "\ud800", "ünï 🎉", ":", " "]
)
def test_a_peer_may_be_any_text(peer: str) -> None:
    key = SessionKey.group(agent="a", channel="c", peer=peer)
    assert SessionKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "main",
        "agent",
        "agent:",
        "agent:a",
        "agent:a:",
        "agent::main",
        "agent:a:cron",
        "agent:a:cron:job",
        "agent:a:cron:job:run:",
        "agent:a:cron:direct:x",
        "agent:a:team:t",
        "agent:a:subagent:",
        "agent:a:telegram:direct",
        "agent:a:telegram:direct:",
        "agent:a:telegram:channel:x",
        "agent:a::direct:x",
        "Agent:a:main",
        " agent:a:main",
        "user:a:main",
    ],
)
def test_the_error_for_a_malformed_key_lists_the_forms(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SessionKey.parse(text)
    assert repr(text) in str(caught.value)
    assert all(kind.FORM in str(caught.value) for kind in KINDS)


@pytest.mark.parametrize("value", [None, 7, b"agent:a:main", ["agent:a:main"]])
def test_values_that_are_not_text_are_rejected(value: object) -> None:
    with raises(InvalidInput, field="key"):
        SessionKey.parse(value)  # type: ignore[arg-type]


def test_a_long_text_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        SessionKey.parse("x" * 1_000_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (lambda: SessionKey.direct(agent="", channel="c", peer="p"), "agent", ""),
        (lambda: SessionKey.direct(agent="a", channel="c", peer=""), "peer", ""),
        (lambda: SessionKey.direct(agent="a:b", channel="c", peer="p"), "agent", "a:b"),
        (lambda: SessionKey.direct(agent="a", channel="c:d", peer="p"), "channel", "c:d"),
        (lambda: SessionKey.direct(agent="a", channel="cron", peer="p"), "channel", "cron"),
        (lambda: SessionKey.group(agent="a", channel="team", peer="p"), "channel", "team"),
        (lambda: SessionKey.cron(agent="a", job="j:k", run="r"), "job", "j:k"),
        (lambda: SessionKey.team(agent="a", team_id="t:u", chat="c"), "team_id", "t:u"),
        (lambda: SessionKey.main(agent="a", name="x:y"), "name", "x:y"),
        (lambda: SessionKey.main(agent="a", name="subagent"), "name", "subagent"),
        (lambda: SessionKey.direct(agent="a", channel="c", peer=5), "peer", 5),  # type: ignore[arg-type]
    ],
)
def test_a_part_that_could_not_be_parsed_back_is_rejected(make: object, field: str, value: object) -> None:
    with raises(InvalidInput, field=field) as caught:
        make()  # type: ignore[operator]
    assert repr(value) in str(caught.value)


def test_a_key_without_a_kind_is_rejected() -> None:
    with raises(InvalidInput, field="kind"):
        SessionKey(agent="a")


def test_keys_are_comparable_and_immutable() -> None:
    key = SessionKey.direct(agent="a", channel="c", peer="p")
    assert key == DirectKey(agent="a", channel="c", peer="p")
    assert key != GroupKey(agent="a", channel="c", peer="p")
    assert len({key, DirectKey(agent="a", channel="c", peer="p")}) == 1
    with pytest.raises(AttributeError):
        key.peer = "q"  # type: ignore[misc]


def test_a_session_can_be_created_and_found_by_a_key() -> None:
    key = SessionKey.direct(agent="helper", channel="telegram", peer="42")
    with Holdfast(":memory:") as hf:
        sessions = hf.tenant("acme").sessions
        created = sessions.create(key=key, agent=key.agent)
        assert created.key == "agent:helper:telegram:direct:42"
        assert sessions.find(key) == created
        assert sessions.find(str(key)) == created
        assert sessions.upsert(key, user=None).id == created.id
        assert SessionKey.parse(created.key) == key


def test_a_key_over_the_limit_is_rejected() -> None:
    key = SessionKey.direct(agent="a", channel="c", peer="p" * 10_000)
    with Holdfast(":memory:") as hf, pytest.raises(LimitExceeded):
        hf.tenant("acme").sessions.create(key=key)
