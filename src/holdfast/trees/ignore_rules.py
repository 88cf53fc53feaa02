"""Ignore rules: patterns in gitignore syntax, compiled once to a few regular expressions.

Patterns may come from untrusted callers, so the expressions never backtrack from one star into another: the part
after a star is matched at the first place where it fits, in an atomic group, and no later place could do better. The
cost of a pattern is at most its length times the length of the path (times the number of its directories after
``**``), and never exponential in its stars.

The last matching pattern decides, and one that starts with ``!`` includes a path again. An ignored directory is not
entered, so nothing in it can be included again. Names are matched as text, so ``?`` is one character, also outside of
ASCII.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..errors import InvalidInput

DEFAULT_IGNORE = (
    "__pycache__/",
    "*.py[co]",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".venv/",
    "node_modules/",
    ".DS_Store",
    "Thumbs.db",
)
"""Files that tools regenerate. ``ignore_defaults=False`` captures them too."""
FILE = ".holdfastignore"
"""The file in the root of a tree with additional patterns."""
MAX_FILE = 1024 * 1024
"""Maximum bytes of that file."""
MAX_PATTERNS = 10_000
PATTERN_CHARS, PATTERNS_CHARS = 4_096, 256 * 1024
"""Maximum characters of one pattern, and of all together: compiling takes about ten microseconds for each character."""
TOGETHER = 256
"""Patterns in one regular expression. A match holds the interpreter lock, so the work of one match is bounded."""
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_NEVER = "(?!)"
_STAR, _FOLDERS, _ANYTHING = "*", "**/", "**"


class IgnoreRules:
    """Compiled patterns, called with a path.

    Raises:
        InvalidInput: the patterns are not lines of text, or too many.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        if isinstance(patterns, (str, bytes)) or not isinstance(patterns, Iterable):
            raise InvalidInput("ignore patterns must be a list of lines", field="ignore")
        self.patterns = tuple(patterns)
        if len(self.patterns) > MAX_PATTERNS:
            raise InvalidInput(f"{len(self.patterns):,} ignore patterns are more than {MAX_PATTERNS:,}", field="ignore")
        _check_lengths(self.patterns)
        rules = [rule for line in self.patterns if (rule := _rule(line)) is not None]
        self._of_folders = _compile(rules)
        self._of_others = _compile([rule for rule in rules if not rule.only_folders])

    def __call__(self, path: str, is_folder: bool) -> bool:
        """Return whether a path is ignored by itself. Paths below an ignored directory need not be checked."""
        name = path[path.rfind("/") + 1 :]
        for is_ignored, by_name, matches in self._of_folders if is_folder else self._of_others:
            if matches(name if by_name else path) is not None:
                return is_ignored
        return False


class _Rule(NamedTuple):
    """One pattern. ``by_name``: its expression is for the last component of a path, not for the whole path."""

    is_ignored: bool
    by_name: bool
    expression: str
    only_folders: bool


def in_root(root: str) -> list[str]:
    """Return the patterns of the ignore file in the root of a tree, if it exists.

    Raises:
        InvalidInput: it cannot be read, or is too large.
    """
    try:
        with open(os.open(os.path.join(root, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = file.read(MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InvalidInput(f"{FILE} cannot be read: {error}", field=FILE) from error
    if len(content) > MAX_FILE:
        raise InvalidInput(f"{FILE} is longer than {MAX_FILE:,} bytes", field=FILE)
    return content.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()


def _check_lengths(patterns: Sequence[object]) -> None:
    lengths = [len(line) for line in patterns if isinstance(line, str) and not line.startswith("#")]
    if max(lengths, default=0) > PATTERN_CHARS or sum(lengths) > PATTERNS_CHARS:
        raise InvalidInput(
            f"ignore patterns have up to {max(lengths):,} characters each and {sum(lengths):,} in total: no more than "
            f"{PATTERN_CHARS:,} and {PATTERNS_CHARS:,} are allowed",
            field="ignore",
        )


def _compile(rules: Sequence[_Rule]) -> list[tuple[bool, bool, Callable[[str], object]]]:
    """Return rules as expressions to be tried in order, the last rule first; neighbouring rules with the same effect
    share one.
    """
    turns: list[tuple[bool, dict[bool, list[str]]]] = []
    for rule in rules:
        if not turns or turns[-1][0] != rule.is_ignored:
            turns.append((rule.is_ignored, {True: [], False: []}))
        turns[-1][1][rule.by_name].append(rule.expression)
    return [
        (is_ignored, by_name, re.compile("|".join(expressions[at : at + TOGETHER]), re.DOTALL).fullmatch)
        for is_ignored, both in reversed(turns)
        for by_name, expressions in both.items()
        for at in range(0, len(expressions), TOGETHER)
    ]


def _rule(line: object) -> _Rule | None:
    """Return the rule of a line; ``None`` if it is empty or a comment."""
    if not isinstance(line, str):
        raise InvalidInput(f"an ignore pattern must be text, not {type(line).__name__}", field="ignore")
    pattern = _strip_spaces(line.rstrip("\r\n"))
    if not pattern or pattern.startswith("#"):
        return None
    is_ignored = not pattern.startswith("!")
    pattern = pattern if is_ignored else pattern[1:]
    only_folders = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    by_name = "/" not in pattern
    return _Rule(is_ignored, by_name, _expression(pattern.removeprefix("/")), only_folders)


def _strip_spaces(line: str) -> str:
    """Strip trailing spaces; the first of them stays if it is escaped by a backslash."""
    trimmed = line.rstrip(" ")
    backslashes = len(trimmed) - len(trimmed.rstrip("\\"))
    return line[: len(trimmed) + 1] if backslashes % 2 else trimmed


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern. An invalid pattern matches nothing, as in git."""
    parts: list[str] = []
    run: list[str] = []  # the part after a double star, up to the next one
    piece: list[str] = []  # the part after a star, up to the next one or a slash
    after_folders = after_star = False
    at, end = 0, len(pattern)
    while at < end:
        char = pattern[at]
        if char == "*":
            stars, at = _stars(pattern, at)
            run.append(_join_characters(piece, after_star, is_last=stars != _STAR))
            piece, after_star = [], stars == _STAR
            if stars != _STAR:
                parts.append(_join_names(run, after_folders, is_last=False))
                run, after_folders = [], stars == _FOLDERS
            if stars == _ANYTHING:
                return "".join(parts) + ".*"
        elif char == "/":
            run.append(_join_characters(piece, after_star, is_last=True) + "/")
            piece, after_star, at = [], False, at + 1
        else:
            expression, at = _single(pattern, at)
            if expression is _NEVER:
                return _NEVER
            piece.append(expression)
    run.append(_join_characters(piece, after_star, is_last=True))
    return "".join(parts) + _join_names(run, after_folders, is_last=True)


def _join_characters(piece: Sequence[str], after_star: bool, *, is_last: bool) -> str:
    """Join the expressions of characters. After a star they match at the first place or, if they end the name, at its
    end.
    """
    expression = "".join(piece)
    if not after_star:
        return expression
    if not expression:
        return "[^/]*+"
    return f"[^/]*{expression}" if is_last else f"(?>[^/]*?{expression})"


def _join_names(run: Sequence[str], after_folders: bool, *, is_last: bool) -> str:
    """Join whole names and slashes. After any number of directories they match at the first place, or at the end."""
    expression = "".join(run)
    if not after_folders:
        return expression
    expression = f"(?:[^/]*+/)*?{expression}"
    return expression if is_last else f"(?>{expression})"


def _stars(pattern: str, at: int) -> tuple[str, int]:
    """Parse stars: two stars between slashes match any number of directories; all others stay within one name."""
    end = at
    while end < len(pattern) and pattern[end] == "*":
        end += 1
    begins = at == 0 or pattern[at - 1] == "/"
    if end - at >= 2 and begins:
        if end == len(pattern):
            return _ANYTHING, end
        if pattern[end] == "/":
            return _FOLDERS, end + 1
    return _STAR, end


def _single(pattern: str, at: int) -> tuple[str, int]:
    """Return the expression for one character, and the position after it."""
    char = pattern[at]
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        return _bracket(pattern, at)
    if char == "\\":
        return (re.escape(pattern[at + 1]), at + 2) if at + 1 < len(pattern) else (_NEVER, at + 1)
    return re.escape(char), at + 1


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Parse a set of characters, which never contains a slash."""
    end, parts, at = len(pattern), [], at + 1
    is_negated = at < end and pattern[at] in "!^"
    at += is_negated
    start = at
    while at < end and (pattern[at] != "]" or at == start):
        part, at = _member(pattern, at)
        parts.append(part)
    if at >= end or None in parts:
        return _NEVER, end
    members = "".join(part for part in parts if part is not None)
    if is_negated:
        return f"[^/{members}]", at + 1
    return (f"(?:(?!/)[{members}])" if members else _NEVER), at + 1


def _member(pattern: str, at: int) -> tuple[str | None, int]:
    """Parse one character, range or class in a set; ``None`` if it is invalid."""
    named = re.compile(r"\[:(\w*):\]").match(pattern, at)
    if named is not None:
        return _CLASSES.get(named[1]), named.end()
    low, at = _literal(pattern, at)
    if low is None or not (at + 1 < len(pattern) and pattern[at] == "-" and pattern[at + 1] != "]"):
        return (None if low is None else re.escape(low)), at
    high, at = _literal(pattern, at + 1)
    if high is None:
        return None, at
    return (f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""), at


def _literal(pattern: str, at: int) -> tuple[str | None, int]:
    if pattern[at] != "\\":
        return pattern[at], at + 1
    return (pattern[at + 1], at + 2) if at + 1 < len(pattern) else (None, at + 1)
