"""Access to MCP servers: the grants of agents and users together, and the requests for grants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.core.crypto import Secret
from holdfast.core.filters import column
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.agents.agents import NewAgent
from holdfast.stores.tools.mcp_grants import NewMcpAgentGrant, NewMcpUserGrant
from holdfast.stores.tools.mcp_requests import McpRequest
from holdfast.stores.tools.mcp_servers import McpServer, McpServerChange, NewMcpServer
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.contract.cases.world import World, flat, raises, uuid_of


async def _servers(acme: Any, *names: str) -> list[McpServer]:
    """Create servers, and the agents that the tests grant them to."""
    for agent in ("ada", "bob"):
        await acme.agents.upsert(NewAgent(agent))
    return [
        await acme.mcp_servers.create(
            NewMcpServer(name, transport="sse", url="https://example.com", headers=Secret({"token": "t0ken"}))
        )
        for name in names
    ]


async def _grant(acme: Any, server: McpServer, kind: str, principal: str) -> Any:
    return await acme.mcp_grants.find(server.id, principal, kind=kind)


async def _names(acme: Any, agent: str, user: str | None) -> Sequence[str]:
    return [access.server.name for access in await acme.mcp_servers.list_accessible(agent, user)]


@contract()
async def a_server_is_accessible_with_an_enabled_grant_to_the_agent(world: World) -> None:
    acme = world.tenant()
    one, two, _ = await _servers(acme, "b", "a", "c")
    for server in (two, one):
        await acme.mcp_grants.grant(NewMcpAgentGrant(server.id, "ada", config_overrides={"n": server.name}))
    assert await _names(acme, "ada", "u") == ["b", "a"]
    assert await _names(acme, "bob", "u") == await _names(acme, "missing", None) == []
    assert await _names(world.tenant("zenith"), "ada", "u") == []
    first = (await acme.mcp_servers.list_accessible("ada", None))[0]
    assert (first.server, first.tool_allow, first.tool_deny) == (one, None, [])
    assert first.config_overrides == {"n": "b"}
    assert first.server.headers is not None
    assert first.server.headers.reveal() == {"token": "t0ken"}

    await acme.mcp_grants.grant(NewMcpAgentGrant(one.id, "ada", is_enabled=False))
    assert await _names(acme, "ada", "u") == ["a"]
    await acme.mcp_servers.update(two.id, change=McpServerChange(is_enabled=False))
    assert await _names(acme, "ada", "u") == []
    await acme.mcp_servers.update(two.id, change=McpServerChange(is_enabled=True))
    await acme.mcp_servers.delete(two.id)
    assert await _names(acme, "ada", "u") == []
    await acme.mcp_servers.create(NewMcpServer("a"))
    assert await _names(acme, "ada", "u") == [], "a server of the same name is another server"


@contract()
async def a_grant_to_a_user_narrows_that_of_the_agent(world: World) -> None:
    acme = world.tenant()
    (server,) = await _servers(acme, "s")
    await acme.mcp_grants.grant(NewMcpUserGrant(server.id, "u"))
    assert await _names(acme, "ada", "u") == [], "a user alone has no access"
    cases: list[tuple[list[str] | None, list[str], list[str] | None, list[str], list[str] | None, list[str]]] = [
        (None, [], None, [], None, []),
        (["b", "a"], [], None, [], ["a", "b"], []),
        (None, [], ["a"], [], ["a"], []),
        (["a", "b", "c"], ["z"], ["c", "b", "d"], ["c", "y"], ["b", "c"], ["c", "y", "z"]),
        (["a"], [], ["b"], [], [], []),
        ([], ["a"], None, ["a"], [], ["a"]),
    ]
    for agent_allow, agent_deny, user_allow, user_deny, allow, deny in cases:
        await acme.mcp_grants.grant(NewMcpAgentGrant(server.id, "ada", tool_allow=agent_allow, tool_deny=agent_deny))
        await acme.mcp_grants.grant(NewMcpUserGrant(server.id, "u", tool_allow=user_allow, tool_deny=user_deny))
        (access,) = await acme.mcp_servers.list_accessible("ada", "u")
        assert (access.tool_allow, access.tool_deny) == (allow, deny)
        for tool in "abcdyz":
            assert access.allows(tool) == ((allow is None or tool in allow) and tool not in deny), tool
        (alone,) = await acme.mcp_servers.list_accessible("ada", "other")
        assert alone.tool_allow == (None if agent_allow is None else sorted(agent_allow))
        assert alone.tool_deny == sorted(agent_deny)
        assert await acme.mcp_servers.list_accessible("ada", None) == [alone]
    await acme.mcp_grants.grant(NewMcpUserGrant(server.id, "u", is_enabled=False))
    assert await _names(acme, "ada", "u") == []
    assert await _names(acme, "ada", "other") == ["s"]
    await acme.mcp_grants.revoke(server.id, "u", kind="user")
    assert await _names(acme, "ada", "u") == ["s"]


@contract(limits=Limits(list_rows=3))
async def accessible_servers_have_pages(world: World) -> None:
    acme = world.tenant()
    servers = await _servers(acme, "c", "a", "d", "b")
    for server in servers:
        await acme.mcp_grants.grant(NewMcpAgentGrant(server.id, "ada"))
    expected = [server.name for server in sorted(servers, key=lambda server: server.id)]
    for limit in (1, 2, 4):
        pages = [await acme.mcp_servers.list_accessible("ada", "u", limit=limit)]
        while pages[-1].next is not None:
            pages.append(await acme.mcp_servers.list_accessible("ada", "u", limit=limit, cursor=pages[-1].next))
        assert [access.server.name for access in flat(pages)] == expected
    with raises(LimitExceeded, limit="list_rows"):
        await acme.mcp_servers.list_accessible("ada", "u")
    for cursor in (*GARBAGE_CURSORS, (await acme.mcp_servers.list(limit=1)).next):
        with raises(InvalidFilter):
            await acme.mcp_servers.list_accessible("ada", "u", cursor=cursor)
    wrong: list[Any] = ["", 7]
    for value in wrong:
        with raises(InvalidInput, field="agent"):
            await acme.mcp_servers.list_accessible(value, "u")
        with raises(InvalidInput, field="user"):
            await acme.mcp_servers.list_accessible("ada", value)


@contract()
async def an_approved_request_makes_the_grant(world: World) -> None:
    acme = world.tenant()
    (server,) = await _servers(acme, "s")
    with acme.acting(user="eve", address="10.0.0.1"):
        made = await acme.mcp_requests.create(
            server.id, scope="agent", agent="ada", tool_allow=["read"], reason="to read"
        )
    assert (made.status, made.requested_by, made.reviewed_by, made.reviewed_at) == ("pending", "eve", None, None)
    assert (made.server, made.agent, made.user, made.reason) == (server.id, "ada", None, "to read")
    assert await acme.mcp_requests.get(made.id) == made
    assert await _names(acme, "ada", None) == []
    world.clock.advance(5)
    with acme.acting(user="root"):
        approved = await acme.mcp_requests.review(made.id, approved=True, note="fine")
    assert (approved.status, approved.reviewed_by, approved.review_note) == ("approved", "root", "fine")
    assert approved.reviewed_at == approved.updated_at == from_us(world.clock.now_us())
    grant = await _grant(acme, server, "agent", "ada")
    assert (grant.is_enabled, grant.tool_allow, grant.tool_deny, grant.granted_by) == (True, ["read"], [], "root")
    actions = [(entry.action, entry.actor) for entry in reversed(await acme.activity.list(actor_type="user"))]
    assert actions == [
        ("mcp_request.created", "eve"),
        ("mcp_request.approved", "root"),
        ("mcp_agent_grant.granted", "root"),
    ]

    asked = await acme.mcp_requests.create(server.id, scope="user", user="u", requested_by="bot")
    assert (asked.requested_by, asked.tool_allow) == ("bot", None)
    await acme.mcp_requests.review(asked.id, approved=True, by="boss")
    assert (await _grant(acme, server, "user", "u")).granted_by == "boss"


@contract()
async def an_approval_leaves_denied_tools_and_overrides(world: World) -> None:
    acme = world.tenant()
    (server,) = await _servers(acme, "s")
    await acme.mcp_grants.grant(
        NewMcpAgentGrant(server.id, "ada", is_enabled=False, tool_deny=["rm"], config_overrides={"n": 1})
    )
    await acme.mcp_grants.grant(NewMcpUserGrant(server.id, "u", tool_allow=["a"], tool_deny=["rm"]))
    for scope, subject in (("agent", "ada"), ("user", "u")):
        asked: dict[str, Any] = {"scope": scope, scope: subject}
        request = await acme.mcp_requests.create(server.id, tool_allow=["b"], **asked)
        await acme.mcp_requests.review(request.id, approved=True)
        grant = await _grant(acme, server, scope, subject)
        assert (grant.is_enabled, grant.tool_allow, grant.tool_deny) == (True, ["b"], ["rm"])
    assert (await _grant(acme, server, "agent", "ada")).config_overrides == {"n": 1}


@contract()
async def a_request_is_reviewed_once(world: World) -> None:
    acme = world.tenant()
    (server,) = await _servers(acme, "s")
    reviewed: list[McpRequest] = []
    for user, end in (
        ("a", partial(acme.mcp_requests.review, approved=True)),
        ("b", partial(acme.mcp_requests.review, approved=False, note="no")),
        ("c", acme.mcp_requests.cancel),
    ):
        made = await acme.mcp_requests.create(server.id, scope="user", user=user)
        ended = await end(made.id)
        reviewed.append(ended)
        logged = await acme.activity.count()
        for again in (
            partial(acme.mcp_requests.review, approved=True),
            partial(acme.mcp_requests.review, approved=False),
            acme.mcp_requests.cancel,
        ):
            with raises(Conflict, reason="status"):
                await again(made.id)
        assert await acme.mcp_requests.get(made.id) == ended
        assert await acme.activity.count() == logged
    assert [row.status for row in reviewed] == ["approved", "rejected", "cancelled"]
    granted = await acme.mcp_grants.list(resource=server.id, kind="user")
    assert granted == [await _grant(acme, server, "user", "a")]


@contract()
async def wrong_requests_are_refused(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    server, gone = await _servers(acme, "s", "gone")
    await acme.mcp_servers.delete(gone.id)
    (theirs,) = await _servers(zenith, "s")
    await zenith.agents.create(NewAgent("eve"))
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("agent", {"scope": "agent"}),
        ("user", {"scope": "user"}),
        ("agent", {"scope": "agent", "user": "u"}),
        ("agent", {"scope": "user", "user": "u", "agent": "ada"}),
        ("user", {"scope": "agent", "user": "u", "agent": "ada"}),
        ("scope", {"scope": "team", "user": "u"}),
        ("scope", {"scope": ["agent"], "agent": "ada"}),
        ("user", {"scope": "user", "user": ""}),
        ("tool_allow", {"scope": "user", "user": "u", "tool_allow": "read"}),
        ("reason", {"scope": "user", "user": "u", "reason": 7}),
    ]
    for field, values in wrong:
        with raises(InvalidInput) as refused:
            await acme.mcp_requests.create(server.id, **values)
        assert isinstance(refused.error, InvalidInput)
        assert refused.error.field.split()[0] == field, values
    for missing in (uuid_of("missing"), gone.id, theirs.id):
        with raises(NotFound, noun="MCP server", key=missing):
            await acme.mcp_requests.create(missing, scope="user", user="u")
    for agent in ("missing", "eve"):
        with raises(NotFound, noun="agent", key=agent):
            await acme.mcp_requests.create(server.id, scope="agent", agent=agent)
    assert await acme.mcp_requests.list() == []
    for call in (acme.mcp_requests.get, acme.mcp_requests.cancel, partial(acme.mcp_requests.review, approved=True)):
        with raises(NotFound, noun="MCP request"):
            await call(uuid_of("missing"))


@contract()
async def a_request_that_cannot_be_granted_stays_pending(world: World) -> None:
    acme = world.tenant()
    (server,) = await _servers(acme, "s")
    made = await acme.mcp_requests.create(server.id, scope="agent", agent="ada")
    await acme.mcp_servers.delete(server.id)
    logged = await acme.activity.count()
    with raises(NotFound, noun="MCP server"):
        await acme.mcp_requests.review(made.id, approved=True)
    wrong: Any = "yes"
    with raises(InvalidInput, field="approved"):
        await acme.mcp_requests.review(made.id, approved=wrong)
    assert await acme.mcp_requests.get(made.id) == made
    assert await acme.activity.count() == logged
    await acme.mcp_servers.restore(server.id)
    assert await acme.mcp_grants.list(resource=server.id, kind="agent") == []
    await acme.mcp_servers.delete(server.id)
    assert (await acme.mcp_requests.review(made.id, approved=False)).status == "rejected"


@contract()
async def requests_are_listed_oldest_first(world: World) -> None:
    acme = world.tenant()
    one, two = await _servers(acme, "one", "two")
    made = []
    for number, server in enumerate((one, two, one, two, one)):
        world.clock.advance(number % 2)
        id = uuid_of(f"request {number}")
        made.append(await acme.mcp_requests.create(server.id, scope="user", user=f"u{number % 3}", id=id))
    made.sort(key=lambda row: (row.created_at, row.id))
    again = await acme.mcp_requests.create(made[0].server, scope="user", user=made[0].user, id=made[0].id)
    assert again == made[0]
    with raises(Conflict, reason="other_content"):
        await acme.mcp_requests.create(made[0].server, scope="user", user="other", id=made[0].id)
    assert await acme.mcp_requests.list() == made
    rejected = await acme.mcp_requests.review(made[1].id, approved=False)
    pending = [row for row in made if row.id != rejected.id]
    assert await acme.mcp_requests.list(status="pending") == pending
    assert await acme.mcp_requests.list(status="rejected") == [rejected]
    assert await acme.mcp_requests.count(status="pending") == 4
    of_two = [column("server").eq(two.id)]
    assert await acme.mcp_requests.list(status="pending", where=of_two) == [r for r in pending if r.server == two.id]
    assert await acme.mcp_requests.count(where=[column("user").eq("u0")]) == 2
    page = await acme.mcp_requests.list(status="pending", limit=3)
    rest = await acme.mcp_requests.list(status="pending", limit=3, cursor=page.next)
    assert flat([page, rest]) == pending
    assert await world.tenant("zenith").mcp_requests.list() == []
    with raises(NotFound):
        await world.tenant("zenith").mcp_requests.cancel(made[0].id)


@contract("concurrency")
async def one_of_several_reviewers_wins(world: World) -> None:
    acme = world.tenant()
    (server,) = await _servers(acme, "s")
    for number in range(4):
        user = f"u{number}"
        made = await acme.mcp_requests.create(server.id, scope="user", user=user)
        reviews = [
            partial(acme.mcp_requests.review, made.id, approved=bool(reviewer % 2), by=f"r{reviewer}")
            for reviewer in range(6)
        ]
        results = await world.together(*reviews)
        assert Counter(type(result) for result in results) == {McpRequest: 1, Conflict: 5}, results
        winner = next(result for result in results if isinstance(result, McpRequest))
        assert await acme.mcp_requests.get(made.id) == winner
        grant = await _grant(acme, server, "user", user)
        assert (grant is not None) == (winner.status == "approved")
        assert grant is None or grant.granted_by == winner.reviewed_by
