"""What of a tree is left out: patterns in the syntax of gitignore, compiled once to few regular expressions.

The last pattern that matches decides, and one that begins with ``!`` takes a path back in. A directory that is left out is not
entered, so nothing in it can be taken back in. Names are compared as text, so ``?`` is one character, also outside of ASCII.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence

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
"""What tools make anew by themselves. ``ignore_defaults=False`` captures it too."""
FILE = ".holdfastignore"
"""A file in the root of a tree with further patterns."""
FILE_MOST = 1024 * 1024
"""Bytes of that file."""
PATTERNS_MOST = 10_000
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


class Ignores:
    """Patterns, ready to be asked about paths.

    Raises:
        InvalidInput: they are not lines of text, or too many.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        if isinstance(patterns, (str, bytes)) or not isinstance(patterns, Iterable):
            raise InvalidInput("patterns to ignore come as a list of lines")
        self.patterns = tuple(patterns)
        if len(self.patterns) > PATTERNS_MOST:
            raise InvalidInput(f"there are more than {PATTERNS_MOST:,} patterns to ignore")
        rules = [rule for line in self.patterns if (rule := _rule(line)) is not None]
        self._of_folders = _turns([(again, expression) for again, expression, _ in rules])
        self._of_others = _turns([(again, expression) for again, expression, only_folders in rules if not only_folders])

    def __call__(self, path: str, is_folder: bool) -> bool:
        """Whether a path, by itself, is ignored. Those below an ignored directory need not be asked about."""
        for is_ignored, matches in self._of_folders if is_folder else self._of_others:
            if matches(path) is not None:
                return is_ignored
        return False


def in_root(root: str) -> list[str]:
    """The patterns in the file for them in the root of a tree, if there is one.

    Raises:
        InvalidInput: it cannot be read, or is too large.
    """
    try:
        with open(os.open(os.path.join(root, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = file.read(FILE_MOST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InvalidInput(f"{FILE} cannot be read: {error}") from error
    if len(content) > FILE_MOST:
        raise InvalidInput(f"{FILE} is longer than {FILE_MOST:,} bytes")
    return content.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()


def _turns(rules: Sequence[tuple[bool, str]]) -> list[tuple[bool, Callable[[str], object]]]:
    """Rules as expressions to be tried from the last on; neighbours that say the same are one."""
    turns: list[tuple[bool, list[str]]] = []
    for is_ignored, expression in rules:
        if not turns or turns[-1][0] != is_ignored:
            turns.append((is_ignored, []))
        turns[-1][1].append(expression)
    return [(is_ignored, re.compile("|".join(each), re.DOTALL).fullmatch) for is_ignored, each in reversed(turns)]


def _rule(line: object) -> tuple[bool, str, bool] | None:
    """Whether a line ignores or takes back in, its expression, and whether it is about directories only."""
    if not isinstance(line, str):
        raise InvalidInput(f"a pattern to ignore is text, not {type(line).__name__}")
    pattern = _trimmed(line.rstrip("\r\n"))
    if not pattern or pattern.startswith("#"):
        return None
    is_ignored = not pattern.startswith("!")
    pattern = pattern if is_ignored else pattern[1:]
    only_folders = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    is_anchored = "/" in pattern
    expression = _expression(pattern.removeprefix("/"))
    return is_ignored, f"(?:{expression})" if is_anchored else f"(?:(?:.*/)?(?:{expression}))", only_folders


def _trimmed(line: str) -> str:
    """Without the spaces at its end, unless a backslash stands before them."""
    end = len(line)
    while end and line[end - 1] == " ":
        backslashes = len(line[: end - 1]) - len(line[: end - 1].rstrip("\\"))
        if backslashes % 2:
            break
        end -= 1
    return line[:end]


def _expression(pattern: str) -> str:
    """The regular expression of a pattern. One that cannot be understood matches nothing, as in git."""
    found: list[str] = []
    at, end = 0, len(pattern)
    while at < end:
        char = pattern[at]
        if char == "*":
            expression, at = _stars(pattern, at)
        elif char == "?":
            expression, at = "[^/]", at + 1
        elif char == "[":
            expression, at = _bracket(pattern, at)
        elif char == "\\":
            expression, at = (re.escape(pattern[at + 1]), at + 2) if at + 1 < end else (_NEVER, end)
        else:
            expression, at = re.escape(char), at + 1
        found.append(expression)
    return "".join(found)


def _stars(pattern: str, at: int) -> tuple[str, int]:
    """Two stars between slashes are any number of directories; all others stay within one name."""
    end = at
    while end < len(pattern) and pattern[end] == "*":
        end += 1
    begins = at == 0 or pattern[at - 1] == "/"
    if end - at >= 2 and begins:
        if end == len(pattern):
            return ".*", end
        if pattern[end] == "/":
            return "(?:.*/)?", end + 1
    return "[^/]*", end


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """A set of characters, which never contains a slash."""
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
    """One character, range or class in a set; ``None`` if it is none."""
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
