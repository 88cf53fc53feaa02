-- name: lock
-- The current branch of a live session, locked until the transaction ends.
SELECT branch, view/*pg ::text*/, next_seq, blocks, compaction_count FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: head
-- The same without the lock.
SELECT branch, view/*pg ::text*/, next_seq, blocks, compaction_count FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: first
-- The first branch of a live session as long as it has no row: the first fork inserts the row.
SELECT id/*pg ::text*/, 0, NULL/*pg ::bigint*/, 0, 'start', '', created_at FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: take_block
-- Allocate a block of positions that no message was written to.
UPDATE sessions SET blocks = blocks + 1 WHERE tenant_id = :tenant_id AND id = :session_id
RETURNING blocks - 1;

-- name: message
-- Whether a message exists at a position.
SELECT 1 FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = :place;

-- name: summarised_later
-- Live compactions, newest first, whose summary comes after a message while their originals, or the originals of a summary among
-- these, began before it; with the summary's position, which this branch may or may not show.
WITH RECURSIVE later (event_id, top_id, top_number, top_place) AS (
    SELECT e.id, e.id, e.number, m.seq FROM compaction_events AS e
    JOIN messages AS m ON m.tenant_id = e.tenant_id AND m.id = e.summary_message_id
    WHERE e.tenant_id = :tenant_id AND m.tenant_id = :tenant_id AND e.session_id = :session_id
      AND e.rolled_back_at IS NULL AND m.seq & 1099511627775 > :at
    UNION ALL
    SELECT e.id, l.top_id, l.top_number, l.top_place FROM later AS l
    JOIN message_archive AS a ON a.compaction_event_id = l.event_id
    JOIN compaction_events AS e ON e.tenant_id = a.tenant_id AND e.summary_message_id = a.id
    WHERE e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id
      AND e.rolled_back_at IS NULL AND a.is_rewritten IS FALSE
      AND a.id IN (SELECT summary_message_id FROM compaction_events WHERE tenant_id = :tenant_id AND session_id = :session_id)
)
SELECT l.top_id/*pg ::text*/, l.top_place FROM later AS l
WHERE EXISTS (SELECT 1 FROM message_archive AS a
              WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = l.event_id AND a.is_rewritten IS FALSE
                AND a.seq & 1099511627775 <= :at)
ORDER BY l.top_number DESC;

-- name: remember
-- Save the state of the current branch; the first time, this inserts its row.
INSERT INTO branches (tenant_id, session_id, number, origin, view, next_seq, created_at)
SELECT tenant_id, id, branch, 'start', view, next_seq, created_at FROM sessions
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
-- The branches of a live session that have rows.
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
-- Make a branch the current one. The threshold of the next automatic compaction is set as after another compaction (settle, in
-- compactions.sql), but never raised.
UPDATE sessions SET
    branch = :number,
    view = :view,
    next_seq = :next_seq,
    message_count = :message_count,
    token_count = :tokens,
    updated_at = :now_at,
    updated_minute = :now_minute,
    compact_from = CASE WHEN compact_from IS NULL THEN NULL ELSE COALESCE(
        (SELECT CASE WHEN compact_from > :tokens THEN compact_from
                     WHEN :tokens + compact_from / 16 < sessions.compact_from THEN :tokens + compact_from / 16 + 1
                     ELSE sessions.compact_from END
         FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
        (SELECT CASE WHEN compact_from > :tokens THEN compact_from
                     WHEN :tokens + compact_from / 16 < sessions.compact_from THEN :tokens + compact_from / 16 + 1
                     ELSE sessions.compact_from END
         FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = sessions.agent_id)) END
WHERE tenant_id = :tenant_id AND id = :session_id;
