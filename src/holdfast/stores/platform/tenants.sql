-- name: live_sessions
-- Whether anything hangs on a tenant.
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id LIMIT 1;

-- name: purge_messages
DELETE FROM messages WHERE tenant_id = :tenant_id;

-- name: purge_sessions
DELETE FROM sessions WHERE tenant_id = :tenant_id;
