-- name: create
INSERT INTO tenants (id, metadata, created_at, updated_at) VALUES (:tenant_id, :metadata, :now_at, :now_at)
ON CONFLICT DO NOTHING
RETURNING /*columns Tenant*/ *;

-- name: get
SELECT /*columns Tenant*/ * FROM tenants WHERE id = :tenant_id AND deleted_at IS NULL;

-- name: list
SELECT /*columns Tenant*/ * FROM tenants WHERE id > :after AND deleted_at IS NULL
ORDER BY id
LIMIT :limit;

-- name: update
UPDATE tenants SET metadata = :metadata, updated_at = :now_at WHERE id = :tenant_id AND deleted_at IS NULL
RETURNING /*columns Tenant*/ *;

-- name: set_quota
UPDATE tenants SET checkpoint_quota_mib = :checkpoint_quota_mib, updated_at = :now_at
WHERE id = :tenant_id AND deleted_at IS NULL
RETURNING /*columns Tenant*/ *;

-- name: delete
UPDATE tenants SET deleted_at = :now_at WHERE id = :tenant_id AND deleted_at IS NULL
RETURNING 1;
