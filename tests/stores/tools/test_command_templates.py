"""Templates of commands: what a real shell does with the values."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidInput
from holdfast.stores.tools import command_templates
from holdfast.stores.tools.command_templates import parse
from tests.errors import raises

SHELLS = [[path] for path in map(shutil.which, ("sh", "dash", "bash")) if path]
SHOW = f"{sys.executable} -Sc 'import sys; sys.stdout.buffer.write(bytes().join(a.encode() + bytes(1) for a in sys.argv[1:]))'"
"""A program that prints each of its arguments, followed by a NUL."""
HOSTILE = [
    "",
    " ",
    "plain",
    "two words",
    "it's",
    '"',
    "'; touch HIT; '",
    "$(touch HIT)",
    "`touch HIT`",
    "${HOME}",
    "$HOME",
    "\\",
    "\\'",
    "a\nb\n",
    "\n",
    "\t\r\x0b\x1b[0m\x7f",
    "-rf",
    "--",
    "-",
    "A=B",
    "2",
    "if",
    "~",
    "~root",
    "*",
    "[a-z]",
    "{a,b}",
    "!x",
    "#x",
    "; | & < > ( )",
    "'" * 50,
    "{{.x}}",
    "é 世界 \U0001f600 \u202e",
    "%s %n",
    "\\n\\0",
]


def run(shell: list[str], command: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*shell, "-c", command],
        check=False,
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_a_hostile_value_is_one_argument_of_a_real_shell(shell: list[str], tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(len(HOSTILE))]
    values = dict(zip(names, HOSTILE, strict=True))
    words = "".join(f" {{{{.{name}}}}}" for name in names)
    within = "".join(f" --x={{{{.{name}}}}}:{{{{.{name}}}}}.txt" for name in names)
    command = parse(f"{SHOW}{words}{within}", names).render(values)
    done = run(shell, command, tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    expected = [*HOSTILE, *(f"--x={value}:{value}.txt" for value in HOSTILE)]
    assert done.stdout.decode().split("\0")[:-1] == expected
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=20)
)
def test_any_value_is_one_argument(values: list[str]) -> None:
    names = [f"v{number}" for number in range(len(values))]
    template = SHOW + "".join(f" {{{{.{name}}}}}" for name in names)
    done = run(SHELLS[0], parse(template, names).render(dict(zip(names, values, strict=True))), Path("/"))
    assert done.stdout.decode().split("\0")[:-1] == values


REFUSED = [
    "echo '{{.x}}'",
    'echo "{{.x}}"',
    'echo "a {{.x}} b"',
    "echo # {{.x}}",
    "echo;# {{.x}}",
    "echo \\{{.x}}",
    "echo ${{.x}}",
    "echo $(cat {{.x}})",
    'echo "$(date)" {{.x}}',
    "echo `date` {{.x}}",
    "echo ${A:-b} {{.x}}",
    "echo ${#A} {{.x}}",
    "echo $((1 + {{.x}}))",
    "((x = {{.x}}))",
    "echo $[{{.x}}]",
    "echo $'a' {{.x}}",
    'echo $"a" {{.x}}',
    "cat <<E\n{{.x}}\nE",
    "cat <<<{{.x}}",
    "echo >&{{.x}}",
    "echo >& a{{.x}}",
    "echo >&1{{.x}}",
    "echo &>{{.x}}",
    "cat <&{{.x}}",
    "a[{{.x}}]=1",
    "a[ b {{.x}} ]=1",
    "[[ {{.x}} -eq 1 ]]",
    "echo it's {{.x}}",
    'echo "a\\" {{.x}}',
    'echo "$\\\n(echo "{{.x}}")"',
    "echo {{.y}}",
    "echo {{.}}",
    "echo {{.x.y}}",
    "echo {{ .X }}",
]
ACCEPTED = [
    "echo {{.x}}",
    "echo {{ .x }}{{.x}}",
    "echo a#{{.x}}",
    "echo \\# {{.x}}",
    "echo \\\\{{.x}}",
    "echo '$(date) `date`' {{.x}}",
    'echo "a \\" $HOME ${USER} b" {{.x}} $1 $? $',
    "A={{.x}} env > {{.x}} 2>&1 && test -f {{.x}} | sort; # it's\n",
    "{ echo {{.x}}; } & (echo {{.x}})",
    "ls [a-z]{{.x}}[!0-9] file[0-9] {{.x}} >&2 2>&- </dev/null; [ -f {{.x}} ]",
    "docker ps --format '{''{.Names}}' {{.x}}",
    "any `command` without 'a placeholder",
    "echo {{x}} {{ x }} { {.x}}",
]


@pytest.mark.parametrize("template", REFUSED)
def test_a_placeholder_whose_value_could_not_be_quoted_is_refused(template: str) -> None:
    with raises(InvalidInput, field="command"):
        parse(template, ["x"])


@pytest.mark.parametrize("template", ACCEPTED)
def test_a_placeholder_that_is_a_word_is_accepted(template: str) -> None:
    parse(template, ["x"])


LONG = ["a", "a[", "#", "a#", "#\n", "{{", "{{ ", "{{.", "[", "$", "<", ">&1 ", "\\\n", "''", '""', "; ", "é"]


@pytest.mark.parametrize("piece", LONG)
def test_a_long_template_is_checked_in_linear_time(piece: str) -> None:
    def seconds(size: int) -> float:
        template = "{{.x}} " + piece * (size // len(piece))
        started = process_time()
        try:
            parse(template, ["x"])
        except InvalidInput:
            pass
        return process_time() - started

    small, large = (min(seconds(size) for _ in range(3)) for size in (8_000, 128_000))
    assert large < 64 * small + 0.05, "16 times the size takes at most 64 times as long"


PIECES = [
    *"'\"\\#\n  $`()<>|;&{}[=!-a:",
    '"$(: "',
    '")"',
    "$'",
    "<<a\n",
    "\na\n",
    "${a:-",
    "((",
    "))",
    "]",
    "a[",
    "]=",
    ">&",
    "[[ ",
]
ATTACKS = [
    "'; >HIT; '",
    '"; >HIT; "',
    "$(>HIT)",
    "`>HIT`",
    "\n>HIT\n",
    "'\n>HIT\n'",
    "\\'; >HIT; \\'",
    ") ; >HIT; (",
    "a[$(>HIT)]",
]


def attack(seed: int, count: int, directory: Path) -> tuple[int, list[str]]:
    """Run random templates with hostile values; return how many were accepted, and the commands that ran a value."""
    random = Random(seed)
    hits, accepted = [], 0
    for _ in range(count):
        pieces = random.choices(PIECES, k=random.randrange(1, 9))
        pieces.insert(random.randrange(len(pieces) + 1), "{{.x}}")
        template = "".join([": ", *pieces])
        try:
            command = parse(template, ["x"]).render({"x": random.choice(ATTACKS)})
        except InvalidInput:
            continue
        accepted += 1
        run(random.choice(SHELLS), command, directory)
        if (directory / "HIT").exists():
            hits.append(command)
        for path in directory.iterdir():
            path.unlink()
    return accepted, hits


def test_no_accepted_template_runs_a_value(tmp_path: Path) -> None:
    accepted, hits = attack(1, 3_000, tmp_path)
    assert accepted > 500
    assert hits == []


def test_an_unchecked_template_runs_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = lambda *arguments: None  # noqa: E731
    monkeypatch.setattr(command_templates, "_check_places", nothing)
    _, hits = attack(1, 400, tmp_path)
    assert hits
