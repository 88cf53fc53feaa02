-- name: create
INSERT INTO api_keys (id, tenant, name, prefix, key_hash, scopes, created_at, expires_at)
VALUES (:id, :tenant_id, :name, :prefix, :key_hash, :scopes, :now_at, :expires_at)
ON CONFLICT DO NOTHING
RETURNING /*columns ApiKey*/ *;

-- name: by_prefix
-- The keys with this prefix, usually one, with their digests, which are compared outside the database.
SELECT /*columns StoredKey*/ * FROM api_keys WHERE prefix = :prefix;

-- name: get
SELECT /*columns ApiKey*/ * FROM api_keys WHERE id = :id;

-- name: list
SELECT /*columns ApiKey*/ * FROM api_keys
WHERE id > :after
ORDER BY id
LIMIT :limit;

-- name: list_of_tenant
SELECT /*columns ApiKey*/ * FROM api_keys
WHERE tenant = :tenant_id AND id > :after
ORDER BY id
LIMIT :limit;

-- name: revoke
-- Revoking again keeps the first time.
UPDATE api_keys SET revoked_at = COALESCE(revoked_at, :now_at)
WHERE id = :id AND tenant = :tenant_id
RETURNING /*columns ApiKey*/ *;

-- name: touch
UPDATE api_keys SET last_used_at = :now_at WHERE id = :id RETURNING id;

-- name: delete
DELETE FROM api_keys WHERE id = :id AND tenant = :tenant_id RETURNING id;
