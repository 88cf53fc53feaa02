-- A run is visible as long as its session is: a deleted session hides its runs, and a restored one shows them again.
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
-- The run that was started for a tool call.
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
-- Locks a run, hidden or not, until the transaction ends; also returns whether its session is live.
SELECT /*columns Run r*/ *,
       EXISTS (SELECT 1 FROM sessions AS s
               WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
FROM runs AS r WHERE r.tenant_id = :tenant_id AND r.id = :run_id
/*pg FOR NO KEY UPDATE OF r*/;

-- name: look
-- Like lock, but skips a run that another transaction has locked: its writer is alive.
SELECT /*columns Run r*/ *,
       EXISTS (SELECT 1 FROM sessions AS s
               WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
FROM runs AS r WHERE r.tenant_id = :tenant_id AND r.id = :run_id
/*pg FOR NO KEY UPDATE OF r SKIP LOCKED*/;

-- name: is_there
SELECT 1 FROM runs WHERE tenant_id = :tenant_id AND id = :run_id;

-- name: move
-- Moves a run to another status if its status and epoch have not changed since it was read.
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
-- Records when a claim first saw that the lease had expired.
UPDATE runs SET doubted_at = :now_at
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND status = 'running';

-- name: children
-- The child runs of a run, and whether they are still open.
SELECT id /*pg ::text*/, finished_at IS NULL FROM runs/*index*/
WHERE tenant_id = :tenant_id AND parent_run_id = :run_id
ORDER BY id;
