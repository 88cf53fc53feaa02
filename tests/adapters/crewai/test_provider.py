"""Checkpoints of crews and flows on either engine: completeness, branches, pruning and storage cost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from crewai.events.event_bus import crewai_event_bus
from crewai.flow.flow import Flow, listen, start
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.state.provider.core import BaseProvider
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.adapters.crewai import HoldfastProvider
from holdfast.adapters.crewai.provider import MAX_PIECE, cut
from holdfast.errors import InvalidInput, NotFound
from tests.errors import raises


@pytest.fixture(autouse=True)
def _reset_event_bus() -> None:
    """Forget earlier events: a checkpoint contains all events of a process."""
    crewai_event_bus.reset_runtime_state()


@pytest.fixture
def provider(acme: TenantHandle) -> HoldfastProvider:
    return HoldfastProvider(acme)


def events(count: int) -> str:
    """Return a checkpoint after a number of events, as CrewAI writes it."""
    nodes = {f"e{n}": {"event": {"id": f"e{n}", "text": f"event {n} " * 12}, "edges": {}} for n in range(count)}
    return json.dumps({"crewai_version": "1", "parent_id": None, "entities": [], "event_record": {"nodes": nodes}})


def test_a_checkpoint_is_restored_exactly(provider: HoldfastProvider) -> None:
    assert isinstance(provider, BaseProvider)
    texts = ["", "{}", '{"a": NaN, "b": "\\u0000 }, \ud800 é"}', "not json at all", events(50), "x" * 100_000]
    for text in texts:
        location = provider.checkpoint(text, "./here#and there")
        assert provider.from_checkpoint(location) == text
        assert asyncio.run(provider.afrom_checkpoint(location)) == text
        assert location.endswith(provider.extract_id(location))


def test_branches_are_stored_and_pruned_separately(provider: HoldfastProvider) -> None:
    def write(branch: str, count: int, parent: str | None = None) -> list[str]:
        made = []
        for number in range(count):
            location = provider.checkpoint(f'{{"{branch}": {number}}}', "crew", parent_id=parent, branch=branch)
            parent = provider.extract_id(location)
            made.append(location)
        return made

    main = write("main", 5)
    fork = write("fork/1", 3, provider.extract_id(main[2]))
    elsewhere = provider.checkpoint("{}", "another crew")
    ids = [provider.extract_id(location) for location in main]
    assert provider.branches("crew")["main"] == ids[::-1]
    assert sorted(provider.branches("crew")) == ["fork/1", "main"]
    assert provider.prune("crew", 2) == 3
    assert provider.branches("crew")["main"] == ids[:2:-1]
    assert [provider.from_checkpoint(location) for location in fork] == [
        '{"fork/1": 0}',
        '{"fork/1": 1}',
        '{"fork/1": 2}',
    ]
    assert provider.prune("crew", 2) == 0
    with raises(NotFound, noun="checkpoint", key=ids[0]):
        provider.from_checkpoint(main[0])
    assert provider.prune("crew", 0, branch="fork/1") == 3
    assert list(provider.branches("crew")) == ["main"]
    assert provider.from_checkpoint(elsewhere) == "{}"
    assert provider.prune("nothing here", 1) == 0
    with pytest.raises(InvalidInput):
        provider.prune("crew", -1)


def test_small_limits_do_not_change_results(address: str) -> None:
    with Holdfast(address, limits=Limits(page_rows=3, batch_rows=2), auto_migrate=True) as holdfast:
        provider = HoldfastProvider(holdfast.tenant("acme"))
        made = [provider.checkpoint(f"{{{number}}}", "./here") for number in range(8)]
        assert provider.prune("./here", 2) == 6
        assert [provider.from_checkpoint(location) for location in made[-2:]] == ["{6}", "{7}"]


def test_checkpoints_are_stored_with_their_parents(provider: HoldfastProvider, acme: TenantHandle) -> None:
    first = provider.extract_id(provider.checkpoint("{}", "crew"))
    second = provider.extract_id(asyncio.run(provider.acheckpoint("{}", "crew", parent_id=first, branch="b")))
    parents = {
        checkpoint.id: (checkpoint.parent, checkpoint.namespace) for checkpoint in acme.checkpoints.list("crewai:crew")
    }
    assert parents == {first: (None, "main"), second: (first, "b")}


def test_a_missing_checkpoint_or_invalid_location_is_refused(provider: HoldfastProvider) -> None:
    with raises(NotFound, noun="checkpoint", key="abc"):
        provider.from_checkpoint("crew#abc")
    with raises(InvalidInput, field="location"):
        provider.from_checkpoint("crew")


def test_a_checkpoint_costs_only_its_new_data(provider: HoldfastProvider, acme: TenantHandle) -> None:
    total = 0
    for count in range(10, 210, 10):
        text = events(count)
        total += len(text)
        provider.checkpoint(text, "crew")
    pieces: dict[int, bytes] = {}
    for checkpoint in acme.checkpoints.list("crewai:crew"):
        places = [place for first, last in checkpoint.positions for place in range(first, last + 1)]
        pieces |= dict(zip(places, (body or b"" for body in checkpoint.pieces), strict=True))
    kept = sum(map(len, pieces.values()))
    assert kept < 1.6 * len(events(200)) < total / 5, (kept, len(events(200)), total)


@given(st.lists(st.sampled_from(['{"a": 1},', "}, ", '{"b": "' + "y" * 300 + '"},', "\n", "}", "é"]), max_size=400))
def test_the_concatenated_pieces_are_the_text(parts: list[str]) -> None:
    body = "".join(parts).encode()
    pieces = cut(body)
    assert b"".join(pieces) == body
    assert all(0 < len(piece) < MAX_PIECE + 400 for piece in pieces)


def test_equal_text_is_cut_at_the_same_points() -> None:
    text = events(300).encode()
    changed = text[:50] + b"something new " + text[50:]
    shared = set(cut(text)) & set(cut(changed))
    assert sum(map(len, shared)) > 0.9 * len(text)


class Steps(Flow):  # type: ignore[type-arg]
    """Counts two steps, of which the second can be made to fail."""

    power: bool = True

    @start()
    def one(self) -> str:
        self.state["n"] = self.state.get("n", 0) + 1
        return "one"

    @listen(one)
    def two(self) -> str:
        if not self.power:
            raise RuntimeError("no power")
        self.state["n"] += 10
        return "two"


def test_a_flow_saves_checkpoints_and_resumes_from_one(address: str) -> None:
    """Saved at the end of a run: CrewAI saves in the background, which can fail on its own events in the middle of a run."""
    provider = HoldfastProvider(address, tenant="acme")
    config = CheckpointConfig(
        location="steps", provider=provider, on_events=["flow_failed", "flow_finished"], max_checkpoints=5
    )
    assert config.provider is provider
    flow = Steps(checkpoint=config, power=False)
    with pytest.raises(RuntimeError, match="no power"):
        flow.kickoff()
    crewai_event_bus.flush(timeout=60.0)
    (id,) = provider.branches("steps")["main"]
    provider.close()
    crewai_event_bus.reset_runtime_state()

    later = HoldfastProvider(address, tenant="acme")
    with later.file(f"steps#{id}") as path:
        again = Steps.from_checkpoint(CheckpointConfig(restore_from=path))
    assert (again.state["n"], again.state["id"]) == (1, flow.state["id"])
    again.power, again.checkpoint = True, config.model_copy(update={"provider": later})
    again.kickoff()
    crewai_event_bus.flush(timeout=60.0)
    assert again.state["n"] == 11, "the first step was not repeated"
    newest, oldest = later.branches("steps")["main"]
    later.close()
    with Holdfast(address) as hf:
        parents = {
            checkpoint.id: checkpoint.parent for checkpoint in hf.tenant("acme").checkpoints.list("crewai:steps")
        }
    assert parents == {oldest: None, newest: id}, "its parent is the checkpoint that it resumed from"


def test_users_are_separated(acme: TenantHandle) -> None:
    location = HoldfastProvider(acme, user="ada").checkpoint("{}", "crew")
    for other in (HoldfastProvider(acme), HoldfastProvider(acme, user="bob")):
        assert other.branches("crew") == {}
        with pytest.raises(NotFound):
            other.from_checkpoint(location)
    nonsense: Any = 5
    with pytest.raises(InvalidInput):
        HoldfastProvider(nonsense)
