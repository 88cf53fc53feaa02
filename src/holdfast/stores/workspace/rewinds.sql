-- Queries that look up a run also check its session: see runs.sql.

-- name: create
INSERT INTO rewinds (tenant_id, id, run_id, from_step, to_step, status, path, snapshot, dirty, pending_reason,
                     branch_before, branch_after, anchor, run_before, created_at)
VALUES (:tenant_id, :rewind_id, :run_id, :from_step, :to_step, 'rewinding', :path, :snapshot, :dirty, :pending_reason,
        :branch_before, :branch_after, :anchor, :run_before, :now_at)
RETURNING /*columns Rewind*/ *;

-- name: find
SELECT /*columns Rewind*/ *, anchor, run_before/*pg ::text*/ FROM rewinds
WHERE tenant_id = :tenant_id AND id = :rewind_id;

-- name: list
-- The rewinds of a run, the last one first.
SELECT /*columns Rewind*/ * FROM rewinds
WHERE tenant_id = :tenant_id AND run_id = :run_id AND id < :before_id
ORDER BY id DESC
LIMIT :limit;

-- name: to_redo
-- The last rewind that led to the run's current step and was not undone. One that waits for a worker counts.
SELECT /*columns Rewind*/ *, anchor, run_before/*pg ::text*/ FROM rewinds
WHERE tenant_id = :tenant_id AND run_id = :run_id AND to_step = :iteration AND anchor = :anchor
  AND (status = 'rewound' OR (status = 'rewinding' AND path IS NULL AND snapshot IS NOT NULL))
ORDER BY id DESC
LIMIT 1;

-- name: pending
-- Rewinds whose directory has not been restored yet, the oldest first.
SELECT /*columns Rewind*/ * FROM rewinds
WHERE tenant_id = :tenant_id AND status IN ('rewinding', 'redoing')
ORDER BY id
LIMIT :limit;

-- name: pending_of
-- The pending rewind of a run, if any.
SELECT /*columns Rewind*/ * FROM rewinds
WHERE tenant_id = :tenant_id AND run_id = :run_id AND status IN ('rewinding', 'redoing');

-- name: move
UPDATE rewinds SET status = :status, path = :path, pending_reason = :pending_reason, finished_at = :finished_at
WHERE tenant_id = :tenant_id AND id = :rewind_id
RETURNING /*columns Rewind*/ *;

-- name: explain
-- Record why the directory of a pending rewind has not been restored yet.
UPDATE rewinds SET pending_reason = :pending_reason
WHERE tenant_id = :tenant_id AND id = :rewind_id AND status IN ('rewinding', 'redoing');

-- name: keep_dirty
-- Record the directory as a worker found it, for every rewind of the run whose directory no worker had captured yet.
UPDATE rewinds SET dirty = :dirty
WHERE tenant_id = :tenant_id AND run_id = :run_id AND dirty IS NULL AND snapshot IS NOT NULL
  AND status IN ('rewinding', 'rewound');

-- name: step
-- The identity of a step among others of the same number, and its time.
SELECT epoch, fingerprint, created_at FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration = :to_step;

-- name: last_place
-- The position of the last message of a run as of a step.
SELECT last_seq FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration <= :to_step AND last_seq IS NOT NULL
ORDER BY iteration DESC
LIMIT 1;

-- name: first_place
-- The position of the first message of the later steps.
SELECT first_seq FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step AND first_seq IS NOT NULL
ORDER BY iteration
LIMIT 1;

-- name: tokens
-- The tokens used by the later steps.
SELECT COALESCE(SUM(input_tokens), 0)/*pg ::bigint*/, COALESCE(SUM(output_tokens), 0)/*pg ::bigint*/ FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step;

-- name: others
-- Another running run in the session, whose log must not be switched while it is driven.
SELECT id/*pg ::text*/ FROM runs
WHERE tenant_id = :tenant_id AND session_id = :session_id AND status = 'running' AND id <> :run_id
LIMIT 1;

-- name: children
-- Child runs started by calls of later steps.
SELECT r.id/*pg ::text*/, r.parent_call_id, r.finished_at IS NULL FROM runs AS r
JOIN tool_calls AS c ON c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.id = r.parent_call_id
WHERE r.tenant_id = :tenant_id AND r.parent_run_id = :run_id AND c.tenant_id = :tenant_id AND c.iteration > :to_step
ORDER BY r.id;

-- name: attach_child
-- Attach a child run to a call; or detach it, so that the call can start another run when it is repeated.
UPDATE runs SET parent_call_id = :call_id WHERE tenant_id = :tenant_id AND id = :child_id;

-- name: keep_steps
INSERT INTO rewound_steps (tenant_id, rewind_id, iteration, epoch, state, last_tool_result, first_seq, last_seq, input_tokens,
                           output_tokens, snapshot, fingerprint, created_at)
SELECT tenant_id, :rewind_id/*pg ::uuid*/, iteration, epoch, state, last_tool_result, first_seq, last_seq, input_tokens,
       output_tokens, snapshot, fingerprint, created_at
FROM run_steps WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step;

-- name: drop_steps
DELETE FROM run_steps WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step;

-- name: keep_calls
INSERT INTO rewound_calls (tenant_id, rewind_id, id, tool_name, tool_input, safety, status, iteration, place, epoch, attempts,
                           pause_until, result, error, step, started_at, finished_at)
SELECT tenant_id, :rewind_id/*pg ::uuid*/, id, tool_name, tool_input, safety, status, iteration, place, epoch, attempts,
       pause_until, result, error, step, started_at, finished_at
FROM tool_calls WHERE tenant_id = :tenant_id AND run_id = :run_id AND (iteration > :to_step OR step > :to_step);

-- name: drop_calls
DELETE FROM tool_calls WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step;

-- name: settled_calls
-- Calls that had an outcome at that time, and were recorded by a later step.
UPDATE tool_calls SET step = NULL
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step > :to_step AND finished_at <= :step_at;

-- name: open_calls
-- Calls that were open at that time. They may have happened, so they are treated as after a crash: begun, and resumed as their
-- tools declare.
UPDATE tool_calls SET status = 'begun', pause_until = NULL, result = NULL, error = NULL, step = NULL, finished_at = NULL
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step > :to_step;

-- name: newer_calls
-- A call made since the run was taken back.
SELECT id FROM tool_calls WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step
LIMIT 1;

-- name: bring_steps
INSERT INTO run_steps (tenant_id, run_id, iteration, epoch, state, last_tool_result, first_seq, last_seq, input_tokens,
                       output_tokens, snapshot, fingerprint, created_at)
SELECT tenant_id, :run_id/*pg ::uuid*/, iteration, epoch, state, last_tool_result, first_seq, last_seq, input_tokens,
       output_tokens, snapshot, fingerprint, created_at
FROM rewound_steps WHERE tenant_id = :tenant_id AND rewind_id = :rewind_id;

-- name: make_room
-- Calls that were reopened by the rewind.
DELETE FROM tool_calls
WHERE tenant_id = :tenant_id AND run_id = :run_id
  AND id IN (SELECT k.id FROM rewound_calls AS k WHERE k.tenant_id = :tenant_id AND k.rewind_id = :rewind_id);

-- name: bring_calls
INSERT INTO tool_calls (tenant_id, run_id, id, tool_name, tool_input, safety, status, iteration, place, epoch, attempts,
                        pause_until, result, error, step, started_at, finished_at)
SELECT tenant_id, :run_id/*pg ::uuid*/, id, tool_name, tool_input, safety, status, iteration, place, epoch, attempts,
       pause_until, result, error, step, started_at, finished_at
FROM rewound_calls WHERE tenant_id = :tenant_id AND rewind_id = :rewind_id;

-- name: forget_steps
DELETE FROM rewound_steps WHERE tenant_id = :tenant_id AND rewind_id = :rewind_id;

-- name: forget_calls
DELETE FROM rewound_calls WHERE tenant_id = :tenant_id AND rewind_id = :rewind_id;

-- name: put_run
-- Move a run to another step, if it is unchanged since it was read.
UPDATE runs SET
    iteration = :iteration,
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
    input_tokens = :input_tokens,
    output_tokens = :output_tokens,
    checkpointed_at = :checkpointed_at,
    finished_at = :finished_at
WHERE tenant_id = :tenant_id AND id = :run_id AND epoch = :epoch
RETURNING /*columns Run*/ *;
