"""The contract of runs detects defects: each of these, introduced into a store, breaks at least one promise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from holdfast.core.queries import Query
from holdfast.limits import Limits
from holdfast.stores.agents import agents, blocks
from holdfast.stores.execution.runs import leases, ledger, runs, step_log, tool_calls
from holdfast.stores.execution.runs import states as run_states
from tests.contract.cases import can, cases, play
from tests.contract.legs import MEMORY_LACKS, MemoryPlace, OwnLeg

LEG = OwnLeg("sqlite memory sync", MemoryPlace(), asynchronous=False, missing=MEMORY_LACKS)
RUNS, QUEUE, STEPS, CALLS = run_states.queries, run_states.queue, step_log.queries, ledger.queries
AGENTS = agents.AsyncAgents.queries


def query(queries: Any, name: str, old: str, new: str) -> AbstractContextManager[Any]:
    """Patch a query."""
    result = queries.by_name[name]
    changed = {dialect: text.replace(old, new) for dialect, text in result.texts.items()}
    assert changed != result.texts, f"{name} does not contain {old!r}"
    return mock.patch.multiple(result, **vars(Query(name, changed)))


def without_limit(name: str) -> AbstractContextManager[Any]:
    """Patch a limit so that it is never checked."""
    real = Limits.check

    def check(self: Limits, limit: str, value: int, what: str) -> None:
        if limit != name:
            real(self, limit, value, what)

    return mock.patch.object(Limits, "check", check)


async def nothing(*args: Any, **kwargs: Any) -> None:
    return None


async def no_calls(*args: Any, **kwargs: Any) -> Any:
    return None, []


def believing(run: Any, *, is_visible: bool, now_us: int) -> Any:
    """Patch a claim so that it trusts its clock."""
    if run.status == "running" and run.lease_until is not None:
        until = int(run.lease_until.timestamp() * 1_000_000)
        return ("take", 0) if until <= now_us else ("later", until)
    return REAL_JUDGE(run, is_visible=is_visible, now_us=now_us)


REAL_JUDGE = leases.judge
SEEN = "(s.deleted_at IS NULL) IS TRUE"
DEFECTS: dict[str, tuple[str, AbstractContextManager[Any]]] = {
    # Fencing
    "a step of any epoch": ("leases", query(STEPS, "advance_run", "epoch = :epoch AND iteration", "iteration")),
    "an intent of any epoch": ("leases", query(CALLS, "hold_run", "AND epoch = :epoch", "")),
    "a holder that is not asked": ("leases", mock.patch.multiple(tool_calls, check_holder=lambda run, epoch: None)),
    "an end by anybody": ("run_endings", mock.patch.multiple(runs, check_holder=lambda run, epoch: None)),
    "an epoch that does not rise": ("leases", mock.patch.object(run_states, "_FENCING", frozenset())),
    "a cancellation that leaves the holder alone": (
        "run_endings",
        mock.patch.object(run_states, "_FENCING", frozenset({"claim", "give_up"})),
    ),
    # Steps
    "a step that may come at any place": ("runs", query(STEPS, "advance_run", "AND iteration = :iteration - 1", "")),
    "a step that forgets its messages": ("runs", mock.patch.object(step_log, "append_at", nothing)),
    "a step that forgets its calls": ("runs", query(CALLS, "settle_call", "AND id = :id", "AND FALSE")),
    "usage that is not added up": ("runs", query(STEPS, "advance_run", "input_tokens + :input_tokens", ":input_tokens")),
    "any step is the same step": ("runs", mock.patch.object(step_log, "_fingerprint", return_value="same")),
    "a step of a deleted session": ("run_endings", query(STEPS, "advance_run", SEEN, "TRUE")),
    "a call that was never intended": ("runs", query(STEPS, "advance_run", ":calls = 0 OR", "TRUE OR")),
    "state of any size": ("runs", without_limit("state_bytes")),
    # Claims
    "a clock that is believed": ("leases", mock.patch.object(leases, "judge", believing)),
    "a doubt that is never noted": ("leases", query(RUNS, "doubt", "status = 'running'", "FALSE")),
    "a renewal that leaves the doubt": ("leases", query(RUNS, "renew", ", doubted_at = NULL", "")),
    "a step that leaves the doubt": ("leases", query(STEPS, "advance_run", "doubted_at = NULL", "doubted_at = doubted_at")),
    "an intent that renews nothing": (
        "leases",
        query(CALLS, "hold_run", "lease_until = :now_at + lease_ms * 1000", "lease_until = lease_until"),
    ),
    "the newest first": ("leases", query(QUEUE, "peek", "ORDER BY due_at, run_id LIMIT", "ORDER BY due_at DESC LIMIT")),
    "ready only by the clock": ("leases", query(QUEUE, "peek", "kind = 'ready'", "kind = 'ready' AND due_at <= :now_at")),
    "leases of tomorrow are believed": ("leases", query(QUEUE, "peek", "due_at > :horizon_at", "FALSE")),
    "pauses that never end": ("run_endings", query(QUEUE, "peek", "kind = 'paused'", "FALSE")),
    "runs of any tenant": ("leases", mock.patch.object(leases, "_queue_filters", return_value=[("", "run_queue_by_turn", {})])),
    "attempts that are not counted": ("leases", query(RUNS, "move", "attempts = :attempts", "attempts = 0")),
    "attempts that a step does not forgive": ("leases", query(STEPS, "advance_run", "attempts = 0,", "")),
    "a queue that keeps what has ended": ("run_endings", mock.patch.object(run_states, "update_queue", nothing)),
    # Ends and nesting
    "an end with calls that are open": ("tool_calls", mock.patch.object(runs, "open_calls", no_calls)),
    "a cancelled run whose calls go on": ("tool_calls", query(CALLS, "cancel_open", "step IS NULL", "FALSE")),
    "children that live on": ("run_endings", query(RUNS, "children", "parent_run_id = :run_id", "FALSE")),
    "a call that starts two runs": ("run_endings", query(RUNS, "of_call", "parent_call_id = :parent_call_id", "FALSE")),
    "any depth": ("run_endings", without_limit("run_depth")),
    "runs of deleted sessions are seen": ("run_endings", query(RUNS, "get", SEEN, "TRUE")),
    # The ledger
    "a call that has begun is begun again": ("tool_calls", mock.patch.object(tool_calls, "must_begin", return_value=True)),
    "nothing is ever begun again": ("tool_calls", mock.patch.object(tool_calls, "must_begin", return_value=False)),
    "advice that is always the same": ("tool_calls", mock.patch.object(tool_calls, "action_of", return_value="run")),
    "what a person decided is forgotten": ("tool_calls", query(CALLS, "settle_call", "AND finished_at IS NULL", "")),
    "what a person decided is never taken in": ("tool_calls", query(CALLS, "take_in_calls", "step IS NULL", "FALSE")),
    "a snooze that costs an attempt": ("tool_calls", query(CALLS, "change", "attempts - :fewer_attempts", "attempts")),
    "a call that is allowed against its kind": ("tool_calls", mock.patch.object(tool_calls, "_check_may_repeat")),
    "calls without end": ("tool_calls", query(CALLS, "hold_run", "<= :most", "<= 1000 + :most")),
    # Agents and blocks
    "a version that is not compared": ("records", mock.patch.object(agents.AsyncAgents, "_check_version")),
    "a version that does not rise": ("records", query(AGENTS, "update", "version = version + 1", "version = version")),
    "tags that stay": ("records", query(AGENTS, "delete_tags", "agent_id = :id", "FALSE")),
    "agents without order": ("records", query(AGENTS, "list", "ORDER BY id", "ORDER BY id DESC")),
    "shares of any user": ("agents", query(agents.queries, "access", "AND s.user_id = :user_id", "")),
    "access to deleted agents": ("agents", query(agents.queries, "access", " AND a.deleted_at IS NULL", "")),
    "shares of deleted agents": ("agents", query(agents.queries, "accessible", "AND a.deleted_at IS NULL", "")),
    "an owner that is not listed": ("agents", query(agents.queries, "accessible", "owner_id = :user_id", "FALSE")),
    "the newest agent as default": ("agents", query(agents.queries, "oldest", "created_at, id", "created_at DESC")),
    "a page that starts over": ("agents", query(agents.queries, "accessible", "id > :after_id", "TRUE")),
    "blocks of deleted agents": ("agents", query(blocks.queries, "list", "a.deleted_at IS NULL", "TRUE")),
    "blocks in any order": ("blocks", query(blocks.queries, "list", "ORDER BY place, label", "ORDER BY label DESC")),
    "blocks that outgrow their size": ("blocks", mock.patch.object(blocks.text, "size", return_value=0)),
    "blocks that outlive a save": ("blocks", query(blocks.queries, "delete", "label = :label", "FALSE")),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_contract_detects(defect: str) -> None:
    module, planted = DEFECTS[defect]
    mine = [case for case in cases() if case.name.startswith(f"{module}.") and can(LEG, case)]
    assert mine
    with planted:
        for case in mine:
            try:
                play(case, LEG)
            except Exception:
                return
    pytest.fail(f"no case detected {defect}")
