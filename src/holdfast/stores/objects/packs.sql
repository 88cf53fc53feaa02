-- name: note
-- Registers a pack that is about to be written.
INSERT INTO object_packs (tenant_id, id, size_bytes, is_sealed, created_at)
VALUES (:tenant_id, :pack, :size_bytes, FALSE, :now_at);

-- name: seal
-- Seals a pack, which from now on contains objects, and locks its row: a process that condemns it either came first, and then
-- nothing is sealed, or sees the objects in it.
UPDATE object_packs SET is_sealed = TRUE
WHERE tenant_id = :tenant_id AND id = :pack AND condemned_at IS NULL
RETURNING 1;

-- name: has
SELECT 1 FROM objects WHERE tenant_id = :tenant_id AND digest = :digest;

-- name: lock_empty
-- Locks the empty packs before they are condemned: waits for writers that are sealing one.
SELECT id/*pg ::text*/ FROM object_packs
WHERE tenant_id = :tenant_id AND condemned_at IS NULL AND (is_sealed OR created_at <= :before_at)
  AND NOT EXISTS (SELECT 1 FROM objects AS o
                  WHERE o.tenant_id = :tenant_id AND o.tenant_id = object_packs.tenant_id AND o.pack = object_packs.id)
/*pg FOR UPDATE*/;

-- name: condemn
-- Condemns a locked pack if it is still empty: objects of the last transaction that locked it are visible now. Never use this
-- for a pack that is not locked: a transaction whose objects are not visible yet may be sealing it.
UPDATE object_packs SET condemned_at = :now_at
WHERE tenant_id = :tenant_id AND id = :pack AND condemned_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM objects AS o
                  WHERE o.tenant_id = :tenant_id AND o.tenant_id = object_packs.tenant_id AND o.pack = object_packs.id);

-- name: lock
-- Locks a sealed pack from which objects were removed.
SELECT size_bytes FROM object_packs
WHERE tenant_id = :tenant_id AND id = :pack AND is_sealed AND condemned_at IS NULL
/*pg FOR UPDATE*/;

-- name: used_bytes
-- The bytes of a pack that are still used.
SELECT COALESCE(SUM(stored_bytes), 0)/*pg ::bigint*/ FROM objects WHERE tenant_id = :tenant_id AND pack = :pack;

-- name: noted
SELECT id/*pg ::text*/, condemned_at IS NOT NULL FROM object_packs WHERE tenant_id = :tenant_id;

-- name: forget
-- Removes the row of a pack whose file is removed.
DELETE FROM object_packs WHERE tenant_id = :tenant_id AND id = :pack AND condemned_at IS NOT NULL;

-- name: sparse
-- Packs of which less than half is used.
SELECT p.id/*pg ::text*/ FROM object_packs AS p
JOIN objects AS o ON o.tenant_id = p.tenant_id AND o.pack = p.id
WHERE p.tenant_id = :tenant_id AND o.tenant_id = :tenant_id AND p.is_sealed
GROUP BY p.id, p.size_bytes
HAVING SUM(o.stored_bytes) * 2 < p.size_bytes
ORDER BY p.id
LIMIT :limit;

-- name: members
-- The objects in a pack.
SELECT digest, codec, pack_start, stored_bytes FROM objects
WHERE tenant_id = :tenant_id AND pack = :pack
ORDER BY pack_start;

-- name: move
-- Moves a body to another pack, unless it was removed or moved concurrently.
UPDATE objects SET pack = :pack, pack_start = :pack_start
WHERE tenant_id = :tenant_id AND digest = :digest AND pack = :old_pack;
