-- Queries that read one run also check its session: see runs.sql.

-- name: hold_run @sqlite
-- Renews the lease of the run if the caller holds it and it has room for this number of further open calls. Also returns its
-- number of open calls: new calls come after them.
-- SQLite counts in microseconds, PostgreSQL in intervals; in UTC, because "timestamptz + interval" depends on the time zone of the
-- connection, and Citus refuses such a function of a column in an UPDATE.
UPDATE runs SET lease_until = :now_at + lease_ms * 1000, doubted_at = NULL
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND status = 'running'
  AND :calls + (SELECT COUNT(*) FROM tool_calls AS c
                WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.step IS NULL) <= :most
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = runs.session_id AND (s.deleted_at IS NULL) IS TRUE)
RETURNING iteration + 1, (SELECT COUNT(*) FROM tool_calls AS c
                          WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.step IS NULL);

-- name: hold_run @postgres
UPDATE runs SET lease_until = timezone('UTC', timezone('UTC', :now_at::timestamptz) + lease_ms * interval '1 millisecond'), doubted_at = NULL
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND status = 'running'
  AND :calls::bigint + (SELECT COUNT(*) FROM tool_calls AS c
                        WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.step IS NULL) <= :most::bigint
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = runs.session_id AND (s.deleted_at IS NULL) IS TRUE)
RETURNING iteration + 1, (SELECT COUNT(*) FROM tool_calls AS c
                          WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.step IS NULL);

-- name: insert
INSERT INTO tool_calls (tenant_id, run_id, id, tool_name, tool_input, safety, status, iteration, place, epoch, attempts, started_at)
VALUES (:tenant_id, :run_id, :id, :tool_name, :tool_input, :safety, :status, :iteration, :place, :epoch, :attempts, :now_at);

-- name: intend_all @postgres
-- hold_run and insert for all intents of a group: one statement is one round trip and one flush for all. Runs are sorted, so that
-- two groups lock them in the same order.
WITH new AS (
    SELECT * FROM unnest(:number::bigint[], :run_id::uuid[], :epoch::bigint[], :calls::bigint[], :created_at::timestamptz[])
        AS t (number, run_id, epoch, calls, now)
), held AS (
    UPDATE runs AS r SET lease_until = timezone('UTC', timezone('UTC', n.now) + r.lease_ms * interval '1 millisecond'), doubted_at = NULL
    FROM new AS n
    WHERE r.tenant_id = :tenant_id AND r.id = ANY(:run_id::uuid[]) AND r.id = n.run_id AND r.epoch = n.epoch
      AND r.status = 'running'
      AND n.calls + (SELECT COUNT(*) FROM tool_calls AS c
                     WHERE c.tenant_id = :tenant_id AND c.run_id = n.run_id AND c.step IS NULL) <= :most::bigint
      AND EXISTS (SELECT 1 FROM sessions AS s
                  WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
    RETURNING n.number, r.id, r.iteration + 1 AS iteration, n.epoch, n.now,
              (SELECT COUNT(*) FROM tool_calls AS c
               WHERE c.tenant_id = :tenant_id AND c.run_id = r.id AND c.step IS NULL) AS open
), added AS (
    INSERT INTO tool_calls (tenant_id, run_id, id, tool_name, tool_input, safety, status, iteration, place, epoch, attempts,
                            started_at)
    SELECT :tenant_id, h.id, c.id, c.tool_name, c.tool_input, c.safety, c.status, h.iteration, h.open + c.place, h.epoch, c.attempts,
           h.now
    FROM unnest(:of::bigint[], :id::text[], :tool_name::text[], :tool_input::jsonb[], :safety::text[], :status::text[],
                :place::bigint[], :attempts::bigint[])
         AS c (number, id, tool_name, tool_input, safety, status, place, attempts)
    JOIN held AS h ON h.number = c.number
)
SELECT number, iteration FROM held;

-- name: begin
-- Begins a call again, by the current holder of the run.
UPDATE tool_calls SET status = 'begun', attempts = attempts + 1, epoch = :epoch, pause_until = NULL, started_at = :now_at
WHERE tenant_id = :tenant_id AND run_id = :run_id AND id = :id;

-- name: get
SELECT /*columns ToolCall*/ * FROM tool_calls WHERE tenant_id = :tenant_id AND run_id = :run_id AND id = :id;

-- name: list
SELECT /*columns ToolCall*/ * FROM tool_calls
WHERE tenant_id = :tenant_id AND run_id = :run_id
ORDER BY iteration, place, id
LIMIT :limit;

-- name: open
-- The calls that no step contains yet, with their run, so that one statement reads a consistent view of both.
SELECT r.iteration, r.epoch, r.status, /*columns ToolCall c*/ *
FROM runs AS r
LEFT JOIN tool_calls AS c ON c.tenant_id = :tenant_id AND c.run_id = r.id AND c.step IS NULL
WHERE r.tenant_id = :tenant_id AND r.id = :run_id
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = r.session_id AND (s.deleted_at IS NULL) IS TRUE)
ORDER BY c.iteration, c.place, c.id;

-- name: change
-- A decision of a person, or of the tool itself, about an unfinished call.
UPDATE tool_calls SET
    status = :status, attempts = attempts - :fewer_attempts, pause_until = :pause_until_at, error = :error,
    finished_at = :finished_at
WHERE tenant_id = :tenant_id AND run_id = :run_id AND id = :id AND finished_at IS NULL
RETURNING /*columns ToolCall*/ *;

-- name: cancel_open
-- Cancels all unfinished calls of a cancelled run.
UPDATE tool_calls SET status = 'cancelled', error = :error, finished_at = :now_at
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step IS NULL AND finished_at IS NULL;

-- name: settle_call
-- Records the outcome of a call, unless a person has decided in the meantime.
UPDATE tool_calls SET status = :status, result = :result, error = :error, finished_at = :now_at, step = :iteration
WHERE tenant_id = :tenant_id AND run_id = :run_id AND id = :id AND finished_at IS NULL;

-- name: take_in_calls
-- Assigns calls that a person has decided to the step that is being committed.
UPDATE tool_calls SET step = :iteration
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step IS NULL AND finished_at IS NOT NULL;
