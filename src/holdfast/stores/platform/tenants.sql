-- name: live_sessions
-- Whether anything hangs on a tenant.
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM contacts WHERE tenant_id = :tenant_id
UNION ALL
SELECT 1 FROM pending_messages WHERE tenant_id = :tenant_id
LIMIT 1;

-- name: purge_messages
-- All that belongs to a tenant: all queries called purge_... are run, in this order.
DELETE FROM messages WHERE tenant_id = :tenant_id;

-- name: purge_feedback
DELETE FROM feedback WHERE tenant_id = :tenant_id;

-- name: purge_branches
DELETE FROM branches WHERE tenant_id = :tenant_id;

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

-- name: purge_sessions
DELETE FROM sessions WHERE tenant_id = :tenant_id;

-- name: purge_pending_groups
-- Before what waits in them, because it waits for whoever is writing there.
DELETE FROM pending_groups WHERE tenant_id = :tenant_id;

-- name: purge_pending_messages
DELETE FROM pending_messages WHERE tenant_id = :tenant_id;

-- name: purge_contacts
DELETE FROM contacts WHERE tenant_id = :tenant_id;
