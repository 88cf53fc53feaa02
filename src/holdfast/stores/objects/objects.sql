-- name: revive
-- Takes over an existing body, condemned or not, and locks its row: a concurrent removal either comes first, and then the body
-- is stored again, or sees that the body has a holder.
UPDATE objects SET condemned_at = NULL WHERE tenant_id = :tenant_id AND digest = :digest
RETURNING 1;

-- name: put
-- Inserts a body that does not exist yet, in the database or in a pack.
INSERT INTO objects (tenant_id, digest, codec, size_bytes, stored_bytes, body, pack, pack_start, created_at)
VALUES (:tenant_id, :digest, :codec, :size_bytes, :stored_bytes, :body, :pack, :pack_start, :now_at)
ON CONFLICT (tenant_id, digest) DO NOTHING
RETURNING 1;

-- name: count
-- Adds to the tenant's totals, which are maintained with every insert and removal.
INSERT INTO object_totals (tenant_id, count, size_bytes, stored_bytes)
VALUES (:tenant_id, :count, :size_bytes, :stored_bytes)
ON CONFLICT (tenant_id) DO UPDATE SET
    count = object_totals.count + excluded.count,
    size_bytes = object_totals.size_bytes + excluded.size_bytes,
    stored_bytes = object_totals.stored_bytes + excluded.stored_bytes
RETURNING stored_bytes;

-- name: hold
INSERT INTO object_refs (tenant_id, digest, holder) VALUES (:tenant_id, :digest, :holder)
ON CONFLICT (tenant_id, digest, holder) DO NOTHING;

-- name: get
SELECT digest, codec, body, pack/*pg ::text*/, pack_start, stored_bytes FROM objects
WHERE tenant_id = :tenant_id AND digest = :digest;

-- name: has
SELECT 1 FROM objects WHERE tenant_id = :tenant_id AND digest = :digest;

-- name: release
-- Releases one body of a holder.
DELETE FROM object_refs WHERE tenant_id = :tenant_id AND digest = :digest AND holder = :holder
RETURNING digest;

-- name: release_all
-- Releases all bodies of a holder.
DELETE FROM object_refs WHERE tenant_id = :tenant_id AND holder = :holder
RETURNING digest;

-- name: reprieve
-- Clears the mark of bodies that got a holder while they were being condemned.
UPDATE objects SET condemned_at = NULL
WHERE tenant_id = :tenant_id AND digest > :after AND digest <= :until AND condemned_at IS NOT NULL
  AND EXISTS (SELECT 1 FROM object_refs AS r
              WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest);

-- name: condemn
-- Condemns bodies without holders: a later prune removes them, unless they get a holder again.
UPDATE objects SET condemned_at = :now_at
WHERE tenant_id = :tenant_id AND digest > :after AND digest <= :until AND condemned_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING digest;

-- name: remove
-- Removes bodies that were condemned long enough ago and still have no holder.
DELETE FROM objects
WHERE tenant_id = :tenant_id AND digest > :after AND digest <= :until AND condemned_at IS NOT NULL AND condemned_at <= :before_at
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING size_bytes, stored_bytes;

-- name: lock
-- Locks a body before its removal: waits for writers that are about to hold it; later writers do not find it.
SELECT 1 FROM objects WHERE tenant_id = :tenant_id AND digest = :digest
/*pg FOR UPDATE*/;

-- name: remove_locked
-- Removes a locked body, unless it has a holder. An earlier statement must have locked it, and so waited for holders.
DELETE FROM objects
WHERE tenant_id = :tenant_id AND digest = :digest
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING size_bytes, stored_bytes, pack/*pg ::text*/;

-- name: page_end
-- The last digest of a page of objects.
SELECT digest FROM objects WHERE tenant_id = :tenant_id AND digest > :after
ORDER BY digest
LIMIT 1 OFFSET :most;

-- name: page
-- Bodies in the order of their digests, to verify them.
SELECT digest, codec, body, pack/*pg ::text*/, pack_start, stored_bytes, size_bytes FROM objects
WHERE tenant_id = :tenant_id AND digest > :after
ORDER BY digest
LIMIT :limit;

-- name: holders
SELECT holder FROM object_refs WHERE tenant_id = :tenant_id AND digest = :digest
ORDER BY holder
LIMIT :limit;

-- name: usage
SELECT t.count, t.size_bytes, t.stored_bytes,
       (SELECT COUNT(*) FROM objects AS o WHERE o.tenant_id = :tenant_id AND o.condemned_at IS NOT NULL),
       (SELECT COUNT(*) FROM object_packs AS p WHERE p.tenant_id = :tenant_id)
FROM object_totals AS t WHERE t.tenant_id = :tenant_id;
