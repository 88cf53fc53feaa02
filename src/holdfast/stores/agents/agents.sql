-- name: delete_blocks
-- Delete explicitly: a caller's own SQLite connection may have foreign keys switched off.
DELETE FROM core_blocks WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete_shares
DELETE FROM agent_shares WHERE tenant_id = :tenant_id AND agent_id = :id;
