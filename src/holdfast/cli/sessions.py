"""``holdfast sessions``: inspect, fork, compact and search sessions, and roll compactions back."""

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

from .database import database_option, open_existing, open_tenant, tenant_option
from .output import json_option, one_line, print_json, print_line, print_progress, print_table, shorten

F = TypeVar("F", bound=Callable[..., Any])
PREVIEW = 72
"""Maximum length of a message in a table."""


@click.group()
def sessions() -> None:
    """Inspect, fork, compact and search sessions, and roll compactions back."""


def session_option(command: F) -> F:
    """Add ``--session``, an id or a key, and the options of ``tenant_option``."""
    option = click.option("--session", metavar="ID", required=True, help="The id or the key of the session.")
    return tenant_option(option(command))


@sessions.command("list")
@tenant_option
@click.option("--user", help="Only sessions of this user.")
@click.option("--agent", help="Only sessions of this agent.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of rows.")
@json_option
def list_(database: str, tenant: str, user: str | None, agent: str | None, limit: int, as_json: bool) -> None:
    """List sessions, the most recently used first."""
    with open_tenant(database, tenant) as handle:
        page = handle.sessions.list(user=user, agent=agent, limit=limit)
    if as_json:
        print_json({"sessions": list(page), "next": page.next})
        return
    print_table(f"Sessions of {tenant}", ["key", "user", "agent", "messages", "tokens", "used", "id"], _rows(page))


@sessions.command()
@session_option
@click.option(
    "--last", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of messages."
)
@json_option
def show(database: str, tenant: str, session: str, last: int, as_json: bool) -> None:
    """Show a session with its last messages, its branches and its compactions."""
    with open_tenant(database, tenant) as handle:
        record = _find(handle, session)
        messages = handle.messages.last(record.id, last)
        branches, current = handle.branches.list(record.id), handle.branches.current(record.id)
        events = handle.compactions.history(record.id)
    if as_json:
        everything = {"session": record, "messages": messages, "branch": current, "branches": branches}
        print_json({**everything, "compactions": list(events)})
        return
    print_line(f"{record.key}  ({record.message_count} messages, {record.token_count} tokens, branch {current})")
    columns = ["seq", "role", "tokens", "", "message"]
    print_table("Messages", columns, [_message_row(message) for message in messages])
    if len(branches) > 1:
        print_table(
            "Branches", ["branch", "from", "after", "by", "label"], [_branch_row(branch) for branch in branches]
        )
    if events:
        columns = ["id", "when", "strategy", "tokens", "removed", "state"]
        print_table("Compactions", columns, [_event_row(event) for event in events])


@sessions.command()
@session_option
@click.option("--at", type=click.IntRange(min=0), help="The seq of the last shared message. Default: the last message.")
@click.option("--label", help="A name for the branch.")
@click.option("--switch", is_flag=True, help="Make the new branch the current one.")
@json_option
def fork(
    database: str, tenant: str, session: str, at: int | None, label: str | None, switch: bool, as_json: bool
) -> None:
    """Create a branch of a session. No message is copied, and the current branch does not change without --switch."""
    with open_tenant(database, tenant) as handle:
        record = _find(handle, session)
        branch = handle.branches.fork(record.id, at=at, label=label)
        if switch:
            branch = handle.branches.switch(record.id, branch.number)
    if as_json:
        print_json({"branch": branch})
        return
    current = " and is the current branch" if switch else ""
    print_line(f"Branch {branch.number} starts after message {branch.forked_after} of branch {branch.parent}{current}.")


@sessions.command()
@session_option
@click.option("--plan", is_flag=True, help="Only show what would be changed.")
@click.option("--summary", help="The text that replaces the removed messages; - reads it from standard input.")
@click.option("--target", type=click.IntRange(min=1), help="The number of tokens to reduce the session to.")
@click.option("--keep-last", type=click.IntRange(min=0), help="Messages at the end that are not changed.")
@click.option("--protect", type=click.IntRange(min=0), help="Tokens at the end that are not changed.")
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
    """Compact a session: first old tool outputs, then, with a summary, old messages. `rollback` reverts it."""
    policy = _policy(target, keep_last, protect)
    with open_tenant(database, tenant) as handle:
        record = _find(handle, session)
        if plan:
            planned = handle.compactions.plan(record.id, policy)
            _print_plan(planned, as_json)
            return
        text = sys.stdin.read() if summary == "-" else summary
        event = handle.compactions.compact(record.id, policy, summary=text)
    _print_event(event, as_json, "Compacted")


@sessions.command()
@session_option
@click.option("--event", metavar="ID", help="The id of the compaction. Default: the newest.")
@json_option
def rollback(database: str, tenant: str, session: str, event: str | None, as_json: bool) -> None:
    """Roll a compaction back: the original messages return, and messages appended since then stay."""
    with open_tenant(database, tenant) as handle:
        record = _find(handle, session)
        rolled_back = handle.compactions.rollback(event or _newest(handle, record))
    _print_event(rolled_back, as_json, "Rolled back")


@sessions.command()
@tenant_option
@click.option("--query", required=True, help='Words, "a phrase", -excluded, prefix*.')
@click.option("--session", metavar="ID", help="Only in this session: its id or its key.")
@click.option("--user", help="Only in sessions of this user.")
@click.option("--agent", help="Only in sessions of this agent.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of rows.")
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
    """Search the text of messages."""
    with open_tenant(database, tenant) as handle:
        session_id = None if session is None else _find(handle, session).id
        hits = handle.messages.search(query, session_id=session_id, user=user, agent=agent, limit=limit)
    if as_json:
        print_json({"hits": list(hits), "next": hits.next, "complete": hits.complete})
        return
    rows = [[hit.message.session_id, str(hit.message.seq), hit.message.role or "", hit.snippet] for hit in hits]
    print_table(f"Messages with {query}", ["session", "seq", "role", "snippet"], rows)
    if not hits.complete:
        print_line(
            f"{hits.sessions_behind:,} sessions are not indexed yet: run `holdfast sessions index` to index them.",
            err=True,
        )


@sessions.command()
@database_option
@json_option
def index(database: str, as_json: bool) -> None:
    """Index the new messages of all tenants for search. `serve` and `worker` do so in the background."""
    indexed, is_done = 0, False
    with open_existing(database) as hf:
        while not is_done:
            batch = hf.tenants.maintain()
            indexed, is_done = indexed + batch.indexed, batch.is_done
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
@click.option(
    "--idle-days", type=click.FloatRange(0, 1_000_000), help="Remove sessions that were unused for this long."
)
@click.option(
    "--archive-days",
    type=click.FloatRange(0, 1_000_000),
    help="Remove archived originals of compactions and deleted messages that are at least this old.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def prune(
    database: str, tenant: str, idle_days: float | None, archive_days: float | None, yes: bool, as_json: bool
) -> None:
    """Permanently remove old sessions, archives and deleted messages. To resume after an interruption, run it again."""
    if idle_days is None and archive_days is None:
        raise click.UsageError("--idle-days, --archive-days or both are required")
    if not yes:
        click.confirm(f"Permanently remove this data of tenant {one_line(tenant)}?", abort=True, err=True)
    with open_tenant(database, tenant) as handle:
        pruned = handle.sessions.prune(
            idle=None if idle_days is None else timedelta(days=idle_days),
            archives=None if archive_days is None else timedelta(days=archive_days),
        )
    if as_json:
        print_json({"pruned": pruned})
        return
    print_line(
        f"Removed {pruned.sessions:,} sessions, {pruned.originals:,} originals and {pruned.deleted_messages:,} deleted "
        f"messages; kept {pruned.kept:,} old sessions that are on hold or in use."
    )


def _find(handle: TenantHandle, session: str) -> Session:
    """Find a session by id if the text is an id that exists, otherwise by key."""
    try:
        UUID(session)
    except ValueError:
        by_key = handle.sessions.find(session)
        if by_key is None:
            message = f"session {session!r} of tenant {handle.name} does not exist"
            raise NotFound(message, noun="session", key=session) from None
        return by_key
    try:
        return handle.sessions.get(session)
    except NotFound:
        by_key = handle.sessions.find(session)
        if by_key is None:
            raise
        return by_key


def _newest(handle: TenantHandle, session: Session) -> str:
    for event in handle.compactions.history(session.id):
        if event.rolled_back_at is None:
            return event.id
    raise NotFound(f"session {session.key!r} has no compaction to roll back", noun="compaction", key=session.key)


def _policy(target: int | None, keep_last: int | None, protect: int | None) -> CompactionPolicy:
    default = CompactionPolicy()
    return CompactionPolicy(
        target_tokens=default.target_tokens if target is None else target,
        preserve_last=default.preserve_last if keep_last is None else keep_last,
        protected_tokens=default.protected_tokens if protect is None else protect,
    )


def _rows(sessions: Any) -> list[list[str]]:
    return [
        [
            session.key,
            session.user,
            session.agent,
            f"{session.message_count:,}",
            f"{session.token_count:,}",
            session.updated_at.strftime("%Y-%m-%d %H:%M"),
            session.id,
        ]
        for session in sessions
    ]


def _message_row(message: Message) -> list[str]:
    flags = [name for name in ("preserved", "summary") if getattr(message, f"is_{name}")]
    return [
        str(message.seq),
        message.role or message.kind,
        str(message.token_count),
        " ".join(flags),
        preview(message),
    ]


def preview(message: Message) -> str:
    """Return the beginning of a message as one line."""
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


def _print_event(event: CompactionEvent, as_json: bool, action: str) -> None:
    if as_json:
        print_json({"event": event})
        return
    tokens = f"{event.original_tokens:,} tokens, {event.compacted_tokens:,} compacted"
    changed = f"{event.messages_removed} messages removed, {event.messages_rewritten} rewritten"
    print_line(f"{action}: {tokens}; {changed} (event {event.id}).")


def _print_plan(plan: CompactionPlan, as_json: bool) -> None:
    if as_json:
        print_json({"plan": plan})
        return
    removed, rewritten = set(plan.removed), {rewrite.message_id: rewrite for rewrite in plan.rewritten}
    rows = [[str(message.seq), "kept", message.why] for message in plan.protected]
    rows += [[str(m.seq), "removed", preview(m)] for m in plan.to_summarize if m.id in removed]
    rows += [[str(rewrite.seq), "rewritten", f"{rewrite.tokens:,} tokens left"] for rewrite in rewritten.values()]
    rows.sort(key=lambda row: int(row[0]))
    print_table("Planned changes", ["seq", "", ""], rows)
    due = "due" if plan.is_due else "not due yet"
    verdict = f"about {plan.tokens_after:,} afterwards" if plan.shrinks else "no reduction possible"
    summary = "; needs a summary" if plan.needs_summary else ""
    print_line(f"{plan.strategy}, {due}: {plan.tokens_before:,} tokens now, {verdict}{summary}.")
