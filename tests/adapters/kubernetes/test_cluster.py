"""Rows are kept in step with a cluster, whatever happens to the connection."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AgentChange, TenantHandle
from holdfast.declared.cluster import PAGE_OBJECTS, Cluster
from holdfast.errors import Forbidden, InvalidManifest, NotFound, Unavailable
from tests.adapters.kubernetes.api_server import ApiServer
from tests.adapters.kubernetes.conftest import Kept, write_kubeconfig

Keep = Callable[..., Kept]
AGENT = {"description": "helps", "declarative": {"systemMessage": "Be helpful."}}
SERVER = {"url": "http://tools.kagent:3000/mcp", "description": "tools"}


def agent(system: str) -> dict[str, object]:
    return {"description": "helps", "declarative": {"systemMessage": system}}


def names(acme: TenantHandle) -> set[str]:
    return {row.display_name for row in acme.agents.list()}


def test_created_changed_and_deleted_resources_become_rows(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.secrets["secrets", "kagent", "openai"] = {"OPENAI_API_KEY": "sk-cluster"}
    api.secrets["configmaps", "kagent", "headers"] = {"region": "eu"}
    model = {"model": "gpt-5", "apiKeySecret": "openai", "apiKeySecretKey": "OPENAI_API_KEY"}
    header = {"name": "X-Region", "valueFrom": {"type": "ConfigMap", "name": "headers", "key": "region"}}
    api.put("ModelConfig", "default", model)
    api.put("RemoteMCPServer", "tools", {**SERVER, "headersFrom": [header]})
    api.put("Agent", "helper", {"declarative": {"systemMessage": "Be helpful.", "modelConfig": "default"}})
    kept = keep()
    kept.until(lambda: acme.declared.count() == 3)
    (provider,), (server,), (row,) = acme.providers.list(), acme.mcp_servers.list(), acme.agents.list()
    assert acme.providers.reveal(provider.id)["api_key"] == "sk-cluster"
    assert server.headers is not None
    assert server.headers.reveal() == {"X-Region": "eu"}
    assert (row.system, row.model) == ("Be helpful.", "gpt-5")

    api.put("Agent", "helper", agent("Be brief."))
    kept.until_changed("Agent/kagent/helper")
    assert acme.agents.get(row.id).system == "Be brief."

    acme.sessions.create(agent=row.id)
    api.delete("Agent", "helper")
    (pruned,) = kept.until_changed("Agent/kagent/helper")
    assert (pruned.action, dict(pruned.dependents)["sessions"]) == ("pruned", 1)
    assert names(acme) == set()

    api.put("Agent", "helper", agent("Be back."))
    kept.until_changed("Agent/kagent/helper")
    assert acme.agents.get(row.id).system == "Be back."


def test_other_namespaces_are_ignored(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.put("Agent", "ours", AGENT)
    api.put("Agent", "theirs", AGENT, namespace="other")
    kept = keep("kagent")
    kept.until_changed("Agent/kagent/ours")
    api.put("Agent", "more", AGENT, namespace="other")
    api.put("Agent", "last", AGENT)
    kept.until_changed("Agent/kagent/last")
    assert names(acme) == {"kagent/ours", "kagent/last"}


def test_a_killed_cluster_is_followed_again_from_the_last_version(
    api: ApiServer, acme: TenantHandle, keep: Keep
) -> None:
    api.put("Agent", "first", AGENT)
    kept = keep()
    kept.until_changed("Agent/kagent/first")
    for round_ in range(3):
        with api.changed:
            assert api.changed.wait_for(lambda: api.watches >= 5, timeout=60)
            api.watches = 0
        seen = len(api.requests)
        api.kill()
        api.put("Agent", f"late-{round_}", AGENT)
        api.put("Agent", "first", agent(f"round {round_}"))
        if round_:
            api.delete("Agent", f"late-{round_ - 1}")
        kept.until_error(Unavailable)
        kept.errors.clear()
        api.start()
        kept.until_changed(f"Agent/kagent/late-{round_}", "Agent/kagent/first")
        assert names(acme) == {"kagent/first", f"kagent/late-{round_}"}
        lists = [path for path in api.requests[seen:] if "/agents" in path and "watch=" not in path]
        assert lists == [], "the watch goes on where it ended; nothing is listed again"


@pytest.mark.parametrize("as_status", [False, True])
def test_a_forgotten_version_makes_it_list_again(
    api: ApiServer, acme: TenantHandle, keep: Keep, as_status: bool
) -> None:
    api.put("Agent", "stays", AGENT)
    api.put("Agent", "goes", AGENT)
    kept = keep()
    kept.until_changed("Agent/kagent/goes")
    api.kill()
    api.delete("Agent", "goes")
    api.put("Agent", "comes", AGENT)
    api.forget()
    api.gone_as_status = as_status
    api.start()
    changes = kept.until_changed("Agent/kagent/goes", "Agent/kagent/comes")
    assert {(change.ref, change.action) for change in changes} == {
        ("Agent/kagent/goes", "pruned"),
        ("Agent/kagent/comes", "created"),
    }
    assert names(acme) == {"kagent/stays", "kagent/comes"}


def test_a_bookmark_is_the_version_to_go_on_from(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.put("Agent", "first", AGENT)
    kept = keep()
    kept.until_changed("Agent/kagent/first")
    with api.changed:
        assert api.changed.wait_for(lambda: api.watches >= 5, timeout=60)
    api.bookmark()
    bookmark = api.version
    api.put("MCPServer", "marker", {"deployment": {"cmd": "x"}})  # nothing happens to agents after the bookmark
    kept.until_changed("MCPServer/kagent/marker")
    api.break_connections()
    api.put("Agent", "second", AGENT)
    kept.until_changed("Agent/kagent/second")
    watches = [path for path in api.requests if "/agents" in path and "watch=" in path]
    assert any(f"resourceVersion={bookmark}" in path for path in watches), watches
    assert names(acme) == {"kagent/first", "kagent/second"}


def test_an_event_that_was_cut_off_is_not_lost(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.put("Agent", "first", AGENT)
    kept = keep()
    kept.until_changed("Agent/kagent/first")
    for cut in (0, 1, 30, 150):
        api.cut_after = cut
        api.put("Agent", "first", agent(f"after {cut} bytes"))
        kept.until(lambda cut=cut: acme.agents.get("kagent__NS__first").system == f"after {cut} bytes")
        assert api.cut_after is None


def test_long_lists_come_in_pages(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    count = 2 * PAGE_OBJECTS + 1
    for number in range(count):
        api.put("Agent", f"agent-{number}", AGENT)
    kept = keep()
    kept.until(lambda: acme.agents.count() == count)
    assert sum("continue=" in path for path in api.requests) == 2


def test_a_resource_that_is_not_valid_affects_no_other(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.put("Agent", "good", AGENT)
    api.put("Agent", "bad", AGENT)
    kept = keep()
    kept.until(lambda: acme.agents.count() == 2)
    api.put("Agent", "bad", {"declarative": {"systemMassage": "Typo."}})
    api.put("Agent", "lost", {"declarative": {"modelConfig": "absent"}})
    api.put("Agent", "good", agent("Be better."))
    kept.until_changed("Agent/kagent/good")
    error = kept.until_error(InvalidManifest)
    assert isinstance(error, InvalidManifest)
    assert {problem.file for problem in kept.errors if isinstance(problem, InvalidManifest)} <= {
        "Agent/kagent/bad",
        "Agent/kagent/lost",
    }
    assert names(acme) == {"kagent/good", "kagent/bad"}, "the row of a broken resource stays"
    api.delete("Agent", "bad")
    kept.until_changed("Agent/kagent/bad")
    assert names(acme) == {"kagent/good"}


def test_rows_and_secrets_are_compared_again_from_time_to_time(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.secrets["secrets", "kagent", "openai"] = {"key": "sk-1"}
    api.put("ModelConfig", "default", {"model": "gpt-5", "apiKeySecret": "openai", "apiKeySecretKey": "key"})
    api.put("Agent", "helper", AGENT)
    kept = keep(resync_s=0.05)
    kept.until(lambda: acme.declared.count() == 2)
    acme.agents.update("kagent__NS__helper", change=AgentChange(system="changed by hand"))
    kept.until(lambda: acme.agents.get("kagent__NS__helper").system == "Be helpful.")
    api.secrets["secrets", "kagent", "openai"] = {"key": "sk-2"}
    (provider,) = acme.providers.list()
    kept.until(lambda: acme.providers.reveal(provider.id)["api_key"] == "sk-2")


def test_what_was_deleted_while_nobody_watched_is_deleted_later(api: ApiServer, acme: TenantHandle, keep: Keep) -> None:
    api.put("Agent", "goes", AGENT)
    api.put("Agent", "stays", AGENT)
    api.put("MCPServer", "tools", {"deployment": {"cmd": "x"}})
    first = keep()
    first.until(lambda: acme.declared.count() == 3)
    first.keeper.stop()
    api.delete("Agent", "goes")
    for kinds in api.kinds.values():
        kinds.pop("mcpservers", None)
    keep().until_changed("Agent/kagent/goes")
    assert names(acme) == {"kagent/stays"}
    assert acme.mcp_servers.count() == 1, (
        "a kind that the cluster does not have any more says nothing about its resources"
    )


def test_the_command_applies_a_cluster_once_or_until_it_is_stopped(
    api: ApiServer, kubeconfig: str, tmp_path: Path, acme: TenantHandle
) -> None:
    api.put("Agent", "a", AGENT)
    api.put("Agent", "bad", {"declarative": {"systemMassage": "Typo."}})
    command = [sys.executable, "-m", "holdfast", "apply", "--kubernetes", "--kubeconfig", kubeconfig]
    command += ["--database", str(tmp_path / "holdfast.db"), "--tenant", "acme"]
    once = subprocess.run([*command, "--once"], check=False, capture_output=True, text=True, timeout=120)
    assert (once.returncode, once.stdout) == (1, "+ Agent/kagent/a created\n1 of 1 resources changed.\n")
    assert once.stderr.startswith("Error: Agent/kagent/bad, spec.declarative.systemMassage:")
    assert once.stderr.count("\n") == 1
    api.delete("Agent", "bad")
    once = subprocess.run([*command, "--once"], check=False, capture_output=True, text=True, timeout=120)
    assert (once.returncode, once.stdout, once.stderr) == (0, "0 of 1 resources changed.\n", "")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0 of 1 resources changed.\n"
        api.put("Agent", "b", AGENT)
        assert process.stdout.readline() == "+ Agent/kagent/b created\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert names(acme) == {"kagent/a", "kagent/b"}


def test_a_refused_account_is_one_typed_error(api: ApiServer, tmp_path: Path, keep: Keep) -> None:
    cluster = Cluster(write_kubeconfig(tmp_path, api, "another token"))
    with pytest.raises(Forbidden):
        cluster.versions()
    with pytest.raises(Forbidden):
        cluster.objects("Agent", "v1alpha2", None)
    with pytest.raises(Forbidden):
        next(cluster.watch("Agent", "v1alpha2", None, "1"))
    with pytest.raises(Forbidden):
        cluster.keys("Secret", "kagent", "openai")
    cluster.close()


def test_an_absent_cluster_is_one_typed_error(api: ApiServer, kubeconfig: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Cluster(str(tmp_path / "absent"))
    cluster = Cluster(kubeconfig)
    assert cluster.versions()["Agent"] == "v1alpha2"
    assert cluster.versions()["MCPServer"] == "v1alpha1"
    with pytest.raises(NotFound):
        cluster.objects("Agent", "v9", None)
    assert cluster.keys("Secret", "kagent", "absent") is None
    api.kill()
    with pytest.raises(Unavailable):
        cluster.versions()
    api.start()
