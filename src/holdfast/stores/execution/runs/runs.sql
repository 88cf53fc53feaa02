-- A run is seen as long as its session is: a deleted session hides its runs, and a restored one brings them back.
-- "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- name: create
INSERT INTO runs (tenant_id, id, session_id, agent_id, status, max_attempts, parent_run_id, parent_call_id, depth, metadata, started_at)
SELECT :tenant_id, :id /*pg ::uuid*/, s.id, COALESCE(:agent_id, s.agent_id), 'pending', :max_attempts /*pg ::bigint*/,
       :parent_run_id /*pg ::uuid*/, :parent_call_id /*pg ::text*/, :depth /*pg ::bigint*/, :metadata /*pg ::jsonb*/,
       :now_at /*pg ::timestamptz*/
FROM sessions AS s WHERE s.tenant_id = :tenant_id AND s.id = :session_id AND (s.deleted_at IS NULL) IS TRUE
ON CONFLICT DO NOTHING
RETURNING /*columns Run*/ *;

-- name: get
SELECT /*columns Run r*/ * FROM runs AS r
WHERE r.tenant_id = :tenant_id AND r.id = :run_id
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE);

-- name: of_call
-- The run that a call of a tool has started.
SELECT /*columns Run*/ * FROM runs
WHERE tenant_id = :tenant_id AND parent_run_id = :parent_run_id AND parent_call_id = :parent_call_id;

-- name: list
SELECT /*columns Run r*/ * FROM runs AS r/*index*/
WHERE r.tenant_id = :tenant_id/*where*/
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
ORDER BY started_at DESC, id DESC
LIMIT :limit;

-- name: lock
-- A run, hidden or not, held until the transaction ends; and whether its session is there.
SELECT /*columns Run r*/ *,
       EXISTS (SELECT 1 FROM sessions AS s
               WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
FROM runs AS r WHERE r.tenant_id = :tenant_id AND r.id = :run_id
/*pg FOR NO KEY UPDATE OF r*/;

-- name: look
-- The same, but not if somebody holds it: who writes to a run is alive.
SELECT /*columns Run r*/ *,
       EXISTS (SELECT 1 FROM sessions AS s
               WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
FROM runs AS r WHERE r.tenant_id = :tenant_id AND r.id = :run_id
/*pg FOR NO KEY UPDATE OF r SKIP LOCKED*/;

-- name: is_there
SELECT 1 FROM runs WHERE tenant_id = :tenant_id AND id = :run_id;

-- name: move
-- From one status to another, if it still is what it was when it was looked at.
UPDATE runs SET
    status = :status,
    epoch = :new_epoch,
    attempts = :attempts,
    lease_holder = :lease_holder,
    lease_ms = :lease_ms,
    lease_until = :lease_until_at,
    doubted_at = NULL,
    pause_until = :pause_until_at,
    stop_reason = :stop_reason,
    error = :error,
    finished_at = :finished_at
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND status = :was
RETURNING /*columns Run*/ *;

-- name: renew
UPDATE runs SET lease_ms = :lease_ms, lease_until = :lease_until_at, doubted_at = NULL
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND status = 'running'
RETURNING /*columns Run*/ *;

-- name: doubt
-- Somebody has seen that the lease has run out.
UPDATE runs SET doubted_at = :now_at
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND status = 'running';

-- name: children
-- The runs that a run has started, and whether they are still to be ended.
SELECT id /*pg ::text*/, finished_at IS NULL FROM runs/*index*/
WHERE tenant_id = :tenant_id AND parent_run_id = :run_id
ORDER BY id;
