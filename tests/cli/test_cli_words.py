"""How commands format sizes, durations, paths, values and differences for people."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.cli import checkpoints, imports, runs, sessions, sim, workspace
from holdfast.cli.database import describe
from holdfast.cli.graph_values import Channel
from holdfast.cli.output import print_json, print_table, printable, shorten
from holdfast.types import Message, Rewind, Run, Step, ToolCall, TreeChange

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = Run(
    id="r", session_id="s", agent="a", status="pending", iteration=2, epoch=3, attempts=1, max_attempts=5, holder="",
    lease_ms=0, lease_until=None, doubted_at=None, pause_until=None, stop_reason=None, error=None, parent_run_id=None,
    parent_call_id=None, depth=0, input_tokens=1_000, output_tokens=234, metadata={}, started_at=NOW,
    checkpointed_at=None, finished_at=None,
)  # fmt: skip
CALL = ToolCall(
    id="c", run_id="r", tool_name="mail", tool_input={"to": "ä"}, safety="ask", status="begun", iteration=1, epoch=1,
    attempts=1, pause_until=None, result=None, error=None, step=None, started_at=NOW, finished_at=None,
)  # fmt: skip
STEP = Step("r", 1, 1, {}, None, None, None, 10, 5, None, NOW + timedelta(seconds=2))


def printed(print_it: Callable[..., None], *arguments: Any) -> str:
    """Return the output of a function."""

    @click.command()
    def command() -> None:
        print_it(*arguments)

    result = CliRunner().invoke(command, env={"COLUMNS": "100"}, catch_exceptions=False)
    return result.output


# ------------------------------------------------------------------------------------------------------- texts and tables


@pytest.mark.parametrize(
    ("text", "most", "line"),
    [
        ("", 3, ""),
        (" \n\t ", 3, ""),
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("a\nb\r\n  c", 9, "a b c"),
        ("🙂🙂🙂🙂", 3, "🙂🙂…"),
    ],
)
def test_a_text_is_shortened_to_one_line(text: str, most: int, line: str) -> None:
    assert shorten(text, most) == line


@settings(max_examples=50)
@given(st.text(), st.integers(1, 20))
def test_a_shortened_text_is_at_most_as_long_as_requested(text: str, most: int) -> None:
    line = shorten(text, most)
    assert len(line) <= most
    assert "\n" not in line


@pytest.mark.parametrize("sign", ["\x1b", "\x00", "\x07", "\x08", "\r", "\x7f", "\x80", "\x9b", "\x9d"])
def test_control_characters_in_stored_text_are_escaped(sign: str) -> None:
    text = f"a{sign}[2Jb"
    escaped = f"a\\x{ord(sign):02x}[2Jb"
    assert printable(text) == escaped
    assert printable(escaped) == escaped
    output = printed(print_table, text, ["one", "other"], [["x", text]])
    assert sign not in output
    assert sign not in shorten(text, 99)
    written = printed(print_json, {text: text})
    assert sign not in written
    assert json.loads(written) == {text: text}


def test_line_breaks_in_a_cell_do_not_start_another_row() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    plain = printed(print_table, "T", ["one"], [["abc"]])
    output = printed(print_table, "T", ["one"], [["a\nb\u2028c\t"]])
    assert "a\\nb\\u2028c\\t" in output
    assert len(output.split("\n")) == len(plain.split("\n"))


@pytest.mark.parametrize("cell", ["[bold]x[/bold]", "[/]", "[link=x]", ":smile:", "\\[x]"])
def test_a_table_does_not_interpret_markup(cell: str) -> None:
    title, table = printed(print_table, cell, ["a column as wide as the title"], [[cell]]).split("\n", 1)
    assert (cell in title, cell in table) == (True, True)


def test_a_long_value_is_wrapped_and_not_truncated() -> None:
    id = "0123456789" * 15
    table = printed(print_table, "T", ["id"], [[id]])
    assert "".join(table.split()).endswith(id)


IDS = ["0190f3a2-0000-7000-8000-00000000000a", "0190f3a2-0000-7000-8000-00000000000b"]


def test_a_row_is_one_line_if_the_output_is_not_a_terminal() -> None:
    table = printed(print_table, "Runs", ["id", "why", "parent"], [[IDS[0], "because " * 30, IDS[1]]])
    (line,) = [line for line in table.splitlines() if IDS[0] in line]
    assert IDS[1] in line
    assert "because " * 29 in line


def test_an_id_is_not_wrapped_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output._WIDE", 80)
    columns = ["key", "user", "agent", "messages", "tokens", "used", "id"]
    row = ["support:42", "ada.lovelace", "helper", "1,234", "56,789", "2026-01-02 03:04", IDS[0]]
    table = printed(print_table, "Sessions", columns, [row])
    assert any(IDS[0] in line for line in table.splitlines())
    assert max(map(len, table.splitlines())) <= 80


def test_an_empty_table_has_a_title_and_a_header() -> None:
    table = printed(print_table, "Runs", ["id", "step"], [])
    assert [word in table for word in ("Runs", "id", "step")] == [True, True, True]


@pytest.mark.parametrize("value", [{}, [], {"a": [1, None, "ä"]}, {"when": NOW}, {"call": CALL}])
def test_json_is_printed_as_one_value(value: Any) -> None:
    assert json.loads(printed(print_json, value)) == msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ada@db/agents", "postgresql://db/agents"),
        ("postgresql://a%40b:p%40ss@db:5/agents", "postgresql://db:5/agents"),
        ("postgresql://ada:p@ss@db/agents", "postgresql://..."),
        ("postgresql://ada:p#ss@db/agents", "postgresql://..."),
        ("postgresql://ada:p/ss@db/agents", "postgresql://..."),
        ("postgresql://ada:p?ss@db/agents", "postgresql://..."),
        ("postgresql://db/agents#hunter2", "postgresql://..."),
        ("postgres://ada:hunter2@[::1]:5432,db:1/agents?password=hunter2", "postgres://[::1]:5432,db:1/agents"),
        ("mysql://ada:hunter2@db/agents", "mysql://..."),
        ("ada:hunter2://db", "://..."),
        ("host=db password=hunter2", "..."),
        (":memory:", ":memory:"),
        ("/elsewhere/agents.db", "/elsewhere/agents.db"),
        ("../agents.db", "../agents.db"),
    ],
)
def test_the_description_of_a_database_contains_no_secrets(url: str, expected: str) -> None:
    assert describe(url) == expected


def test_a_file_below_the_current_directory_is_described_by_its_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe(str(tmp_path / "data" / "agents.db")) == os.path.join("data", "agents.db")
    assert describe(f"{tmp_path}-not/agents.db") == f"{tmp_path}-not/agents.db"


# ----------------------------------------------------------------------------------------------------------- workspaces


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (1_536, "1.5 KiB"),
        (1024**2, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (1024**4, "1.0 TiB"),
        (5_000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_sizes_are_formatted_with_units(count: int, expected: str) -> None:
    assert workspace._size(count) == expected


@pytest.mark.parametrize(
    ("path", "expected"), [("a/b", "a/b"), ("ä🙂", "ä🙂"), ("\udcff.txt", "\\udcff.txt"), ("", "")]
)
def test_a_path_that_is_not_unicode_is_escaped(path: str, expected: str) -> None:
    assert printable(path) == expected


def test_json_values_contain_no_unpaired_surrogates() -> None:
    value = {"\udcff": ["\udcfe", ("x", None, 1.5, True)], "rewind": replace_path("\udcfd")}
    document = workspace._as_json(value)
    json.dumps(document, ensure_ascii=False).encode()
    assert document["\\udcff"] == ["\\udcfe", ["x", None, 1.5, True]]
    assert document["rewind"]["path"] == "\\udcfd"


def replace_path(path: str | None) -> Rewind:
    return Rewind("i", "r", 3, 1, "rewound", path, None, None, None, 0, 1, NOW, None)


def test_a_rewind_without_files_has_an_empty_path() -> None:
    assert workspace._rewind_row(replace_path(None)) == ["i", "3", "1", "rewound", "2026-01-02 03:04:05", ""]


@pytest.mark.parametrize(
    ("kind", "old", "line"),
    [
        ("added", None, "A new"),
        ("removed", None, "D new"),
        ("changed", None, "M new"),
        ("mode", None, "T new"),
        ("renamed", "o\udcff", "R o\\udcff -> new"),
    ],
)
def test_a_change_of_a_file_is_shown_as_one_letter(kind: Any, old: str | None, line: str) -> None:
    change = TreeChange(kind=kind, path="new", old_path=old, size_before=None, size_after=None, text="")
    assert workspace._line(change) == line


@pytest.mark.parametrize(
    ("kept", "expected"), [([], "removed"), (["a", "b"], "2 directories kept because of ignored files")]
)
def test_kept_directories_are_mentioned_only_if_there_are_any(kept: list[str], expected: str) -> None:
    restored: Any = SimpleNamespace(written=1_234, bytes=2_048, removed=5, kept=kept)
    assert workspace._counts(restored).startswith("1,234 written (2.0 KiB), 5 removed")
    assert workspace._counts(restored).endswith(expected)


# ----------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 ms"),
        (0.0124, "12 ms"),
        (0.9994, "999 ms"),
        (1, "1.0 s"),
        (59.94, "59.9 s"),
        (60, "1.0 min"),
        (3_600, "1.0 h"),
        (86_400, "1.0 d"),
        (86_400 * 400, "400.0 d"),
        (-5, "0 ms"),
    ],
)
def test_durations_are_formatted_with_units(seconds: float, expected: str) -> None:
    assert runs._span(NOW, NOW + timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(("since", "until"), [(None, NOW), (NOW, None), (None, None)])
def test_a_duration_without_start_or_end_is_empty(since: datetime | None, until: datetime | None) -> None:
    assert runs._span(since, until) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"status": "running", "holder": "w1", "lease_until": NOW}, "held by w1 until 03:04:05"),
        ({"status": "paused", "pause_until": NOW}, "until 2026-01-02 03:04:05"),
        ({"status": "waiting", "error": "old"}, "until resumed"),
        ({"status": "completed", "stop_reason": "end_turn"}, "end_turn"),
        ({"status": "failed", "stop_reason": "error", "error": "it\nbroke"}, "error: it broke"),
        ({"status": "failed", "error": "x" * 99}, "x" * 47 + "…"),
        ({"status": "cancelled", "stop_reason": "", "error": ""}, ""),
    ],
    ids=["pending", "running", "paused", "waiting", "completed", "failed", "a long error", "no reason"],
)
def test_the_status_of_a_run_is_explained(changes: dict[str, Any], why: str) -> None:
    assert runs._reason(replace(RUN, **changes)) == why


def test_a_child_run_names_the_call_that_started_it() -> None:
    assert "started by run p, call c" in runs._about(replace(RUN, parent_run_id="p", parent_call_id="c"))
    assert "started by run p, call -" in runs._about(replace(RUN, parent_run_id="p"))


def test_a_run_without_an_agent() -> None:
    first, second = runs._about(replace(RUN, agent=""))
    assert first == "Run r of no agent in session s"
    assert second == "pending at step 2; 1,000 tokens in, 234 out; epoch 3, attempt 1 of 5"


@pytest.mark.parametrize(
    ("changes", "took"),
    [
        ({}, ""),
        ({"checkpointed_at": NOW + timedelta(seconds=3)}, "3.0 s"),
        ({"checkpointed_at": NOW, "finished_at": NOW + timedelta(minutes=2)}, "2.0 min"),
    ],
    ids=["nothing yet", "a step", "its end"],
)
def test_the_duration_of_a_run_lasts_until_its_end_or_its_last_step(changes: dict[str, Any], took: str) -> None:
    row = runs._row(replace(RUN, **changes))
    assert (row[4], row[6]) == ("1,234", took)


@pytest.mark.parametrize(
    ("status", "attempts", "expected"),
    [
        ("finished", 1, "✓ mail"),
        ("failed", 1, "✗ mail"),
        ("unknown", 2, "? mail x2"),
        ("held", 0, "‖ mail"),
        ("ready", 3, "· mail x3"),
    ],
)
def test_a_call_is_shown_with_its_status_name_and_attempts(status: Any, attempts: int, expected: str) -> None:
    assert runs._tool(replace(CALL, status=status, attempts=attempts)) == expected


@pytest.mark.parametrize(("first", "last", "expected"), [(None, None, ""), (4, 4, "4"), (4, 9, "4-9")])
def test_the_messages_of_a_step_are_a_number_or_a_range(first: int | None, last: int | None, expected: str) -> None:
    assert runs._span_of_messages(replace(STEP, first_seq=first, last_seq=last)) == expected


def test_the_first_step_is_timed_from_the_start_of_the_run_and_a_later_one_from_its_predecessor() -> None:
    second = replace(STEP, iteration=2, created_at=NOW + timedelta(seconds=5))
    assert [row[2] for row in runs._timeline(RUN, [STEP, second], [])] == ["2.0 s", "3.0 s"]
    assert [row[2] for row in runs._timeline(RUN, [second], [])] == [""]


def test_a_step_shows_only_its_own_calls() -> None:
    calls = [replace(CALL, step=1, status="finished"), replace(CALL, step=1, tool_name="pay"), replace(CALL, step=2)]
    (row,) = runs._timeline(RUN, [STEP], calls)
    assert row[3] == "✓ mail\n… pay"


def test_the_table_of_open_calls_is_printed_only_if_there_are_any() -> None:
    assert printed(runs._print_open, [replace(CALL, step=1)]) == ""
    assert '{"to":"ä"}' in printed(runs._print_open, [CALL])


# ------------------------------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], ""),
        ([{"type": "text", "text": "a\nb"}, {"type": "text", "text": "c"}], "a b c"),
        ([{"type": "tool_use", "name": "look"}], "[tool_use look]"),
        ([{"type": "image"}], "[image]"),
        ([{"x": 1}], "[json]"),
        ({"text": 7}, "[json]"),
        ("plain", "plain"),
        (7, "7"),
    ],
)
def test_the_preview_of_a_message_is_its_beginning(content: Any, expected: str) -> None:
    message = Message("m", "s", 1, "note", None, content, 3, {}, True, True, NOW, NOW)
    assert sessions._message_row(message) == ["1", "note", "3", "preserved summary", expected]


@pytest.mark.parametrize(
    ("options", "values"), [((None, None, None), None), ((7, 0, 0), (7, 0, 0)), ((None, 3, None), None)]
)
def test_options_override_the_default_compaction_policy(options: tuple[Any, ...], values: Any) -> None:
    usual = sessions._policy(None, None, None)
    policy = sessions._policy(*options)
    expected = values or (
        usual.target_tokens,
        usual.preserve_last if options[1] is None else options[1],
        usual.protected_tokens,
    )
    assert (policy.target_tokens, policy.preserve_last, policy.protected_tokens) == expected


# ---------------------------------------------------------------------------------------------------------- checkpoints


def channels(**values: Any) -> list[Channel]:
    return [Channel(name, 1, 1, True, value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1}, []),
        ({}, {"a": None}, [("a", "added", "", None)]),
        ({"a": 1}, {}, [("a", "removed", "", 1)]),
        ({"a": 1}, {"a": "1"}, [("a", "changed", "", "1")]),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, [("a", "changed", "[1]", 3), ("a", "added", "[2]", 4)]),
        ({"a": [1, 2]}, {"a": [1]}, [("a", "removed", "[1]", 2)]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3, "z": 4}},
         [("a", "removed", "[x]", 1), ("a", "changed", "[y]", 3), ("a", "added", "[z]", 4)]),
        ({"a": [1]}, {"a": {"0": 1}}, [("a", "changed", "", {"0": 1})]),
        ({"b": 1, "a": 1}, {"c": 1, "a": 2}, [("b", "removed", "", 1), ("a", "changed", "", 2), ("c", "added", "", 1)]),
    ],
    ids=["nothing", "same", "added", "removed", "type", "list", "shorter", "keys", "list to keys", "order"],
)  # fmt: skip
def test_a_difference_lists_the_smallest_changed_parts(before: Any, after: Any, expected: list[Any]) -> None:
    changes = checkpoints._changes(channels(**before), channels(**after))
    assert [(change["channel"], change["change"], change["where"], change["value"]) for change in changes] == expected


def test_a_channel_whose_value_is_with_an_ancestor_is_not_compared() -> None:
    inherited = [Channel("a", 1, 0, False)]
    assert checkpoints._changes(inherited, channels(b=1)) == checkpoints._changes([], channels(b=1))
    assert checkpoints._channel_row(inherited[0])[3] == "(stored with an ancestor, or not set)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", "x"),
        ([], "[]"),
        ([1, 2], "[1, 2]"),
        (["ä"], "[ä]"),
        ([{"n": 1}, {"n": 2}], '2, the last: {"n": 2}'),
        ({"$type": "a.b.Human", "content": "hi"}, "Human: hi"),
        ({"$type": "Plain", "x": 1}, 'Plain: {"x": 1}'),
        ([{"$type": "a.Human", "content": "hi"}], "[Human: hi]"),
        ({"when": NOW}, '{"when": "2026-01-02 03:04:05+00:00"}'),
    ],
)
def test_values_are_abbreviated(value: Any, expected: str) -> None:
    assert checkpoints._brief(value) == expected


# ------------------------------------------------------------------------------------------------- names of classes; progress


@pytest.mark.parametrize("name", ["", ":", "module", "module:", ":Class"])
def test_a_class_without_module_or_name_is_refused(name: str) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(repr(name))):
        imports._class(name)


def test_a_class_is_parsed_into_module_and_name() -> None:
    assert imports._class("package.module:Outer.Inner") == ("package.module", "Outer.Inner")


def test_the_progress_of_a_simulation_counts_seeds_events_and_faults() -> None:
    progress = sim.SimProgress(7)
    progress.add(SimpleNamespace(seed=7, events=1_200, seconds=1_800, faults={"a": 2, "b": 1}))
    assert printed(lambda: progress.show(is_last=True)) == "seed 7: 1,200 events, 0.5 hours, 3 faults\n"
    progress.add(SimpleNamespace(seed=8, events=800, seconds=1_800, faults={}))
    assert printed(lambda: progress.show(is_last=True)) == "seeds 7 to 8: 2,000 events, 1.0 hours, 3 faults\n"


def test_unpaired_surrogates_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "a\ud83d", "at": datetime(2026, 1, 1, tzinfo=UTC)})
    assert json.loads(capsys.readouterr().out) == {"text": "a\ud83d", "at": "2026-01-01T00:00:00Z"}
    print_table("Messages", ["text"], [["a\ud83d"]])
    assert "a\\ud83d" in capsys.readouterr().out
