"""Real flows that resume from their saved state, on either engine."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

import pytest
from crewai.flow.async_feedback.types import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow import Flow, listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import persist
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
from pydantic import BaseModel

from holdfast import TenantHandle
from holdfast.adapters.crewai import HoldfastFlowPersistence, install, uninstall
from holdfast.errors import InvalidInput
from tests.errors import raises


class Counted(BaseModel):
    """A state with an id, as persistence requires."""

    id: str = ""
    n: int = 0


class Later:
    """A feedback provider that answers later."""

    def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
        raise HumanFeedbackPending(context=context)


def counting(persistence: HoldfastFlowPersistence, *, fails: bool = False) -> Any:
    """A flow of two steps, of which the second may fail."""

    @persist(persistence)
    class Counting(Flow[Counted]):
        @start()
        def one(self) -> None:
            self.state.n += 1

        @listen(one)
        def two(self) -> None:
            if fails:
                raise RuntimeError("no power")
            self.state.n += 10

    return Counting(persistence=persistence)


def test_a_flow_resumes_from_its_saved_state(address: str) -> None:
    for expected in (11, 22):
        persistence = HoldfastFlowPersistence(address)  # as in another process
        flow = counting(persistence)
        flow.kickoff(inputs={"id": "f"})
        assert flow.state.n == expected
        assert persistence.load_state("f") == {"id": "f", "n": expected}
        persistence.close()


def test_an_interrupted_run_resumes_from_its_last_saved_state(acme: TenantHandle) -> None:
    persistence = HoldfastFlowPersistence(acme)
    counting(persistence).kickoff(inputs={"id": "f"})
    with pytest.raises(RuntimeError, match="no power"):
        counting(persistence, fails=True).kickoff(inputs={"id": "f"})
    assert persistence.load_state("f") == {"id": "f", "n": 12}, "the newest, not the one after the last method"
    history = acme.flows.history("f")
    assert [(row.method, row.state["n"]) for row in history] == [("one", 12), ("two", 11)]


def test_a_flow_waits_for_feedback_and_resumes_in_another_process(address: str) -> None:
    persistence = HoldfastFlowPersistence(address)

    class Review(Flow):  # type: ignore[type-arg]
        @start()
        @human_feedback(message="Is this right?", provider=Later())
        def draft(self) -> dict[str, Any]:
            self.state["draft"] = "first"
            return {"title": "Draft"}

        @listen(draft)
        def publish(self, result: Any) -> str:
            self.state["said"] = result.feedback
            return f"published: {result.feedback}"

    flow = Review(persistence=persistence)
    paused = flow.kickoff(inputs={"id": "f"})
    assert isinstance(paused, HumanFeedbackPending)
    persistence.close()

    later = HoldfastFlowPersistence(address)
    loaded = later.load_pending_feedback("f")
    assert loaded is not None
    state, context = loaded
    assert state["draft"] == "first"
    assert (context.flow_id, context.message, context.method_output) == ("f", "Is this right?", {"title": "Draft"})
    again = Review.from_pending("f", later)
    assert again.pending_feedback is not None
    assert again.resume("looks good") == "published: looks good"
    assert later.load_pending_feedback("f") is None
    with pytest.raises(ValueError, match="No pending feedback"):
        Review.from_pending("f", later)
    later.close()


def test_saved_states_equal_those_of_crewais_own_persistence(acme: TenantHandle, tmp_path: Any) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    class Inner(BaseModel):
        day: date

    inner = Inner(day=date(2026, 1, 2))
    state = {"a": (1, 2), "when": datetime(2026, 1, 1, tzinfo=UTC), "odd": Odd(), "model": inner, "text": "\x00\ud800é"}
    ours, theirs = HoldfastFlowPersistence(acme), SQLiteFlowPersistence(str(tmp_path / "theirs.db"))
    ours.save_state("f", "m", state)
    ours.save_state("g", "m", inner)
    with suppress(TypeError):  # older releases refuse dates
        for flow, value in (("f", state), ("g", inner)):
            theirs.save_state(flow, "m", value)
            assert ours.load_state(flow) == theirs.load_state(flow)
    assert ours.load_state("f") == {
        "a": [1, 2],
        "when": "2026-01-01T00:00:00+00:00",
        "odd": "odd",
        "model": {"day": "2026-01-02"},
        "text": "\x00\ud800é",
    }
    assert ours.load_state("g") == {"day": "2026-01-02"}
    assert ours.load_state("absent") is theirs.load_state("absent") is None
    assert ours.load_pending_feedback("f") is None
    not_a_state: Any = [1]
    with raises(InvalidInput, field="state"):
        ours.save_state("f", "m", not_a_state)


def test_a_feedback_context_is_restored_completely(acme: TenantHandle) -> None:
    persistence = HoldfastFlowPersistence(acme)
    newer: dict[str, Any] = {"execution_uuid": "e", "trace_context": (1, 2**100)}  # not in every release
    context = PendingFeedbackContext(
        flow_id="f",
        flow_class="app.Review",
        method_name="review",
        method_output={"deep": [1, {"x": None}]},
        message="ok?",
        emit=["yes", "no"],
        default_outcome="no",
        metadata={"ticket": 7},
        llm="a-model",
        requested_at=datetime(2026, 5, 6, 7, 8, 9, 10),  # noqa: DTZ001 - as CrewAI makes them
        **{name: value for name, value in newer.items() if name in PendingFeedbackContext.__dataclass_fields__},
    )
    persistence.save_pending_feedback("f", context, {"id": "f", "n": 1})
    loaded = persistence.load_pending_feedback("f")
    assert loaded == ({"id": "f", "n": 1}, context)
    assert persistence.load_state("f") == {"id": "f", "n": 1}


def test_users_and_threads_are_separated_and_addresses_and_handles_are_equivalent(
    address: str, acme: TenantHandle
) -> None:
    by_handle = HoldfastFlowPersistence(acme, user="ada", thread_id="t")
    by_handle.save_state("f", "m", {"n": 1})
    by_address = HoldfastFlowPersistence(address, tenant="acme", user="ada", thread_id="t")
    assert by_address.load_state("f") == {"n": 1}
    for other in ({"tenant": "acme"}, {"user": "ada", "thread_id": "t"}, {"tenant": "acme", "user": "ada"}):
        apart = HoldfastFlowPersistence(address, **other)
        assert apart.load_state("f") is None
        apart.close()
    by_address.close()


def test_a_flow_restored_from_a_checkpoint_finds_its_persistence(address: str, acme: TenantHandle) -> None:
    persistence = HoldfastFlowPersistence(address, user="ada")
    flow = counting(persistence)
    dumped = flow.model_dump(mode="json")["persistence"]
    revived = type(flow)(persistence=dumped).persistence
    assert isinstance(revived, HoldfastFlowPersistence)
    revived.save_state("f", "m", {"n": 1})
    assert persistence.load_state("f") == {"n": 1}
    persistence.close()
    revived.close()

    lost = type(flow)(persistence=HoldfastFlowPersistence(acme).model_dump(mode="json")).persistence
    with raises(InvalidInput, field="where"):
        lost.load_state("f")
    nonsense: Any = 5
    with raises(InvalidInput, field="where"):
        HoldfastFlowPersistence(nonsense)


def test_install_provides_the_default_persistence_of_flows(acme: TenantHandle) -> None:
    install(acme, user="ada")
    try:

        @persist()
        class Plain(Flow[Counted]):
            @start()
            def one(self) -> None:
                self.state.n += 5

        Plain().kickoff(inputs={"id": "f"})
        saved = acme.flows.find("f", user="ada")
        assert saved is not None
        assert saved.state == {"id": "f", "n": 5}
    finally:
        uninstall()
    assert isinstance(persist, object)
    from crewai.flow.persistence.factory import default_flow_persistence

    assert isinstance(default_flow_persistence(), SQLiteFlowPersistence)


def test_the_keys_of_a_state_keep_their_order(acme: TenantHandle) -> None:
    persistence = HoldfastFlowPersistence(acme)
    state = {"zebra": 1, "a": {"long": 1, "b": 2, "aa": 3}, "bb": [{"y": 1, "x": 2}]}
    persistence.save_state("f", "m", state)
    assert repr(persistence.load_state("f")) == repr(state)
