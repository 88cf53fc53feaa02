-- A snapshot is kept regardless of the rules while it is *held*: by a hold on its run, its session or its tenant. It is also
-- kept while a rewind in progress needs it. The newest snapshot of a run is never removed to meet the quota, whether the run
-- has ended or not.

-- name: clear_policy
DELETE FROM retention_policies WHERE tenant_id = :tenant_id;

-- name: clear_run_policy
UPDATE run_retention SET per_run = NULL, keep_s = NULL WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: place
INSERT INTO retention_holds (tenant_id, id, run_id, session_id, reason, placed_by, by_tenant, created_at)
VALUES (:tenant_id, :id, :run_id, :session_id, :reason, :placed_by, :by_tenant, :now_at)
ON CONFLICT (tenant_id, id) DO NOTHING
RETURNING /*columns Hold*/ *;

-- name: get_hold
SELECT /*columns Hold*/ * FROM retention_holds WHERE tenant_id = :tenant_id AND id = :id;

-- name: holds
SELECT /*columns Hold*/ * FROM retention_holds
WHERE tenant_id = :tenant_id AND id > :after_id
ORDER BY id
LIMIT :limit;

-- name: release
DELETE FROM retention_holds WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns Hold*/ *;

-- name: release_own
-- Holds placed with the tenant's own key.
DELETE FROM retention_holds WHERE tenant_id = :tenant_id AND by_tenant
RETURNING /*columns Hold*/ *;

-- name: erasure_is_open
SELECT 1 FROM erasures WHERE tenant = :tenant_id AND finished_at IS NULL LIMIT 1;

-- name: tenant_is_there
SELECT 1 FROM tenants WHERE id = :tenant_id;

-- name: session_is_there
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: claim
UPDATE retention_sweeps SET epoch = epoch + 1, holder = :holder, lease_until = :lease_until_at
WHERE tenant_id = :tenant_id
RETURNING epoch;

-- name: renew
-- Renew the lease if the sweep is still the caller's; locks the row as ``lock`` does.
UPDATE retention_sweeps SET lease_until = :lease_until_at
WHERE tenant_id = :tenant_id AND epoch = :epoch AND holder <> ''
RETURNING epoch;

-- name: let_go
UPDATE retention_sweeps SET holder = '', lease_until = NULL, finished_at = :now_at
WHERE tenant_id = :tenant_id AND epoch = :epoch;

-- name: runs
-- Runs that have snapshots, ordered by id, with everything that decides about their snapshots.
SELECT g.run_id/*pg ::text*/, g.count,
       COALESCE(r.finished_at, CASE WHEN r.status = 'waiting' AND r.epoch = o.ended_epoch THEN o.ended_at END),
       o.per_run, o.keep_s,
       EXISTS (SELECT 1 FROM retention_holds AS h
               WHERE h.tenant_id = :tenant_id
                 AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
FROM (SELECT s.run_id, COUNT(*) AS count FROM snapshots AS s
      WHERE s.tenant_id = :tenant_id AND s.run_id > :after_id
      GROUP BY s.run_id ORDER BY s.run_id LIMIT :limit) AS g
JOIN runs AS r ON r.tenant_id = :tenant_id AND r.id = g.run_id
LEFT JOIN run_retention AS o ON o.tenant_id = :tenant_id AND o.run_id = g.run_id
WHERE r.tenant_id = :tenant_id
ORDER BY g.run_id;

-- name: oldest
-- Snapshots of a tenant that are not held, the oldest first.
SELECT s.id/*pg ::text*/ FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id
  AND NOT EXISTS (SELECT 1 FROM retention_holds AS h
                  WHERE h.tenant_id = :tenant_id
                    AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
ORDER BY s.created_at, s.id
LIMIT :limit;

-- name: stored_bytes
-- The stored bytes of all objects of a tenant: never less than those of its snapshots.
SELECT t.stored_bytes FROM object_totals AS t WHERE t.tenant_id = :tenant_id;

-- name: newest
-- Snapshots, the newest first, and whether each must stay.
SELECT s.id/*pg ::text*/, s.layer_id/*pg ::text*/, s.created_at, CASE WHEN
        EXISTS (SELECT 1 FROM retention_holds AS h
                WHERE h.tenant_id = :tenant_id
                  AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
        OR EXISTS (SELECT 1 FROM rewinds AS w
                   WHERE w.tenant_id = :tenant_id AND w.status IN ('rewinding', 'redoing')
                     AND (w.snapshot = s.id/*pg ::text*/ OR w.dirty = s.id/*pg ::text*/))
        OR NOT EXISTS (SELECT 1 FROM snapshots AS n
                       WHERE n.tenant_id = :tenant_id AND n.run_id = s.run_id
                         AND (n.created_at, n.id) > (s.created_at, s.id))
    THEN 1 ELSE 0 END
FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id
  AND (s.created_at, s.id) < (:before_at, :before_id/*pg ::uuid*/)/*where*/
ORDER BY s.created_at DESC, s.id DESC
LIMIT :limit;

-- name: up_to
-- Removable snapshots that are not newer than a given one, the oldest first.
SELECT s.id/*pg ::text*/, s.size_bytes FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id
  AND (s.created_at, s.id) <= (:cut_at, :cut_id/*pg ::uuid*/)/*where*/
  AND NOT EXISTS (SELECT 1 FROM retention_holds AS h
                  WHERE h.tenant_id = :tenant_id
                    AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
  AND NOT EXISTS (SELECT 1 FROM rewinds AS w
                  WHERE w.tenant_id = :tenant_id AND w.status IN ('rewinding', 'redoing')
                    AND (w.snapshot = s.id/*pg ::text*/ OR w.dirty = s.id/*pg ::text*/))
  AND EXISTS (SELECT 1 FROM snapshots AS n
              WHERE n.tenant_id = :tenant_id AND n.run_id = s.run_id
                AND (n.created_at, n.id) > (s.created_at, s.id))
ORDER BY s.created_at, s.id
LIMIT :limit;

-- name: sizes
-- The objects that the layers of a tree reference.
WITH RECURSIVE chain (id, parent_id) AS (
    SELECT l.id, l.parent_id FROM snapshot_layers AS l WHERE l.tenant_id = :tenant_id AND l.id = :layer_id
    UNION ALL
    SELECT l.id, l.parent_id FROM chain AS c
    JOIN snapshot_layers AS l ON l.tenant_id = :tenant_id AND l.id = c.parent_id
)
SELECT o.digest, o.stored_bytes FROM chain AS c
JOIN object_refs AS r ON r.tenant_id = :tenant_id AND r.holder = 'layer:' || c.id
JOIN objects AS o ON o.tenant_id = :tenant_id AND o.digest = r.digest
WHERE r.tenant_id = :tenant_id AND o.tenant_id = :tenant_id;

-- name: may_go
-- Whether a snapshot may be removed now to meet the quota.
SELECT s.id/*pg ::text*/ FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id AND s.id = :id
  AND NOT EXISTS (SELECT 1 FROM retention_holds AS h
                  WHERE h.tenant_id = :tenant_id
                    AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
  AND NOT EXISTS (SELECT 1 FROM rewinds AS w
                  WHERE w.tenant_id = :tenant_id AND w.status IN ('rewinding', 'redoing')
                    AND (w.snapshot = s.id/*pg ::text*/ OR w.dirty = s.id/*pg ::text*/))
  AND EXISTS (SELECT 1 FROM snapshots AS n
              WHERE n.tenant_id = :tenant_id AND n.run_id = s.run_id
                AND (n.created_at, n.id) > (s.created_at, s.id));
