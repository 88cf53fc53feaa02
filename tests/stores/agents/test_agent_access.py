"""``list_accessible`` and ``access`` agree about every agent and user, and with the four steps, for any agents and shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import Struct

from holdfast import FixedClock, Holdfast, TenantHandle
from holdfast.errors import AlreadyExists
from holdfast.stores.agents.agent_access import AgentAccess
from holdfast.stores.agents.agents import AgentChange, NewAgent
from tests.core.table_databases import pages

AGENTS = ("a", "b", "c\x00", "d")
USERS = ("ada", "bob", "eve\x00")
OWNERS = ("", *USERS)


class ModelAgent(Struct):
    """What the model knows about one agent."""

    owner: str
    is_default: bool = False
    is_live: bool = True


class Model:
    """The four steps, in Python."""

    def __init__(self) -> None:
        self.agents: dict[str, ModelAgent] = {}
        self.shares: dict[tuple[str, str], str] = {}

    def access(self, agent: str, user: str) -> AgentAccess:
        known = self.agents.get(agent)
        if known is None or not known.is_live:
            return AgentAccess(allowed=False, role=None, step="exists")
        if known.is_default:
            return AgentAccess(allowed=True, role="owner" if known.owner == user else "user", step="default")
        if known.owner == user:
            return AgentAccess(allowed=True, role="owner", step="owner")
        role: Any = self.shares.get((agent, user))
        return AgentAccess(allowed=role is not None, role=role, step="share")

    def is_live(self, agent: str) -> bool:
        return agent in self.agents and self.agents[agent].is_live


def create(model: Model, acme: TenantHandle, agent: str, owner: str) -> None:
    if agent not in model.agents:
        acme.agents.create(NewAgent(agent, owner=owner))
        model.agents[agent] = ModelAgent(owner)
    elif not model.agents[agent].is_live:
        with pytest.raises(AlreadyExists):
            acme.agents.create(NewAgent(agent, owner=owner))


def delete(model: Model, acme: TenantHandle, agent: str) -> None:
    if model.is_live(agent):
        acme.agents.delete(agent)
        model.agents[agent] = ModelAgent(model.agents[agent].owner, is_live=False)


def restore(model: Model, acme: TenantHandle, agent: str) -> None:
    if agent in model.agents:
        acme.agents.restore(agent)
        model.agents[agent].is_live = True


def make_default(model: Model, acme: TenantHandle, agent: str, is_default: bool) -> None:
    if model.is_live(agent):
        acme.agents.update(agent, change=AgentChange(is_default=is_default))
        for other in model.agents.values():
            other.is_default = other.is_default and not is_default
        model.agents[agent].is_default = is_default


def share(model: Model, acme: TenantHandle, agent: str, user: str, role: Any) -> None:
    if model.is_live(agent):
        acme.agents.share(agent, user, role=role)
        model.shares[agent, user] = role


def revoke(model: Model, acme: TenantHandle, agent: str, user: str) -> None:
    assert acme.agents.revoke_share(agent, user) is (model.shares.pop((agent, user), None) is not None)


agents, users = st.sampled_from(AGENTS), st.sampled_from(USERS)
steps = st.one_of(
    st.tuples(st.just(create), agents, st.sampled_from(OWNERS)),
    st.tuples(st.just(delete), agents),
    st.tuples(st.just(restore), agents),
    st.tuples(st.just(make_default), agents, st.booleans()),
    st.tuples(st.just(share), agents, users, st.sampled_from(["user", "admin", "operator"])),
    st.tuples(st.just(revoke), agents, users),
)


@pytest.fixture(params=["sqlite", "postgres"])
def holdfast(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    url = ":memory:" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url, clock=FixedClock()) as opened:
        yield opened


@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=25))
def test_access_and_the_list_agree_with_the_four_steps(holdfast: Holdfast, script: list[Any]) -> None:
    model = Model()
    acme = holdfast.tenant(f"tenant {len(holdfast.tenants.list(limit=1000))}")
    holdfast.tenants.create(acme.name)
    for step, *arguments in script:
        step(model, acme, *arguments)
        assert sum(agent.is_default for agent in acme.agents.list()) <= 1
    for user in USERS:
        decided = {agent: acme.agents.access(agent, user) for agent in AGENTS}
        assert decided == {agent: model.access(agent, user) for agent in AGENTS}
        listed = acme.agents.list_accessible(user)
        assert [agent.id for agent in listed] == sorted(agent for agent in AGENTS if decided[agent].allowed)
        assert pages(lambda user=user, **how: acme.agents.list_accessible(user, **how), 2) == listed
