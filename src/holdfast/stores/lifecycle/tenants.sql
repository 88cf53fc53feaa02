-- name: is_deleted
-- Whether a tenant is being deleted.
SELECT 1 FROM tenants WHERE id = :tenant_id AND deleted_at IS NOT NULL;

-- name: next_deleted
-- A tenant that is being deleted.
SELECT id FROM tenants WHERE deleted_at IS NOT NULL ORDER BY id LIMIT 1;

-- name: next_behind @sqlite
-- The next tenant with messages that are not indexed yet. SQLite would not choose this index by itself.
SELECT tenant_id FROM sessions INDEXED BY sessions_search_behind
WHERE search_behind AND deleted_at IS NULL AND tenant_id > :after
ORDER BY tenant_id
LIMIT 1;

-- name: next_behind @postgres
SELECT tenant_id FROM sessions
WHERE search_behind AND deleted_at IS NULL AND tenant_id > :after
ORDER BY tenant_id
LIMIT 1;

-- name: hide_sessions
-- The first thing that is done to a deleted tenant: nobody reads these sessions or appends to them any more.
UPDATE sessions SET deleted_at = :now_at
WHERE tenant_id = :tenant_id AND deleted_at IS NULL
  AND id IN (SELECT s.id FROM sessions AS s WHERE s.tenant_id = :tenant_id AND s.deleted_at IS NULL LIMIT :limit)
RETURNING 1;

-- name: remove
DELETE FROM tenants WHERE id = :tenant_id AND deleted_at IS NOT NULL RETURNING 1;

-- name: anything
-- Whether anything hangs on a tenant that somebody may miss. The rest, such as its keys and its log, goes with it.
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM contacts WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM agents WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM pending_messages WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM runs WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM lg_thread WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM crewai_flow WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM crewai_agent_memory WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM agent_memories WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM objects WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM snapshots WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM a2a_tasks WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM a2a_push_configs WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM tool_servers WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM remarks WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM retention_holds WHERE tenant_id = :tenant_id
LIMIT 1;

-- name: purge_messages
-- All that belongs to a tenant: all queries called purge_... are run, in this order.
DELETE FROM messages WHERE tenant_id = :tenant_id;

-- name: purge_feedback
DELETE FROM feedback WHERE tenant_id = :tenant_id;

-- name: purge_branches
DELETE FROM branches WHERE tenant_id = :tenant_id;

-- name: purge_deleted_messages
DELETE FROM deleted_messages WHERE tenant_id = :tenant_id;

-- name: purge_message_archive
DELETE FROM message_archive WHERE tenant_id = :tenant_id;

-- name: purge_compaction_events
DELETE FROM compaction_events WHERE tenant_id = :tenant_id;

-- name: purge_compaction_policies
DELETE FROM compaction_policies WHERE tenant_id = :tenant_id;

-- name: purge_session_state
DELETE FROM session_state WHERE tenant_id = :tenant_id;

-- name: purge_search_progress
DELETE FROM search_progress WHERE tenant_id = :tenant_id;

-- name: purge_api_keys
DELETE FROM api_keys WHERE tenant = :tenant_id;

-- name: purge_run_queue
DELETE FROM run_queue WHERE tenant = :tenant_id;

-- name: purge_tool_calls
DELETE FROM tool_calls WHERE tenant_id = :tenant_id;

-- name: purge_run_steps
DELETE FROM run_steps WHERE tenant_id = :tenant_id;

-- name: purge_runs
DELETE FROM runs WHERE tenant_id = :tenant_id;

-- name: purge_core_blocks
DELETE FROM core_blocks WHERE tenant_id = :tenant_id;

-- name: purge_agent_tags
DELETE FROM agent_tags WHERE tenant_id = :tenant_id;

-- name: purge_agents
DELETE FROM agents WHERE tenant_id = :tenant_id;

-- name: purge_sessions
DELETE FROM sessions WHERE tenant_id = :tenant_id;

-- name: purge_pending_groups
-- Before what waits in them, because it waits for whoever is writing there.
DELETE FROM pending_groups WHERE tenant_id = :tenant_id;

-- name: purge_pending_messages
DELETE FROM pending_messages WHERE tenant_id = :tenant_id;

-- name: purge_contacts
DELETE FROM contacts WHERE tenant_id = :tenant_id;

-- name: purge_lg_thread
-- Before what is in it, because it waits for whoever is saving a checkpoint.
DELETE FROM lg_thread WHERE tenant_id = :tenant_id;

-- name: purge_lg_log
DELETE FROM lg_log WHERE tenant_id = :tenant_id;

-- name: purge_lg_checkpoint_write
DELETE FROM lg_checkpoint_write WHERE tenant_id = :tenant_id;

-- name: purge_lg_checkpoint
DELETE FROM lg_checkpoint WHERE tenant_id = :tenant_id;

-- name: purge_lg_piece
DELETE FROM lg_piece WHERE tenant_id = :tenant_id;

-- name: purge_object_packs
-- Before the objects in them, because it waits for whoever is sealing one. What no note speaks of is removed from where packs
-- are kept, by whoever looks there next.
DELETE FROM object_packs WHERE tenant_id = :tenant_id;

-- name: purge_object_totals
-- Before the objects and what needs them, because it waits for whoever has stored one.
DELETE FROM object_totals WHERE tenant_id = :tenant_id;

-- name: purge_objects
-- Before the references, because it waits for whoever takes hold of one.
DELETE FROM objects WHERE tenant_id = :tenant_id;

-- name: purge_object_refs
DELETE FROM object_refs WHERE tenant_id = :tenant_id;

-- name: purge_snapshots
DELETE FROM snapshots WHERE tenant_id = :tenant_id;

-- name: purge_snapshot_layers
DELETE FROM snapshot_layers WHERE tenant_id = :tenant_id;

-- name: purge_crewai_flow
-- Before its states, because it waits for whoever is saving one.
DELETE FROM crewai_flow WHERE tenant_id = :tenant_id;

-- name: purge_crewai_flow_state
DELETE FROM crewai_flow_state WHERE tenant_id = :tenant_id;

-- name: purge_crewai_agent_memory
DELETE FROM crewai_agent_memory WHERE tenant_id = :tenant_id;

-- name: purge_retention_policies
DELETE FROM retention_policies WHERE tenant_id = :tenant_id;

-- name: purge_run_retention
DELETE FROM run_retention WHERE tenant_id = :tenant_id;

-- name: purge_retention_holds
DELETE FROM retention_holds WHERE tenant_id = :tenant_id;

-- name: purge_retention_sweeps
DELETE FROM retention_sweeps WHERE tenant_id = :tenant_id;

-- name: purge_activity
DELETE FROM activity WHERE tenant_id = :tenant_id;

-- name: purge_a2a_task_items
DELETE FROM a2a_task_items WHERE tenant_id = :tenant_id;

-- name: purge_a2a_tasks
DELETE FROM a2a_tasks WHERE tenant_id = :tenant_id;

-- name: purge_a2a_push_configs
DELETE FROM a2a_push_configs WHERE tenant_id = :tenant_id;

-- name: purge_session_share_uses
DELETE FROM session_share_uses WHERE tenant_id = :tenant_id;

-- name: purge_session_shares
DELETE FROM session_shares WHERE tenant_id = :tenant_id;

-- name: purge_tools
DELETE FROM tools WHERE tenant_id = :tenant_id;

-- name: purge_tool_servers
DELETE FROM tool_servers WHERE tenant_id = :tenant_id;

-- name: purge_agent_memories
DELETE FROM agent_memories WHERE tenant_id = :tenant_id;

-- name: purge_remarks
DELETE FROM remarks WHERE tenant_id = :tenant_id;
