"""Buffered sessions on both engines, compared with a model in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, NewMessage, PoolOptions, TenantHandle
from holdfast.errors import Conflict, HoldfastError
from holdfast.types import BufferedSession, SessionState
from tests.contract.cases.values import TEXTS
from tests.differential.sides import StepIds

STORIES = 30
STEPS = 30


class Model:
    """A model of a buffered session: a list of texts and the state beside it, current and as last saved."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.summary = self.label = ""
        self.tokens = 0
        self.metadata: dict[str, Any] = {}
        self.mark_saved()

    def mark_saved(self) -> None:
        self.saved = (self.texts, self.summary, self.label, self.tokens, self.metadata)

    def discard_changes(self) -> None:
        self.texts, self.summary, self.label, self.tokens, self.metadata = self.saved

    def check(self, buffer: BufferedSession) -> None:
        assert texts(buffer.history()) == self.texts
        state = buffer.state
        assert (state.summary, state.label, state.input_tokens) == (self.summary, self.label, self.tokens)
        assert buffer.metadata == self.metadata


class Side:
    """One engine: a buffer, and a second handle on the same database."""

    def __init__(self, url: str) -> None:
        self.ids, self.clock = StepIds(), FixedClock()
        pool = PoolOptions(min_connections=1, max_connections=2)
        self.holdfast = Holdfast(url, clock=self.clock, ids=self.ids, pool=pool, auto_migrate=True)

    def begin(self, story: int) -> None:
        self.tenant = f"tenant {story}"
        self.buffer = self.handle().sessions.buffered("k", user="ada")

    def handle(self) -> TenantHandle:
        return self.holdfast.tenant(self.tenant)

    def stored(self) -> tuple[Any, ...]:
        """Return all stored fields of the session."""
        handle = self.handle()
        session = handle.sessions.find("k", user="ada")
        if session is None:
            return ()
        fresh = handle.sessions.buffered("k", user="ada")
        messages = [*handle.messages.list(session.id)]
        assert fresh.history() == messages
        return session, messages, fresh.state, [*handle.branches.list(session.id)]


def texts(messages: Any) -> list[str]:
    return [message.content[0]["text"] for message in messages]


@pytest.fixture
def sides(postgres_url: str) -> Iterator[list[Side]]:
    created = [Side(":memory:"), Side(postgres_url)]
    yield created
    for side in created:
        side.holdfast.close()


@pytest.mark.leg("buffered sessions, model, sqlite and postgres together")
def test_buffers_equal_the_model_on_both_engines(sides: list[Side]) -> None:
    for story in range(STORIES):
        _run_story(sides, story)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_buffers_equal_the_model_on_both_engines_for_a_long_time(sides: list[Side]) -> None:
    first = int.from_bytes(os.urandom(4))
    for story in range(first, first + 2_000):
        _run_story(sides, story)


def _run_story(sides: list[Side], story: int) -> None:
    """Run one random sequence of actions."""
    random, model = Random(story), Model()
    for side in sides:
        side.ids.begin(story * 1_000)
        side.begin(story)
    for step in range(STEPS):
        seed, action = random.random(), random.choice([*DEEDS])
        answers = []
        for side in sides:
            side.ids.begin(story * 1_000 + step + 1)
            side.clock.advance(0.25)
            answers.append(_apply(action, side, Random(seed)))
        assert answers[0] == answers[1], f"story {story}, step {step}: {action}"
        DEEDS[action][1](model, Random(seed), answers[0])
        for side in sides:
            model.check(side.buffer)
        assert sides[0].buffer.history() == sides[1].buffer.history()
        if action in ("save", "reload", "other writer"):
            assert sides[0].stored() == sides[1].stored(), f"story {story}, step {step}"
    assert sides[0].stored() == sides[1].stored()


def _apply(action: str, side: Side, random: Random) -> Any:
    try:
        return DEEDS[action][0](side, random)
    except HoldfastError as error:
        return type(error).__name__


def _add(side: Side, random: Random) -> None:
    for _ in range(random.randrange(4)):
        side.buffer.add_message(role="user", content=random.choice(TEXTS), token_count=random.randrange(5))


def _model_add(model: Model, random: Random, answer: Any) -> None:
    new = []
    for _ in range(random.randrange(4)):
        new.append(random.choice(TEXTS))
        random.randrange(5)
    model.texts = [*model.texts, *new]


def _arrange(side: Side, random: Random) -> None:
    history: list[Any] = side.buffer.history()
    picked = _pick(history, random)
    if random.random() < 0.5:
        picked.insert(random.randrange(len(picked) + 1), NewMessage(role="user", content="new", is_summary=True))
    side.buffer.set_history(picked)


def _model_arrange(model: Model, random: Random, answer: Any) -> None:
    picked = _pick(model.texts, random)
    if random.random() < 0.5:
        picked.insert(random.randrange(len(picked) + 1), "new")
    model.texts = picked


def _pick(these: list[Any], random: Random) -> list[Any]:
    picked = [item for item in these if random.random() < 0.8]
    if random.random() < 0.2:
        random.shuffle(picked)
    return picked


def _truncate(side: Side, random: Random) -> None:
    side.buffer.truncate_history(random.randrange(-1, 6))


def _model_truncate(model: Model, random: Random, answer: Any) -> None:
    keep = random.randrange(-1, 6)
    model.texts = model.texts[-keep:] if keep > 0 else []


def _beside(side: Side, random: Random) -> SessionState:
    side.buffer.set_summary(random.choice(TEXTS))
    side.buffer.set_label(random.choice(["", "label"]))
    side.buffer.accumulate_tokens(input_tokens=random.randrange(9))
    side.buffer.update_metadata({random.choice(TEXTS): random.randrange(3)})
    return side.buffer.state


def _model_beside(model: Model, random: Random, answer: Any) -> None:
    model.summary, model.label = random.choice(TEXTS), random.choice(["", "label"])
    model.tokens += random.randrange(9)
    model.metadata = {**model.metadata, random.choice(TEXTS): random.randrange(3)}


def _reset(side: Side, random: Random) -> None:
    side.buffer.reset()


def _model_reset(model: Model, random: Random, answer: Any) -> None:
    model.texts, model.summary = [], ""


def _save(side: Side, random: Random) -> None:
    side.buffer.save()


def _model_save(model: Model, random: Random, answer: Any) -> None:
    if answer is None:
        model.mark_saved()


def _other(side: Side, random: Random) -> Any:
    """Write to the session from a second handle, check the result, and reload the buffer."""
    other = side.handle()
    session = other.sessions.find("k", user="ada")
    if session is None:
        return None
    kind = random.randrange(3)
    if kind == 0:
        other.messages.append(session.id, role="user", content="theirs", token_count=2)
    elif kind == 1:
        other.sessions.update(session.id, metadata={"theirs": 1})
    else:
        theirs = other.sessions.buffered("k", user="ada")
        theirs.set_label(f"theirs {random.random()}")
        theirs.save()
    side.buffer.accumulate_tokens(output_tokens=1)
    with pytest.raises(Conflict):
        side.buffer.save()
    side.buffer.reload()
    state = side.buffer.state
    return texts(side.buffer.history()), state.summary, state.label, state.input_tokens, side.buffer.metadata


def _model_other(model: Model, random: Random, answer: Any) -> None:
    if answer is not None:
        kind = random.randrange(3)
        saved, summary, label, tokens, metadata = model.saved
        theirs = (
            [*saved, "theirs"] if kind == 0 else saved,
            summary,
            f"theirs {random.random()}" if kind == 2 else label,
            tokens,
            {"theirs": 1} if kind == 1 else metadata,
        )
        assert answer == theirs
        model.saved = theirs
        model.discard_changes()


def _reload(side: Side, random: Random) -> None:
    side.buffer.reload()


def _model_reload(model: Model, random: Random, answer: Any) -> None:
    model.discard_changes()


DEEDS: dict[str, tuple[Any, Any]] = {
    "add": (_add, _model_add),
    "add more": (_add, _model_add),
    "arrange": (_arrange, _model_arrange),
    "truncate": (_truncate, _model_truncate),
    "beside": (_beside, _model_beside),
    "reset": (_reset, _model_reset),
    "save": (_save, _model_save),
    "save again": (_save, _model_save),
    "other writer": (_other, _model_other),
    "reload": (_reload, _model_reload),
}
