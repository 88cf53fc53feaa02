"""Messages to append, checked and in the form they are stored in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ...core import scope as scopes
from ...core import text
from ...core.checks import whole_number
from ...engines.heavy_calls import Cancellation
from ...errors import InvalidInput
from ...ids import parse as parse_id
from .contents import stored_content
from .message_log import Entry, Role
from .tokens import counted

ROLES = get_args(Role)
_KIND = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_MAX_TOKENS = 2**31 - 1


def new_entry(
    scope: scopes.Scope,
    role: str | None,
    content: Any,
    kind: str,
    metadata: Mapping[str, Any] | None,
    token_count: int | None,
    is_preserved: bool,
    is_summary: bool,
    id: str | None,
) -> Entry:
    """A message, checked as a whole before anything is queued, so that a bad argument costs nobody else anything; for other
    stores too.

    Raises:
        InvalidInput: something about it is not acceptable.
    """
    own_id = scope.ids.new() if id is None else parse_id(id, "message id")
    if kind == "message":
        if role not in ROLES:
            raise InvalidInput(f"role must be one of {', '.join(ROLES)}, not {role!r}")
    elif not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise InvalidInput(f"kind must be lower-case letters, digits, dots, dashes, not {kind!r}")
    elif role is not None and role not in ROLES:
        raise InvalidInput(f"role must be one of {', '.join(ROLES)} or nothing, not {role!r}")
    stored = stored_content(content, kind, scope.limits)
    return Entry(
        own_id,
        text.plain(kind),
        text.plain(role),
        stored,
        counted(scope, content, stored) if token_count is None else tokens(token_count),
        scopes.metadata(metadata, scope.limits),
        flag(is_preserved, "is_preserved"),
        flag(is_summary, "is_summary"),
    )


def new_entries(scope: scopes.Scope, messages: Sequence[Sequence[Any]], progress: Cancellation) -> list[Entry]:
    """Several of them, each given by its arguments."""
    found = []
    for each in messages:
        progress.check()
        found.append(new_entry(scope, *each))
    return found


def flag(value: bool, what: str) -> bool:
    """True or false.

    Raises:
        InvalidInput: it is neither.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be true or false, not {value!r}")
    return value


def tokens(count: int) -> int:
    """A number of tokens.

    Raises:
        InvalidInput: it is none.
    """
    return whole_number(count, "token_count", most=_MAX_TOKENS)
