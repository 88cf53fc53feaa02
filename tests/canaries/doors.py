"""The doors through which secrets come in: one function for each, with the number of secrets it plants.

To test another door, add a function with ``@door``. It gets the place where everything is observed, and a secret.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast import AsyncHoldfast, Holdfast, NewA2APushConfig, NewChannelInstance
from holdfast.encryption import Secret
from holdfast.types import McpServerChange, NewCustomTool, NewMcpServer, NewProvider, NewSecureCLI, ProviderChange
from tests.canaries.observing import AGENT, KAGENT_TENANT, TENANT, Scene
from tests.declared.manifests import FULL, SECRET

Plant = Callable[[Scene, str], None]


class Door(NamedTuple):
    """One way in."""

    name: str
    plant: Plant
    times: int


DOORS: list[Door] = []


def door(times: int = 14) -> Callable[[Plant], Plant]:
    """Register a door through which so many secrets are planted."""

    def register(plant: Plant) -> Plant:
        DOORS.append(Door(plant.__name__, plant, times))
        return plant

    return register


# The library


@door()
def library_providers(scene: Scene, secret: str) -> None:
    with scene.library() as hf:
        providers = hf.tenant(TENANT).providers
        row = providers.create(NewProvider(scene.name("provider"), api_key=Secret("none yet")))
        changed = providers.update(row.id, change=ProviderChange(api_key=Secret(secret)))
        scene.say(repr([row, changed, *providers.list(), Secret(secret), str(Secret(secret))]))
        scene.expect(providers.reveal(row.id) == {"api_key": secret})


@door()
def library_channels(scene: Scene, secret: str) -> None:
    with scene.library() as hf:
        channels = hf.tenant(TENANT).channels
        new = NewChannelInstance(scene.name("bot"), "telegram", AGENT, credentials=Secret({"token": secret}))
        row = channels.create(new)
        scene.say(repr([new, row, *channels.list()]))
        scene.expect(channels.reveal(row.id) == {"credentials": {"token": secret}})


@door()
def library_mcp_servers(scene: Scene, secret: str) -> None:
    with scene.library() as hf:
        servers = hf.tenant(TENANT).mcp_servers
        row = servers.create(
            NewMcpServer(scene.name("server"), transport="stdio", command="tool", env=Secret({"TOKEN": secret}))
        )
        changed = servers.update(row.id, change=McpServerChange(api_key=Secret(secret)))
        scene.say(repr([row, changed, *servers.list()]))
        scene.expect(changed.env == Secret({"TOKEN": secret}))


@door()
def library_tools(scene: Scene, secret: str) -> None:
    with scene.library() as hf:
        acme, name, env = hf.tenant(TENANT), scene.name("tool"), Secret({"TOKEN": secret})
        tool = acme.custom_tools.create(NewCustomTool(name.replace("-", "_"), "true", env=env))
        program = acme.secure_cli.create(NewSecureCLI(name, env=env))
        scene.say(repr([tool, program, *acme.custom_tools.list(), *acme.secure_cli.list()]))
        scene.expect(acme.secure_cli.reveal(program.id) == {"env": {"TOKEN": secret}})


@door()
def library_secrets(scene: Scene, secret: str) -> None:
    with scene.library() as hf:
        name = scene.name("secret")
        secrets = hf.tenant(TENANT).secrets
        secrets.set(name, Secret(secret))
        scene.say(repr([secrets.get(name), secrets.list()]))
        scene.expect(secrets.get(name).reveal() == secret)


@door()
def library_async(scene: Scene, secret: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(scene.url, encryption_key=scene.key) as hf:
            acme, name = hf.tenant(TENANT), scene.name("async")
            await acme.secrets.set(name, Secret(secret))
            row = await acme.providers.upsert(NewProvider(name, api_key=Secret(secret)))
            scene.say(repr([row, await acme.secrets.get(name), *await acme.providers.list()]))
            scene.expect(await acme.providers.reveal(row.id) == {"api_key": secret})

    asyncio.run(main())


@door()
def library_push_configurations(scene: Scene, secret: str) -> None:
    with scene.library() as hf:
        configs = hf.tenant(TENANT).a2a_push_configs
        row = configs.create(
            NewA2APushConfig(scene.name("task"), Secret({"url": "https://a.example", "token": secret}))
        )
        scene.say(repr([row, *configs.list()]))
        scene.expect(row.config is not None and row.config.reveal()["token"] == secret)


@door()
def library_links(scene: Scene, secret: str) -> None:
    """The token of a link: only its digest is stored."""
    with scene.library() as hf:
        session = hf.tenant(TENANT).sessions.create()
        share = hf.tenant(TENANT).session_shares.create(session.id, token=secret)
        scene.say(repr([share, *hf.tenant(TENANT).session_shares.list(session.id)]))
        scene.expect(hf.tenant(TENANT).session_shares.find(secret) == share)


@door()
def library_refusals(scene: Scene, secret: str) -> None:
    """Calls that fail: their errors and tracebacks are searched, with the variables of every frame of Holdfast."""
    too_long = Secret(secret * 5_000)
    deep: dict[str, Any] = {"token": secret}
    for _ in range(300):
        deep = {"deeper": deep}
    wrong: Any = Secret({"token": secret})
    with scene.library() as hf:
        acme = hf.tenant(TENANT)
        name = scene.name("refused")
        scene.refused(lambda: acme.secrets.set(name, too_long))
        scene.refused(lambda: acme.secrets.set(name, wrong))
        # A value that is not a Secret is an argument, so the frames that it is passed to have it.
        scene.refused(lambda: acme.secrets.set(name, secret), variables=False)  # type: ignore[arg-type]
        scene.refused(lambda: acme.providers.create(NewProvider(name, api_key=wrong)))
        scene.refused(lambda: acme.providers.create(NewProvider(name, api_key=too_long)))
        scene.refused(lambda: acme.providers.create(NewProvider("", api_key=Secret(secret))))
        scene.refused(lambda: acme.providers.update("x", change=ProviderChange(api_key=Secret(secret))))
        for credentials in (Secret(deep), Secret({"token": secret, "x": b"bytes"}), Secret(secret)):
            new = NewChannelInstance(name, "telegram", AGENT, credentials=credentials)  # type: ignore[arg-type]
            scene.refused(lambda new=new: acme.channels.create(new))  # type: ignore[misc]
        scene.refused(lambda: acme.channels.create(NewChannelInstance(name, "t", "none", credentials=wrong)))
    with Holdfast(scene.url, encryption_key=()) as hf:
        scene.refused(lambda: hf.tenant(TENANT).secrets.set(name, Secret(secret)))
    # A key is an argument, so the frames that it is passed to have it.
    scene.refused(lambda: Holdfast(scene.url, encryption_key=secret).close(), variables=False)


# The server


@door()
def http_records(scene: Scene, secret: str) -> None:
    name = scene.name("http")
    made = scene.ask("POST", "/providers", {"name": name, "api_key": secret})
    one = f"/providers/{made['id']}"
    scene.ask("PATCH", one, {"api_key": secret})
    scene.ask("PUT", one, {"name": name, "api_key": secret})
    scene.ask("GET", one)
    scene.ask("GET", "/providers?search=http")
    scene.ask(
        "POST", "/channels", {"name": name, "channel_type": "t", "agent": AGENT, "credentials": {"token": secret}}
    )
    scene.ask("GET", "/channels")
    server = {"name": name, "transport": "sse", "url": "https://a.example", "headers": {"Authorization": secret}}
    scene.ask("POST", "/mcp-servers", server)
    scene.ask("GET", "/mcp-servers")
    scene.expect(scene.reveal(f"{one}/reveal") == {"api_key": secret})


@door()
def http_secrets(scene: Scene, secret: str) -> None:
    one = f"/secrets/{scene.name('http')}"
    scene.ask("PUT", one, {"value": secret})
    scene.ask("GET", "/secrets?limit=1000")
    scene.expect(scene.reveal(f"{one}/reveal") == {"value": secret})


@door()
def http_push_configurations(scene: Scene, secret: str) -> None:
    one = f"/a2a/tasks/{scene.name('task')}/push-configs"
    url = f"https://ada:{quote(secret, safe='')}@a.example/?key={quote(secret)}"
    scene.ask("POST", one, {"config": {"url": url, "token": secret}})
    scene.ask("GET", one)


@door()
def http_refusals(scene: Scene, secret: str) -> None:
    """Refused requests: answers and logs do not repeat their content."""
    name = scene.name("refused")
    for body in (
        {"name": name, "api_key": {"token": secret}},
        {"name": name, "api_key": [secret]},
        {"name": name, "api_key": secret * 5_000},
        {"name": "", "api_key": secret},
        {"name": name, "api_key": secret, "unknown": 1},
        {"name": name, "api_key": secret, "provider_type": "unknown"},
    ):
        scene.ask_refused("POST", "/providers", body)
    scene.ask_refused("POST", "/channels", {"name": name, "channel_type": "t", "agent": AGENT, "credentials": secret})
    scene.ask_refused("PUT", f"/secrets/{name}", {"value": {"token": secret}})
    scene.ask_refused("PUT", f"/secrets/{name}", {"value": secret * 5_000})
    scene.ask_refused("PUT", f"/secrets/{name}", f'{{"value": "{secret}'.encode())
    plain = secret.encode("ascii", "ignore").decode().replace('"', "")
    scene.ask_refused("GET", "/providers", headers={"Authorization": f"Bearer {plain}"})
    scene.ask_refused("GET", "/providers", headers={"Authorization": "", "X-API-Key": plain})


# kagent's API


@door()
def kagent_events(scene: Scene, secret: str) -> None:
    """At each turn, an agent stores the headers of its caller's request, and credentials that it keeps."""
    session = scene.kagent("POST", "/api/sessions", {"agent_ref": "kagent/helper", "name": scene.name("session")})
    state = {"headers": {"Authorization": f"Bearer {secret}", "Cookie": secret}}
    credentials = {"auth": {"access_token": secret, "client_secret": secret}}
    for number, event in enumerate(({"actions": {"state_delta": state}}, credentials)):
        one = {"id": f"event {number}", "data": json.dumps({"id": f"event {number}", **event})}
        scene.kagent("POST", f"/api/sessions/{session['id']}/events", one, shows=True)


@door()
def kagent_push_configurations(scene: Scene, secret: str) -> None:
    task = scene.name("task")
    config = {"id": "c", "url": "https://a.example", "token": secret, "authentication": {"credentials": secret}}
    scene.kagent("POST", f"/api/tasks/{task}/pushNotificationConfigs", config, shows=True)
    with scene.library() as hf:
        (row,) = hf.tenant(KAGENT_TENANT).a2a_push_configs.list(where=scene.of_task(task))
        scene.expect(row.config is not None and row.config.reveal()["token"] == secret)


# The command line: each command is a process, and few secrets show as much as many


@door(1)
def cli_standard_input(scene: Scene, secret: str) -> None:
    name = scene.name("cli")
    scene.command("secrets", "set", name, input=secret)
    scene.command("providers", "create", "--name", name, "--api-key-file", "-", input=secret)
    scene.command("providers", "show", name, "--json")
    scene.command("providers", "list")


@door(1)
def cli_file(scene: Scene, secret: str) -> None:
    name, file = scene.name("cli"), scene.secret_file(json.dumps({"token": secret}))
    scene.command("secrets", "set", name, "--value-file", file)
    channel = ["--name", name, "--channel-type", "t", "--agent", AGENT]
    scene.command("channels", "create", *channel, "--credentials-file", file)
    scene.command("channels", "update", name, "--credentials-file", file)
    scene.command("channels", "list", "--json")


@door(1)
def cli_environment(scene: Scene, secret: str) -> None:
    name = scene.name("cli")
    scene.command("secrets", "set", name, "--value-env", "CANARY", CANARY=secret)
    scene.command("providers", "create", "--name", name, "--api-key-env", "CANARY", CANARY=secret)
    scene.command("secrets", "list")


@door(1)
def cli_refusals(scene: Scene, secret: str) -> None:
    """Commands that fail, with their tracebacks."""
    name, file = scene.name("cli"), scene.secret_file(f"not JSON: {secret}")
    channel = ["--name", name, "--channel-type", "t", "--agent", AGENT]
    scene.command("channels", "create", *channel, "--credentials-file", file, fails=True)
    scene.command("providers", "create", "--name", "", "--api-key-env", "CANARY", CANARY=secret, fails=True)
    scene.command("secrets", "set", name, input=secret * 5_000, fails=True)
    scene.command(
        "secrets", "set", name, "--value-env", "CANARY", fails=True, CANARY=secret, HOLDFAST_ENCRYPTION_KEY=""
    )
    scene.command("secrets", "list", fails=True, HOLDFAST_ENCRYPTION_KEY=secret)


@door(1)
def cli_apply(scene: Scene, secret: str) -> None:
    """Manifests of every kind, with a secret wherever one can be, and references to Secrets and ConfigMaps."""
    folder = Path(scene.secret_file("")).with_name("values")
    for name, content in {"keys/token": secret, "other/keys/token": secret, "config/region": "eu"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    def manifests(value: str) -> str:
        text = json.dumps(FULL).replace(json.dumps(SECRET), json.dumps(value))
        return scene.secret_file("\n---\n".join(json.dumps(document) for document in json.loads(text)), ".yaml")

    options = ("--secrets", str(folder), "--source", "canaries")
    scene.command("apply", "-f", manifests(secret), "--dry-run", *options)
    scene.command("apply", "-f", manifests(secret), *options)
    scene.command("apply", "-f", manifests(f"{secret} changed"), *options)
    scene.command("apply", "-f", manifests(secret), "--json", *options)
    scene.ask("GET", "/declared-resources")
    broken = json.loads(json.dumps(FULL[1]).replace(json.dumps(SECRET), json.dumps(secret)))
    broken["spec"]["azureOpenAI"]["azureAdToken"] = {"token": secret}
    scene.command("apply", "-f", scene.secret_file(json.dumps(broken), ".yaml"), *options, fails=True)
    broken["spec"]["unknown"] = secret
    scene.command("apply", "-f", scene.secret_file(json.dumps(broken), ".yaml"), *options, fails=True)


# Bundles


@door(2)
def imported_bundle(scene: Scene, secret: str) -> None:
    """A bundle contains no secrets; one that does was made by hand."""
    file = scene.forged_bundle(secret)
    scene.command("import", "bundle", "--from", file, "--as", scene.name("imported"), fails=True)
    from holdfast.bundles import import_tenant

    scene.refused(lambda: import_tenant(scene.url, file, tenant=scene.name("imported")))
