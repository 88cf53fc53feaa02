"""Session keys: structured names of sessions that say what the session is for.

=================  ==========================================
kind               text
=================  ==========================================
``DirectKey``      ``agent:{agent}:{channel}:direct:{peer}``
``GroupKey``       ``agent:{agent}:{channel}:group:{peer}``
``SubagentKey``    ``agent:{agent}:subagent:{label}``
``CronKey``        ``agent:{agent}:cron:{job}:run:{run}``
``TeamKey``        ``agent:{agent}:team:{team_id}:{chat}``
``MainKey``        ``agent:{agent}:{name}``
=================  ==========================================

``str(key)`` is that text and ``SessionKey.parse`` its exact inverse, which rejects every other text. So that this holds, no
part except the last may contain a colon. The last may be any text, including colons: ids of peers
and groups contain them (``5511:9@s.whatsapp.net``, ``-100123:topic:7``). The name of a main key must not contain colons,
because the text could read as another kind, and ``subagent``, ``cron`` and ``team`` are neither channels nor names.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, ClassVar

from msgspec import Struct

from ...errors import InvalidInput

_RESERVED = ("subagent", "cron", "team")
_PART = re.compile(r"\{(\w+)\}")


class SessionKey(Struct, frozen=True, kw_only=True):
    """The key of a session, in its parts. It is accepted wherever the key of a session is an argument.

    Raises:
        InvalidInput: a part is empty, contains a colon where none is allowed, or is a reserved word.
    """

    FORM: ClassVar[str] = ""
    """The text of this kind of key, with its parts in braces."""

    agent: str

    def __post_init__(self) -> None:
        if not self.FORM:
            raise InvalidInput(
                "a session key is made with SessionKey.direct, .group, .subagent, .cron, .team, .ws or .main",
                field="kind",
            )
        for name in self.__struct_fields__:
            _check_part(self.FORM, name, getattr(self, name))

    def __str__(self) -> str:
        return _PART.sub(lambda part: str(getattr(self, part[1])), self.FORM)

    @staticmethod
    def parse(text: str) -> SessionKey:
        """Return the key for a text.

        Raises:
            InvalidInput: the text has none of the known forms.
        """
        for kind in _KINDS:
            if isinstance(text, str) and (match := _pattern(kind).fullmatch(text)):
                return kind(**match.groupdict())
        forms = ", ".join(kind.FORM for kind in _KINDS)
        raise InvalidInput(f"{str(text)[:100]!r} is not a session key; the forms are {forms}", field="key")

    @staticmethod
    def direct(*, agent: str, channel: str, peer: str) -> DirectKey:
        """Return the key of a conversation with one person on a channel."""
        return DirectKey(agent=agent, channel=channel, peer=peer)

    @staticmethod
    def ws(*, agent: str, conversation: str) -> DirectKey:
        """Return the key of a conversation over a WebSocket: a direct one, on the channel ``ws``."""
        return DirectKey(agent=agent, channel="ws", peer=conversation)

    @staticmethod
    def group(*, agent: str, channel: str, peer: str) -> GroupKey:
        """Return the key of a conversation with a group on a channel."""
        return GroupKey(agent=agent, channel=channel, peer=peer)

    @staticmethod
    def subagent(*, agent: str, label: str) -> SubagentKey:
        """Return the key of the work of an agent on behalf of another agent."""
        return SubagentKey(agent=agent, label=label)

    @staticmethod
    def cron(*, agent: str, job: str, run: str) -> CronKey:
        """Return the key of one run of a scheduled job."""
        return CronKey(agent=agent, job=job, run=run)

    @staticmethod
    def team(*, agent: str, team_id: str, chat: str) -> TeamKey:
        """Return the key of an agent's part in a chat of its team."""
        return TeamKey(agent=agent, team_id=team_id, chat=chat)

    @staticmethod
    def main(*, agent: str, name: str = "main") -> MainKey:
        """Return the key of an agent's own session."""
        return MainKey(agent=agent, name=name)


class SubagentKey(SessionKey, frozen=True, kw_only=True):
    """The work of an agent on behalf of another agent."""

    FORM: ClassVar[str] = "agent:{agent}:subagent:{label}"
    label: str


class CronKey(SessionKey, frozen=True, kw_only=True):
    """One run of a scheduled job."""

    FORM: ClassVar[str] = "agent:{agent}:cron:{job}:run:{run}"
    job: str
    run: str


class TeamKey(SessionKey, frozen=True, kw_only=True):
    """An agent's part in a chat of its team."""

    FORM: ClassVar[str] = "agent:{agent}:team:{team_id}:{chat}"
    team_id: str
    chat: str


class DirectKey(SessionKey, frozen=True, kw_only=True):
    """A conversation with one person on a channel."""

    FORM: ClassVar[str] = "agent:{agent}:{channel}:direct:{peer}"
    channel: str
    peer: str


class GroupKey(SessionKey, frozen=True, kw_only=True):
    """A conversation with a group on a channel."""

    FORM: ClassVar[str] = "agent:{agent}:{channel}:group:{peer}"
    channel: str
    peer: str


class MainKey(SessionKey, frozen=True, kw_only=True):
    """An agent's own session."""

    FORM: ClassVar[str] = "agent:{agent}:{name}"
    name: str


_KINDS: tuple[type[SessionKey], ...] = (SubagentKey, CronKey, TeamKey, DirectKey, GroupKey, MainKey)


def _check_part(form: str, name: str, part: Any) -> None:
    if not isinstance(part, str) or not part:
        raise InvalidInput(f"{name} of a session key must be text and not empty, not {part!r}", field=name)
    if name in ("channel", "name") and part in _RESERVED:
        raise InvalidInput(
            f"{name} of a session key must not be {part!r}: {form} would read as another kind of key", field=name
        )
    if ":" in part and not _may_hold_colons(form, name):
        raise InvalidInput(
            f"{name} of a session key must not contain a colon: {form} could not be parsed from {part!r}", field=name
        )


def _may_hold_colons(form: str, name: str) -> bool:
    return form.endswith(f"{{{name}}}") and name != "name"


@cache
def _pattern(kind: type[SessionKey]) -> re.Pattern[str]:
    """Return the pattern of a kind of key; no text matches two kinds."""

    def part(match: re.Match[str]) -> str:
        name = match[1]
        not_reserved = f"(?!(?:{'|'.join(_RESERVED)})(?::|\\Z))" if name in ("channel", "name") else ""
        return f"{not_reserved}(?P<{name}>{'(?s:.+)' if _may_hold_colons(kind.FORM, name) else '[^:]+'})"

    return re.compile(_PART.sub(part, kind.FORM))
