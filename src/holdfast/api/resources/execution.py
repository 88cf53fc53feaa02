"""Routes of agents: definitions and blocks, runs with their leases, steps and tool calls, checkpoints, flows, memories."""

from __future__ import annotations

from holdfast.types import (
    AsyncAgentMemories,
    AsyncAgents,
    AsyncAgentShares,
    AsyncBlocks,
    AsyncCheckpoints,
    AsyncCrewMemories,
    AsyncFlows,
    AsyncLeases,
    AsyncRunQueue,
    AsyncRuns,
    AsyncSteps,
    AsyncToolCalls,
)

from ..grant_routes import grants
from ..record_routes import records
from ..store_routes import route
from .conversation import S, T

_A = T + "/agents/{agent_id}"
_R = T + "/runs/{run_id}"
_C = _R + "/tool-calls"
_THREAD = T + "/threads/{thread_id}"
_F = T + "/flows/{flow_uuid}"
_M = T + "/memories"
_AM = T + "/agent-memories"

ROUTES = [
    # Agents and their blocks
    *records(T + "/agents", "agents", AsyncAgents, key="agent_id"),
    *grants(T + "/agent-shares", "agent_shares", AsyncAgentShares, area="agents"),
    route("GET", _A + "/access", "agents", AsyncAgents.access, "get_agent_access"),
    route("GET", T + "/agents-by-id", "agents", AsyncAgents.by_ids, "get_agents_by_id", area="agents"),
    route("GET", T + "/agents-by-key", "agents", AsyncAgents.by_keys, "get_agents_by_key", area="agents"),
    route("GET", T + "/default-agent", "agents", AsyncAgents.get_default, "get_default_agent", area="agents"),
    route(
        "GET",
        T + "/accessible-agents",
        "agents",
        AsyncAgents.list_accessible,
        "list_accessible_agents",
        area="agents",
    ),
    route("GET", _A + "/blocks", "blocks", AsyncBlocks.list, "list_blocks"),
    route("PUT", _A + "/blocks", "blocks", AsyncBlocks.save, "save_blocks", leave_out=["expected"]),
    route("GET", _A + "/blocks/{label}", "blocks", AsyncBlocks.get, "get_block"),
    route("PUT", _A + "/blocks/{label}", "blocks", AsyncBlocks.set, "set_block"),
    route("DELETE", _A + "/blocks/{label}", "blocks", AsyncBlocks.delete, "delete_block"),
    route("POST", _A + "/blocks/{label}/append", "blocks", AsyncBlocks.append, "extend_block"),
    # Runs
    route("GET", T + "/runs", "runs", AsyncRuns.list, "list_runs"),
    route("POST", S + "/runs", "runs", AsyncRuns.start, "start_run"),
    route("POST", T + "/runs/claim", "leases", AsyncLeases.claim, "claim_next_run", leave_out=["run_id"]),
    route("POST", "/v1/runs/claim", "run_queue", AsyncRunQueue.claim, "claim_run_of_any_tenant", need="root"),
    route("GET", _R, "runs", AsyncRuns.get, "get_run"),
    route("GET", _R + "/load", "runs", AsyncRuns.load, "load_run"),
    route(
        "POST",
        _R + "/claim",
        "leases",
        AsyncLeases.claim,
        "claim_run",
        leave_out=["agents"],
        summary="Claim this run if it is available.",
    ),
    route("POST", _R + "/renew", "leases", AsyncLeases.renew, "renew_run"),
    route("POST", _R + "/release", "leases", AsyncLeases.release, "release_run"),
    route("POST", _R + "/steps", "runs", AsyncRuns.step, "append_step", notifies="run_id"),
    route("POST", _R + "/pause", "runs", AsyncRuns.pause, "pause_run"),
    route("POST", _R + "/resume", "runs", AsyncRuns.resume, "resume_run"),
    route("POST", _R + "/finish", "runs", AsyncRuns.finish, "finish_run", notifies="run_id"),
    route("POST", _R + "/fail", "runs", AsyncRuns.fail, "fail_run", notifies="run_id"),
    route("POST", _R + "/cancel", "runs", AsyncRuns.cancel, "cancel_run", notifies="run_id"),
    route("DELETE", _R, "runs", AsyncRuns.delete, "delete_run"),
    route("GET", _R + "/steps", "steps", AsyncSteps.list, "list_steps", area="runs"),
    route("GET", _R + "/steps/{iteration}", "steps", AsyncSteps.get, "get_step", area="runs"),
    route("GET", _C, "tool_calls", AsyncToolCalls.list, "list_tool_calls", area="runs"),
    route("POST", _C, "tool_calls", AsyncToolCalls.intend, "append_tool_calls", area="runs"),
    route("GET", _C + "/pending", "tool_calls", AsyncToolCalls.pending, "list_pending_calls", area="runs"),
    route("GET", _C + "/{id}", "tool_calls", AsyncToolCalls.get, "get_tool_call", area="runs"),
    route("POST", _C + "/{id}/allow", "tool_calls", AsyncToolCalls.allow, "allow_tool_call", area="runs"),
    route("POST", _C + "/{id}/cancel", "tool_calls", AsyncToolCalls.cancel, "cancel_tool_call", area="runs"),
    route("POST", _C + "/{id}/discard", "tool_calls", AsyncToolCalls.discard, "discard_tool_call", area="runs"),
    route("POST", _C + "/{id}/snooze", "tool_calls", AsyncToolCalls.snooze, "snooze_tool_call", area="runs"),
    # Checkpoints: bytes are encoded as base64, and a lease as a run's id and an epoch
    route("GET", T + "/checkpoints", "checkpoints", AsyncCheckpoints.list, "list_checkpoints"),
    route("GET", _THREAD + "/checkpoints", "checkpoints", AsyncCheckpoints.history, "list_thread_history"),
    route(
        "GET",
        _THREAD + "/checkpoints/latest",
        "checkpoints",
        AsyncCheckpoints.find,
        "find_checkpoint",
        leave_out=["cached"],
    ),
    route("DELETE", _THREAD, "checkpoints", AsyncCheckpoints.delete, "delete_thread", area="checkpoints"),
    route("POST", T + "/checkpoints/prune", "checkpoints", AsyncCheckpoints.prune, "prune_checkpoints"),
    route("PUT", _THREAD + "/checkpoints/{id}", "checkpoints", AsyncCheckpoints.put, "put_checkpoint"),
    route(
        "POST",
        _THREAD + "/checkpoints/{id}/writes",
        "checkpoints",
        AsyncCheckpoints.put_writes,
        "append_checkpoint_writes",
    ),
    route("POST", T + "/checkpoints/copy", "checkpoints", AsyncCheckpoints.copy, "copy_thread"),
    route("POST", T + "/checkpoints/delete-runs", "checkpoints", AsyncCheckpoints.delete_runs, "delete_checkpoints"),
    route(
        "GET",
        T + "/checkpoints/verify",
        "checkpoints",
        AsyncCheckpoints.verify,
        "verify_checkpoints",
        need="admin",
    ),
    # Flows
    route("GET", T + "/flows", "flows", AsyncFlows.list, "list_flows"),
    route("GET", _F, "flows", AsyncFlows.find, "find_flow"),
    route("PUT", _F, "flows", AsyncFlows.save, "save_flow"),
    route("DELETE", _F, "flows", AsyncFlows.delete, "delete_flow"),
    route("GET", _F + "/history", "flows", AsyncFlows.history, "list_flow_history"),
    route("GET", _F + "/pending", "flows", AsyncFlows.pending, "find_pending_feedback"),
    route("DELETE", _F + "/pending", "flows", AsyncFlows.clear_pending, "clear_pending_feedback"),
    # Memories of crews
    route("GET", _M, "crew_memories", AsyncCrewMemories.list, "list_memories"),
    route("POST", _M, "crew_memories", AsyncCrewMemories.save, "append_memories"),
    route("DELETE", _M, "crew_memories", AsyncCrewMemories.delete, "delete_memories"),
    route("POST", _M + "/search", "crew_memories", AsyncCrewMemories.search, "search_memories", need="read"),
    route("GET", _M + "/scopes", "crew_memories", AsyncCrewMemories.scopes, "list_memory_scopes"),
    route("GET", _M + "/categories", "crew_memories", AsyncCrewMemories.categories, "count_memory_categories"),
    route("GET", _M + "/dimensions", "crew_memories", AsyncCrewMemories.dimensions, "count_memory_dimensions"),
    route("POST", _M + "/touch", "crew_memories", AsyncCrewMemories.touch, "touch_memories"),
    route("GET", _M + "/{id}", "crew_memories", AsyncCrewMemories.find, "find_memory"),
    # Memories of agents about users; a search updates their last use, so it requires `write`
    route("GET", _AM, "agent_memories", AsyncAgentMemories.list, "list_agent_memories", area="memories"),
    route("POST", _AM, "agent_memories", AsyncAgentMemories.add, "append_agent_memories", area="memories"),
    route("DELETE", _AM, "agent_memories", AsyncAgentMemories.delete, "delete_agent_memories", area="memories"),
    route(
        "POST", _AM + "/search", "agent_memories", AsyncAgentMemories.search, "search_agent_memories", area="memories"
    ),
    route(
        "POST",
        _AM + "/prune",
        "agent_memories",
        AsyncAgentMemories.prune,
        "prune_agent_memories",
        area="memories",
        need="admin",
    ),
]
