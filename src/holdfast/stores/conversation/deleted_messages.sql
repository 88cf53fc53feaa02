-- Deleted messages that can be restored.

-- name: hold
-- Lock messages until the transaction ends, so that feedback added concurrently to one of them is kept too.
SELECT COUNT(*) FROM (
    SELECT 1 FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND id /*in ids uuid*/
    /*pg FOR UPDATE*/
) AS held;

-- name: keep
-- Messages of the log, each with its feedback.
INSERT INTO deleted_messages (tenant_id, session_id, id, source, seq, is_rewritten, original_message, deleted_at)
SELECT m.tenant_id, m.session_id, m.id, '', m.seq, FALSE, /*part original*/, :now_at/*pg ::timestamptz*/
FROM messages AS m
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.id /*in ids uuid*/
ON CONFLICT (tenant_id, session_id, id, source) DO UPDATE SET
    seq = excluded.seq, is_rewritten = excluded.is_rewritten, original_message = excluded.original_message,
    deleted_at = excluded.deleted_at;

-- name: keep_originals
-- Their originals in the archives of compactions.
INSERT INTO deleted_messages (tenant_id, session_id, id, source, seq, is_rewritten, original_message, deleted_at)
SELECT tenant_id, session_id, id, compaction_event_id/*pg ::text*/, seq, is_rewritten, original_message,
       :now_at/*pg ::timestamptz*/
FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id /*in ids uuid*/
ON CONFLICT (tenant_id, session_id, id, source) DO UPDATE SET
    seq = excluded.seq, is_rewritten = excluded.is_rewritten, original_message = excluded.original_message,
    deleted_at = excluded.deleted_at;

-- name: found
-- Everything kept of some messages; for the original of a compaction also its number, and whether it was rolled back.
SELECT d.id/*pg ::text*/, d.source, d.is_rewritten, e.number, e.rolled_back_at IS NOT NULL, d.seq,
       d.original_message/*pg ::text*/
FROM deleted_messages AS d
LEFT JOIN compaction_events AS e
       ON e.tenant_id = d.tenant_id AND e.session_id = d.session_id AND e.id/*pg ::text*/ = d.source
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id AND d.id /*in ids uuid*/;

-- name: restore_original
-- Return an original to the archive of a compaction that was not rolled back.
INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, is_rewritten, original_message, archived_at)
VALUES (:tenant_id, :source, :seq, :id, :session_id, :is_rewritten, :original_message, :now_at);

-- name: forget
DELETE FROM deleted_messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id /*in ids uuid*/
RETURNING id/*pg ::text*/;

-- name: list
-- Each message once: as it was in the log, or else the original of the first compaction.
SELECT d.id/*pg ::text*/, d.session_id/*pg ::text*/, d.seq & 1099511627775, d.original_message/*pg ::text*/, d.deleted_at
FROM deleted_messages AS d
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id AND d.id > :after/*pg ::uuid*/
  AND NOT EXISTS (SELECT 1 FROM deleted_messages AS o
                  WHERE o.tenant_id = :tenant_id AND o.session_id = :session_id AND o.id = d.id AND o.source < d.source)
ORDER BY d.id
LIMIT :limit;
