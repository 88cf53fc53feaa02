"""Reading our Markdown: its code blocks, headings and links.

A comment right above a block of Python says how it is tried: ``<!-- test: postgres -->`` gives it ``dsn``, the address of a
PostgreSQL database of its own; ``fresh`` starts a new program in a new folder, where otherwise a block goes on from the ones
before it; ``langgraph`` or ``crewai`` runs it in that framework's environment; ``not run: why`` leaves it out. A block
marked ``output`` after it is what it must print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<marks>.*?) -->\n)?(?P<fence>```+)(?P<kind>\S*).*?\n(?P<code>.*?)^(?P=fence)$", re.M | re.S
)
_LINK = re.compile(
    r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]:\s*(\S+)|<(?:a|img)\s[^>]*?(?:href|src)=\"([^\"]+)\"", re.M
)
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.M)


class Block(NamedTuple):
    """A piece of Python on a page."""

    file: Path
    line: int
    """Where its first line is."""
    code: str
    marks: frozenset[str]
    not_run: str
    """Why it is left out, if it is."""
    output: str | None
    """What it must print, if the page says so."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def blocks(file: Path) -> list[Block]:
    """The Python of a page, in order."""
    text = file.read_text("utf-8")
    found = list(_BLOCK.finditer(text))
    python: list[Block] = []
    for place, match in enumerate(found):
        if match["kind"] != "python":
            continue
        after = found[place + 1] if place + 1 < len(found) else None
        says = after["code"] if after is not None and after["kind"] == "output" else None
        not_run = (match["marks"] or "").partition("not run:")[2].strip()
        marks = frozenset(mark.strip() for mark in (match["marks"] or "").split(",") if mark.strip() and not not_run)
        line = text.count("\n", 0, match.start("code")) + 1
        python.append(Block(file, line, match["code"], marks, not_run, says))
    return python


def links(file: Path) -> Iterator[str]:
    """Where a page leads to, except what stands in its code."""
    text = re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", file.read_text("utf-8")))
    for match in _LINK.finditer(text):
        yield next(group for group in match.groups() if group)


def anchors(file: Path) -> set[str]:
    """The names of a page's headings, as links write them."""
    text = _BLOCK.sub("", file.read_text("utf-8"))
    return {_slug(title) for title in _HEADING.findall(text)}


def _slug(title: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", lambda match: match[1] or "", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
