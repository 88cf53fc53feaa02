-- What decides about the snapshots of a run, and the holds that keep them.

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

-- name: set_run_policy
INSERT INTO run_retention (tenant_id, run_id, per_run, keep_s, created_at, updated_at)
VALUES (:tenant_id, :run_id, :per_run, :keep_s, :now_at, :now_at)
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    per_run = COALESCE(excluded.per_run, run_retention.per_run),
    keep_s = COALESCE(excluded.keep_s, run_retention.keep_s),
    updated_at = excluded.updated_at;

-- name: note_end
-- A run that has ended is rewound: its grace period counts from its end, until a worker claims it.
INSERT INTO run_retention (tenant_id, run_id, ended_at, ended_epoch, created_at, updated_at)
VALUES (:tenant_id, :run_id, :ended_at, :new_epoch, :now_at, :now_at)
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    ended_at = excluded.ended_at, ended_epoch = excluded.ended_epoch, updated_at = excluded.updated_at;

-- name: carry_end
-- The same run is moved again, without having been claimed since.
UPDATE run_retention SET ended_epoch = :new_epoch
WHERE tenant_id = :tenant_id AND run_id = :run_id AND ended_epoch = :epoch;

-- name: any_hold
SELECT 1 FROM retention_holds WHERE tenant_id = :tenant_id LIMIT 1;

-- name: hold_on_snapshot
SELECT h.id/*pg ::text*/ FROM snapshots AS s
JOIN runs AS r ON r.tenant_id = s.tenant_id AND r.id = s.run_id
JOIN retention_holds AS h ON h.tenant_id = s.tenant_id
  AND (h.run_id = r.id OR h.session_id = r.session_id OR (h.run_id IS NULL AND h.session_id IS NULL))
WHERE s.tenant_id = :tenant_id AND r.tenant_id = :tenant_id AND h.tenant_id = :tenant_id AND s.id = :id
LIMIT 1;

-- name: hold_on_session
-- A hold that keeps a session from being removed: on the session, on one of its runs, or on the tenant.
SELECT h.id/*pg ::text*/ FROM retention_holds AS h
WHERE h.tenant_id = :tenant_id
  AND (h.session_id = :session_id OR (h.run_id IS NULL AND h.session_id IS NULL)
       OR EXISTS (SELECT 1 FROM runs AS r
                  WHERE r.tenant_id = :tenant_id AND r.id = h.run_id AND r.session_id = :session_id))
LIMIT 1;

-- name: hold_on_run
-- A hold that keeps a run from being removed: on the run, on its session, or on the tenant.
SELECT h.id/*pg ::text*/ FROM retention_holds AS h
WHERE h.tenant_id = :tenant_id
  AND (h.run_id = :run_id OR h.session_id = :session_id OR (h.run_id IS NULL AND h.session_id IS NULL))
LIMIT 1;

-- name: lock
-- Lock a tenant's row, so that no other process removes snapshots by a rule or places a hold until the transaction ends.
INSERT INTO retention_sweeps (tenant_id, epoch) VALUES (:tenant_id, 0)
ON CONFLICT (tenant_id) DO UPDATE SET epoch = retention_sweeps.epoch
RETURNING epoch, holder, lease_until, finished_at;

-- name: run
-- As ``runs`` in retention.sql, for one run.
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
-- Of the ``:excess`` oldest snapshots of a run, those that no rewind needs now.
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
