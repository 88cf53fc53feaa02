"""Secrets whose key is lost: one typed error each, and they can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ChannelInstanceChange, Holdfast, NewAgent, NewChannelInstance, TenantHandle
from holdfast.encryption import Secret
from holdfast.errors import DecryptionFailed, InvalidInput, MissingKey
from holdfast.types import NewProvider, ProviderChange

OLD, NEW = "o" * 32, "n" * 32


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A database whose secrets were encrypted with the key ``OLD``."""
    path = str(tmp_path / "a.db")
    with Holdfast(path, encryption_key=OLD) as hf:
        acme = hf.tenant("acme")
        acme.agents.create(NewAgent(id="ada"))
        acme.secrets.set("openai", Secret("sk-old"))
        acme.providers.create(NewProvider("openai", api_key=Secret("sk-old")))
        acme.channels.create(NewChannelInstance("bot", "telegram", "ada", credentials=Secret({"token": "old"})))
    return path


@pytest.fixture
def acme(database: str) -> Iterator[TenantHandle]:
    """The tenant of a handle that has another key."""
    with Holdfast(database, encryption_key=NEW) as hf:
        yield hf.tenant("acme")


def provider_id(acme: TenantHandle) -> str:
    provider = acme.providers.find("openai")
    assert provider is not None
    return provider.id


CALLS: dict[str, Callable[[TenantHandle], Any]] = {
    "secrets.get": lambda acme: acme.secrets.get("openai"),
    "providers.reveal": lambda acme: acme.providers.reveal(provider_id(acme)),
    "Secret.reveal": lambda acme: [each.api_key and each.api_key.reveal() for each in acme.providers.list()],
    "an update of another field": lambda acme: acme.providers.update(
        provider_id(acme), change=ProviderChange(display_name="OpenAI")
    ),
    "a merge into lost credentials": lambda acme: [
        acme.channels.update(each.id, change=ChannelInstanceChange(credentials=Secret({"proxy": "p"})))
        for each in acme.channels.list()
    ],
}


@pytest.mark.parametrize("call", CALLS)
def test_a_secret_that_was_encrypted_with_a_lost_key_is_one_error_that_changes_nothing(
    call: str, acme: TenantHandle
) -> None:
    entries, versions = acme.activity.count(), [row.version for row in acme.providers.list()]
    with pytest.raises(DecryptionFailed):
        CALLS[call](acme)
    assert acme.activity.count() == entries
    assert [row.version for row in acme.providers.list()] == versions


def test_a_lost_secret_can_be_replaced_or_removed(acme: TenantHandle) -> None:
    acme.secrets.set("openai", Secret("sk-new"))
    assert acme.secrets.get("openai").reveal() == "sk-new"
    id = provider_id(acme)
    acme.providers.update(id, change=ProviderChange(api_key=Secret("sk-new"), display_name="OpenAI"))
    assert acme.providers.reveal(id) == {"api_key": "sk-new"}
    (channel,) = acme.channels.list()
    cleared = acme.channels.update(channel.id, change=ChannelInstanceChange(credentials=None))
    assert cleared.credentials is None


def test_without_a_key_nothing_secret_is_stored(database: str) -> None:
    with Holdfast(database, encryption_key=()) as hf:
        acme = hf.tenant("acme")
        with pytest.raises(MissingKey):
            acme.secrets.set("other", Secret("sk"))
        with pytest.raises(MissingKey):
            acme.providers.create(NewProvider("other", api_key=Secret("sk")))
        acme.providers.create(NewProvider("local", provider_type="ollama"))
        assert acme.secrets.list() == ["openai"]
        assert [row.name for row in acme.providers.list()] == ["local", "openai"]


@pytest.mark.parametrize("key", ["", "short", "0" * 63, "0" * 65, b"0" * 31, ["0" * 64, "short"]])
def test_a_key_of_the_wrong_length_is_refused_at_once(key: Any, database: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Holdfast(database, encryption_key=key)
    assert refused.value.field == "encryption_key"
