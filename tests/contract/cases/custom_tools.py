"""Custom tools: shadowing, checks of templates and schemas, rendering. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from typing import Any

from holdfast.core.crypto import Secret
from holdfast.core.filters import column
from holdfast.errors import InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.agents.agents import NewAgent
from holdfast.stores.tools.custom_tools import CustomToolChange, NewCustomTool
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, flat, raises

PARAMETERS = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "default": 10},
        "where": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["pattern"],
    "additionalProperties": False,
}
GREP = "grep -m {{.limit}} -- {{.pattern}} notes.txt"


async def _agents(world: World, *names: str) -> Any:
    for name in names:
        await world.tenant().agents.create(NewAgent(name))
    return world.tenant().custom_tools


@contract()
async def a_tool_of_an_agent_shadows_the_one_for_all_agents(world: World) -> None:
    tools = await _agents(world, "ada", "grace")
    made = {}
    for name, agent, is_enabled in (
        ("find", "", True),
        ("grep", "", True),
        ("grep", "ada", True),
        ("off", "", False),
        ("on", "", True),
        ("on", "ada", False),
        ("own", "ada", True),
        ("own", "grace", True),
    ):
        new = NewCustomTool(name, "true", agent=agent, is_enabled=is_enabled, env=Secret({"A": f"{name} {agent}"}))
        made[name, agent] = await tools.create(new)
    used = {"": [""] * 3, "ada": ["", "ada", "", "ada"], "grace": ["", "", "", "grace"]}
    for agent, levels in used.items():
        names = ["find", "grep", "on", "own"][: len(levels)]
        expected = [made[name, level] for name, level in zip(names, levels, strict=True)]
        assert await tools.effective(agent) == expected
        pages = [await tools.effective(agent, limit=1)]
        while pages[-1].next is not None:
            pages.append(await tools.effective(agent, limit=1, cursor=pages[-1].next))
        assert flat(pages) == expected
        for name in ("find", "grep", "off", "on", "own"):
            row = next((row for row in expected if row.name == name), None)
            assert await tools.resolve(name, agent) == row, (name, agent)
    resolved = await tools.resolve("grep", "ada")
    assert resolved.env == Secret({"A": "grep ada"})
    assert await tools.find("grep") == made["grep", ""]
    assert await tools.find("grep", "ada") == made["grep", "ada"]
    assert await tools.count(where=[column("is_enabled").eq(False)]) == 2, "lists show disabled tools"
    for call in (tools.effective("nobody"), tools.resolve("grep", "nobody"), tools.render("grep", {}, agent="nobody")):
        with raises(NotFound, noun="agent", key="nobody"):
            await call
    other = world.tenant("zenith").custom_tools
    assert await other.effective() == []
    with raises(NotFound, noun="agent", key="ada"):
        await other.effective("ada")


@contract()
async def the_tools_of_a_deleted_agent_return_with_it(world: World) -> None:
    tools = await _agents(world, "ada")
    made = await tools.create(NewCustomTool("grep", "true", agent="ada"))
    await world.tenant().agents.delete("ada")
    for call in (tools.effective("ada"), tools.resolve("grep", "ada"), tools.render("grep", {}, agent="ada")):
        with raises(NotFound, noun="agent", key="ada"):
            await call
    with raises(NotFound, noun="agent", key="ada"):
        await tools.create(NewCustomTool("sed", "true", agent="ada"))
    await world.tenant().agents.restore("ada")
    assert await tools.effective("ada") == [made]


@contract()
async def a_template_is_checked_when_a_tool_is_saved(world: World) -> None:
    tools = world.tenant().custom_tools
    made = await tools.create(NewCustomTool("grep", GREP, parameters=PARAMETERS))
    changes: list[dict[str, Any]] = [
        {"command": "grep {{.name}}"},
        {"command": "grep '{{.pattern}}'"},
        {"command": "grep {{.pattern}} # {{.limit}}"},
        {"command": "grep $(cat {{.pattern}})"},
        {"parameters": {}},
        {"parameters": {"properties": {"pattern": {}}}},
        {"parameters": PARAMETERS | {"properties": ["pattern"]}},
    ]
    for change in changes:
        field = "parameters.properties" if change.get("parameters", {}).get("properties") == ["pattern"] else "command"
        with raises(InvalidInput, field=field):
            await tools.update(made.id, change=CustomToolChange(**change))
        fields: dict[str, Any] = {"command": GREP, "parameters": PARAMETERS} | change
        for method in (tools.create, tools.upsert):
            with raises(InvalidInput, field=field):
                await method(NewCustomTool("other", **fields))
    with raises(InvalidInput, saying="{{.name}}", field="command"):
        await tools.create(NewCustomTool("other", "echo {{.name}}", parameters=PARAMETERS))
    assert await tools.list() == [made]
    both = CustomToolChange(command="echo {{.name}}", parameters={"properties": {"name": {}}})
    assert (await tools.update(made.id, change=both)).version == 2


@contract()
async def parameters_are_a_json_schema(world: World) -> None:
    tools = world.tenant().custom_tools
    await tools.create(NewCustomTool("tool", "true", parameters=PARAMETERS))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"type": "array"}, "parameters.type"),
        ({"type": "strange"}, "parameters.type"),
        ({"properties": {"a": {"type": "strange"}}}, "parameters.properties.a.type"),
        ({"allOf": [{}, {"required": "a"}]}, "parameters.allOf[1].required"),
        ({"$schema": "https://example.com/schema"}, "parameters.$schema"),
        ({"properties": {"a": {"$ref": "https://example.com/schema"}}}, "parameters"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "parameters"),
        ({"properties": {"a": {"$ref": "#"}}}, "parameters"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "parameters.properties.a.pattern"),
    ]
    for parameters, field in refused:
        with raises(InvalidInput, field=field):
            await tools.create(NewCustomTool("other", "true", parameters=parameters))
    assert await tools.count() == 1


@contract()
async def variables_have_names_and_merge(world: World) -> None:
    tools = world.tenant().custom_tools
    made = await tools.create(NewCustomTool("tool", "true", env=Secret({"TOKEN": "t0ken", "A": "1"})))
    for env in ({"": "x"}, {"A B": "x"}, {"A=": "x"}, {"1": "x"}, {"A": "a\0b"}, {"A": "\ud800"}, {"A": 1}):
        wrong: Any = Secret(env)
        with raises(InvalidInput, field="env") as refused:
            await tools.update(made.id, change=CustomToolChange(env=wrong))
        assert "t0ken" not in str(refused.error)
        with raises(InvalidInput, field="env"):
            await tools.create(NewCustomTool("other", "true", env=wrong))
    changed = await tools.update(made.id, change=CustomToolChange(env=Secret({"A": "2"})))
    assert changed.env == Secret({"TOKEN": "t0ken", "A": "2"})
    assert await tools.list() == [changed]


@contract()
async def arguments_are_checked_and_quoted(world: World) -> None:
    tools = await _agents(world, "ada")
    new = NewCustomTool("grep", GREP, parameters=PARAMETERS, working_dir="/srv", env=Secret({"TOKEN": "t0ken"}))
    made = await tools.create(new)
    rendered = await tools.render("grep", {"pattern": "it's $HOME"}, agent="ada")
    assert rendered.command == "grep -m '10' -- 'it'\\''s $HOME' notes.txt"
    assert (rendered.working_dir, rendered.timeout_seconds) == ("/srv", 60)
    assert rendered.env == Secret({"TOKEN": "t0ken"})
    assert "t0ken" not in repr(rendered)
    assert rendered.scrub("the token is t0ken") == "the token is t0ken", "too short to be removed"
    refused: list[tuple[Any, str]] = [
        ({}, "arguments"),
        ({"pattern": ""}, "arguments.pattern"),
        ({"pattern": 7}, "arguments.pattern"),
        ({"pattern": "x", "limit": "ten"}, "arguments.limit"),
        ({"pattern": "x", "where": ["a", 7]}, "arguments.where[1]"),
        ({"pattern": "x", "more": 1}, "arguments"),
        ({"pattern": "a\0b"}, "arguments.pattern"),
        ({"pattern": "\ud800"}, "arguments.pattern"),
        ("pattern", "arguments"),
    ]
    for arguments, field in refused:
        with raises(InvalidInput, field=field):
            await tools.render("grep", arguments)
    await tools.update(made.id, change=CustomToolChange(is_enabled=False))
    for name in ("grep", "missing"):
        with raises(NotFound, noun="custom tool", key=name):
            await tools.render(name, {"pattern": "x"})


@contract()
async def a_placeholder_needs_a_value(world: World) -> None:
    tools = world.tenant().custom_tools
    properties = {"a": {}, "b": {"default": [1, "x y"]}, "c": {"default": None}}
    await tools.create(NewCustomTool("tool", "echo {{.a}}{{ .b }} {{.c}}", parameters={"properties": properties}))
    for arguments, field in (({}, "arguments.a"), ({"a": None}, "arguments.a"), ({"a": 1}, "arguments.c")):
        with raises(InvalidInput, field=field):
            await tools.render("tool", arguments)
    rendered = await tools.render("tool", {"a": True, "c": {"k": 1.5}})
    assert rendered.command == """echo 'true''[1,"x y"]' '{"k":1.5}'"""


@contract(limits=Limits(command_bytes=100, schema_nodes=10))
async def commands_and_schemas_are_limited(world: World) -> None:
    tools = world.tenant().custom_tools
    nested = {"$defs": {"a": {"anyOf": [{}, {}]}}, "allOf": [{"$ref": "#/$defs/a"}] * 2}
    with raises(LimitExceeded, field="parameters", limit="schema_nodes", maximum=10):
        await tools.create(NewCustomTool("tool", "true", parameters=nested))
    schema = {"properties": {"text": {"type": "string"}}}
    await tools.create(NewCustomTool("tool", f"echo {'x' * 60} {{{{.text}}}}", parameters=schema))
    assert len((await tools.render("tool", {"text": "x" * 32})).command) == 100
    with raises(LimitExceeded, field="command", limit="command_bytes", maximum=100):
        await tools.render("tool", {"text": "x" * 33})
    with raises(LimitExceeded, field="arguments", limit="command_bytes", maximum=100):
        await tools.render("tool", {"more": "x" * 100})
