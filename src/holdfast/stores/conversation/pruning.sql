-- Rows old enough to remove. Each statement reads or removes a bounded number of rows.

-- name: idle_live
-- Live sessions that were not used since a time, the least recently used first, after a position in this order.
SELECT id/*pg ::text*/, updated_minute, message_count FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND deleted_at IS NULL AND updated_minute <= :cutoff_minute AND updated_at < :cutoff_at
  AND (updated_minute, id) > (:after_minute, :after_id/*pg ::uuid*/)
ORDER BY updated_minute, id
LIMIT :limit;

-- name: idle_deleted
-- The same for deleted sessions.
SELECT id/*pg ::text*/, updated_minute, message_count FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND deleted_at IS NOT NULL AND updated_minute <= :cutoff_minute AND updated_at < :cutoff_at
  AND (updated_minute, id) > (:after_minute, :after_id/*pg ::uuid*/)
ORDER BY updated_minute, id
LIMIT :limit;

-- name: lock_idle
-- One of them, locked until the transaction ends, if it is still idle. The lock prevents a run from starting in it.
SELECT 1 FROM sessions
WHERE tenant_id = :tenant_id AND id = :id AND updated_at < :cutoff_at
/*pg FOR UPDATE*/;

-- name: archives
-- Sessions with originals or deleted messages from before a time.
SELECT session_id/*pg ::text*/ FROM (
    SELECT session_id FROM message_archive
    WHERE tenant_id = :tenant_id AND session_id > :after_id AND archived_at < :cutoff_at
    UNION
    SELECT session_id FROM deleted_messages
    WHERE tenant_id = :tenant_id AND session_id > :after_id AND deleted_at < :cutoff_at
) AS old
ORDER BY session_id
LIMIT :limit;

-- name: remove_originals
-- A bounded number of originals of one session.
DELETE FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :id AND archived_at < :cutoff_at
  AND (compaction_event_id, seq) IN (
      SELECT compaction_event_id, seq FROM message_archive
      WHERE tenant_id = :tenant_id AND session_id = :id AND archived_at < :cutoff_at
      LIMIT :limit)
RETURNING 1;

-- name: remove_deleted
-- A bounded number of its deleted messages.
DELETE FROM deleted_messages
WHERE tenant_id = :tenant_id AND session_id = :id AND deleted_at < :cutoff_at
  AND (id, source) IN (
      SELECT id, source FROM deleted_messages
      WHERE tenant_id = :tenant_id AND session_id = :id AND deleted_at < :cutoff_at
      LIMIT :limit)
RETURNING 1;
