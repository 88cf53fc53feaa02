"""Plain English, as rules: turns of phrase that a maintainer of psycopg would not write, with what to write instead.

``python -m tests.prose [PATH ...]`` prints the counts per 1,000 lines, and each place with ``--list``. The rules are there for
the reader of the source, not to be satisfied: rewrite the sentence, do not replace the word.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKDOWN_COLUMNS = 110

RULES = ("prose", "test_prose")
"""Modules that quote what they forbid."""
NOUN_PHRASE = re.compile(r"\bwhat (?:is|was|it)\b", re.IGNORECASE)
"""The clause used as a noun ("what is stored"): name the thing ("the stored rows")."""
DIALECT = re.compile(r"\b(?:nobody|somebody|whoever|anew|lies)\b", re.IGNORECASE)
"""Say "no caller", "another process", "the caller that", "again", "is in"."""
PLACEHOLDERS = frozenset("each found there stored wanted done known said given gone shown".split())
"""Names of locals that say nothing: use the noun of the domain (``session``, ``row``, ``digest``)."""
TICS = {
    r"\bis none\b": "say what is missing or invalid",
    r"\bgone on with\b": "resumed, continued",
    r"\bfor good\b": "permanently",
    r"\bthere is no\b.*\bhere\b": "session 'x' does not exist",
    r"\bno word of\b": "say which part is unknown",
    r"\btakes along\b": "also removes",
    r"\bmeanwhile\b.*\bmeanwhile\b": "use it once",
    r"(?:^|[.:;#\"])\s*Who (?!is |was )": "the caller that, a process that",
}
"""Patterns with what to write instead. None of them may stand in the package."""
MAX_NOUN_PHRASES = 0.5
MAX_DIALECT = 0.2
"""Occurrences per 1,000 lines."""
MAX_PLACEHOLDERS = 0.02
"""Share of the local names."""


def occurrences(path: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    """``path:line: text`` for each match."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        for _ in pattern.finditer(line):
            yield f"{_short(path)}:{number}: {line.strip()}"


def local_names(path: Path) -> Counter[str]:
    """How often each name is bound, by assignment, loop, comprehension or ``with``."""
    tree = ast.parse(path.read_text("utf-8"))
    return Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def tics(paths: Iterable[Path]) -> Iterator[str]:
    """Every place with a pattern of ``TICS``, and what to write instead."""
    for path in paths:
        for pattern, instead in TICS.items():
            for place in occurrences(path, re.compile(pattern)):
                yield f"{place}  [{instead}]"


def rates(paths: Iterable[Path]) -> dict[str, float]:
    """Noun phrases and dialect per 1,000 lines, and the share of placeholder names."""
    files = list(paths)
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    names: Counter[str] = Counter()
    for path in files:
        if path.suffix == ".py":
            names += local_names(path)
    count = {
        pattern: sum(1 for path in files for _ in occurrences(path, pattern)) for pattern in (NOUN_PHRASE, DIALECT)
    }
    return {
        "noun phrases": 1_000 * count[NOUN_PHRASE] / max(lines, 1),
        "dialect": 1_000 * count[DIALECT] / max(lines, 1),
        "placeholders": sum(names[name] for name in PLACEHOLDERS) / max(names.total(), 1),
    }


def long_lines(path: Path) -> Iterator[str]:
    """Lines of prose in Markdown that are too long to read. Tables, headings, code and links alone on a line may be."""
    in_code = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and len(line) > MARKDOWN_COLUMNS and not line.lstrip().startswith(("|", "#", "[", "```", "<")):
            yield f"{_short(path)}:{number}: {len(line)} columns, over {MARKDOWN_COLUMNS}: wrap it"


def _short(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def files(*places: str, suffixes: tuple[str, ...] = (".py", ".sql")) -> list[Path]:
    """The files of the repository below these places, without the rules themselves."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *places], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in suffixes and path.stem not in RULES and path.is_file()]


def main() -> None:
    """Print the counts of each place."""
    listing = "--list" in sys.argv
    for place in [argument for argument in sys.argv[1:] if argument != "--list"] or ["src", "tests", "bench"]:
        paths = files(place)
        print(place, "  ".join(f"{name} {rate:.3f}" for name, rate in rates(paths).items()))
        if listing:
            print("\n".join([*tics(paths)]))
            for path in paths:
                print("\n".join([*occurrences(path, NOUN_PHRASE), *occurrences(path, DIALECT)]))


if __name__ == "__main__":
    main()
