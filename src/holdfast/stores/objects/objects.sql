-- name: revive
-- A body that is here. One that nobody held any longer is held again: this takes the row, so that a removal at the same time
-- either comes before, and then the body is stored anew, or sees that it is held.
UPDATE objects SET condemned_at = NULL WHERE tenant_id = :tenant_id AND digest = :digest
RETURNING 1;

-- name: put
-- A body that is not here, in the database or in a pack.
INSERT INTO objects (tenant_id, digest, codec, size_bytes, stored_bytes, body, pack, pack_start, created_at)
VALUES (:tenant_id, :digest, :codec, :size_bytes, :stored_bytes, :body, :pack, :pack_start, :now_at)
ON CONFLICT (tenant_id, digest) DO NOTHING
RETURNING 1;

-- name: count
-- What a tenant's objects amount to, counted as they come and go.
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
-- One body that a holder lets go of.
DELETE FROM object_refs WHERE tenant_id = :tenant_id AND digest = :digest AND holder = :holder
RETURNING digest;

-- name: release_all
-- Everything a holder held.
DELETE FROM object_refs WHERE tenant_id = :tenant_id AND holder = :holder
RETURNING digest;

-- name: reprieve
-- What was held again while it was being condemned.
UPDATE objects SET condemned_at = NULL
WHERE tenant_id = :tenant_id AND digest > :after AND digest <= :until AND condemned_at IS NOT NULL
  AND EXISTS (SELECT 1 FROM object_refs AS r
              WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest);

-- name: condemn
-- What nobody holds is removed by and by, unless somebody holds it again.
UPDATE objects SET condemned_at = :now_at
WHERE tenant_id = :tenant_id AND digest > :after AND digest <= :until AND condemned_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING digest;

-- name: remove
-- What nobody has held for long enough, and nobody holds now.
DELETE FROM objects
WHERE tenant_id = :tenant_id AND digest > :after AND digest <= :until AND condemned_at IS NOT NULL AND condemned_at <= :before_at
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING size_bytes, stored_bytes;

-- name: lock
-- A body that may be removed: whoever is about to hold it is waited for, and whoever comes later finds it gone.
SELECT 1 FROM objects WHERE tenant_id = :tenant_id AND digest = :digest
/*pg FOR UPDATE*/;

-- name: remove_locked
-- One that is locked, unless somebody holds it. It must be locked by an earlier statement, which has waited for holders.
DELETE FROM objects
WHERE tenant_id = :tenant_id AND digest = :digest
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r
                  WHERE r.tenant_id = :tenant_id AND r.tenant_id = objects.tenant_id AND r.digest = objects.digest)
RETURNING size_bytes, stored_bytes, pack/*pg ::text*/;

-- name: page_end
-- Where a page of objects ends, in the order of their digests.
SELECT digest FROM objects WHERE tenant_id = :tenant_id AND digest > :after
ORDER BY digest
LIMIT 1 OFFSET :most;

-- name: page
-- Bodies in the order of their digests, to look at all of them.
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
