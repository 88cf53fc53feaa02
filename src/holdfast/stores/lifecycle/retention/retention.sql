-- A snapshot stays whatever the rules say while it is *held*: by a hold on its run, its session or its tenant. It also stays while a
-- rewind that is under way needs it. And the newest one of a run is never taken to make room, whether the run has ended or not.

-- name: policy
SELECT (SELECT p.per_run FROM retention_policies AS p WHERE p.tenant_id = :tenant_id),
       (SELECT p.grace_s FROM retention_policies AS p WHERE p.tenant_id = :tenant_id),
       (SELECT t.checkpoint_quota_mib FROM tenants AS t WHERE t.id = :tenant_id),
       (SELECT d.value FROM server_settings AS d WHERE d.name = 'checkpoints_per_run');

-- name: set_policy
INSERT INTO retention_policies (tenant_id, per_run, grace_s, created_at, updated_at)
VALUES (:tenant_id, :per_run, :grace_s, :now_at, :now_at)
ON CONFLICT (tenant_id) DO UPDATE SET
    per_run = COALESCE(excluded.per_run, retention_policies.per_run),
    grace_s = COALESCE(excluded.grace_s, retention_policies.grace_s),
    updated_at = excluded.updated_at;

-- name: clear_policy
DELETE FROM retention_policies WHERE tenant_id = :tenant_id;

-- name: run_policy
SELECT per_run, keep_s FROM run_retention WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: set_run_policy
INSERT INTO run_retention (tenant_id, run_id, per_run, keep_s, created_at, updated_at)
VALUES (:tenant_id, :run_id, :per_run, :keep_s, :now_at, :now_at)
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    per_run = COALESCE(excluded.per_run, run_retention.per_run),
    keep_s = COALESCE(excluded.keep_s, run_retention.keep_s),
    updated_at = excluded.updated_at;

-- name: clear_run_policy
UPDATE run_retention SET per_run = NULL, keep_s = NULL WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: note_end
-- A run that has ended is rewound: its grace counts from its end, until somebody claims it.
INSERT INTO run_retention (tenant_id, run_id, ended_at, ended_epoch, created_at, updated_at)
VALUES (:tenant_id, :run_id, :ended_at, :new_epoch, :now_at, :now_at)
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    ended_at = excluded.ended_at, ended_epoch = excluded.ended_epoch, updated_at = excluded.updated_at;

-- name: carry_end
-- The same run is moved once more, without having been claimed since.
UPDATE run_retention SET ended_epoch = :new_epoch
WHERE tenant_id = :tenant_id AND run_id = :run_id AND ended_epoch = :epoch;

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
-- The holds that a tenant's own key has placed.
DELETE FROM retention_holds WHERE tenant_id = :tenant_id AND by_tenant
RETURNING /*columns Hold*/ *;

-- name: erasure_is_open
SELECT 1 FROM erasures WHERE tenant = :tenant_id AND finished_at IS NULL LIMIT 1;

-- name: any_hold
SELECT 1 FROM retention_holds WHERE tenant_id = :tenant_id LIMIT 1;

-- name: hold_on_snapshot
SELECT h.id/*pg ::text*/ FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
JOIN retention_holds AS h ON h.tenant_id = s.tenant_id
  AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL))
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id AND h.tenant_id = :tenant_id AND s.id = :id
LIMIT 1;

-- name: tenant_is_there
SELECT 1 FROM tenants WHERE id = :tenant_id;

-- name: hold_on_session
-- A hold that keeps a session from being removed: on it, on one of its runs, or on everything.
SELECT h.id/*pg ::text*/ FROM retention_holds AS h
WHERE h.tenant_id = :tenant_id
  AND (h.session_id = :session_id OR (h.run_id IS NULL AND h.session_id IS NULL)
       OR EXISTS (SELECT 1 FROM runs AS r
                  WHERE r.tenant_id = :tenant_id AND r.id = h.run_id AND r.session_id = :session_id))
LIMIT 1;

-- name: session_is_there
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: lock
-- Take a tenant's row, so that nobody else removes snapshots by a rule or places a hold until the transaction ends.
INSERT INTO retention_sweeps (tenant_id, epoch) VALUES (:tenant_id, 0)
ON CONFLICT (tenant_id) DO UPDATE SET epoch = retention_sweeps.epoch
RETURNING epoch, holder, lease_until, finished_at;

-- name: claim
UPDATE retention_sweeps SET epoch = epoch + 1, holder = :holder, lease_until = :lease_until_at
WHERE tenant_id = :tenant_id
RETURNING epoch;

-- name: renew
-- Whether the sweep is still the caller's; it takes the row as ``lock`` does.
UPDATE retention_sweeps SET lease_until = :lease_until_at
WHERE tenant_id = :tenant_id AND epoch = :epoch AND holder <> ''
RETURNING epoch;

-- name: let_go
UPDATE retention_sweeps SET holder = '', lease_until = NULL, finished_at = :now_at
WHERE tenant_id = :tenant_id AND epoch = :epoch;

-- name: runs
-- Runs that have snapshots, in the order of their ids, with all that decides about them.
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

-- name: run
-- The same of one run.
SELECT r.id/*pg ::text*/,
       (SELECT COUNT(*) FROM snapshots AS s WHERE s.tenant_id = :tenant_id AND s.run_id = r.id),
       COALESCE(r.finished_at, CASE WHEN r.status = 'waiting' AND r.epoch = o.ended_epoch THEN o.ended_at END),
       o.per_run, o.keep_s,
       EXISTS (SELECT 1 FROM retention_holds AS h
               WHERE h.tenant_id = :tenant_id
                 AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
FROM runs AS r
LEFT JOIN run_retention AS o ON o.tenant_id = :tenant_id AND o.run_id = r.id
WHERE r.tenant_id = :tenant_id AND r.id = :run_id;

-- name: count_of_run
SELECT COUNT(*) FROM snapshots WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: oldest_of_run
-- Of the oldest snapshots of a run, so many, those that no rewind needs now.
SELECT s.id/*pg ::text*/, s.size_bytes FROM (
    SELECT o.id, o.size_bytes, o.created_at FROM snapshots AS o
    WHERE o.tenant_id = :tenant_id AND o.run_id = :run_id
    ORDER BY o.created_at, o.id LIMIT :excess
) AS s
WHERE NOT EXISTS (SELECT 1 FROM rewinds AS w
                  WHERE w.tenant_id = :tenant_id AND w.status IN ('rewinding', 'redoing')
                    AND (w.snapshot = s.id/*pg ::text*/ OR w.dirty = s.id/*pg ::text*/))
ORDER BY s.created_at, s.id
LIMIT :limit;

-- name: oldest
-- Any snapshots of a tenant that nothing holds, the oldest first.
SELECT s.id/*pg ::text*/ FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id
  AND NOT EXISTS (SELECT 1 FROM retention_holds AS h
                  WHERE h.tenant_id = :tenant_id
                    AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL)))
ORDER BY s.created_at, s.id
LIMIT :limit;

-- name: stored_bytes
-- What all objects of a tenant take: never less than what its snapshots take.
SELECT t.stored_bytes FROM object_totals AS t WHERE t.tenant_id = :tenant_id;

-- name: newest
-- Snapshots, the newest first, and whether each has to stay.
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
-- Snapshots up to some moment that may go, the oldest first.
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
-- The objects that the layers of a tree hold.
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
-- Whether a snapshot may be taken to make room now.
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
