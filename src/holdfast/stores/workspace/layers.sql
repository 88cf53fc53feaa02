-- name: lock
-- Lock a layer that a new one will be based on: it must not be removed in the meantime.
SELECT depth FROM snapshot_layers WHERE tenant_id = :tenant_id AND id = :layer_id
/*pg FOR UPDATE*/;

-- name: has
SELECT 1 FROM snapshot_layers WHERE tenant_id = :tenant_id AND id = :layer_id;

-- name: add
INSERT INTO snapshot_layers (tenant_id, id, parent_id, depth, manifest, stored_bytes, replaced_bytes, created_at)
VALUES (:tenant_id, :layer_id, :parent_layer_id, :depth, :manifest, :stored_bytes, :replaced_bytes, :now_at);

-- name: chain
-- The manifests that make up a tree, the whole one first.
WITH RECURSIVE chain (id, parent_id, depth, manifest) AS (
    SELECT l.id, l.parent_id, l.depth, l.manifest FROM snapshot_layers AS l
    WHERE l.tenant_id = :tenant_id AND l.id = :layer_id
    UNION ALL
    SELECT l.id, l.parent_id, l.depth, l.manifest FROM chain AS c
    JOIN snapshot_layers AS l ON l.tenant_id = :tenant_id AND l.id = c.parent_id
)
SELECT manifest, depth FROM chain ORDER BY depth;

-- name: loose
-- Layers that no snapshot and no other layer needs.
SELECT l.id/*pg ::text*/, l.parent_id/*pg ::text*/ FROM snapshot_layers AS l
WHERE l.tenant_id = :tenant_id
  AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = l.id)
  AND NOT EXISTS (SELECT 1 FROM snapshot_layers AS c WHERE c.tenant_id = :tenant_id AND c.parent_id = l.id)
ORDER BY l.id
LIMIT :limit;

-- name: remove
-- Remove a locked layer, unless a snapshot or another layer has come to need it.
DELETE FROM snapshot_layers
WHERE tenant_id = :tenant_id AND id = :layer_id
  AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = snapshot_layers.id)
  AND NOT EXISTS (SELECT 1 FROM snapshot_layers AS c WHERE c.tenant_id = :tenant_id AND c.parent_id = snapshot_layers.id)
RETURNING parent_id/*pg ::text*/;
