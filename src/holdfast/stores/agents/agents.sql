-- All queries with the prefix delete_ are run when an agent is deleted: explicitly, because a caller's own SQLite connection may
-- have foreign keys switched off.

-- name: delete_blocks
DELETE FROM core_blocks WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete_context_files
DELETE FROM context_files WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete_profiles
DELETE FROM agent_profiles WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete_overrides
DELETE FROM agent_overrides WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete_shares
DELETE FROM agent_shares WHERE tenant_id = :tenant_id AND agent_id = :id;
