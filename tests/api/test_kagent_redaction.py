"""Secrets in events and tasks are detected in any form, and nothing else is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.api.kagent.redaction import (
    NOT_SHOWN,
    NOT_STORED,
    contains_secrets,
    for_guests,
    task_for_guests,
    without_request_secrets,
)
from holdfast.errors import LimitExceeded
from tests.errors import raises

SECRET = "very-secret"


def state(**delta: Any) -> dict[str, Any]:
    """Return an event that changes the state."""
    return {"id": "1", "actions": {"state_delta": delta}, "content": {"parts": [{"text": "said"}]}}


HEADERS = [
    pytest.param({"headers": {"Authorization": SECRET}}, id="as agents write them"),
    pytest.param({"headers": {"authorization": [SECRET, SECRET]}}, id="several values"),
    pytest.param({"headers": [["Authorization", SECRET]]}, id="pairs"),
    pytest.param({"headers": [{"name": "cookie", "value": SECRET}]}, id="objects with a name"),
    pytest.param({"headers": [{"key": "Cookie", "value": SECRET}]}, id="objects with a key"),
    pytest.param({"headers": f"Authorization: {SECRET}"}, id="one text"),
    pytest.param({"user:headers": {"authorization": SECRET}}, id="with a scope"),
    pytest.param({"request_headers": {"authorization": SECRET}}, id="another name"),
    pytest.param({"requestHeaders": {"authorization": SECRET}}, id="other case"),
    pytest.param({"request": {"headers": {"authorization": SECRET}}}, id="nested deeper"),
    pytest.param({"calls": [{"headers": {"authorization": SECRET}}]}, id="in a list"),
    pytest.param({"headers": {"x-upstream": {"authorization": SECRET}}}, id="headers in headers"),
    pytest.param({"headers": {"x-who": f"Bearer {SECRET}"}}, id="by the start of its value"),
    pytest.param({"headers": {"x-who": [f"basic {SECRET}"]}}, id="by the start of one of its values"),
    pytest.param({"headers": {"x-who": f"eyJhbGciOi.{SECRET}.x"}}, id="a signed token under any name"),
]


@pytest.mark.parametrize("delta", HEADERS)
@pytest.mark.parametrize("key", ["state_delta", "stateDelta"])
def test_a_callers_token_is_detected_in_any_form(delta: dict[str, Any], key: str) -> None:
    data = json.dumps({"id": "1", "actions": {key: {**delta, "n": 1.5}}, "text": "\U0001f600"})
    results, all_results = without_request_secrets(data), for_guests(data)
    assert results is not None
    for text, words in ((results, NOT_STORED), (all_results, NOT_SHOWN)):
        assert SECRET not in text
        assert words in text
        left = json.loads(text)
        assert (left["text"], left["actions"][key]["n"]) == ("\U0001f600", 1.5)
    assert without_request_secrets(results) in (None, results), "it is idempotent"


NAMES = [
    *(
        "Authorization",
        "PROXY-AUTHORIZATION",
        "X-Forwarded-Authorization",
        "Cookie",
        "Set-Cookie",
        "X-API-Key",
        "apikey",
    ),
    *(
        "X-Auth-Token",
        "X-Share-Token",
        "X-Forwarded-Access-Token",
        "X-Amz-Security-Token",
        "x_api_key",
        "Private-Token",
    ),
    *(
        "Cf-Access-Jwt-Assertion",
        "X-Amzn-Oidc-Data",
        "DPoP",
        "X-Client-Secret",
        "Ocp-Apim-Subscription-Key",
        "X-Password",
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_header_is_secret_by_its_name(name: str) -> None:
    body = without_request_secrets(json.dumps(state(headers={name: SECRET, "accept": "text/html"})))
    assert body is not None
    assert json.loads(body)["actions"]["state_delta"]["headers"] == {name: NOT_STORED, "accept": "text/html"}


@pytest.mark.parametrize("escaped", ['"\\u0068eaders"', '"heade\\u0072s"'])
def test_an_escaped_name_is_detected(escaped: str) -> None:
    data = '{"actions": {"state_delta": {' + escaped + ': {"authorization": "' + SECRET + '"}}}}'
    content = without_request_secrets(data)
    assert content is not None
    assert SECRET not in content + for_guests(data)


PLAIN = [
    pytest.param("", id="empty"),
    pytest.param("no JSON", id="not JSON"),
    pytest.param("{}", id="an object"),
    pytest.param('["headers"]', id="a list"),
    pytest.param('{"actions": []}', id="actions are not an object"),
    pytest.param('{"actions": {"state_delta": {"headers": null}}}', id="headers are null"),
    pytest.param('{"actions": {"state_delta": {"headers": {}}}}', id="no headers"),
    pytest.param(
        '{"actions": {"state_delta": {"headers": {"authorization": "", "cookie": null}}}}', id="empty headers"
    ),
    pytest.param('{"actions": {"state_delta": {"headers": {"host": "x", "user-agent":  "y"}}}}', id="harmless headers"),
    pytest.param('{"usage_metadata": {"prompt_token_count":  7, "tokens": "7"}}', id="similar names"),
    pytest.param('{"content": {"parts": [{"text": "my password is \\"x\\""}]}}', id="conversation"),
    pytest.param('{"content": {"parts": [{"text": "{no token}"}]}}', id="looks like JSON"),
    pytest.param('{"x": "\\u0041 \\u00fc"}', id="escaped letters"),
]


@pytest.mark.parametrize("data", PLAIN)
def test_an_event_without_secrets_is_unchanged(data: str) -> None:
    assert (without_request_secrets(data), for_guests(data), contains_secrets(data)) == (None, data, False)


CREDENTIALS = [
    pytest.param(state(**{"temp:adk_oauth2": {"oauth2": {"client_secret": SECRET}}}), id="of a client"),
    pytest.param(state(google={"refreshToken": SECRET}), id="other case"),
    pytest.param(state(google=json.dumps({"token": SECRET})), id="as JSON in a text"),
    pytest.param(
        {"actions": {"requested_auth_configs": {"c": {"http": {"credentials": {"token": SECRET}}}}}}, id="requested"
    ),
    pytest.param({"content": {"parts": [{"function_call": {"args": {"api_key": SECRET}}}]}}, id="given to a tool"),
    pytest.param({"content": {"parts": [{"function_call": {"args": {"headers": {"cookie": SECRET}}}}]}}, id="headers"),
    pytest.param({"headers": {"Authorization": SECRET}}, id="outside of the state"),
]


@pytest.mark.parametrize("event", CREDENTIALS)
def test_a_credential_is_visible_to_the_owner_and_not_to_guests(event: dict[str, Any]) -> None:
    data = json.dumps(event)
    assert contains_secrets(data)
    assert SECRET not in for_guests(data)
    assert NOT_SHOWN in for_guests(data)
    assert without_request_secrets(data) is None, "an agent stores it deliberately, and needs it unchanged"


@pytest.mark.parametrize("event", CREDENTIALS)
def test_guests_see_a_task_without_credentials(event: dict[str, Any]) -> None:
    task = {"id": "t", "history": [{"parts": [{"kind": "data", "data": event}]}], "metadata": None}
    body = task_for_guests(json.loads(json.dumps(task)))
    assert SECRET not in json.dumps(body)
    assert (body["id"], body["metadata"]) == ("t", None)


def test_a_task_without_credentials_is_unchanged() -> None:
    task = {"id": "t", "history": [{"parts": [{"kind": "text", "text": "the token is here"}]}], "n": [1, None, 2.5]}
    assert task_for_guests(json.loads(json.dumps(task))) == task


DEEP = "[" * 100_000 + "]" * 100_000


def test_an_event_that_is_too_deep_to_search_is_not_stored_and_not_shown() -> None:
    with raises(LimitExceeded, limit="json_depth"):
        without_request_secrets('{"headers": ' + DEEP + "}")
    assert without_request_secrets(DEEP) is None
    assert for_guests('{"token": ' + DEEP + "}") == for_guests('{"token"') == NOT_SHOWN
    assert for_guests(DEEP) == DEEP, "it cannot contain a secret"
    assert task_for_guests({"text": '{"token": ' + DEEP + "}"}) == {"text": NOT_SHOWN}
