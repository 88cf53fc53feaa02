"""Context files: which file applies to a user, copies and templates, and the changes that each type of agent refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast import NewAgent
from holdfast.clock import from_us
from holdfast.errors import Conflict, Forbidden, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.agents.agents import AgentChange
from holdfast.stores.agents.context_files import USER_FILE, ContextFile
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises

OPEN, PREDEFINED = "ada", "bot"
FILES = ("BOOTSTRAP.md", "SOUL.md", USER_FILE)


async def agents(world: World) -> AsyncTenantHandle:
    """Return a tenant with an agent of each type."""
    acme = world.tenant()
    await acme.agents.create(NewAgent(OPEN, agent_type="open"))
    await acme.agents.create(NewAgent(PREDEFINED, agent_type="predefined"))
    return acme


async def with_templates(world: World) -> AsyncTenantHandle:
    """Return a tenant whose agents have files of their own."""
    acme = await agents(world)
    for agent in (OPEN, PREDEFINED):
        for name in FILES:
            await acme.context_files.set(agent, name, f"template {name}")
    return acme


def shown(files: Sequence[ContextFile]) -> dict[str, tuple[str, str]]:
    """Return the user and the content of each file, in the order of the list."""
    return {file.file_name: (file.user, file.content) for file in files}


@contract()
async def the_type_of_the_agent_decides_which_file_applies(world: World) -> None:
    acme = await with_templates(world)
    files = acme.context_files
    templates = {name: ("", f"template {name}") for name in FILES}
    copies = {OPEN: FILES, PREDEFINED: (USER_FILE,)}
    for agent, copied in copies.items():
        assert shown(await files.list(agent, user="u1")) == shown(await files.list(agent)) == templates
        for name in copied:
            await files.set(agent, name, "mine", user="u1")
        expected = {name: ("u1", "mine") if name in copied else templates[name] for name in FILES}
        assert shown(await files.list(agent, user="u1")) == expected
        for name in FILES:
            file = await files.get(agent, name, user="u1")
            assert (file.user, file.content) == expected[name], (agent, name)
            assert await files.find(agent, name, user="u1") == file
            assert (await files.get(agent, name)).user == "", "without a user, the agent's own file"
        assert shown(await files.list(agent)) == shown(await files.list(agent, user="u2")) == templates
        for name in copied:
            await files.delete(agent, name, user="u1")
        assert shown(await files.list(agent, user="u1")) == templates, "without copies, the templates apply again"
        await files.set(agent, name, "only mine", user="u3")
        await files.delete(agent, name)
        assert (await files.get(agent, name, user="u3")).content == "only mine", "a copy does not need a template"
        assert await files.find(agent, name, user="u2") is None


@contract()
async def a_predefined_agent_keeps_all_files_but_one_for_all_users(world: World) -> None:
    acme = await with_templates(world)
    before, logged = await acme.context_files.list(PREDEFINED), await acme.activity.count()
    for call in (
        partial(acme.context_files.set, PREDEFINED, "SOUL.md", "mine", user="u1"),
        partial(acme.context_files.set, PREDEFINED, "NOTES.md", "mine", user="u1"),
        partial(acme.context_files.delete, PREDEFINED, "SOUL.md", user="u1"),
    ):
        with raises(Forbidden, saying="agent level", reason="agent_level"):
            await call()
    assert await acme.context_files.list(PREDEFINED, user="u1") == before
    assert await acme.activity.count() == logged


@contract()
async def copies_apply_again_when_the_agent_is_open_again(world: World) -> None:
    acme = await with_templates(world)
    files = acme.context_files
    for name in FILES:
        await files.set(OPEN, name, "mine", user="u1")
    await acme.agents.update(OPEN, change=AgentChange(agent_type="predefined"))
    assert {name: user for name, (user, _) in shown(await files.list(OPEN, user="u1")).items()} == {
        "BOOTSTRAP.md": "", "SOUL.md": "", USER_FILE: "u1"
    }  # fmt: skip
    assert await files.propagate(OPEN, "SOUL.md") == 0
    await acme.agents.update(OPEN, change=AgentChange(agent_type="open"))
    assert {content for _, content in shown(await files.list(OPEN, user="u1")).values()} == {"mine"}


@contract()
async def a_file_is_changed_by_version(world: World) -> None:
    acme = await agents(world)
    files = acme.context_files
    for user in (None, "u1"):
        with raises(Conflict, reason="version"):
            await files.set(OPEN, "SOUL.md", "x", user=user, version=1)
        created = await files.set(OPEN, "SOUL.md", "".join(TEXTS), user=user, version=0)
        now = from_us(world.clock.now_us())
        assert created == ContextFile(OPEN, user or "", "SOUL.md", "".join(TEXTS), 1, now, now)
        assert await files.get(OPEN, "SOUL.md", user=user) == created
        world.clock.advance(1)
        assert await files.set(OPEN, "SOUL.md", "".join(TEXTS), user=user) == created, "nothing differs"
        changed = await files.set(OPEN, "SOUL.md", "", user=user, version=1)
        assert (changed.content, changed.version) == ("", 2)
        assert changed.updated_at == from_us(world.clock.now_us()) != changed.created_at == now
        for version in (0, 1, 3):
            with raises(Conflict, saying=" 2", reason="version"):
                await files.set(OPEN, "SOUL.md", "x", user=user, version=version)
            with raises(Conflict, reason="version"):
                await files.delete(OPEN, "SOUL.md", user=user, version=version)
        await files.delete(OPEN, "SOUL.md", user=user, version=2)
        for call in (files.get, files.delete):
            with raises(NotFound, noun="context file", key="SOUL.md"):
                await call(OPEN, "SOUL.md", user=user)


@contract()
async def a_new_user_gets_the_templates_that_are_missing(world: World) -> None:
    acme = await with_templates(world)
    files = acme.context_files
    await files.set(OPEN, "SOUL.md", "mine", user="u1")
    await files.set(OPEN, "SOUL.md", "of another", user="u2")
    seeded = await files.seed(OPEN, "u1")
    assert [(file.user, file.file_name, file.content, file.version) for file in seeded] == [
        ("u1", name, f"template {name}", 1) for name in ("BOOTSTRAP.md", USER_FILE)
    ]
    assert await files.seed(OPEN, "u1") == []
    await files.set(OPEN, USER_FILE, "a new template")
    assert {name: content for name, (_, content) in shown(await files.list(OPEN, user="u1")).items()} == {
        "BOOTSTRAP.md": "template BOOTSTRAP.md", "SOUL.md": "mine", USER_FILE: f"template {USER_FILE}"
    }  # fmt: skip
    assert [file.file_name for file in await files.seed(PREDEFINED, "u1")] == [USER_FILE]
    assert len(await files.seed(OPEN, "u2")) == 2
    assert (await files.get(OPEN, "SOUL.md", user="u2")).content == "of another"
    with raises(NotFound, noun="agent", key="unknown"):
        await files.seed("unknown", "u1")


@contract(limits=Limits(batch_rows=2))
async def a_template_is_copied_over_the_copies_that_exist(world: World) -> None:
    acme = await with_templates(world)
    files, zenith = acme.context_files, world.tenant("zenith")
    await zenith.agents.create(NewAgent(OPEN))
    for user in ("u1", "u2", "u3", "u4", "u5"):
        for agent in (OPEN, PREDEFINED):
            await files.set(agent, USER_FILE, f"of {user}", user=user)
    await files.set(OPEN, "SOUL.md", "mine", user="u1")
    await zenith.context_files.set(OPEN, USER_FILE, "theirs", user="u1")
    await files.set(OPEN, USER_FILE, "new", user="u5")
    equal = await files.get(OPEN, USER_FILE, user="u5")
    await files.set(OPEN, USER_FILE, "new")
    assert await files.propagate(OPEN, USER_FILE) == 5
    for user in ("u1", "u2", "u3", "u4"):
        copy = await files.get(OPEN, USER_FILE, user=user)
        assert (copy.user, copy.content, copy.version) == (user, "new", 2)
        assert (await files.get(PREDEFINED, USER_FILE, user=user)).content == f"of {user}"
    assert await files.get(OPEN, USER_FILE, user="u5") == equal, "an equal copy is not written"
    assert (await files.get(OPEN, USER_FILE, user="u6")).user == "", "users without a copy get none"
    assert (await files.get(OPEN, "SOUL.md", user="u1")).content == "mine"
    assert (await zenith.context_files.get(OPEN, USER_FILE, user="u1")).content == "theirs"
    assert await files.propagate(PREDEFINED, USER_FILE) == 5
    assert await files.propagate(OPEN, "BOOTSTRAP.md") == 0
    await files.delete(OPEN, USER_FILE)
    with raises(NotFound, noun="context file", key=USER_FILE):
        await files.propagate(OPEN, USER_FILE)
    assert (await files.get(OPEN, USER_FILE, user="u1")).content == "new"


@contract(limits=Limits(context_files=2, file_name_bytes=9, context_file_bytes=10, name_bytes=20))
async def names_sizes_and_the_number_of_files_are_limited(world: World) -> None:
    acme = await agents(world)
    files = acme.context_files
    for user in (None, "u1"):
        kept = await files.set(OPEN, "é.md", "ééééé", user=user)
        too_large: list[tuple[Any, ...]] = [
            ("é.md", "éééééé", "context_file_bytes"),
            ("ééééé.md", "x", "file_name_bytes"),
        ]
        for name, content, limit in too_large:
            with raises(LimitExceeded, limit=limit):
                await files.set(OPEN, name, content, user=user)
        await files.set(OPEN, "b", "", user=user)
        with raises(LimitExceeded, limit="context_files", maximum=2):
            await files.set(OPEN, "c", "", user=user)
        await files.set(OPEN, "b", "changed", user=user)
        assert await files.get(OPEN, "é.md", user=user) == kept
        assert len(await files.list(OPEN, user=user)) == 2
    assert len(await files.seed(OPEN, "u2")) == 2
    wrong: list[Any] = ["", ".", "..", "a/b", "a\\b", "a\nb", "\x00", 7, None]
    for name in wrong:
        for call in (
            partial(files.set, OPEN, name, "x"),
            partial(files.get, OPEN, name),
            partial(files.delete, OPEN, name),
        ):
            with raises(InvalidInput, field="file_name"):
                await call()
    for content in (7, None, b"x"):
        with raises(InvalidInput):
            await files.set(OPEN, "b", content)  # type: ignore[arg-type]
    wrong_users: list[Any] = ["", 7]
    for wrong_user in wrong_users:
        with raises(InvalidInput, field="user"):
            await files.set(OPEN, "b", "x", user=wrong_user)
        with raises(InvalidInput, field="user"):
            await files.list(OPEN, user=wrong_user)
    for wrong_user in [*wrong_users, None]:
        with raises(InvalidInput, field="user"):
            await files.seed(OPEN, wrong_user)
    with raises(LimitExceeded, limit="name_bytes"):
        await files.set(OPEN, "b", "x", user="u" * 21)
    for missing in (
        partial(files.set, "unknown", "b", "x"),
        partial(files.list, "unknown"),
        partial(files.list, "unknown", user="u1"),
        partial(files.delete, "unknown", "b"),
        partial(files.propagate, "unknown", "b"),
    ):
        with raises(NotFound, noun="agent", key="unknown"):
            await missing()


@contract()
async def changes_of_files_are_logged_without_their_content(world: World) -> None:
    acme = await agents(world)
    files = acme.context_files
    before = await acme.activity.count()
    with acme.acting(user="boss", address="10.0.0.1"):
        await files.set(OPEN, "SOUL.md", "s3cret")
        await files.set(OPEN, "SOUL.md", "s3cret")
        await files.seed(OPEN, "u1")
        await files.seed(OPEN, "u1")
        await files.set(OPEN, "SOUL.md", "s3cret 2")
        await files.propagate(OPEN, "SOUL.md")
        await files.propagate(OPEN, "SOUL.md")
        await files.delete(OPEN, "SOUL.md", user="u1")
    entries = [*reversed((await acme.activity.list())[: await acme.activity.count() - before])]
    assert [(entry.action, entry.subject_id, entry.details) for entry in entries] == [
        ("context_file.created", "ada/SOUL.md", {}),
        ("context_file.seeded", "ada", {"user": "u1", "files": ["SOUL.md"]}),
        ("context_file.changed", "ada/SOUL.md", {}),
        ("context_file.propagated", "ada/SOUL.md", {"copies": 1}),
        ("context_file.deleted", "ada/SOUL.md", {"user": "u1"}),
    ]
    assert {(entry.actor, entry.address, entry.subject_kind) for entry in entries} == {
        ("boss", "10.0.0.1", "context_file")
    }
    assert "s3cret" not in repr(entries)


@contract()
async def the_files_of_a_deleted_agent_are_hidden_and_return_with_it(world: World) -> None:
    acme = await with_templates(world)
    await acme.context_files.set(OPEN, "SOUL.md", "mine", user="u1")
    files = acme.context_files
    before, others = await files.list(OPEN, user="u1"), await files.list(PREDEFINED)
    await acme.agents.delete(OPEN)
    assert await files.find(OPEN, "SOUL.md", user="u1") is None
    for call in (
        partial(files.list, OPEN, user="u1"),
        partial(files.set, OPEN, "SOUL.md", "x"),
        partial(files.delete, OPEN, "SOUL.md"),
        partial(files.seed, OPEN, "u2"),
        partial(files.propagate, OPEN, "SOUL.md"),
    ):
        with raises(NotFound, noun="agent", key=OPEN):
            await call()
    assert await files.list(PREDEFINED) == others
    await acme.agents.restore(OPEN)
    assert await files.list(OPEN, user="u1") == before


@contract("concurrency", limits=Limits(context_files=3))
async def concurrent_writes_create_a_file_once_and_keep_the_limit(world: World) -> None:
    acme = await with_templates(world)
    files = acme.context_files
    calls = [partial(files.set, OPEN, "NEW.md", str(number), user="u1", version=0) for number in range(8)]
    results = await world.together(*calls)
    assert Counter(type(result) for result in results) == {ContextFile: 1, Conflict: 7}, results
    results = await world.together(*[partial(files.set, OPEN, f"{number}.md", "", user="u1") for number in range(8)])
    assert Counter(type(result) for result in results) == {ContextFile: 2, LimitExceeded: 6}, results
    seeded = await world.together(*[partial(files.seed, OPEN, "u2")] * 8)
    assert sorted(len(result) for result in seeded if not isinstance(result, Exception)) == [0] * 7 + [3], seeded
