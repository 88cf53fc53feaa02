-- name: get
SELECT value FROM config_secrets WHERE tenant_id = :tenant_id AND key = :key;

-- name: set
INSERT INTO config_secrets (tenant_id, key, value, created_at, updated_at)
VALUES (:tenant_id, :key, :value, :now_at, :now_at)
ON CONFLICT (tenant_id, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;

-- name: delete
DELETE FROM config_secrets WHERE tenant_id = :tenant_id AND key = :key RETURNING 1;

-- name: list
SELECT key FROM config_secrets WHERE tenant_id = :tenant_id AND key > :after ORDER BY key LIMIT :limit;
