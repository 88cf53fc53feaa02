"""``holdfast secrets``, ``pairing``, ``providers`` and ``models``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, TenantHandle
from holdfast.cli.commands import root
from holdfast.encryption import Secret, new_key


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TenantHandle]:
    key, path = new_key(), str(tmp_path / "agents.db")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", key)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", path)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    with Holdfast(path, encryption_key=key) as hf:
        yield hf.tenant("acme")


def run(*arguments: str, input: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(root, arguments, input=input, env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    if code:
        assert result.output.splitlines()[-1].startswith("Error: ")
    return result


def test_a_secret_is_read_from_standard_input_a_file_or_a_variable(
    acme: TenantHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "value").write_text("from a file\n")
    monkeypatch.setenv("VALUE", "from a variable")
    outputs = [
        run("secrets", "set", "input", input="from input\nsecond line\n"),
        run("secrets", "set", "dash", "--value-file", "-", input="dash"),
        run("secrets", "set", "file", "--value-file", str(tmp_path / "value")),
        run("secrets", "set", "variable", "--value-env", "VALUE", "--as", "ada", "--json"),
        run("secrets", "list"),
    ]
    assert not any("from" in result.output for result in outputs)
    assert outputs[-1].output.split() == ["dash", "file", "input", "variable"]
    assert acme.secrets.get("input") == Secret("from input\nsecond line")
    assert acme.secrets.get("dash") == Secret("dash")
    assert acme.secrets.get("file") == Secret("from a file")
    assert acme.secrets.get("variable") == Secret("from a variable")
    assert next(entry.actor for entry in acme.activity.list(action="secret.set")) == "ada"


def test_a_secret_is_printed_by_get_alone_and_logged(acme: TenantHandle) -> None:
    acme.secrets.set("openai", Secret("sk-secret"))
    assert run("secrets", "get", "openai", "--as", "ada").output == "sk-secret\n"
    assert json.loads(run("secrets", "get", "openai", "--json").output) == {"key": "openai", "value": "sk-secret"}
    entries = acme.activity.list(action="secret.revealed")
    assert [entry.actor for entry in entries] == ["", "ada"]
    listed = json.loads(run("secrets", "list", "--json", "--limit", "1").output)
    assert listed == {"secrets": ["openai"], "next": None}
    assert json.loads(run("secrets", "delete", "openai", "--yes", "--json").output) == {"deleted": "openai"}
    run("secrets", "get", "openai", code=1)
    run("secrets", "delete", "openai", "--yes", code=1)


def test_a_secret_is_not_deleted_without_confirmation(acme: TenantHandle) -> None:
    acme.secrets.set("openai", Secret("sk-secret"))
    result = CliRunner().invoke(root, ["secrets", "delete", "openai"], input="n\n")
    assert (result.exit_code, acme.secrets.list()) == (1, ["openai"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["set", "x", "--value-env", "MISSING_VARIABLE"], 2),
        (["set", "x", "--value-env", "HOME", "--value-file", "-"], 2),
        (["set", "x", "--value-file", "missing"], 1),
        (["set", ""], 1),
        (["get", "missing"], 1),
        (["list", "--cursor", "x"], 1),
    ],
)
def test_a_refused_command_on_secrets_stores_nothing(arguments: list[str], code: int, acme: TenantHandle) -> None:
    run("secrets", *arguments, input="value", code=code)
    assert acme.secrets.list() == []


def test_a_key_of_the_wrong_length_is_one_line(acme: TenantHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    acme.secrets.set("openai", Secret("sk-secret"))
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", "short")
    assert "HOLDFAST_ENCRYPTION_KEY" in run("secrets", "get", "openai", code=1).output
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEY", new_key())
    assert "sk-secret" not in run("secrets", "get", "openai", code=1).output


def test_senders_are_listed_approved_denied_and_revoked(acme: TenantHandle) -> None:
    requests = {sender: acme.pairing.request(sender, "telegram") for sender in ("1", "2", "3")}
    listed = json.loads(run("pairing", "list", "--json").output)["pairing_requests"]
    assert {row["sender"] for row in listed} == {"1", "2", "3"}
    assert requests["1"].code in run("pairing", "list").output
    assert "Paired 1 on telegram" in run("pairing", "approve", requests["1"].code.lower(), "--as", "ada").output
    run("pairing", "approve", requests["1"].code, code=1)
    device = json.loads(run("pairing", "approve", requests["2"].code, "--json").output)["paired_device"]
    assert (device["sender"], device["paired_by"]) == ("2", "")
    run("pairing", "deny", requests["3"].code)
    assert [row.paired_by for row in acme.pairing.paired() if row.sender == "1"] == ["ada"]
    assert "ada" in run("pairing", "devices").output
    page = json.loads(run("pairing", "devices", "--limit", "1", "--json").output)
    rest = json.loads(run("pairing", "devices", "--cursor", page["next"], "--json").output)
    assert {row["sender"] for row in page["paired_devices"] + rest["paired_devices"]} == {"1", "2"}
    run("pairing", "revoke", "1", "telegram")
    run("pairing", "revoke", "1", "telegram", code=1)
    assert not acme.pairing.is_paired("1", "telegram")
    run("pairing", "deny", "nonsense", code=1)


def test_a_model_names_its_provider_by_its_name_or_its_id(acme: TenantHandle) -> None:
    run("providers", "create", "--name", "openai", "--api-key-file", "-", input="sk-secret")
    provider = acme.providers.find("openai")
    assert provider is not None
    run("models", "create", "--provider", "openai", "--name", "large", "--input-price-micros", "0", "--default")
    run("models", "create", "--provider", provider.id, "--name", "small")
    run("models", "create", "--provider", "unknown", "--name", "small", code=1)
    assert [model.name for model in acme.models.list()] == ["large", "small"]
    assert "large" in run("models", "show", "large", "--provider", "openai").output
    rows = json.loads(run("models", "list", "--provider", "openai", "--default", "--json").output)["models"]
    assert [(row["name"], row["input_price_micros"]) for row in rows] == [("large", 0)]
    run("models", "update", "small", "--provider", "openai", "--default", "--json")
    default = acme.models.default(provider.id)
    assert default is not None
    assert default.name == "small"


def test_reveal_prints_the_secrets_of_a_record_and_logs_it(acme: TenantHandle) -> None:
    run("providers", "create", "--name", "openai", "--api-key-file", "-", input="sk-secret")
    assert "sk-secret" not in run("providers", "show", "openai").output
    assert json.loads(run("providers", "reveal", "openai", "--json", "--as", "ada").output) == {"api_key": "sk-secret"}
    assert "sk-secret" in run("providers", "reveal", "openai").output
    assert [entry.actor for entry in acme.activity.list(action="provider.revealed")] == ["", "ada"]
    run("providers", "reveal", "missing", code=1)
