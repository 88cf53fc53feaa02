"""Programs with credentials: configurations that apply, and commands that are refused. ``records.py`` tests what all record
stores promise."""

from __future__ import annotations

from typing import Any

from holdfast.core.crypto import Secret
from holdfast.errors import CommandRefused, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.agents.agents import NewAgent
from holdfast.stores.tools.secure_cli import NewSecureCLI, SecureCLIChange
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises

TOKEN = "ghp_0123456789abcdef"


async def _programs(world: World, *agents: str) -> Any:
    for agent in agents:
        await world.tenant().agents.create(NewAgent(agent))
    return world.tenant().secure_cli


@contract()
async def a_disabled_configuration_hides_the_one_for_all_agents_only_on_request(world: World) -> None:
    programs = await _programs(world, "ada", "grace", "alan")
    for_all = await programs.create(NewSecureCLI("gh"))
    own = await programs.create(NewSecureCLI("gh", agent="ada"))
    disabled = await programs.create(NewSecureCLI("gh", agent="grace", is_enabled=False))
    assert await programs.resolve("gh") == for_all
    assert await programs.resolve("gh", "ada") == own
    assert await programs.resolve("gh", "grace") == await programs.resolve("gh", "alan") == for_all
    await programs.update(disabled.id, change=SecureCLIChange(hides_global=True))
    assert await programs.resolve("gh", "grace") is None
    assert (await programs.effective("grace"), await programs.effective("alan")) == ([], [for_all])
    with raises(NotFound, noun="CLI program", key="gh"):
        await programs.prepare("gh pr list", "grace")
    await programs.update(for_all.id, change=SecureCLIChange(is_enabled=False, hides_global=True))
    assert await programs.effective("alan") == await programs.effective() == []
    assert await programs.effective("ada") == [own]
    with raises(NotFound, noun="agent", key="nobody"):
        await programs.prepare("gh pr list", "nobody")
    with raises(NotFound, noun="CLI program", key="gh"):
        await world.tenant("zenith").secure_cli.prepare("gh pr list")


@contract()
async def a_command_is_divided_into_words_without_a_shell(world: World) -> None:
    programs = await _programs(world)
    await programs.create(NewSecureCLI("gh", env=Secret({"GH_TOKEN": TOKEN}), timeout_seconds=7))
    prepared = await programs.prepare("""gh pr  create --title 'it'"'"'s' --body "a  b" '' $HOME * \\n""")
    assert prepared.argv == [
        "gh", "pr", "create", "--title", "it's", "--body", "a  b", "", "$HOME", "*", "n",
    ]  # fmt: skip
    assert prepared.timeout_seconds == 7
    assert prepared.env == Secret({"GH_TOKEN": TOKEN})
    for operator in (";", "|", "&", "<", ">", "\n", "`", "$(", "${"):
        for command in (f"gh pr list {operator} x", f"gh pr list 'a{operator}b'", f"{operator}gh"):
            with raises(CommandRefused, rule="operator", pattern=operator, reason="operator"):
                await programs.prepare(command)
    for wrong in ("", "  ", "gh 'x", "gh \\", "gh a\0b", "gh \ud800", 7, None):
        with raises(InvalidInput, field="command"):
            await programs.prepare(wrong)
    for unknown in ("curl x", "''", "''gh2 x", "A=1 gh x", "gh/ x", "/"):
        with raises(NotFound, noun="CLI program"):
            await programs.prepare(unknown)


@contract()
async def a_path_does_not_bypass_the_configuration(world: World) -> None:
    programs = await _programs(world)
    made = await programs.create(NewSecureCLI("gh"))
    assert (await programs.prepare("gh x")).argv == ["gh", "x"]
    for path in ("/usr/bin/gh", "./gh", "../gh", "bin/gh", "/tmp/evil/gh", "'./gh'"):
        with raises(CommandRefused, rule="path", pattern=path.strip("'")):
            await programs.prepare(f"{path} x")
    await programs.update(made.id, change=SecureCLIChange(binary_path="/usr/bin/gh"))
    assert (
        (await programs.prepare("gh x")).argv == (await programs.prepare("/usr/bin/gh x")).argv == ["/usr/bin/gh", "x"]
    )
    for path in ("/usr/bin/../bin/gh", "./gh", "/tmp/evil/gh", "//usr/bin/gh"):
        with raises(CommandRefused, rule="path", pattern=path):
            await programs.prepare(f"{path} x")


@contract()
async def denied_arguments_are_refused_by_name_of_the_rule(world: World) -> None:
    programs = await _programs(world)
    new = NewSecureCLI("gh", deny_args=[r"^repo\s+delete", "--force"], deny_verbose=[r"(^|\s)-v(\s|$)"])
    made = await programs.create(new)
    for command, rule, pattern in (
        ("gh repo delete x", "deny_args", r"^repo\s+delete"),
        ("gh 'repo' \"delete\"", "deny_args", r"^repo\s+delete"),
        ("gh pr merge --force", "deny_args", "--force"),
        ("gh repo delete --force -v", "deny_args", r"^repo\s+delete"),
        ("gh api -v", "deny_verbose", r"(^|\s)-v(\s|$)"),
    ):
        with raises(CommandRefused, rule=rule, pattern=pattern):
            await programs.prepare(command)
    assert (await programs.prepare("gh pr list --verbose-x repo")).argv[1:] == ["pr", "list", "--verbose-x", "repo"]
    wrong: dict[str, Any]
    for field in ("deny_args", "deny_verbose"):
        for pattern in ("(", "[a", "*", "(?=a)", r"(a)\1", "a{1000}{1000}", "\ud800"):
            wrong = {field: ["x", pattern]}
            with raises(InvalidInput, field=field):
                await programs.update(made.id, change=SecureCLIChange(**wrong))
            with raises(InvalidInput, field=field):
                await programs.create(NewSecureCLI("other", **wrong))
    assert await programs.list() == [made]


@contract()
async def a_pattern_cannot_take_exponential_time(world: World) -> None:
    programs = await _programs(world)
    attacks = [r"^(a+)+$", r"(a|a)*c", r"(.*a){20}c", "a*" * 60 + "c", r"(\w+\s?)+$"]
    await programs.create(NewSecureCLI("gh", deny_args=attacks))
    with raises(CommandRefused, rule="deny_args", pattern=r"(\w+\s?)+$"):
        await programs.prepare("gh " + "a" * 10_000 + "! b")
    assert (await programs.prepare("gh " + "a" * 10_000 + "!")).argv[0] == "gh"


@contract()
async def reading_credentials_is_logged(world: World) -> None:
    acme = world.tenant()
    programs = await _programs(world, "ada")
    made = await programs.create(NewSecureCLI("gh", env=Secret({"GH_TOKEN": TOKEN}), deny_args=["delete"]))
    await programs.create(NewSecureCLI("ls"))
    before = await acme.activity.count()
    await programs.prepare("ls x")
    with raises(CommandRefused, rule="deny_args"):
        await programs.prepare("gh delete")
    await programs.resolve("gh")
    assert await acme.activity.count() == before
    with acme.acting(user="grace"):
        prepared = await programs.prepare("gh pr list", "ada")
    (entry,) = await acme.activity.list(limit=1)
    assert (entry.action, entry.subject_id, entry.actor) == ("cli_program.revealed", made.id, "grace")
    assert await acme.activity.count() == before + 1
    assert TOKEN not in repr([prepared, entry, await programs.list()])
    for wrong in ({"A B": "x"}, {"A": "a\0b"}):
        with raises(InvalidInput, field="env"):
            await programs.update(made.id, change=SecureCLIChange(env=Secret(wrong)))


@contract(limits=Limits(cli_command_bytes=20))
async def a_command_line_is_limited(world: World) -> None:
    programs = await _programs(world)
    await programs.create(NewSecureCLI("gh"))
    assert (await programs.prepare("gh " + "x" * 17)).argv == ["gh", "x" * 17]
    with raises(LimitExceeded, field="command", limit="cli_command_bytes", maximum=20):
        await programs.prepare("gh " + "x" * 18)
