-- name: hollow
-- Layers that a snapshot needs, based on a layer that is no snapshot's own, the oldest first.
SELECT l.id/*pg ::text*/, l.parent_id/*pg ::text*/, l.manifest, l.depth FROM snapshot_layers AS l
WHERE l.tenant_id = :tenant_id AND l.parent_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = l.parent_id)
  AND EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = l.id)
  AND l.id > :after_id
ORDER BY l.id
LIMIT :limit;

-- name: chain
-- The layers of a tree, the lowest first, with the bytes each replaces and whether a snapshot needs it.
WITH RECURSIVE chain (id, parent_id, manifest, depth, replaced_bytes) AS (
    SELECT l.id, l.parent_id, l.manifest, l.depth, l.replaced_bytes FROM snapshot_layers AS l
    WHERE l.tenant_id = :tenant_id AND l.id = :layer_id
    UNION ALL
    SELECT l.id, l.parent_id, l.manifest, l.depth, l.replaced_bytes FROM chain AS c
    JOIN snapshot_layers AS l ON l.tenant_id = :tenant_id AND l.id = c.parent_id
    WHERE l.tenant_id = :tenant_id
)
SELECT c.id/*pg ::text*/, c.parent_id/*pg ::text*/, c.manifest, c.depth, c.replaced_bytes,
       EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = c.id)
FROM chain AS c
ORDER BY c.depth;

-- name: below
-- The stored bytes of the layers below one, down to the first that something else needs.
WITH RECURSIVE chain (id, parent_id, stored_bytes) AS (
    SELECT l.id, l.parent_id, l.stored_bytes FROM snapshot_layers AS l
    WHERE l.tenant_id = :tenant_id AND l.id = :parent_layer_id
    UNION ALL
    SELECT l.id, l.parent_id, l.stored_bytes FROM chain AS c
    JOIN snapshot_layers AS l ON l.tenant_id = :tenant_id AND l.id = c.parent_id
    WHERE l.tenant_id = :tenant_id
      AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.layer_id = l.id)
      AND (SELECT COUNT(*) FROM snapshot_layers AS o WHERE o.tenant_id = :tenant_id AND o.parent_id = l.id) = 1
)
SELECT COALESCE(SUM(stored_bytes), 0)/*pg ::bigint*/ FROM chain;

-- name: look
-- A layer, locked until the transaction ends.
SELECT parent_id/*pg ::text*/, manifest, depth FROM snapshot_layers WHERE tenant_id = :tenant_id AND id = :layer_id
/*pg FOR UPDATE*/;

-- name: make_whole
-- The same tree without a parent.
UPDATE snapshot_layers SET parent_id = NULL, depth = 0, manifest = :manifest, replaced_bytes = 0
WHERE tenant_id = :tenant_id AND id = :layer_id;

-- name: lift
-- Reduce the depth of all layers above one.
WITH RECURSIVE above (id) AS (
    SELECT l.id FROM snapshot_layers AS l WHERE l.tenant_id = :tenant_id AND l.parent_id = :layer_id
    UNION ALL
    SELECT l.id FROM above AS a
    JOIN snapshot_layers AS l ON l.tenant_id = :tenant_id AND l.parent_id = a.id
    WHERE l.tenant_id = :tenant_id
)
UPDATE snapshot_layers SET depth = depth - :depth
WHERE tenant_id = :tenant_id AND id IN (SELECT id FROM above);

-- name: lift_snapshots
-- Copy the new depth of layers to their snapshots.
UPDATE snapshots SET depth = (SELECT l.depth FROM snapshot_layers AS l
                              WHERE l.tenant_id = :tenant_id AND l.id = snapshots.layer_id)
WHERE tenant_id = :tenant_id
  AND EXISTS (SELECT 1 FROM snapshot_layers AS l
              WHERE l.tenant_id = :tenant_id AND l.id = snapshots.layer_id AND l.depth <> snapshots.depth);

-- name: count_own
-- Count the bytes of the objects that only this layer references.
UPDATE snapshot_layers SET stored_bytes = (
    SELECT COALESCE(SUM(o.stored_bytes), 0) FROM object_refs AS r
    JOIN objects AS o ON o.tenant_id = :tenant_id AND o.digest = r.digest
    WHERE r.tenant_id = :tenant_id AND o.tenant_id = :tenant_id AND r.holder = :holder
      AND NOT EXISTS (SELECT 1 FROM object_refs AS q
                      WHERE q.tenant_id = :tenant_id AND q.digest = r.digest AND q.holder <> :holder))
WHERE tenant_id = :tenant_id AND id = :layer_id;
