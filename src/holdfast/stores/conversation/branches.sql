-- name: lock
-- What a live session shows now, held until the transaction ends.
SELECT branch, view/*pg ::text*/, next_seq, blocks FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: head
-- The same, without holding it.
SELECT branch, view/*pg ::text*/, next_seq, blocks FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: first
-- The branch that a live session began with, as long as it has no row: that comes with the first fork.
SELECT id/*pg ::text*/, 0, NULL/*pg ::bigint*/, 0, 'start', '', created_at FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: take_block
-- A block of places that nothing has been written to.
UPDATE sessions SET blocks = blocks + 1 WHERE tenant_id = :tenant_id AND id = :session_id
RETURNING blocks - 1;

-- name: message
-- Whether there is a message at a place.
SELECT 1 FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = :place;

-- name: remember
-- The branch that is shown, as it is now; the first time, it gets its row.
INSERT INTO branches (tenant_id, session_id, number, origin, view, next_seq, created_at)
SELECT :tenant_id, id, branch, 'start', view, next_seq, created_at FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id
ON CONFLICT (tenant_id, session_id, number) DO UPDATE SET view = excluded.view, next_seq = excluded.next_seq;

-- name: create
INSERT INTO branches (tenant_id, session_id, number, parent, forked_after, origin, label, view, next_seq, created_at)
VALUES (:tenant_id, :session_id, :number, :parent, :forked_after, :origin, :label, :view, :next_seq, :now_at)
RETURNING /*columns Branch*/ *;

-- name: find
SELECT /*columns Branch*/ *, view/*pg ::text*/, next_seq FROM branches
WHERE tenant_id = :tenant_id AND session_id = :session_id AND number = :number;

-- name: list
-- The branches of a live session, as far as they have rows.
SELECT /*columns Branch*/ * FROM branches
WHERE tenant_id = :tenant_id AND session_id = :session_id AND number > :after
  AND EXISTS (SELECT 1 FROM sessions
              WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE)
ORDER BY number
LIMIT :limit;

-- name: others
-- The views of all branches but one.
SELECT view/*pg ::text*/ FROM branches
WHERE tenant_id = :tenant_id AND session_id = :session_id AND number <> :number;

-- name: show
-- Make a branch the one that is seen and appended to.
UPDATE sessions SET
    branch = :number,
    view = :view,
    next_seq = :next_seq,
    message_count = :message_count,
    token_count = :tokens,
    updated_at = :now_at,
    updated_minute = :now_minute
WHERE tenant_id = :tenant_id AND id = :session_id;
