-- name: advance_run @sqlite
-- The first statement of a step, and its guard: the run is held under this epoch, the step is the next one, its session is live,
-- and the calls it finishes are open. SQLite, and PostgreSQL where Citus distributes the tables, continue statement by statement;
-- otherwise PostgreSQL writes everything in one statement.
UPDATE runs SET
    iteration = :iteration,
    attempts = 0,
    input_tokens = input_tokens + :input_tokens,
    output_tokens = output_tokens + :output_tokens,
    checkpointed_at = :now_at,
    lease_until = :now_at + lease_ms * 1000,
    doubted_at = NULL
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND iteration = :iteration - 1 AND status = 'running'
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = runs.session_id AND (s.deleted_at IS NULL) IS TRUE)
  AND (:calls = 0 OR :calls = (
       SELECT COUNT(*) FROM json_each(:call_ids) AS wanted
       JOIN tool_calls AS c ON c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.id = wanted.value
       WHERE c.tenant_id = :tenant_id AND c.step IS NULL))
RETURNING session_id, EXISTS (SELECT 1 FROM tool_calls AS c WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id
                              AND c.step IS NULL AND c.finished_at IS NOT NULL);

-- name: advance_run @postgres
UPDATE runs SET
    iteration = :iteration,
    attempts = 0,
    input_tokens = input_tokens + :input_tokens,
    output_tokens = output_tokens + :output_tokens,
    checkpointed_at = :now_at,
    lease_until = timezone('UTC', timezone('UTC', :now_at::timestamptz) + lease_ms * interval '1 millisecond'),
    doubted_at = NULL
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch AND iteration = :iteration::bigint - 1 AND status = 'running'
  AND EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = runs.session_id AND (s.deleted_at IS NULL) IS TRUE)
  AND (:calls::bigint = 0 OR :calls::bigint = (
       SELECT COUNT(*) FROM tool_calls AS c
       WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.step IS NULL AND c.id = ANY(:call_ids::text[])))
RETURNING session_id::text, EXISTS (SELECT 1 FROM tool_calls AS c WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id
                                    AND c.step IS NULL AND c.finished_at IS NOT NULL);

-- name: insert_step
INSERT INTO run_steps (tenant_id, run_id, iteration, epoch, state, last_tool_result, first_seq, last_seq,
                       input_tokens, output_tokens, snapshot, fingerprint, created_at)
VALUES (:tenant_id, :run_id, :iteration, :epoch, :state, :last_tool_result, :first_seq, :last_seq,
        :input_tokens, :output_tokens, :snapshot, :fingerprint, :now_at);

-- name: commit_all @postgres
-- All steps of a group: one statement is one round trip and one flush for all. It first selects the steps that fit and locks
-- their runs and sessions, in one order for all callers. It writes to sessions and messages what an append writes (see
-- message_log.sql), except that the positions in a session's log are allocated among the steps that fit.
WITH new AS (
    SELECT * FROM unnest(:number::bigint[], :run_id::uuid[], :epoch::bigint[], :iteration::bigint[], :state::jsonb[],
                         :last_tool_result::text[], :snapshot::text[], :fingerprint::text[], :input_tokens::bigint[],
                         :output_tokens::bigint[], :rows::bigint[], :tokens::bigint[], :calls::bigint[], :minute::bigint[],
                         :step_at::timestamptz[])
        AS t (number, run_id, epoch, iteration, state, last_tool_result, snapshot, fingerprint, input_tokens, output_tokens,
              rows, tokens, calls, minute, now)
), outcome AS (
    SELECT * FROM unnest(:call_of::bigint[], :call_id::text[], :call_status::text[], :call_result::jsonb[], :call_error::text[])
        AS t (number, id, status, result, error)
), fit AS (
    SELECT n.*, r.session_id
    FROM new AS n
    JOIN runs AS r ON r.id = n.run_id
    JOIN sessions AS s ON s.id = r.session_id
    WHERE r.tenant_id = :tenant_id AND r.id = ANY(:run_id::uuid[]) AND r.epoch = n.epoch AND r.iteration = n.iteration - 1
      AND r.status = 'running'
      AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE
      AND (n.calls = 0 OR n.calls = (
           SELECT COUNT(*) FROM outcome AS o JOIN tool_calls AS c ON c.id = o.id
           WHERE o.number = n.number AND c.tenant_id = :tenant_id AND c.run_id = n.run_id AND c.step IS NULL))
    ORDER BY s.id, r.id
    FOR NO KEY UPDATE OF s, r
), moved AS (
    UPDATE runs AS r SET
        iteration = f.iteration,
        attempts = 0,
        input_tokens = r.input_tokens + f.input_tokens,
        output_tokens = r.output_tokens + f.output_tokens,
        checkpointed_at = f.now,
        lease_until = timezone('UTC', timezone('UTC', f.now) + r.lease_ms * interval '1 millisecond'),
        doubted_at = NULL
    FROM fit AS f
    WHERE r.tenant_id = :tenant_id AND r.id = ANY(:run_id::uuid[]) AND r.id = f.run_id
), session AS (
    UPDATE sessions AS s SET
        next_seq = s.next_seq + t.rows,
        message_count = s.message_count + t.rows,
        token_count = s.token_count + t.tokens,
        updated_at = t.now,
        updated_minute = t.minute,
        search_behind = TRUE
    FROM (SELECT session_id, SUM(rows)::bigint AS rows, SUM(tokens)::bigint AS tokens, MAX(now) AS now, MAX(minute) AS minute
          FROM fit WHERE rows > 0 GROUP BY session_id) AS t
    WHERE s.tenant_id = :tenant_id AND s.id = t.session_id
    RETURNING s.id, s.next_seq - t.rows AS first_seq, (s.token_count >= s.compact_from) IS TRUE AS due
), head AS (
    SELECT f.*, h.due,
           (h.first_seq + SUM(f.rows) OVER (PARTITION BY f.session_id ORDER BY f.number) - f.rows)::bigint AS first_seq
    FROM fit AS f LEFT JOIN session AS h ON h.id = f.session_id
), added AS (
    /*part into_messages*/
    /*part new_messages*/
), noted AS (
    INSERT INTO run_steps (tenant_id, run_id, iteration, epoch, state, last_tool_result, first_seq, last_seq,
                           input_tokens, output_tokens, snapshot, fingerprint, created_at)
    SELECT :tenant_id, p.run_id, p.iteration, p.epoch, p.state, p.last_tool_result,
           CASE WHEN p.rows > 0 THEN p.first_seq END, CASE WHEN p.rows > 0 THEN p.first_seq + p.rows - 1 END,
           p.input_tokens, p.output_tokens, p.snapshot, p.fingerprint, p.now
    FROM head AS p
), settled AS (
    UPDATE tool_calls AS c SET
        status = CASE WHEN c.finished_at IS NULL THEN t.status ELSE c.status END,
        result = CASE WHEN c.finished_at IS NULL THEN t.result ELSE c.result END,
        error = CASE WHEN c.finished_at IS NULL THEN t.error ELSE c.error END,
        finished_at = COALESCE(c.finished_at, t.now),
        step = t.iteration
    FROM (SELECT f.run_id, f.iteration, f.now, o.status, o.result, o.error, i.id
          FROM fit AS f
          JOIN tool_calls AS i ON i.run_id = f.run_id
          LEFT JOIN outcome AS o ON o.number = f.number AND o.id = i.id
          WHERE i.tenant_id = :tenant_id AND i.step IS NULL AND (o.id IS NOT NULL OR i.finished_at IS NOT NULL)) AS t
    WHERE c.tenant_id = :tenant_id AND c.run_id = t.run_id AND c.id = t.id AND c.step IS NULL
)
SELECT number, session_id::text, first_seq, COALESCE(due, FALSE) FROM head;

-- name: commit_bare @postgres
-- Like commit_all, for steps without messages and outcomes, which most programs use to record progress: it takes a third of the
-- time. If a person has decided about a call in the meantime, the step does not fit and is committed by commit_all. A column in
-- which no step has a value is sent empty: unnest fills it with NULL.
WITH fit AS (
    SELECT n.*, r.session_id
    FROM unnest(:number::bigint[], :run_id::uuid[], :epoch::bigint[], :iteration::bigint[], :state::jsonb[],
                :last_tool_result::text[], :snapshot::text[], :fingerprint::text[], :input_tokens::bigint[],
                :output_tokens::bigint[], :created_at::timestamptz[])
        AS n (number, run_id, epoch, iteration, state, last_tool_result, snapshot, fingerprint, input_tokens, output_tokens, now)
    JOIN runs AS r ON r.id = n.run_id
    JOIN sessions AS s ON s.id = r.session_id
    WHERE r.tenant_id = :tenant_id AND r.id = ANY(:run_id::uuid[]) AND r.epoch = n.epoch AND r.iteration = n.iteration - 1
      AND r.status = 'running'
      AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE
      AND NOT EXISTS (SELECT 1 FROM tool_calls AS c WHERE c.tenant_id = :tenant_id AND c.run_id = n.run_id
                      AND c.step IS NULL AND c.finished_at IS NOT NULL)
    ORDER BY s.id, r.id
    FOR NO KEY UPDATE OF s, r
), moved AS (
    UPDATE runs AS r SET
        iteration = f.iteration,
        attempts = 0,
        input_tokens = r.input_tokens + COALESCE(f.input_tokens, 0),
        output_tokens = r.output_tokens + COALESCE(f.output_tokens, 0),
        checkpointed_at = f.now,
        lease_until = timezone('UTC', timezone('UTC', f.now) + r.lease_ms * interval '1 millisecond'),
        doubted_at = NULL
    FROM fit AS f
    WHERE r.tenant_id = :tenant_id AND r.id = ANY(:run_id::uuid[]) AND r.id = f.run_id
), noted AS (
    INSERT INTO run_steps (tenant_id, run_id, iteration, epoch, state, last_tool_result, first_seq, last_seq,
                           input_tokens, output_tokens, snapshot, fingerprint, created_at)
    SELECT :tenant_id, f.run_id, f.iteration, f.epoch, f.state, f.last_tool_result, NULL, NULL,
           COALESCE(f.input_tokens, 0), COALESCE(f.output_tokens, 0), f.snapshot, f.fingerprint, f.now
    FROM fit AS f
)
SELECT number, session_id::text FROM fit;

-- name: commit_one_bare @postgres
-- Like commit_bare, for a single step, as one worker makes it: without arrays it takes a sixth less time.
WITH fit AS (
    SELECT r.session_id
    FROM runs AS r
    JOIN sessions AS s ON s.id = r.session_id
    WHERE r.tenant_id = :tenant_id AND r.id = :run_id AND r.epoch = :epoch AND r.iteration = :iteration::bigint - 1
      AND r.status = 'running'
      AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE
      AND NOT EXISTS (SELECT 1 FROM tool_calls AS c WHERE c.tenant_id = :tenant_id AND c.run_id = :run_id
                      AND c.step IS NULL AND c.finished_at IS NOT NULL)
    FOR NO KEY UPDATE OF s, r
), moved AS (
    UPDATE runs AS r SET
        iteration = :iteration,
        attempts = 0,
        input_tokens = r.input_tokens + :input_tokens,
        output_tokens = r.output_tokens + :output_tokens,
        checkpointed_at = :now_at,
        lease_until = timezone('UTC', timezone('UTC', :now_at::timestamptz) + r.lease_ms * interval '1 millisecond'),
        doubted_at = NULL
    FROM fit
    WHERE r.tenant_id = :tenant_id AND r.id = :run_id
), noted AS (
    INSERT INTO run_steps (tenant_id, run_id, iteration, epoch, state, last_tool_result, first_seq, last_seq,
                           input_tokens, output_tokens, snapshot, fingerprint, created_at)
    SELECT :tenant_id, :run_id, :iteration, :epoch, :state::jsonb, :last_tool_result, NULL, NULL,
           :input_tokens, :output_tokens, :snapshot, :fingerprint, :now_at
    FROM fit
)
SELECT session_id::text FROM fit;

-- name: get
SELECT /*columns Step*/ * FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration = :iteration;

-- name: fingerprint
-- The fingerprint of the step's content, and the positions of its messages.
SELECT fingerprint, epoch, first_seq, last_seq FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration = :iteration;

-- name: messages
-- The messages of a step that are still in the log.
SELECT /*columns Message*/ * FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq >= :first_seq AND seq <= :last_seq
ORDER BY seq;

-- name: list
SELECT /*columns Step*/ * FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :after
ORDER BY iteration
LIMIT :limit;

-- name: list_newest
SELECT /*columns Step*/ * FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration < :before
ORDER BY iteration DESC
LIMIT :limit;
