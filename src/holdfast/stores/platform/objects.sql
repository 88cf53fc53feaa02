-- name: register_tenant
INSERT INTO tenants (id, created_at, updated_at) VALUES (:tenant_id, :now_at, :now_at)
ON CONFLICT (id) DO NOTHING;

-- name: put
-- A body, once. One that nobody held any longer is held again: this takes the row, so that a removal at the same time either
-- comes before, and then the body is stored anew, or sees that it is held.
INSERT INTO objects (tenant_id, digest, codec, size_bytes, body, created_at)
VALUES (:tenant_id, :digest, :codec, :size_bytes, :body, :now_at)
ON CONFLICT (tenant_id, digest) DO UPDATE SET condemned_at = NULL;

-- name: hold
INSERT INTO object_refs (tenant_id, digest, holder) VALUES (:tenant_id, :digest, :holder)
ON CONFLICT (tenant_id, digest, holder) DO NOTHING;

-- name: get
SELECT codec, body FROM objects WHERE tenant_id = :tenant_id AND digest = :digest;

-- name: has
SELECT 1 FROM objects WHERE tenant_id = :tenant_id AND digest = :digest;

-- name: release
-- One body that a holder lets go of.
DELETE FROM object_refs WHERE tenant_id = :tenant_id AND digest = :digest AND holder = :holder
RETURNING digest;

-- name: release_all
-- Everything a holder held.
DELETE FROM object_refs WHERE tenant_id = :tenant_id AND holder = :holder
RETURNING digest;

-- name: condemn
-- What nobody holds is removed by and by, unless somebody holds it again.
UPDATE objects SET condemned_at = :now_at
WHERE tenant_id = :tenant_id AND condemned_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING digest;

-- name: remove
-- What nobody has held for long enough, and nobody holds now.
DELETE FROM objects
WHERE tenant_id = :tenant_id AND condemned_at IS NOT NULL AND condemned_at <= :before_at
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING size_bytes;

-- name: page
-- Bodies in the order of their digests, to look at all of them.
SELECT digest, codec, body FROM objects
WHERE tenant_id = :tenant_id AND digest > :after
ORDER BY digest
LIMIT :limit;

-- name: holders
SELECT holder FROM object_refs WHERE tenant_id = :tenant_id AND digest = :digest
ORDER BY holder
LIMIT :limit;

-- name: usage
SELECT COUNT(*), COALESCE(SUM(size_bytes), 0), COALESCE(SUM(length(body)), 0),
       COUNT(condemned_at)
FROM objects WHERE tenant_id = :tenant_id;
