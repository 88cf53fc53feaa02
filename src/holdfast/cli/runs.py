"""``holdfast runs``: look at executions of agents step by step, have them tried again, end them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, get_args

import click
import msgspec

from holdfast import TenantHandle
from holdfast.errors import NotFound
from holdfast.types import Run, RunStatus, Step, ToolCall

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_table, shorten

F = TypeVar("F", bound=Callable[..., Any])
MARKS = {"finished": "✓", "failed": "✗", "cancelled": "⊘", "discarded": "⊘", "unknown": "?", "begun": "…", "held": "‖"}
"""What became of a call, in one sign."""
OWN = "holdfast."
"""How calls are named that are no tool's: the loop keeps the model's replies among them, and nobody is to decide about those."""
RESULT = 48
"""Characters of a result that the timeline shows."""


@click.group()
def runs() -> None:
    """Look at executions of agents step by step, have them tried again, end them."""


def run_option(command: F) -> F:
    """``--run``."""
    return tenant_option(click.option("--run", metavar="ID", required=True, help="A run, by its id.")(command))


@runs.command("list")
@tenant_option
@click.option("--session", metavar="ID", help="Only those of this session.")
@click.option("--agent", help="Only this agent's.")
@click.option("--status", type=click.Choice(get_args(RunStatus)), help="Only those that are so.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="How many at most.")
@json_option
def list_(
    database: str,
    tenant: str,
    session: str | None,
    agent: str | None,
    status: RunStatus | None,
    limit: int,
    as_json: bool,
) -> None:
    """List runs, the one started last first."""
    with open_tenant(database, tenant) as there:
        found = there.runs.list(session=session, agent=agent, status=status, limit=limit)
    if as_json:
        print_json({"runs": list(found), "next": found.next})
        return
    columns = ["id", "agent", "status", "step", "tokens", "started", "took", "why"]
    print_table(f"Runs of {tenant}", columns, [_row(each) for each in found])


@runs.command()
@run_option
@click.option("--last", default=50, show_default=True, type=click.IntRange(1, 1_000), help="How many steps at most.")
@json_option
def show(database: str, tenant: str, run: str, last: int, as_json: bool) -> None:
    """Show a run: its steps on a time line, the tool calls that are still open, and the runs it has started."""
    with open_tenant(database, tenant) as there:
        found = there.runs.get(run)
        steps = list(there.steps.list(run, newest_first=True, limit=last))[::-1]
        calls = there.tool_calls.list(run)
        below = there.runs.list(parent=run, limit=100)
    if as_json:
        print_json({"run": found, "steps": steps, "tool_calls": calls, "below": list(below)})
        return
    calls = [call for call in calls if not call.tool_name.startswith(OWN)]
    for line in _about(found):
        print_line(line)
    columns = ["step", "at", "took", "tools", "messages", "tokens", "result"]
    print_table("Steps", columns, _timeline(found, steps, calls))
    _print_open(calls)
    if below:
        columns = ["id", "agent", "status", "step", "tokens", "started", "took", "why"]
        print_table("Runs it has started", columns, [_row(each) for each in below])


@runs.command()
@run_option
@click.option("--allow", metavar="CALL", multiple=True, help="First allow this tool call, which waits for it.")
@json_option
def resume(database: str, tenant: str, run: str, allow: Sequence[str], as_json: bool) -> None:
    """Have a run that is paused, waits or has failed be tried again."""
    with open_tenant(database, tenant) as there:
        for call in allow:
            _allow(there, run, call)
        done = there.runs.resume(run)
    _print_moved(done, as_json, "can be claimed" if done.status == "pending" else f"is {done.status}")


@runs.command()
@run_option
@click.option("--reason", help="Why, for whoever looks at it later.")
@json_option
def cancel(database: str, tenant: str, run: str, reason: str | None, as_json: bool) -> None:
    """End a run and all that it has started. Whoever drives it can write no more."""
    with open_tenant(database, tenant) as there:
        done = there.runs.cancel(run, reason=reason)
    _print_moved(done, as_json, f"is {done.status} at step {done.iteration}")


def _allow(there: TenantHandle, run: str, call: str) -> None:
    try:
        there.tool_calls.allow(run, call)
    except NotFound:
        waiting = [each.call.id for each in there.tool_calls.pending(run)]
        raise NotFound(f"run {run} has no call {call!r}; open are: {', '.join(waiting) or 'none'}") from None


def _print_moved(run: Run, as_json: bool, what: str) -> None:
    if as_json:
        print_json({"run": run})
        return
    print_line(f"Run {run.id} {what}.")


def _row(run: Run) -> list[str]:
    tokens = run.input_tokens + run.output_tokens
    ended = run.finished_at or run.checkpointed_at
    return [
        run.id,
        run.agent,
        run.status,
        str(run.iteration),
        f"{tokens:,}",
        _moment(run.started_at),
        _span(run.started_at, ended),
        _why(run),
    ]


def _why(run: Run) -> str:
    """What a person would ask next."""
    if run.status == "running":
        return f"held by {run.holder} until {run.lease_until:%H:%M:%S}"
    if run.status == "paused" and run.pause_until is not None:
        return f"until {_moment(run.pause_until)}"
    if run.status == "waiting":
        return "until it is resumed"
    return shorten(": ".join(part for part in (run.stop_reason, run.error) if part), RESULT)


def _about(run: Run) -> list[str]:
    tokens = f"{run.input_tokens:,} tokens in, {run.output_tokens:,} out"
    lines = [
        f"Run {run.id} of {run.agent or 'no agent'} in session {run.session_id}",
        f"{run.status} at step {run.iteration}; {tokens}; epoch {run.epoch}, attempt {run.attempts} of {run.max_attempts}",
    ]
    if run.parent_run_id is not None:
        lines.append(f"started by run {run.parent_run_id}, call {run.parent_call_id or '-'}")
    why = _why(run)
    return [*lines, why] if why else lines


def _timeline(run: Run, steps: Sequence[Step], calls: Sequence[ToolCall]) -> list[list[str]]:
    rows: list[list[str]] = []
    before = run.started_at if steps and steps[0].iteration == 1 else None
    for step in steps:
        tools = [_tool(call) for call in calls if call.step == step.iteration]
        rows.append(
            [
                str(step.iteration),
                f"{step.created_at:%H:%M:%S}",
                _span(before, step.created_at),
                "\n".join(tools),
                _span_of_messages(step),
                f"{step.input_tokens + step.output_tokens:,}",
                shorten(step.last_tool_result or "", RESULT),
            ]
        )
        before = step.created_at
    return rows


def _tool(call: ToolCall) -> str:
    again = f" x{call.attempts}" if call.attempts > 1 else ""
    return f"{MARKS.get(call.status, '·')} {call.tool_name}{again}"


def _span_of_messages(step: Step) -> str:
    if step.first_seq is None:
        return ""
    return str(step.first_seq) if step.first_seq == step.last_seq else f"{step.first_seq}-{step.last_seq}"


def _print_open(calls: Sequence[ToolCall]) -> None:
    there = [call for call in calls if call.step is None]
    if there:
        columns = ["call", "tool", "status", "safety", "attempts", "since", "input"]
        print_table("Tool calls that no step has taken in", columns, [_open_row(call) for call in there])


def _open_row(call: ToolCall) -> list[str]:
    given = msgspec.json.encode(call.tool_input).decode()
    return [
        call.id,
        _tool(call),
        call.status,
        call.safety,
        str(call.attempts),
        _moment(call.started_at),
        shorten(given, RESULT),
    ]


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _span(since: datetime | None, until: datetime | None) -> str:
    """How long it was, as a person would say it."""
    if since is None or until is None:
        return ""
    seconds = max(0.0, (until - since).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
