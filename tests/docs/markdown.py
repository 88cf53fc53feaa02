"""Parser for our Markdown: code blocks, headings and links.

A comment directly above a Python block sets how the block is run:

- ``<!-- test: postgres -->`` defines ``dsn``, the URL of a PostgreSQL database of its own.
- ``fresh`` starts a new program in a new folder. Otherwise a block continues the blocks before it.
- ``langgraph``, ``crewai``, ``kagent`` or ``a2a`` runs the block in that framework's environment.
- ``not run: reason`` skips the block.

A following block marked ``output`` is the expected output.
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
    """A Python block of a page."""

    file: Path
    line: int
    """Number of its first line of code."""
    code: str
    marks: frozenset[str]
    skip_reason: str
    """Empty if the block is run."""
    output: str | None
    """Expected output, if the page shows it."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def blocks(file: Path) -> list[Block]:
    """Return the Python blocks of a page, in order."""
    text = file.read_text("utf-8")
    fences = list(_BLOCK.finditer(text))
    python: list[Block] = []
    for index, fence in enumerate(fences):
        if fence["kind"] != "python":
            continue
        following = fences[index + 1] if index + 1 < len(fences) else None
        output = following["code"] if following is not None and following["kind"] == "output" else None
        skip_reason = (fence["marks"] or "").partition("not run:")[2].strip()
        names = [] if skip_reason else (fence["marks"] or "").split(",")
        marks = frozenset(name.strip() for name in names if name.strip())
        line = text.count("\n", 0, fence.start("code")) + 1
        python.append(Block(file, line, fence["code"], marks, skip_reason, output))
    return python


def links(file: Path) -> Iterator[str]:
    """Yield the link targets of a page, without those in code."""
    text = re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", file.read_text("utf-8")))
    for link in _LINK.finditer(text):
        yield next(target for target in link.groups() if target)


def anchors(file: Path) -> set[str]:
    """Return the anchors of a page's headings, as links spell them."""
    text = _BLOCK.sub("", file.read_text("utf-8"))
    return {_slug(title) for title in _HEADING.findall(text)}


def sections(file: Path) -> dict[str, list[Block]]:
    """Return the Python blocks between each heading of a page and the next one, by the heading's anchor."""
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), file.read_text("utf-8"))
    starts = [(text.count("\n", 0, heading.start()) + 1, _slug(heading[1])) for heading in _HEADING.finditer(text)]
    ends = [line for line, _ in starts[1:]] + [text.count("\n") + 2]
    python = blocks(file)
    return {
        anchor: [block for block in python if start <= block.line < end]
        for (start, anchor), end in zip(starts, ends, strict=True)
    }


def _slug(title: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", lambda markup: markup[1] or "", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
