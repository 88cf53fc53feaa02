"""Secrets that are planted through every door appear in no place, in no encoding; a leak that is planted is found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from holdfast import Holdfast
from holdfast.encryption import Secret, new_key
from tests.canaries.doors import DOORS
from tests.canaries.observing import TENANT, Scene
from tests.canaries.searching import canary, encoded, find

SECRETS = 200
"""The least number of secrets on each engine."""
PLACES = {
    "activity",
    "answers",
    "arguments of processes",
    "database",
    "errors and tracebacks",
    "exports",
    "logs of the library",
    "logs of the server",
    "output of commands",
    "output of the library",
}


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("data")
    on_sqlite = request.param == "sqlite"
    scene = Scene(str(folder / "a.db") if on_sqlite else request.getfixturevalue("postgres_url"), folder, new_key())
    yield scene
    scene.close()


def test_no_secret_appears_anywhere(scene: Scene) -> None:
    planted = [(door, number) for number, door in enumerate(door for door in DOORS for _ in range(door.times))]
    assert len(planted) >= SECRETS
    for door, number in planted:
        door.plant(scene, canary(number))
    shown = scene.collect()
    assert shown.keys() == PLACES
    assert all(shown.values()), "something was recorded in every place"
    leaks = {place: find(data) for place, data in shown.items()}
    assert {place: found for place, found in leaks.items() if found} == {}
    with Holdfast(scene.url, encryption_key=scene.key) as hf:
        assert hf.tenant(TENANT).activity.count() > len(planted), "the secrets were stored"


@pytest.mark.parametrize("encoding", encoded("x"))
def test_a_leak_is_found_in_any_encoding(encoding: str) -> None:
    leak = encoded(canary(7))[encoding]
    assert find(b"something else, and then " + leak + b" and more")
    assert not find(encoded("an ordinary text, as long as a canary")[encoding])


def test_a_leak_is_found_in_every_place(scene: Scene) -> None:
    secret = canary(7)
    with scene.library() as hf:
        acme = hf.tenant(TENANT)
        session = acme.sessions.create()
        acme.messages.append(session.id, role="user", content=secret)
        acme.activity.record("secret.leaked", details={"value": secret})
        acme.objects.put([secret.encode() * 3_000], holder="test")
        scene.refused(lambda: acme.sessions.get(secret))
        logging.getLogger("holdfast").debug("the value is %s", secret)
    with Holdfast(scene.url, encryption_key=new_key()) as hf:
        hf.tenant(TENANT).secrets.set(secret, Secret("not the secret"))
    scene.say(repr(secret))
    scene.ask("GET", f"/sessions/{session.id}/messages")
    scene.ask_refused("GET", "/sessions/" + "".join(char for char in secret if char.isalnum() and char.isascii()))
    # The server cannot decrypt it, and logs its name.
    scene.ask_refused("POST", f"/secrets/{quote(secret, safe='')}/reveal")
    scene.command("sessions", "show", "--session", session.id)
    scene.command("secrets", "set", secret, input="value")
    shown = scene.collect()
    assert {place for place, data in shown.items() if find(data)} == PLACES
