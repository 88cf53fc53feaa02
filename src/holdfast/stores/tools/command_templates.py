"""Command templates: shell text with a placeholder ``{{.name}}`` for each argument of a tool.

A placeholder becomes one word of the command, or a part of one: its value is quoted for a POSIX shell, so no character of the
value has a meaning for the shell. That holds only where a quoted text is a word. So a template with placeholders is refused if
a placeholder is within quotes, in a comment or after a backslash, and if it contains a construct in which some shell treats
quotes differently: a command substitution, an expansion other than ``$NAME`` and ``${NAME}``, arithmetic, ``[[``, a subscript,
``<<``, or a redirection of ``&`` to other than a number. A template without placeholders may be any command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from ...errors import InvalidInput

_PLACEHOLDER = r"\{\{[ \t]*\.(?P<name>[^{}\s]*)[ \t]*\}\}"
_TOKEN = re.compile(
    rf"""(?P<placeholder>{_PLACEHOLDER})
    | (?P<variable>\$(?:[A-Za-z_]\w*|[0-9@*\#?$!-]|\{{[A-Za-z_]\w*\}}))
    | (?P<refused>`|\$[({{\["']|\(\(|<<|\[\[(?=\s)|&>|[$(<>&]\\\n|[<>]&(?!(?:[0-9]+-?|-)(?:[\s;|&()<>]|$)))
    | (?P<single>'[^']*')
    | (?P<double>"(?:[^"\\]|\\.)*")
    | (?P<unclosed>['"])
    | (?P<escape>\\.?)
    | (?P<hash>\#)
    | (?P<word>\w+)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_EXPANSION = re.compile(
    r"\\.|\$(?:[A-Za-z_]\w*|[0-9@*#?$!-]|\{[A-Za-z_]\w*\})|(?P<refused>`|\$[({\[]|\$\\\n)", re.DOTALL | re.ASCII
)
_ENDS_A_WORD = " \t\n;&|()<>"


class Template(Struct, frozen=True):
    """A parsed template: literal text and the names of placeholders, alternating."""

    parts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the placeholders, in their order."""
        return self.parts[1::2]

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the command with each placeholder replaced by its quoted value."""
        return "".join([quote(to_text(values[part])) if at % 2 else part for at, part in enumerate(self.parts)])


def parse(template: str, known: Collection[str]) -> Template:
    """Parse a template whose placeholders may have these names.

    Raises:
        InvalidInput: a placeholder has another name, or is in a place where its value could not be quoted.
    """
    parts, at = [], 0
    for match in re.finditer(_PLACEHOLDER, template):
        parts += [template[at : match.start()], match["name"]]
        at = match.end()
    if parts:
        _check_names(parts[1::2], known)
        _check_places(template)
    return Template((*parts, template[at:]))


def quote(value: str) -> str:
    """Return a text as one word for a POSIX shell.

    Unlike ``shlex.quote`` it quotes every text: unquoted, ``2`` before ``>`` is a file descriptor and ``A=B`` an assignment.
    """
    return "'" + value.replace("'", "'\\''") + "'"


def to_text(value: Any) -> str:
    """Return a value as the text of a word: a string as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _check_names(names: Collection[str], known: Collection[str]) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        properties = ", ".join(known) or "none"
        raise _refusal(
            f"the placeholder {{{{.{unknown}}}}} is not a property of the parameters, which are: {properties}"
        )


def _check_places(template: str) -> None:
    at, before, starts_word, in_subscript = 0, "", True, False
    while at < len(template):
        token = _TOKEN.match(template, at)
        assert token is not None  # any character matches
        kind, text = token.lastgroup or "", token.group()
        if kind == "hash" and starts_word:
            end = template.find("\n", at)
            kind, text = "comment", template[at : end if end >= 0 else len(template)]
        _check_token(kind, text, template, at + len(text))
        if kind == "placeholder" and in_subscript:
            raise _refusal(f"the placeholder {text} is within a subscript, which some shells evaluate")
        in_subscript = text != "]" and (in_subscript or (text == "[" and before == "word"))
        if text != "\\\n":  # a line that is continued
            starts_word = kind == "other" and text in _ENDS_A_WORD
        at, before = at + len(text), kind


def _check_token(kind: str, text: str, template: str, end: int) -> None:
    inner = next((match for match in _EXPANSION.finditer(text) if match["refused"]), None) if kind == "double" else None
    refused = text if kind == "refused" else inner["refused"] if inner else ""
    if refused:
        raise _refusal(
            f"{refused} cannot be used in a template with placeholders, because values could not be quoted: "
            "move that part into a script that the template calls"
        )
    if kind == "unclosed":
        raise _refusal(f"the quote {text} is not closed")
    placeholder = re.search(_PLACEHOLDER, text)
    if placeholder is not None and kind != "placeholder":
        place = "a comment" if kind == "comment" else "quotes"
        raise _refusal(
            f"the placeholder {placeholder.group()} is within {place}: write it without, its value is quoted"
        )
    if kind == "escape" and re.compile(_PLACEHOLDER).match(template, end - 1):
        raise _refusal("a placeholder follows a backslash, which would change the meaning of its quotes")


def _refusal(reason: str) -> InvalidInput:
    return InvalidInput(f"command: {reason}", field="command")
