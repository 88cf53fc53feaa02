"""``holdfast runs``: inspect the runs of agents step by step, resume, cancel and delete them."""

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
from .record_commands import acting_option, as_user

F = TypeVar("F", bound=Callable[..., Any])
MARKS = {"finished": "✓", "failed": "✗", "cancelled": "⊘", "discarded": "⊘", "unknown": "?", "begun": "…", "held": "‖"}
"""The status of a tool call as one character."""
OWN = "holdfast."
"""Name prefix of calls that are not tool calls: the loop records the model's replies as calls. They are not shown."""
RESULT = 48
"""Maximum length of a result in the timeline."""


@click.group()
def runs() -> None:
    """Inspect the runs of agents step by step, resume, cancel and delete them."""


def run_option(command: F) -> F:
    """Add ``--run`` and the options of ``tenant_option``."""
    return tenant_option(click.option("--run", metavar="ID", required=True, help="The id of the run.")(command))


@runs.command("list")
@tenant_option
@click.option("--session", metavar="ID", help="Only runs of this session.")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--status", type=click.Choice(get_args(RunStatus)), help="Only runs with this status.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of rows.")
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
    """List runs, the most recently started first."""
    with open_tenant(database, tenant) as handle:
        page = handle.runs.list(session=session, agent=agent, status=status, limit=limit)
    if as_json:
        print_json({"runs": list(page), "next": page.next})
        return
    columns = ["id", "agent", "status", "step", "tokens", "started", "took", "reason"]
    print_table(f"Runs of {tenant}", columns, [_row(run) for run in page])


@runs.command()
@run_option
@click.option("--last", default=50, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of steps.")
@json_option
def show(database: str, tenant: str, run: str, last: int, as_json: bool) -> None:
    """Show a run: a timeline of its steps, its open tool calls, and the runs that it has started."""
    with open_tenant(database, tenant) as handle:
        state = handle.runs.get(run)
        steps = list(handle.steps.list(run, newest_first=True, limit=last))[::-1]
        calls = handle.tool_calls.list(run)
        below = handle.runs.list(parent=run, limit=100)
    if as_json:
        print_json({"run": state, "steps": steps, "tool_calls": calls, "below": list(below)})
        return
    calls = [call for call in calls if not call.tool_name.startswith(OWN)]
    for line in _about(state):
        print_line(line)
    columns = ["step", "at", "took", "tools", "messages", "tokens", "result"]
    print_table("Steps", columns, _timeline(state, steps, calls))
    _print_open(calls)
    if below:
        columns = ["id", "agent", "status", "step", "tokens", "started", "took", "reason"]
        print_table("Child runs", columns, [_row(child) for child in below])


@runs.command()
@run_option
@click.option("--allow", metavar="CALL", multiple=True, help="Approve this waiting tool call first; repeatable.")
@json_option
def resume(database: str, tenant: str, run: str, allow: Sequence[str], as_json: bool) -> None:
    """Resume a run that is paused, waiting or failed."""
    with open_tenant(database, tenant) as handle:
        for call in allow:
            _allow(handle, run, call)
        resumed = handle.runs.resume(run)
    _print_status(resumed, as_json, "can be claimed" if resumed.status == "pending" else f"is {resumed.status}")


@runs.command()
@run_option
@click.option("--reason", help="The reason, which is stored with the run.")
@json_option
def cancel(database: str, tenant: str, run: str, reason: str | None, as_json: bool) -> None:
    """Cancel a run and all runs that it has started. Their workers can no longer write."""
    with open_tenant(database, tenant) as handle:
        cancelled = handle.runs.cancel(run, reason=reason)
    _print_status(cancelled, as_json, f"is {cancelled.status} at step {cancelled.iteration}")


@runs.command()
@run_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@acting_option
@json_option
def delete(database: str, tenant: str, run: str, yes: bool, acting: str | None, as_json: bool) -> None:
    """Permanently delete a run that has ended. Its messages stay in the session."""
    if not yes:
        click.confirm(f"Permanently delete run {run}?", abort=True, err=True)
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        handle.runs.delete(run)
    if as_json:
        print_json({"deleted": run})
        return
    print_line(f"Deleted run {run}.")


def _allow(handle: TenantHandle, run: str, call: str) -> None:
    try:
        handle.tool_calls.allow(run, call)
    except NotFound:
        waiting = [pending.call.id for pending in handle.tool_calls.pending(run)]
        raise NotFound(
            f"run {run} has no tool call {call!r}; open calls: {', '.join(waiting) or 'none'}",
            noun="tool call",
            key=call,
        ) from None


def _print_status(run: Run, as_json: bool, status: str) -> None:
    if as_json:
        print_json({"run": run})
        return
    print_line(f"Run {run.id} {status}.")


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
        _reason(run),
    ]


def _reason(run: Run) -> str:
    """Explain the status of a run."""
    if run.status == "running":
        return f"held by {run.holder} until {run.lease_until:%H:%M:%S}"
    if run.status == "paused" and run.pause_until is not None:
        return f"until {_moment(run.pause_until)}"
    if run.status == "waiting":
        return "until resumed"
    return shorten(": ".join(part for part in (run.stop_reason, run.error) if part), RESULT)


def _about(run: Run) -> list[str]:
    tokens = f"{run.input_tokens:,} tokens in, {run.output_tokens:,} out"
    lines = [
        f"Run {run.id} of {run.agent or 'no agent'} in session {run.session_id}",
        f"{run.status} at step {run.iteration}; {tokens}; epoch {run.epoch}, attempt {run.attempts} of {run.max_attempts}",
    ]
    if run.parent_run_id is not None:
        lines.append(f"started by run {run.parent_run_id}, call {run.parent_call_id or '-'}")
    reason = _reason(run)
    return [*lines, reason] if reason else lines


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
    open_calls = [call for call in calls if call.step is None]
    if open_calls:
        columns = ["call", "tool", "status", "safety", "attempts", "since", "input"]
        print_table("Open tool calls", columns, [_open_row(call) for call in open_calls])


def _open_row(call: ToolCall) -> list[str]:
    tool_input = msgspec.json.encode(call.tool_input).decode()
    return [
        call.id,
        _tool(call),
        call.status,
        call.safety,
        str(call.attempts),
        _moment(call.started_at),
        shorten(tool_input, RESULT),
    ]


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _span(since: datetime | None, until: datetime | None) -> str:
    """Format a duration for people."""
    if since is None or until is None:
        return ""
    seconds = max(0.0, (until - since).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
