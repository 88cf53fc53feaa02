-- name: note
-- A pack that is about to be written.
INSERT INTO object_packs (tenant_id, id, size_bytes, is_sealed, created_at)
VALUES (:tenant_id, :pack, :size_bytes, FALSE, :now_at);

-- name: seal
-- A pack that objects lie in from now on. This takes the row: whoever wants to condemn it either was first, and then there
-- is nothing to seal, or sees that objects lie in it.
UPDATE object_packs SET is_sealed = TRUE
WHERE tenant_id = :tenant_id AND id = :pack AND condemned_at IS NULL
RETURNING 1;

-- name: has
SELECT 1 FROM objects WHERE tenant_id = :tenant_id AND digest = :digest;

-- name: lock_empty
-- Those that may be condemned, held first: whoever is sealing one is waited for.
SELECT id/*pg ::text*/ FROM object_packs
WHERE tenant_id = :tenant_id AND condemned_at IS NULL AND (is_sealed OR created_at <= :before_at)
  AND NOT EXISTS (SELECT 1 FROM objects AS o
                  WHERE o.tenant_id = :tenant_id AND o.tenant_id = object_packs.tenant_id AND o.pack = object_packs.id)
/*pg FOR UPDATE*/;

-- name: condemn
-- One that is held, if still nothing lies in it: what its last holder put there is seen by now. One that is not held must not
-- be asked for here: it may be sealed at this moment, by a transaction whose objects are not seen yet.
UPDATE object_packs SET condemned_at = :now_at
WHERE tenant_id = :tenant_id AND id = :pack AND condemned_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM objects AS o
                  WHERE o.tenant_id = :tenant_id AND o.tenant_id = object_packs.tenant_id AND o.pack = object_packs.id);

-- name: lock
-- A sealed pack from which objects were removed.
SELECT size_bytes FROM object_packs
WHERE tenant_id = :tenant_id AND id = :pack AND is_sealed AND condemned_at IS NULL
/*pg FOR UPDATE*/;

-- name: used_bytes
-- What is still used of a pack.
SELECT COALESCE(SUM(stored_bytes), 0)/*pg ::bigint*/ FROM objects WHERE tenant_id = :tenant_id AND pack = :pack;

-- name: noted
SELECT id/*pg ::text*/, condemned_at IS NOT NULL FROM object_packs WHERE tenant_id = :tenant_id;

-- name: forget
-- A pack whose file is gone.
DELETE FROM object_packs WHERE tenant_id = :tenant_id AND id = :pack AND condemned_at IS NOT NULL;

-- name: sparse
-- Packs of which less than half is still used.
SELECT p.id/*pg ::text*/ FROM object_packs AS p
JOIN objects AS o ON o.tenant_id = p.tenant_id AND o.pack = p.id
WHERE p.tenant_id = :tenant_id AND o.tenant_id = :tenant_id AND p.is_sealed
GROUP BY p.id, p.size_bytes
HAVING SUM(o.stored_bytes) * 2 < p.size_bytes
ORDER BY p.id
LIMIT :limit;

-- name: members
-- What lies in a pack.
SELECT digest, codec, pack_start, stored_bytes FROM objects
WHERE tenant_id = :tenant_id AND pack = :pack
ORDER BY pack_start;

-- name: move
-- The same body in another pack, unless it was removed or moved meanwhile.
UPDATE objects SET pack = :pack, pack_start = :pack_start
WHERE tenant_id = :tenant_id AND digest = :digest AND pack = :old_pack;
