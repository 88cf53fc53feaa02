-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- part: live_message
SELECT /*columns Message m*/ * FROM messages AS m
JOIN sessions AS s ON s.tenant_id = m.tenant_id AND s.id = m.session_id
WHERE m.tenant_id = :tenant_id AND m.id = :id AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE

-- name: get
-- One message of a live session.
/*part live_message*/;

-- name: lock
-- The same, locked until the transaction ends, so that the session's counters change by the message's exact token count.
/*part live_message*/
/*pg FOR UPDATE OF m*/;

-- name: update
-- Columns whose parameter is NULL keep their value. The old token count comes from `lock`.
UPDATE messages SET
    content = COALESCE(:content, content),
    metadata = COALESCE(:metadata, metadata),
    token_count = COALESCE(:token_count, token_count),
    is_preserved = COALESCE(:is_preserved, is_preserved),
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns Message*/ *, seq;

-- name: delete
-- Exactly these messages of this session.
DELETE FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id /*in ids uuid*/
RETURNING id/*pg ::text*/, token_count, seq;

-- name: delete_feedback
-- The feedback on these messages: a caller's own SQLite connection may have foreign keys switched off. It is deleted after the
-- messages, because giving feedback locks the message first and earlier feedback second.
DELETE FROM feedback
WHERE tenant_id = :tenant_id AND session_id = :session_id AND message_id /*in ids uuid*/;

-- name: recount
-- Update the session's counters after a change or removal and, if the session is smaller now, the threshold of its next automatic
-- compaction: see show in branches.sql.
UPDATE sessions SET
    message_count = message_count - :removed,
    token_count = token_count + :more_tokens,
    updated_at = :now_at,
    updated_minute = :now_minute,
    compact_from = CASE WHEN compact_from IS NULL OR :more_tokens >= 0 THEN compact_from ELSE COALESCE(
        (SELECT CASE WHEN compact_from > token_count + :more_tokens THEN compact_from
                     WHEN token_count + :more_tokens + compact_from / 16 < sessions.compact_from
                     THEN token_count + :more_tokens + compact_from / 16 + 1
                     ELSE sessions.compact_from END
         FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
        (SELECT CASE WHEN compact_from > token_count + :more_tokens THEN compact_from
                     WHEN token_count + :more_tokens + compact_from / 16 < sessions.compact_from
                     THEN token_count + :more_tokens + compact_from / 16 + 1
                     ELSE sessions.compact_from END
         FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = sessions.agent_id)) END
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
RETURNING id;
