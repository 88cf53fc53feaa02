-- name: is_deleted
-- Whether a tenant is being deleted.
SELECT 1 FROM tenants WHERE id = :tenant_id AND deleted_at IS NOT NULL;

-- name: next_deleted
-- Any tenant that is being deleted.
SELECT id FROM tenants WHERE deleted_at IS NOT NULL ORDER BY id LIMIT 1;

-- name: next_behind @sqlite
-- The next tenant with messages not yet indexed. SQLite would not choose this index by itself.
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
-- The first step of a deletion: from now on these sessions can be neither read nor appended to.
UPDATE sessions SET deleted_at = :now_at
WHERE tenant_id = :tenant_id AND deleted_at IS NULL
  AND id IN (SELECT s.id FROM sessions AS s WHERE s.tenant_id = :tenant_id AND s.deleted_at IS NULL LIMIT :limit)
RETURNING 1;

-- name: remove
DELETE FROM tenants WHERE id = :tenant_id AND deleted_at IS NOT NULL RETURNING 1;

-- name: purge_api_keys
-- Part of the first transaction of a deletion: from now on neither an API key nor a worker reaches the tenant.
DELETE FROM api_keys WHERE tenant = :tenant_id;

-- name: purge_run_queue
DELETE FROM run_queue WHERE tenant = :tenant_id;
