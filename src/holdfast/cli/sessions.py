"""``holdfast sessions``: look at conversations, fork them, compact them and take that back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from holdfast import CompactionPolicy, TenantHandle
from holdfast.errors import NotFound
from holdfast.types import Branch, CompactionEvent, CompactionPlan, Message, Session

from .database import database_option, open_tenant, open_there, tenant_option
from .output import json_option, one_line, print_json, print_line, print_progress, print_table, shorten

F = TypeVar("F", bound=Callable[..., Any])
PREVIEW = 72
"""Characters of a message that a table shows."""


@click.group()
def sessions() -> None:
    """Look at conversations, fork them, compact them, and take that back."""


def session_option(command: F) -> F:
    """``--session``, by id or by key."""
    option = click.option("--session", metavar="ID", required=True, help="A session, by its id or by its key.")
    return tenant_option(option(command))


@sessions.command("list")
@tenant_option
@click.option("--user", help="Only this user's.")
@click.option("--agent", help="Only this agent's.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="How many at most.")
@json_option
def list_(database: str, tenant: str, user: str | None, agent: str | None, limit: int, as_json: bool) -> None:
    """List sessions, the one used last first."""
    with open_tenant(database, tenant) as there:
        found = there.sessions.list(user=user, agent=agent, limit=limit)
    if as_json:
        print_json({"sessions": list(found), "next": found.next})
        return
    print_table(f"Sessions of {tenant}", ["key", "user", "agent", "messages", "tokens", "used", "id"], _rows(found))


@sessions.command()
@session_option
@click.option("--last", default=20, show_default=True, type=click.IntRange(1, 1_000), help="How many messages at most.")
@json_option
def show(database: str, tenant: str, session: str, last: int, as_json: bool) -> None:
    """Show a session, its last messages, its branches and its compactions."""
    with open_tenant(database, tenant) as there:
        found = _find(there, session)
        messages = there.messages.last(found.id, last)
        branches, current = there.branches.list(found.id), there.branches.current(found.id)
        events = there.compactions.history(found.id)
    if as_json:
        everything = {"session": found, "messages": messages, "branch": current, "branches": branches}
        print_json({**everything, "compactions": list(events)})
        return
    print_line(f"{found.key}  ({found.message_count} messages, {found.token_count} tokens, branch {current})")
    columns = ["seq", "role", "tokens", "", "message"]
    print_table("Messages", columns, [_message_row(each) for each in messages])
    if len(branches) > 1:
        print_table("Branches", ["branch", "from", "after", "by", "label"], [_branch_row(each) for each in branches])
    if events:
        columns = ["id", "when", "strategy", "tokens", "removed", "state"]
        print_table("Compactions", columns, [_event_row(each) for each in events])


@sessions.command()
@session_option
@click.option(
    "--at", type=click.IntRange(min=0), help="The last message that is shared; without it, the last one there is."
)
@click.option("--label", help="A name for the branch.")
@click.option("--switch", is_flag=True, help="Show the new branch from now on.")
@json_option
def fork(
    database: str, tenant: str, session: str, at: int | None, label: str | None, switch: bool, as_json: bool
) -> None:
    """Start another branch of a session. Nothing is copied, and the session goes on as it was."""
    with open_tenant(database, tenant) as there:
        found = _find(there, session)
        branch = there.branches.fork(found.id, at=at, label=label)
        if switch:
            branch = there.branches.switch(found.id, branch.number)
    if as_json:
        print_json({"branch": branch})
        return
    shown = ", which the session shows now" if switch else ""
    print_line(f"Branch {branch.number} goes on after message {branch.forked_after} of branch {branch.parent}{shown}.")


@sessions.command()
@session_option
@click.option("--plan", is_flag=True, help="Only say what would happen.")
@click.option("--summary", help="The text that takes the place of what is removed; - reads it from standard input.")
@click.option("--target", type=click.IntRange(min=1), help="Tokens to come down to.")
@click.option("--keep-last", type=click.IntRange(min=0), help="Messages at the end that stay as they are.")
@click.option("--protect", type=click.IntRange(min=0), help="Tokens at the end that stay as they are.")
@json_option
def compact(
    database: str,
    tenant: str,
    session: str,
    plan: bool,
    summary: str | None,
    target: int | None,
    keep_last: int | None,
    protect: int | None,
    as_json: bool,
) -> None:
    """Make a session smaller: old tool outputs first, then, with a summary, the old messages. `rollback` takes it back."""
    policy = _policy(target, keep_last, protect)
    with open_tenant(database, tenant) as there:
        found = _find(there, session)
        if plan:
            planned = there.compactions.plan(found.id, policy)
            _print_plan(planned, as_json)
            return
        text = sys.stdin.read() if summary == "-" else summary
        event = there.compactions.compact(found.id, policy, summary=text)
    _print_event(event, as_json, "Compacted")


@sessions.command()
@session_option
@click.option("--event", metavar="ID", help="Which compaction; without it, the newest.")
@json_option
def rollback(database: str, tenant: str, session: str, event: str | None, as_json: bool) -> None:
    """Take a compaction back: everything is as it was, and what was appended since stays."""
    with open_tenant(database, tenant) as there:
        found = _find(there, session)
        done = there.compactions.rollback(event or _newest(there, found))
    _print_event(done, as_json, "Rolled back")


@sessions.command()
@tenant_option
@click.option("--query", required=True, help='Words, "a phrase", -without, begin*.')
@click.option("--session", metavar="ID", help="Only in this session, by its id or by its key.")
@click.option("--user", help="Only in this user's sessions.")
@click.option("--agent", help="Only in this agent's sessions.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="How many at most.")
@json_option
def search(
    database: str,
    tenant: str,
    query: str,
    session: str | None,
    user: str | None,
    agent: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Find messages by their words."""
    with open_tenant(database, tenant) as there:
        session_id = None if session is None else _find(there, session).id
        hits = there.messages.search(query, session_id=session_id, user=user, agent=agent, limit=limit)
    if as_json:
        print_json({"hits": list(hits), "next": hits.next, "complete": hits.complete})
        return
    rows = [[hit.message.session_id, str(hit.message.seq), hit.message.role or "", hit.snippet] for hit in hits]
    print_table(f"Messages with {query}", ["session", "seq", "role", "where"], rows)
    if not hits.complete:
        print_line(
            f"{hits.sessions_behind:,} sessions are not indexed yet: `holdfast sessions index` does it now.", err=True
        )


@sessions.command()
@database_option
@json_option
def index(database: str, as_json: bool) -> None:
    """Index for search what is not indexed yet, of all tenants. `serve` and `worker` do so in the background."""
    indexed, is_done = 0, False
    with open_there(database) as hf:
        while not is_done:
            piece = hf.tenants.maintain()
            indexed, is_done = indexed + piece.indexed, piece.is_done
            if sys.stderr.isatty():
                print_progress(f"{indexed:,} messages indexed ...", err=True)
    if sys.stderr.isatty():
        print_progress("", err=True)
    if as_json:
        print_json({"indexed": indexed})
        return
    print_line(f"{indexed:,} messages indexed.")


@sessions.command()
@tenant_option
@click.option("--idle-days", type=click.FloatRange(0, 1_000_000), help="Sessions that were not used for so long.")
@click.option(
    "--archive-days",
    type=click.FloatRange(0, 1_000_000),
    help="Originals of compactions, and deleted messages, that were put away so long ago.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def prune(
    database: str, tenant: str, idle_days: float | None, archive_days: float | None, yes: bool, as_json: bool
) -> None:
    """Remove what is old, for good. If it is interrupted, run it again."""
    if idle_days is None and archive_days is None:
        raise click.UsageError("say what is old enough: --idle-days, --archive-days or both")
    if not yes:
        click.confirm(f"Remove what is that old of {one_line(tenant)} for good?", abort=True, err=True)
    with open_tenant(database, tenant) as there:
        gone = there.sessions.prune(
            idle=None if idle_days is None else timedelta(days=idle_days),
            archives=None if archive_days is None else timedelta(days=archive_days),
        )
    if as_json:
        print_json({"pruned": gone})
        return
    print_line(
        f"Removed {gone.sessions:,} sessions, {gone.originals:,} originals and {gone.deleted_messages:,} deleted messages; "
        f"kept {gone.kept:,} old sessions that are held or in use."
    )


def _find(there: TenantHandle, session: str) -> Session:
    """By id if it looks like one and is one, otherwise by key."""
    try:
        UUID(session)
    except ValueError:
        found = there.sessions.find(session)
        if found is None:
            raise NotFound(f"there is no session {session!r} of {there.name}") from None
        return found
    try:
        return there.sessions.get(session)
    except NotFound:
        by_key = there.sessions.find(session)
        if by_key is None:
            raise
        return by_key


def _newest(there: TenantHandle, session: Session) -> str:
    for event in there.compactions.history(session.id):
        if event.rolled_back_at is None:
            return event.id
    raise NotFound(f"session {session.key!r} has no compaction to roll back")


def _policy(target: int | None, keep_last: int | None, protect: int | None) -> CompactionPolicy:
    usual = CompactionPolicy()
    return CompactionPolicy(
        target_tokens=usual.target_tokens if target is None else target,
        preserve_last=usual.preserve_last if keep_last is None else keep_last,
        protected_tokens=usual.protected_tokens if protect is None else protect,
    )


def _rows(found: Any) -> list[list[str]]:
    return [
        [
            each.key,
            each.user,
            each.agent,
            f"{each.message_count:,}",
            f"{each.token_count:,}",
            each.updated_at.strftime("%Y-%m-%d %H:%M"),
            each.id,
        ]
        for each in found
    ]


def _message_row(message: Message) -> list[str]:
    flags = [name for name in ("preserved", "summary") if getattr(message, f"is_{name}")]
    return [
        str(message.seq),
        message.role or message.kind,
        str(message.token_count),
        " ".join(flags),
        _preview(message),
    ]


def _preview(message: Message) -> str:
    """The beginning of a message, in one line."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    parts = [_block(block) for block in blocks]
    return shorten(" ".join(parts), PREVIEW)


def _block(block: Any) -> str:
    if not isinstance(block, dict):
        return str(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    return f"[{block.get('type', 'json')}{' ' + str(block['name']) if 'name' in block else ''}]"


def _branch_row(branch: Branch) -> list[str]:
    parent = "" if branch.parent is None else str(branch.parent)
    return [str(branch.number), parent, str(branch.forked_after), branch.origin, branch.label]


def _event_row(event: CompactionEvent) -> list[str]:
    return [
        event.id,
        event.created_at.strftime("%Y-%m-%d %H:%M"),
        event.strategy,
        f"{event.original_tokens:,} -> {event.compacted_tokens:,}",
        str(event.messages_removed),
        "done" if event.rolled_back_at is None else "rolled back",
    ]


def _print_event(event: CompactionEvent, as_json: bool, what: str) -> None:
    if as_json:
        print_json({"event": event})
        return
    tokens = f"{event.original_tokens:,} tokens, {event.compacted_tokens:,} compacted"
    changed = f"{event.messages_removed} messages removed, {event.messages_rewritten} rewritten"
    print_line(f"{what}: {tokens}; {changed} (event {event.id}).")


def _print_plan(plan: CompactionPlan, as_json: bool) -> None:
    if as_json:
        print_json({"plan": plan})
        return
    removed, rewritten = set(plan.removed), {each.message_id: each for each in plan.rewritten}
    rows = [[str(each.seq), "kept", each.why] for each in plan.protected]
    rows += [[str(each.seq), "removed", _preview(each)] for each in plan.to_summarize if each.id in removed]
    rows += [[str(each.seq), "rewritten", f"{each.tokens:,} tokens left"] for each in rewritten.values()]
    rows.sort(key=lambda row: int(row[0]))
    print_table("What would happen", ["seq", "", ""], rows)
    due = "due" if plan.is_due else "not due yet"
    verdict = f"about {plan.tokens_after:,} afterwards" if plan.shrinks else "nothing would get smaller"
    summary = "; needs a summary" if plan.needs_summary else ""
    print_line(f"{plan.strategy}, {due}: {plan.tokens_before:,} tokens now, {verdict}{summary}.")
