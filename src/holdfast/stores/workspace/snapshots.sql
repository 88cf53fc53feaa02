-- A snapshot is visible as long as its run is, that is, as long as its session is.
-- "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- name: add
INSERT INTO snapshots (tenant_id, id, run_id, step, parent_id, kind, layer_id, entry_count, tree_bytes, size_bytes, depth, created_at)
VALUES (:tenant_id, :id, :run_id, :step, :parent_id, :kind, :layer_id, :entry_count, :tree_bytes, :size_bytes, :depth, :now_at)
ON CONFLICT (tenant_id, id) DO NOTHING
RETURNING /*columns Snapshot*/ *;

-- name: find
-- A snapshot, visible or not.
SELECT /*columns Snapshot*/ * FROM snapshots WHERE tenant_id = :tenant_id AND id = :id;

-- name: get
SELECT /*columns Snapshot s*/ * FROM snapshots AS s
WHERE s.tenant_id = :tenant_id AND s.id = :id
  AND EXISTS (SELECT 1 FROM runs AS r JOIN sessions AS e ON e.tenant_id = r.tenant_id AND e.id = r.session_id
              WHERE r.tenant_id = :tenant_id AND e.tenant_id = :tenant_id AND r.id = s.run_id
                AND (e.deleted_at IS NULL) IS TRUE);

-- name: list
SELECT /*columns Snapshot s*/ * FROM snapshots AS s/*index*/
WHERE s.tenant_id = :tenant_id/*where*/
  AND EXISTS (SELECT 1 FROM runs AS r JOIN sessions AS e ON e.tenant_id = r.tenant_id AND e.id = r.session_id
              WHERE r.tenant_id = :tenant_id AND e.tenant_id = :tenant_id AND r.id = s.run_id
                AND (e.deleted_at IS NULL) IS TRUE)
ORDER BY s.created_at DESC, s.id DESC
LIMIT :limit;

-- name: latest
-- The newest snapshot of a run, or of one of its steps.
SELECT /*columns Snapshot s*/ * FROM snapshots AS s
WHERE s.tenant_id = :tenant_id AND s.run_id = :run_id/*where*/
  AND EXISTS (SELECT 1 FROM runs AS r JOIN sessions AS e ON e.tenant_id = r.tenant_id AND e.id = r.session_id
              WHERE r.tenant_id = :tenant_id AND e.tenant_id = :tenant_id AND r.id = s.run_id
                AND (e.deleted_at IS NULL) IS TRUE)
ORDER BY s.created_at DESC, s.id DESC
LIMIT 1;

-- name: remove
DELETE FROM snapshots WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns Snapshot*/ *;

-- name: usage
SELECT (SELECT COUNT(*) FROM snapshots AS s WHERE s.tenant_id = :tenant_id),
       (SELECT COUNT(*) FROM snapshot_layers AS l WHERE l.tenant_id = :tenant_id),
       (SELECT COALESCE(SUM(l.stored_bytes), 0) FROM snapshot_layers AS l WHERE l.tenant_id = :tenant_id);
