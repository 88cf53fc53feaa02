-- Rows of these stores that belong to the runs of a session. All queries with the prefix purge_ are run, in file order, when the
-- session is purged, and those with the prefix delete_ when a run is deleted: explicitly, because a caller's own SQLite connection
-- may have foreign keys switched off.

-- name: open_rewind
SELECT id/*pg ::text*/ FROM rewinds
WHERE tenant_id = :tenant_id AND run_id = :run_id AND status IN ('rewinding', 'redoing')
LIMIT 1;

-- name: snapshots
SELECT id/*pg ::text*/ FROM snapshots WHERE tenant_id = :tenant_id AND run_id = :run_id ORDER BY created_at, id;

-- name: delete_rewound_steps
DELETE FROM rewound_steps WHERE tenant_id = :tenant_id
  AND rewind_id IN (SELECT id FROM rewinds WHERE tenant_id = :tenant_id AND run_id = :run_id);

-- name: delete_rewound_calls
DELETE FROM rewound_calls WHERE tenant_id = :tenant_id
  AND rewind_id IN (SELECT id FROM rewinds WHERE tenant_id = :tenant_id AND run_id = :run_id);

-- name: delete_rewinds
DELETE FROM rewinds WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: delete_settings
DELETE FROM run_retention WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: purge_rewound_steps
DELETE FROM rewound_steps WHERE tenant_id = :tenant_id
  AND rewind_id IN (SELECT w.id FROM rewinds AS w JOIN runs AS r ON r.tenant_id = w.tenant_id AND r.id = w.run_id
                    WHERE w.tenant_id = :tenant_id AND r.tenant_id = :tenant_id AND r.session_id = :id);

-- name: purge_rewound_calls
DELETE FROM rewound_calls WHERE tenant_id = :tenant_id
  AND rewind_id IN (SELECT w.id FROM rewinds AS w JOIN runs AS r ON r.tenant_id = w.tenant_id AND r.id = w.run_id
                    WHERE w.tenant_id = :tenant_id AND r.tenant_id = :tenant_id AND r.session_id = :id);

-- name: purge_rewinds
DELETE FROM rewinds WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_snapshots
DELETE FROM snapshots WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_settings
DELETE FROM run_retention WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);
