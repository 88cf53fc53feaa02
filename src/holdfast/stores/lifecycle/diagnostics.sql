-- name: packs
-- Recorded pack files: whether objects are stored in them, whether they are being removed, and whether they are old enough
-- to be checked.
SELECT id/*pg ::text*/, is_sealed, condemned_at IS NOT NULL, created_at <= :before_at FROM object_packs
WHERE tenant_id = :tenant_id
ORDER BY id;

-- name: unheld
-- Objects without references.
SELECT COUNT(*) FROM objects AS o
WHERE o.tenant_id = :tenant_id
  AND NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.tenant_id = :tenant_id AND r.digest = o.digest);

-- name: dangling
-- References to objects that do not exist.
SELECT COUNT(*) FROM object_refs AS r
WHERE r.tenant_id = :tenant_id
  AND NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.tenant_id = :tenant_id AND o.digest = r.digest);

-- name: loose
-- Layers that neither a snapshot nor another layer needs.
SELECT COUNT(*) FROM snapshot_layers AS l
WHERE l.tenant_id = :tenant_id
  AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = l.id)
  AND NOT EXISTS (SELECT 1 FROM snapshot_layers AS c WHERE c.tenant_id = :tenant_id AND c.parent_id = l.id);

-- name: rewinds
-- Rewinds whose directory has not been restored yet.
SELECT COUNT(*) FROM rewinds WHERE tenant_id = :tenant_id AND status IN ('rewinding', 'redoing');

-- name: snapshots
SELECT id/*pg ::text*/, layer_id/*pg ::text*/ FROM snapshots
WHERE tenant_id = :tenant_id AND id > :after_id
ORDER BY id
LIMIT :limit;

-- name: bodies
-- The objects that the layers of a tree reference, and the packs that contain them.
WITH RECURSIVE chain (id, parent_id) AS (
    SELECT l.id, l.parent_id FROM snapshot_layers AS l WHERE l.tenant_id = :tenant_id AND l.id = :layer_id
    UNION ALL
    SELECT l.id, l.parent_id FROM chain AS c
    JOIN snapshot_layers AS l ON l.tenant_id = :tenant_id AND l.id = c.parent_id
)
SELECT o.digest, o.pack/*pg ::text*/ FROM chain AS c
JOIN object_refs AS r ON r.tenant_id = :tenant_id AND r.holder = 'layer:' || c.id
JOIN objects AS o ON o.tenant_id = :tenant_id AND o.digest = r.digest
WHERE r.tenant_id = :tenant_id AND o.tenant_id = :tenant_id;
