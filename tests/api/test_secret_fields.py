"""Secrets over HTTP and on the command line: they can be sent, and only the mask is returned."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from msgspec import UNSET, Struct, UnsetType

from holdfast.api import schemas
from holdfast.cli.output import print_json
from holdfast.encryption import MASK, Secret
from holdfast.errors import InvalidInput

PLAIN = "sk-very-secret"


class Channel(Struct):
    """A struct with secrets, as a store declares it."""

    name: str
    token: Secret[str] | None = None
    credentials: Secret[dict[str, Any]] | UnsetType | None = UNSET


DECODER = msgspec.json.Decoder(Channel, dec_hook=schemas.read_secret)
WHOLE = Channel("a", Secret(PLAIN), Secret({"key": PLAIN}))


def test_a_response_contains_the_mask() -> None:
    assert json.loads(schemas.encode(WHOLE)) == {"name": "a", "token": MASK, "credentials": MASK}
    surrogate = msgspec.structs.replace(WHOLE, name="\ud800")
    assert PLAIN not in schemas.encode(surrogate).decode()
    assert schemas.encode(Channel("a")) == b'{"name":"a","token":null}'


def test_a_list_contains_the_mask() -> None:
    class Page(Struct):
        items: list[Channel]
        next: str | None = None

    body = asyncio.run(schemas.encode_within(Page([WHOLE] * 3), 10_000))
    assert (PLAIN.encode() in body, body.count(MASK.encode())) == (False, 6)


def test_a_command_prints_the_mask() -> None:
    @click.command()
    def show() -> None:
        print_json({"channel": WHOLE})
        print_json({"channel": msgspec.structs.replace(WHOLE, name="\ud800")})

    result = CliRunner().invoke(show)
    assert (result.exit_code, PLAIN in result.output, result.output.count(MASK)) == (0, False, 4)


def test_a_request_is_decoded_as_secrets(caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({"name": "a", "token": PLAIN, "credentials": {"key": PLAIN}}).encode()
    read = schemas.decode(body, DECODER)
    assert (read.token.reveal(), read.credentials.reveal()) == (PLAIN, {"key": PLAIN})
    logging.getLogger("holdfast.api").warning("read %r", read)
    assert PLAIN not in repr(read) + caplog.text
    cleared = schemas.decode(b'{"name": "a", "token": null}', DECODER)
    assert (cleared.token, cleared.credentials) == (None, UNSET)


@pytest.mark.parametrize(
    "body", [{"token": 7}, {"token": [PLAIN]}, {"token": {"a": PLAIN}}, {"credentials": PLAIN}, {"credentials": 7}]
)
def test_an_invalid_secret_is_refused_and_not_repeated(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(body))) as caught:
        schemas.decode(json.dumps({"name": "a", **body}).encode(), DECODER)
    assert PLAIN not in str(caught.value)


def test_the_mask_is_passed_to_the_store_which_refuses_it() -> None:
    read = schemas.decode(json.dumps({"name": "a", "token": MASK, "credentials": MASK}).encode(), DECODER)
    assert (read.token.reveal(), read.credentials.reveal()) == (MASK, MASK)


def test_the_document_describes_secrets() -> None:
    schema = msgspec.json.schema(Channel, schema_hook=schemas.secret_schema)["$defs"]["Channel"]["properties"]
    body = json.dumps(schema)
    assert body.count('"format": "password"') == 2
    assert MASK in body


@pytest.mark.parametrize("hook", [schemas.read_secret, lambda kind, value: schemas.secret_schema(kind)])
def test_other_types_are_not_decoded_as_secrets(hook: Any) -> None:
    with pytest.raises(NotImplementedError):
        hook(object, "x")
