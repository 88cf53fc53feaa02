-- name: lock
-- What a live session shows now, held until the transaction ends.
SELECT branch, view/*pg ::text*/, next_seq, blocks FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: head
-- The same, without holding it.
SELECT branch, view/*pg ::text*/, next_seq, blocks FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: take_block
-- A block of places that nothing has been written to.
UPDATE sessions SET blocks = blocks + 1 WHERE tenant_id = :tenant_id AND id = :session_id
RETURNING blocks - 1;

-- name: remember
-- The branch that is current, as it is now; the first time, it gets its row.
INSERT INTO branches (tenant_id, session_id, number, origin, view, next_seq, created_at, updated_at)
VALUES (:tenant_id, :session_id, :number, 'start', :view, :next_seq, :now_at, :now_at)
ON CONFLICT (tenant_id, session_id, number) DO UPDATE SET
    view = :view, next_seq = :next_seq, updated_at = :now_at;

-- name: create
INSERT INTO branches (tenant_id, session_id, number, parent, forked_after, origin, label, view, next_seq, created_at, updated_at)
VALUES (:tenant_id, :session_id, :number, :parent, :forked_after, :origin, :label, :view, :next_seq, :now_at, :now_at);

-- name: find
SELECT /*columns Branch*/ *, view/*pg ::text*/, next_seq FROM branches
WHERE tenant_id = :tenant_id AND session_id = :session_id AND number = :number;

-- name: list
SELECT /*columns Branch*/ * FROM branches
WHERE tenant_id = :tenant_id AND session_id = :session_id
ORDER BY number;

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
