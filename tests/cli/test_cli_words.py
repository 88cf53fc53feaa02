"""How commands put things to people: sizes, spans, paths, values and differences, each in a few words."""

from __future__ import annotations

import json
import os
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

from holdfast.cli import checkpoints, importing, runs, sessions, sim, workspace
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
    """What a function prints."""

    @click.command()
    def command() -> None:
        print_it(*arguments)

    done = CliRunner().invoke(command, env={"COLUMNS": "100"}, catch_exceptions=False)
    return done.output


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
def test_what_is_shortened_is_never_longer_than_asked_for(text: str, most: int) -> None:
    line = shorten(text, most)
    assert len(line) <= most
    assert "\n" not in line


@pytest.mark.parametrize("sign", ["\x1b", "\x00", "\x07", "\x08", "\r", "\x7f", "\x80", "\x9b", "\x9d"])
def test_no_stored_text_tells_the_terminal_what_to_do(sign: str) -> None:
    text = f"a{sign}[2Jb"
    spelled_out = f"a\\x{ord(sign):02x}[2Jb"
    assert printable(text) == spelled_out
    assert printable(spelled_out) == spelled_out
    shown = printed(print_table, text, ["one", "other"], [["x", text]])
    assert sign not in shown
    assert sign not in shorten(text, 99)
    written = printed(print_json, {text: text})
    assert sign not in written
    assert json.loads(written) == {text: text}


def test_no_text_in_a_table_looks_like_another_row() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    plain = printed(print_table, "T", ["one"], [["abc"]])
    shown = printed(print_table, "T", ["one"], [["a\nb\u2028c\t"]])
    assert "a\\nb\\u2028c\\t" in shown
    assert len(shown.split("\n")) == len(plain.split("\n"))


@pytest.mark.parametrize("cell", ["[bold]x[/bold]", "[/]", "[link=x]", ":smile:", "\\[x]"])
def test_a_table_takes_what_is_in_it_as_it_is(cell: str) -> None:
    title, table = printed(print_table, cell, ["a column as wide as the title"], [[cell]]).split("\n", 1)
    assert (cell in title, cell in table) == (True, True)


def test_an_id_is_folded_in_a_narrow_table_and_not_cut() -> None:
    id = "0123456789" * 15
    table = printed(print_table, "T", ["id"], [[id]])
    assert "".join(table.split()).endswith(id)


IDS = ["0190f3a2-0000-7000-8000-00000000000a", "0190f3a2-0000-7000-8000-00000000000b"]


def test_a_row_is_one_line_where_nobody_looks() -> None:
    table = printed(print_table, "Runs", ["id", "why", "parent"], [[IDS[0], "because " * 30, IDS[1]]])
    (line,) = [line for line in table.splitlines() if IDS[0] in line]
    assert IDS[1] in line
    assert "because " * 29 in line


def test_an_id_is_in_one_piece_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output._WIDE", 80)
    columns = ["key", "user", "agent", "messages", "tokens", "used", "id"]
    row = ["support:42", "ada.lovelace", "helper", "1,234", "56,789", "2026-01-02 03:04", IDS[0]]
    table = printed(print_table, "Sessions", columns, [row])
    assert any(IDS[0] in line for line in table.splitlines())
    assert max(map(len, table.splitlines())) <= 80


def test_a_table_without_rows_has_its_columns() -> None:
    table = printed(print_table, "Runs", ["id", "step"], [])
    assert [word in table for word in ("Runs", "id", "step")] == [True, True, True]


@pytest.mark.parametrize("value", [{}, [], {"a": [1, None, "ä"]}, {"when": NOW}, {"call": CALL}])
def test_json_is_printed_as_one_value(value: Any) -> None:
    assert json.loads(printed(print_json, value)) == msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("url", "shown"),
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
def test_a_database_is_shown_without_what_is_secret_in_it(url: str, shown: str) -> None:
    assert describe(url) == shown


def test_a_file_below_this_folder_is_shown_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe(str(tmp_path / "data" / "agents.db")) == os.path.join("data", "agents.db")
    assert describe(f"{tmp_path}-not/agents.db") == f"{tmp_path}-not/agents.db"


# ----------------------------------------------------------------------------------------------------------- workspaces


@pytest.mark.parametrize(
    ("count", "said"),
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
def test_bytes_are_said_as_a_person_would(count: int, said: str) -> None:
    assert workspace._size(count) == said


@pytest.mark.parametrize(("path", "said"), [("a/b", "a/b"), ("ä🙂", "ä🙂"), ("\udcff.txt", "\\udcff.txt"), ("", "")])
def test_a_path_of_any_bytes_can_be_printed(path: str, said: str) -> None:
    assert printable(path) == said


def test_everything_in_a_printable_value_can_be_printed() -> None:
    value = {"\udcff": ["\udcfe", ("x", None, 1.5, True)], "rewind": replace_path("\udcfd")}
    shown = workspace._as_json(value)
    json.dumps(shown, ensure_ascii=False).encode()
    assert shown["\\udcff"] == ["\\udcfe", ["x", None, 1.5, True]]
    assert shown["rewind"]["path"] == "\\udcfd"


def replace_path(path: str | None) -> Rewind:
    return Rewind("i", "r", 3, 1, "rewound", path, None, None, None, 0, 1, NOW, None)


def test_a_rewind_without_files_has_no_place_in_the_list() -> None:
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
def test_what_happened_to_a_file_is_one_letter(kind: Any, old: str | None, line: str) -> None:
    change = TreeChange(kind=kind, path="new", old_path=old, size_before=None, size_after=None, text="")
    assert workspace._line(change) == line


@pytest.mark.parametrize(("kept", "said"), [([], "removed"), (["a", "b"], "2 kept for what is ignored in them")])
def test_what_was_kept_is_only_spoken_of_if_something_was(kept: list[str], said: str) -> None:
    restored: Any = SimpleNamespace(written=1_234, bytes=2_048, removed=5, kept=kept)
    assert workspace._done(restored).startswith("1,234 written (2.0 KiB), 5 removed")
    assert workspace._done(restored).endswith(said)


# ----------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("seconds", "said"),
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
def test_a_span_is_said_as_a_person_would(seconds: float, said: str) -> None:
    assert runs._span(NOW, NOW + timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(("since", "until"), [(None, NOW), (NOW, None), (None, None)])
def test_a_span_without_a_beginning_or_an_end_is_nothing(since: datetime | None, until: datetime | None) -> None:
    assert runs._span(since, until) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"status": "running", "holder": "w1", "lease_until": NOW}, "held by w1 until 03:04:05"),
        ({"status": "paused", "pause_until": NOW}, "until 2026-01-02 03:04:05"),
        ({"status": "waiting", "error": "old"}, "until it is resumed"),
        ({"status": "completed", "stop_reason": "end_turn"}, "end_turn"),
        ({"status": "failed", "stop_reason": "error", "error": "it\nbroke"}, "error: it broke"),
        ({"status": "failed", "error": "x" * 99}, "x" * 47 + "…"),
        ({"status": "cancelled", "stop_reason": "", "error": ""}, ""),
    ],
    ids=["pending", "running", "paused", "waiting", "completed", "failed", "a long error", "no reason"],
)
def test_a_run_says_why_it_is_where_it_is(changes: dict[str, Any], why: str) -> None:
    assert runs._why(replace(RUN, **changes)) == why


def test_a_run_that_was_started_by_another_says_by_which_call() -> None:
    assert "started by run p, call c" in runs._about(replace(RUN, parent_run_id="p", parent_call_id="c"))
    assert "started by run p, call -" in runs._about(replace(RUN, parent_run_id="p"))


def test_a_run_of_no_agent_says_so() -> None:
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
def test_a_run_has_taken_until_its_end_or_its_last_step(changes: dict[str, Any], took: str) -> None:
    row = runs._row(replace(RUN, **changes))
    assert (row[4], row[6]) == ("1,234", took)


@pytest.mark.parametrize(
    ("status", "attempts", "said"),
    [
        ("finished", 1, "✓ mail"),
        ("failed", 1, "✗ mail"),
        ("unknown", 2, "? mail x2"),
        ("held", 0, "‖ mail"),
        ("ready", 3, "· mail x3"),
    ],
)
def test_a_call_is_a_sign_a_name_and_how_often(status: Any, attempts: int, said: str) -> None:
    assert runs._tool(replace(CALL, status=status, attempts=attempts)) == said


@pytest.mark.parametrize(("first", "last", "said"), [(None, None, ""), (4, 4, "4"), (4, 9, "4-9")])
def test_the_messages_of_a_step_are_a_number_or_a_span(first: int | None, last: int | None, said: str) -> None:
    assert runs._span_of_messages(replace(STEP, first_seq=first, last_seq=last)) == said


def test_the_first_step_took_from_the_start_and_one_in_the_middle_is_not_guessed() -> None:
    second = replace(STEP, iteration=2, created_at=NOW + timedelta(seconds=5))
    assert [row[2] for row in runs._timeline(RUN, [STEP, second], [])] == ["2.0 s", "3.0 s"]
    assert [row[2] for row in runs._timeline(RUN, [second], [])] == [""]


def test_a_step_shows_the_calls_it_took_in_and_no_others() -> None:
    calls = [replace(CALL, step=1, status="finished"), replace(CALL, step=1, tool_name="pay"), replace(CALL, step=2)]
    (row,) = runs._timeline(RUN, [STEP], calls)
    assert row[3] == "✓ mail\n… pay"


def test_what_every_step_has_taken_in_needs_no_table() -> None:
    assert printed(runs._print_open, [replace(CALL, step=1)]) == ""
    assert '{"to":"ä"}' in printed(runs._print_open, [CALL])


# ------------------------------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize(
    ("content", "shown"),
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
def test_a_message_is_shown_by_its_beginning(content: Any, shown: str) -> None:
    message = Message("m", "s", 1, "note", None, content, 3, {}, True, True, NOW, NOW)
    assert sessions._message_row(message) == ["1", "note", "3", "preserved summary", shown]


@pytest.mark.parametrize(
    ("given", "found"), [((None, None, None), None), ((7, 0, 0), (7, 0, 0)), ((None, 3, None), None)]
)
def test_a_policy_is_the_usual_one_but_for_what_was_said(given: tuple[Any, ...], found: Any) -> None:
    usual = sessions._policy(None, None, None)
    policy = sessions._policy(*given)
    expected = found or (
        usual.target_tokens,
        usual.preserve_last if given[1] is None else given[1],
        usual.protected_tokens,
    )
    assert (policy.target_tokens, policy.preserve_last, policy.protected_tokens) == expected


# ---------------------------------------------------------------------------------------------------------- checkpoints


def channels(**values: Any) -> list[Channel]:
    return [Channel(name, 1, 1, True, value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("before", "after", "found"),
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
def test_a_difference_names_the_smallest_part_that_changed(before: Any, after: Any, found: list[Any]) -> None:
    changes = checkpoints._changes(channels(**before), channels(**after))
    assert [(each["channel"], each["change"], each["where"], each["value"]) for each in changes] == found


def test_a_channel_without_a_value_of_its_own_is_not_compared() -> None:
    inherited = [Channel("a", 1, 0, False)]
    assert checkpoints._changes(inherited, channels(b=1)) == checkpoints._changes([], channels(b=1))
    assert checkpoints._channel_row(inherited[0])[3] == "(with an ancestor, or none)"


@pytest.mark.parametrize(
    ("value", "said"),
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
def test_a_value_is_put_briefly(value: Any, said: str) -> None:
    assert checkpoints._brief(value) == said


# ------------------------------------------------------------------------------------------------- names of other things


@pytest.mark.parametrize("given", ["", ":", "module", "module:", ":Class"])
def test_a_class_that_is_not_named_whole_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not of the form package\.module:Class"):
        importing._class(given)


def test_a_class_is_a_module_and_a_name() -> None:
    assert importing._class("package.module:Outer.Inner") == ("package.module", "Outer.Inner")


def test_a_simulation_says_how_much_it_has_seen() -> None:
    progress = sim.Progress(7)
    progress.add(SimpleNamespace(seed=7, events=1_200, seconds=1_800, faults={"a": 2, "b": 1}))
    assert printed(lambda: progress.show(done=True)) == "seed 7: 1,200 events, 0.5 hours, 3 faults\n"
    progress.add(SimpleNamespace(seed=8, events=800, seconds=1_800, faults={}))
    assert printed(lambda: progress.show(done=True)) == "seeds 7 to 8: 2,000 events, 1.0 hours, 3 faults\n"


def test_half_of_a_pair_of_surrogates_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "a\ud83d", "at": datetime(2026, 1, 1, tzinfo=UTC)})
    assert json.loads(capsys.readouterr().out) == {"text": "a\ud83d", "at": "2026-01-01T00:00:00Z"}
    print_table("Messages", ["text"], [["a\ud83d"]])
    assert "a\\ud83d" in capsys.readouterr().out
