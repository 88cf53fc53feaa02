-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- name: counts
-- The number of a session's live compactions, and the highest number of any of its compactions.
SELECT s.compaction_count,
       COALESCE((SELECT MAX(e.number) FROM compaction_events AS e
                 WHERE e.tenant_id = :tenant_id AND e.session_id = :session_id), 0)
FROM sessions AS s WHERE s.tenant_id = :tenant_id AND s.id = :session_id;

-- name: span @sqlite
-- All messages in some ranges of a session's log, in any order, each with its position.
SELECT /*columns Message m*/ *, m.seq FROM json_each(:ranges) AS r
CROSS JOIN messages AS m
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id
      AND m.seq >= json_extract(r.value, '$[0]') AND m.seq <= json_extract(r.value, '$[1]')
LIMIT :limit;

-- name: span @postgres
SELECT /*columns Message m*/ *, m.seq FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
CROSS JOIN LATERAL (
    SELECT * FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id
          AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint
    OFFSET 0
) AS m
LIMIT :limit;

-- name: hold
-- Lock messages until the transaction ends, so that feedback added concurrently is archived too.
SELECT COUNT(*) FROM (
    SELECT 1 FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq /*in places bigint*/
    /*pg FOR UPDATE*/
) AS held;

-- name: needed
-- Whether the rollback of a compaction on another branch needs one of these positions: it left them in the log for shared branches.
SELECT 1 FROM compaction_events AS e
CROSS JOIN message_archive AS a
WHERE a.tenant_id = e.tenant_id AND a.compaction_event_id = e.id
      AND e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id AND e.branch <> :branch
      AND e.block IS NOT NULL AND e.rolled_back_at IS NULL AND a.seq /*in places bigint*/
LIMIT 1;

-- name: create
INSERT INTO compaction_events (tenant_id, id, session_id, number, branch, strategy, original_tokens, compacted_tokens,
                               messages_removed, messages_rewritten, summary_content, summary_message_id,
                               preserved_message_ids, model_used, duration_ms, block, created_at, updated_at)
VALUES (:tenant_id, :id, :session_id, :number, :branch, :strategy, :original_tokens, :compacted_tokens,
        :messages_removed, :messages_rewritten, :summary_content, :summary_message_id,
        :preserved_message_ids, :model_used, :duration_ms, :block, :now_at, :now_at)
RETURNING /*columns CompactionEvent*/ *;

-- name: archive
-- The messages at some positions, each with its feedback.
INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, is_rewritten, original_message, archived_at)
SELECT m.tenant_id, :event_id/*pg ::uuid*/, m.seq, m.id, m.session_id, m.seq /*in rewritten bigint*/,
    /*part original*/, :now_at/*pg ::timestamptz*/
FROM messages AS m
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq /*in places bigint*/;

-- name: remove_feedback @sqlite
-- Delete feedback explicitly: a caller's own SQLite connection may have foreign keys switched off. The plus keeps SQLite from
-- looking up the feedback of each message.
DELETE FROM feedback WHERE tenant_id = :tenant_id AND session_id = :session_id AND +message_id IN (
    SELECT id FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq IN (SELECT value FROM json_each(:places)));

-- name: remove_feedback @postgres
DELETE FROM feedback WHERE tenant_id = :tenant_id AND message_id IN (
    SELECT id FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = ANY(:places::bigint[]));

-- name: remove
DELETE FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq /*in places bigint*/;

-- name: overwrite
-- Replace the content of a message, or restore its original. A message deleted since then stays deleted.
UPDATE messages SET
    kind = :kind,
    role = :role,
    content = :content,
    token_count = :token_count,
    metadata = :metadata,
    is_preserved = :is_preserved,
    is_summary = :is_summary,
    updated_at = :updated_at
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = :seq AND id = :id;

-- name: settle
-- The session's view and counts after a compaction or its rollback. The next automatic compaction is due at the policy's
-- threshold, or, if the session is over it already, when it has grown by a sixteenth of the threshold.
UPDATE sessions SET
    view = :view,
    message_count = :message_count,
    token_count = :tokens,
    compaction_count = compaction_count + :more_compactions,
    updated_at = :now_at,
    updated_minute = :now_minute,
    compact_from = (
        SELECT CASE WHEN p.due > :tokens THEN p.due ELSE :tokens + p.due / 16 + 1 END
        FROM (SELECT COALESCE(
            (SELECT compact_from FROM compaction_policies
             WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
            (SELECT compact_from FROM compaction_policies
             WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = sessions.agent_id)) AS due) AS p)
WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: get
-- One event of a live session.
SELECT /*columns CompactionEvent e*/ * FROM compaction_events AS e
JOIN sessions AS s ON s.tenant_id = e.tenant_id AND s.id = e.session_id
WHERE e.tenant_id = :tenant_id AND e.id = :id AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE;

-- name: internals
-- Of one event: the block of its new messages, if branches shared the covered ones, and the number of archived originals.
SELECT e.block, (SELECT COUNT(*) FROM message_archive AS a
                 WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = e.id)
FROM compaction_events AS e
WHERE e.tenant_id = :tenant_id AND e.id = :id;

-- name: newest
-- The newest live event of a branch.
SELECT /*columns CompactionEvent*/ * FROM compaction_events
WHERE tenant_id = :tenant_id AND session_id = :session_id AND branch = :branch AND rolled_back_at IS NULL
ORDER BY number DESC LIMIT 1;

-- name: history
-- The events of a live session, newest first.
SELECT /*columns CompactionEvent*/ * FROM compaction_events
WHERE tenant_id = :tenant_id AND session_id = :session_id AND number < :before
      AND EXISTS (SELECT 1 FROM sessions
                  WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE)
ORDER BY number DESC
LIMIT :limit;

-- name: drop_feedback
-- Delete the feedback on one message, before the message is deleted.
DELETE FROM feedback WHERE tenant_id = :tenant_id AND message_id = :message_id;

-- name: drop
DELETE FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = :message_id;

-- name: place
-- The position of a message in the log.
SELECT seq FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = :message_id;

-- name: archived_places
-- The positions of an event's originals, and which of them are still in the log with another content.
SELECT seq, id/*pg ::text*/, is_rewritten FROM message_archive
WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id;

-- name: originals
SELECT seq, is_rewritten, original_message/*pg ::text*/ FROM message_archive
WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id;

-- name: still_rewritten
-- The positions of rewritten messages that were not deleted since.
SELECT a.seq FROM message_archive AS a
JOIN messages AS m ON m.tenant_id = a.tenant_id AND m.id = a.id
WHERE a.tenant_id = :tenant_id AND m.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS TRUE;

-- name: block
-- The positions of all messages in a block of the log.
SELECT seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq >= :first_place AND seq <= :last_place;

-- name: forget_originals
-- Delete the originals of deleted messages.
DELETE FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id /*in ids uuid*/
RETURNING id/*pg ::text*/, compaction_event_id/*pg ::text*/, is_rewritten;

-- name: file
-- Count further messages that a recorded compaction has removed.
UPDATE compaction_events SET
    messages_removed = messages_removed + :more_removed,
    summary_message_id = :summary_message_id,
    block = :block,
    compacted_tokens = :compacted_tokens,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :event_id
RETURNING /*columns CompactionEvent*/ *;

-- name: discount
-- Lower the counts of an event by its deleted originals, so that a rollback does not expect them.
UPDATE compaction_events SET
    messages_removed = messages_removed - :fewer_removed,
    messages_rewritten = messages_rewritten - :fewer_rewritten,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :event_id;

-- name: empty_archive
-- Delete the archive of an event whose originals are in the log again.
DELETE FROM message_archive WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id;

-- name: mark_rolled_back
UPDATE compaction_events SET rolled_back_at = :now_at, updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns CompactionEvent*/ *;

-- name: archived
-- Originals of one event or of all events of a live session, in the order of the events and then of the log.
SELECT a.session_id/*pg ::text*/, a.seq & 1099511627775, a.original_message/*pg ::text*/,
       a.compaction_event_id/*pg ::text*/, a.is_rewritten, a.archived_at, e.number
FROM compaction_events AS e
CROSS JOIN message_archive AS a
WHERE a.tenant_id = e.tenant_id AND a.compaction_event_id = e.id
      AND e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id
      AND e.number >= :from_number AND e.number <= :to_number
      AND (e.number, a.seq & 1099511627775) > (:after_number, :after_seq)
ORDER BY e.number, a.seq & 1099511627775
LIMIT :limit;

-- name: attach
-- Set the policy of automatic compactions, of one session or of all sessions of an agent.
INSERT INTO compaction_policies (tenant_id, scope, name, policy, compact_from, created_at, updated_at)
VALUES (:tenant_id, :scope, :name, :policy, :compact_from, :now_at, :now_at)
ON CONFLICT (tenant_id, scope, name) DO UPDATE SET
    policy = :policy, compact_from = :compact_from, updated_at = :now_at;

-- name: detach
DELETE FROM compaction_policies WHERE tenant_id = :tenant_id AND scope = :scope AND name = :name
RETURNING name;

-- name: attached
-- The policies of a live session and of its agent.
SELECT p.scope, p.name, p.policy/*pg ::text*/ FROM sessions AS s
JOIN compaction_policies AS p ON p.tenant_id = s.tenant_id AND p.scope = 'session' AND p.name = CAST(s.id AS TEXT)
WHERE s.tenant_id = :tenant_id AND p.tenant_id = :tenant_id AND s.id = :session_id AND (s.deleted_at IS NULL) IS TRUE
UNION ALL
SELECT p.scope, p.name, p.policy/*pg ::text*/ FROM sessions AS s
JOIN compaction_policies AS p ON p.tenant_id = s.tenant_id AND p.scope = 'agent' AND p.name = s.agent_id
WHERE s.tenant_id = :tenant_id AND p.tenant_id = :tenant_id AND s.id = :session_id AND (s.deleted_at IS NULL) IS TRUE;

-- name: follow_session
-- Set the threshold of a session from the policy that applies to it now.
UPDATE sessions SET compact_from = COALESCE(
    (SELECT compact_from FROM compaction_policies
     WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
    (SELECT compact_from FROM compaction_policies
     WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = sessions.agent_id))
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
RETURNING id;

-- name: follow_agent
-- The same for all live sessions of an agent.
UPDATE sessions/*index*/ SET compact_from = COALESCE(
    (SELECT compact_from FROM compaction_policies
     WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
    (SELECT compact_from FROM compaction_policies
     WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = sessions.agent_id))
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND deleted_at IS NULL;

-- name: postpone
-- Postpone the next automatic compaction after a failure, until the session has grown by a sixteenth of its threshold.
UPDATE sessions SET compact_from = token_count + compact_from / 16 + 1
WHERE tenant_id = :tenant_id AND id = :session_id AND token_count >= compact_from;
