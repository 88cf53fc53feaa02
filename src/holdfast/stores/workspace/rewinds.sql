-- Where a run is looked up, its session is looked at too: see runs.sql.

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
-- The last rewind that brought the run to the step it is at, and was not undone. One that waits for a worker counts.
SELECT /*columns Rewind*/ *, anchor, run_before/*pg ::text*/ FROM rewinds
WHERE tenant_id = :tenant_id AND run_id = :run_id AND to_step = :iteration AND anchor = :anchor
  AND (status = 'rewound' OR (status = 'rewinding' AND path IS NULL AND snapshot IS NOT NULL))
ORDER BY id DESC
LIMIT 1;

-- name: pending
-- Those whose tree is still to be brought to where the run is, the oldest first.
SELECT /*columns Rewind*/ * FROM rewinds
WHERE tenant_id = :tenant_id AND status IN ('rewinding', 'redoing')
ORDER BY id
LIMIT :limit;

-- name: pending_of
-- The one of a run, if there is one.
SELECT /*columns Rewind*/ * FROM rewinds
WHERE tenant_id = :tenant_id AND run_id = :run_id AND status IN ('rewinding', 'redoing');

-- name: move
UPDATE rewinds SET status = :status, path = :path, pending_reason = :pending_reason, finished_at = :finished_at
WHERE tenant_id = :tenant_id AND id = :rewind_id
RETURNING /*columns Rewind*/ *;

-- name: explain
-- Why the tree of a rewind that is under way is not there yet.
UPDATE rewinds SET pending_reason = :pending_reason
WHERE tenant_id = :tenant_id AND id = :rewind_id AND status IN ('rewinding', 'redoing');

-- name: keep_dirty
-- The tree as a worker found it, for every rewind of the run whose tree no worker had captured yet.
UPDATE rewinds SET dirty = :dirty
WHERE tenant_id = :tenant_id AND run_id = :run_id AND dirty IS NULL AND snapshot IS NOT NULL
  AND status IN ('rewinding', 'rewound');

-- name: step
-- What tells a step from another of the same number, and when it was.
SELECT epoch, fingerprint, created_at FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration = :to_step;

-- name: last_place
-- Where the messages of a run end, as of a step.
SELECT last_seq FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration <= :to_step AND last_seq IS NOT NULL
ORDER BY iteration DESC
LIMIT 1;

-- name: first_place
-- Where those of the later steps begin.
SELECT first_seq FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step AND first_seq IS NOT NULL
ORDER BY iteration
LIMIT 1;

-- name: tokens
-- What the later steps have used up.
SELECT COALESCE(SUM(input_tokens), 0)/*pg ::bigint*/, COALESCE(SUM(output_tokens), 0)/*pg ::bigint*/ FROM run_steps
WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step;

-- name: others
-- Another run that somebody drives in the session, whose log must not be switched under it.
SELECT id/*pg ::text*/ FROM runs
WHERE tenant_id = :tenant_id AND session_id = :session_id AND status = 'running' AND id <> :run_id
LIMIT 1;

-- name: children
-- The runs that calls of later steps have started.
SELECT r.id/*pg ::text*/, r.parent_call_id, r.finished_at IS NULL FROM runs AS r
JOIN tool_calls AS c ON c.tenant_id = :tenant_id AND c.run_id = :run_id AND c.id = r.parent_call_id
WHERE r.tenant_id = :tenant_id AND r.parent_run_id = :run_id AND c.tenant_id = :tenant_id AND c.iteration > :to_step
ORDER BY r.id;

-- name: attach_child
-- Say for which call a run was started; for none, so that the call can start another if it is made again.
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
-- Calls that had an outcome by then, and were taken in by a later step.
UPDATE tool_calls SET step = NULL
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step > :to_step AND finished_at <= :step_at;

-- name: open_calls
-- Calls that were open then. They may have happened, so they are as after a crash: begun, and gone on with by what their tools
-- declare.
UPDATE tool_calls SET status = 'begun', pause_until = NULL, result = NULL, error = NULL, step = NULL, finished_at = NULL
WHERE tenant_id = :tenant_id AND run_id = :run_id AND step > :to_step;

-- name: newer_calls
-- A call that was intended since the run was taken back.
SELECT id FROM tool_calls WHERE tenant_id = :tenant_id AND run_id = :run_id AND iteration > :to_step
LIMIT 1;

-- name: bring_steps
INSERT INTO run_steps (tenant_id, run_id, iteration, epoch, state, last_tool_result, first_seq, last_seq, input_tokens,
                       output_tokens, snapshot, fingerprint, created_at)
SELECT tenant_id, :run_id/*pg ::uuid*/, iteration, epoch, state, last_tool_result, first_seq, last_seq, input_tokens,
       output_tokens, snapshot, fingerprint, created_at
FROM rewound_steps WHERE tenant_id = :tenant_id AND rewind_id = :rewind_id;

-- name: make_room
-- Calls that are there as they were opened anew.
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
-- A run at another step, if it is still as it was when it was looked at.
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
