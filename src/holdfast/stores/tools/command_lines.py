"""Command lines for programs with credentials: divided into words without a shell, and compared with the rules of a program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ...errors import CommandRefused, InvalidInput
from ...limits import Limits
from . import json_schemas
from .command_credentials import is_passable

_OPERATOR = re.compile(r"[;|&<>\n`]|\$[({]")


def split(command: str, limits: Limits) -> list[str]:
    """Return the words of a command line; quotes and backslashes work as in a shell, and nothing is expanded.

    Operators of a shell are refused even within quotes, because a program may pass an argument to a shell.

    Raises:
        InvalidInput: the command is empty, a quote is not closed, or no program can receive the text.
        LimitExceeded: it is longer than ``cli_command_bytes``.
        CommandRefused: it contains an operator.
    """
    if not is_passable(command):
        raise InvalidInput("command must be a text without NUL characters and lone surrogates", field="command")
    limits.check("cli_command_bytes", len(command.encode()), "command")
    operator = _OPERATOR.search(command)
    if operator is not None:
        raise CommandRefused(
            f"the command contains {operator.group()!r}, an operator of the shell: give one program and its arguments",
            rule="operator",
            pattern=operator.group(),
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput(f"command: {error}".lower(), field="command") from None
    if not words:
        raise InvalidInput("command is empty: give a program and its arguments", field="command")
    return words


def program_of(words: Sequence[str]) -> str:
    """Return the name of the program that a command line starts, without its directory."""
    return words[0].rpartition("/")[2]


def check_path(word: str, binary_path: str) -> str:
    """Return the program to start for the first word of a command line: the path in the configuration, or else the name.

    Raises:
        CommandRefused: the word names another path.
    """
    if "/" in word and word != binary_path:
        hint = f"the configuration allows {binary_path}" if binary_path else "write the name of the program alone"
        raise CommandRefused(
            f"the command names the program by the path {word[:80]!r}: {hint}", rule="path", pattern=word
        )
    return binary_path or word


def check_arguments(arguments: Sequence[str], denied: Mapping[str, Sequence[str]]) -> None:
    """Search the arguments, joined by spaces, for the regular expressions of each rule.

    Raises:
        CommandRefused: one is found.
    """
    joined = " ".join(arguments)
    for rule, patterns in denied.items():
        for pattern in patterns:
            if json_schemas.is_found(pattern, joined):
                raise CommandRefused(
                    f"the arguments match {pattern!r} of {rule} in the configuration of the program",
                    rule=rule,
                    pattern=pattern,
                )
