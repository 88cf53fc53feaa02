"""Messages to append: their validation, and their conversion to log entries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import astuple

from ...core import scope as scopes
from ...core import text
from ...core.checks import whole_number
from ...engines.heavy_calls import Cancellation, compute
from ...engines.protocol import Engine
from ...errors import InvalidInput
from ...ids import parse as parse_id
from ...offload import INLINE_CHARS, is_large
from .contents import stored_content
from .message_log import LogEntry, Role
from .tokens import count_content

ROLES = get_args(Role)
_KIND = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_MAX_TOKENS = 2**31 - 1


class NewMessage(Struct, frozen=True, kw_only=True):
    """A message to append; the fields are the arguments of ``append``."""

    role: str | None = None
    content: Any
    kind: str = "message"
    metadata: Mapping[str, Any] | None = None
    token_count: int | None = None
    is_preserved: bool = False
    is_summary: bool = False
    id: str | None = None


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
) -> LogEntry:
    """Return a message as a log entry. Everything is checked before the entry is queued, so that an invalid argument does not
    affect the other appends of a group; also used by other stores.

    Raises:
        InvalidInput: an argument is not valid.
    """
    own_id = scope.ids.new() if id is None else parse_id(id, "message id")
    if kind == "message":
        if role not in ROLES:
            raise InvalidInput(f"role must be one of {', '.join(ROLES)}, not {role!r}", field="role")
    elif not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise InvalidInput(f"kind must be lower-case letters, digits, dots, dashes, not {kind!r}", field="kind")
    elif role is not None and role not in ROLES:
        raise InvalidInput(f"role must be one of {', '.join(ROLES)} or None, not {role!r}", field="role")
    encoded = stored_content(content, kind, scope.limits)
    return LogEntry(
        own_id,
        text.plain(kind),
        text.plain(role),
        encoded,
        count_content(scope, content, encoded) if token_count is None else tokens(token_count),
        scopes.metadata(metadata, scope.limits),
        flag(is_preserved, "is_preserved"),
        flag(is_summary, "is_summary"),
    )


async def new_entries(engine: Engine, scope: scopes.Scope, messages: Sequence[NewMessage]) -> list[LogEntry]:
    """Return several messages as log entries; large ones are converted outside the event loop.

    Raises:
        InvalidInput: an argument is not valid, or two messages have the same id.
    """
    arguments = [astuple(message) for message in messages]
    if is_large([message.content for message in messages]):
        entries = await compute(engine, partial(_entries, scope, arguments), chars=INLINE_CHARS)
    else:
        entries = [new_entry(scope, *values) for values in arguments]
    if len({entry.id for entry in entries}) < len(entries):
        raise InvalidInput("two messages of one call have the same id", field="messages")
    return entries


def _entries(scope: scopes.Scope, messages: Sequence[Sequence[Any]], progress: Cancellation) -> list[LogEntry]:
    """Return several messages as log entries, each given by the arguments of ``new_entry``."""
    entries = []
    for arguments in messages:
        progress.check()
        entries.append(new_entry(scope, *arguments))
    return entries


def flag(value: bool, what: str) -> bool:
    """Return a bool argument.

    Raises:
        InvalidInput: the value is not a bool.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be true or false, not {value!r}", field=what)
    return value


def tokens(count: int) -> int:
    """Return a token count.

    Raises:
        InvalidInput: the value is not a whole number in range.
    """
    return whole_number(count, "token_count", maximum=_MAX_TOKENS)
