-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql. Lists travel as one argument: as JSON on SQLite, as arrays on PostgreSQL.

-- name: counts
-- The live compactions of a session, and the number of the newest one there ever was.
SELECT s.compaction_count,
       COALESCE((SELECT MAX(e.number) FROM compaction_events AS e
                 WHERE e.tenant_id = :tenant_id AND e.session_id = :session_id), 0)
FROM sessions AS s WHERE s.tenant_id = :tenant_id AND s.id = :session_id;

-- name: span @sqlite
-- All messages in some ranges of a session's log, in any order, each with its place.
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

-- name: hold @sqlite
-- Keep everybody else's hands off some messages until the transaction ends. PostgreSQL needs it: whoever is just adding something
-- that hangs on one of them must be done, so that it is archived too. On SQLite nobody else is writing.
SELECT 0 FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: hold @postgres
SELECT COUNT(*) FROM (
    SELECT 1 FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = ANY(:places::bigint[])
    FOR UPDATE
) AS held;

-- name: needed @sqlite
-- Whether a live compaction that took nothing out of the log, because branches share it, would need one of these places again.
SELECT 1 FROM compaction_events AS e
CROSS JOIN message_archive AS a ON a.tenant_id = e.tenant_id AND a.compaction_event_id = e.id
WHERE e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id AND e.branch <> :branch
      AND e.block IS NOT NULL AND e.rolled_back_at IS NULL AND a.seq IN (SELECT value FROM json_each(:places))
LIMIT 1;

-- name: needed @postgres
SELECT 1 FROM compaction_events AS e
JOIN message_archive AS a ON a.tenant_id = e.tenant_id AND a.compaction_event_id = e.id
WHERE e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id AND e.branch <> :branch
      AND e.block IS NOT NULL AND e.rolled_back_at IS NULL AND a.seq = ANY(:places::bigint[])
LIMIT 1;

-- name: create
INSERT INTO compaction_events (tenant_id, id, session_id, number, branch, strategy, original_tokens, compacted_tokens,
                               messages_removed, messages_rewritten, summary_content, summary_message_id,
                               preserved_message_ids, model_used, duration_ms, block, created_at, updated_at)
VALUES (:tenant_id, :id, :session_id, :number, :branch, :strategy, :original_tokens, :compacted_tokens,
        :messages_removed, :messages_rewritten, :summary_content, :summary_message_id,
        :preserved_message_ids, :model_used, :duration_ms, :block, :now_at, :now_at)
RETURNING /*columns CompactionEvent*/ *;

-- name: archive @sqlite
-- Every column of the messages at some places, and the feedback on those that will be removed. JSON columns are text in SQLite, and stay
-- text inside the object: that keeps every byte, where parsing would not. Few sessions have feedback, so that is asked once.
INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, is_rewritten, original_message, archived_at)
SELECT m.tenant_id, :event_id, m.seq, m.id, m.session_id, m.seq IN (SELECT value FROM json_each(:rewritten)),
    json_object(
        'tenant_id', m.tenant_id, 'session_id', m.session_id, 'seq', m.seq, 'id', m.id, 'kind', m.kind, 'role', m.role,
        'content', m.content, 'token_count', m.token_count, 'metadata', m.metadata, 'is_preserved', m.is_preserved,
        'is_summary', m.is_summary, 'created_at', m.created_at, 'updated_at', m.updated_at,
        'feedback', CASE WHEN EXISTS (SELECT 1 FROM feedback WHERE tenant_id = :tenant_id AND session_id = :session_id)
        THEN json((
            SELECT json_group_array(json_object(
                'id', f.id, 'message_id', f.message_id, 'session_id', f.session_id, 'user_id', f.user_id,
                'is_positive', f.is_positive, 'feedback_text', f.feedback_text, 'issue_type', f.issue_type,
                'metadata', f.metadata, 'created_at', f.created_at, 'updated_at', f.updated_at))
            FROM feedback AS f WHERE f.tenant_id = :tenant_id AND f.message_id = m.id))
        ELSE json('[]') END),
    :now_at
FROM messages AS m
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq IN (SELECT value FROM json_each(:places));

-- name: archive @postgres
INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, is_rewritten, original_message, archived_at)
SELECT m.tenant_id, :event_id::uuid, m.seq, m.id, m.session_id, m.seq = ANY(:rewritten::bigint[]),
    to_jsonb(m) || jsonb_build_object('feedback', COALESCE(f.given, '[]'::jsonb)),
    :now_at::timestamptz
FROM messages AS m
LEFT JOIN (
    SELECT message_id, jsonb_agg(to_jsonb(feedback)) AS given FROM feedback
    WHERE tenant_id = :tenant_id AND session_id = :session_id
    GROUP BY message_id
) AS f ON f.message_id = m.id
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq = ANY(:places::bigint[]);

-- name: remove_feedback @sqlite
-- What hangs on messages, said in so many words: a caller's own SQLite connection may have foreign keys switched off. The plus
-- keeps SQLite from looking for the feedback of each message.
DELETE FROM feedback WHERE tenant_id = :tenant_id AND session_id = :session_id AND +message_id IN (
    SELECT id FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq IN (SELECT value FROM json_each(:places)));

-- name: remove_feedback @postgres
DELETE FROM feedback WHERE tenant_id = :tenant_id AND message_id IN (
    SELECT id FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = ANY(:places::bigint[]));

-- name: remove @sqlite
DELETE FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq IN (SELECT value FROM json_each(:places));

-- name: remove @postgres
DELETE FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = ANY(:places::bigint[]);

-- name: rewrite @sqlite
-- New contents for messages, in their places. SQLite finds these first, or it would look through the list for every message.
WITH r AS MATERIALIZED (
    SELECT m.rowid AS place, c.value AS new FROM json_each(:rewrites) AS c
    CROSS JOIN messages AS m
    WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq = json_extract(c.value, '$.place')
)
UPDATE messages SET
    content = json_extract(r.new, '$.content'),
    token_count = json_extract(r.new, '$.token_count'),
    updated_at = :now_at
FROM r WHERE messages.rowid = r.place;

-- name: rewrite @postgres
UPDATE messages AS m SET
    content = (r.new ->> 'content')::jsonb,
    token_count = (r.new ->> 'token_count')::integer,
    updated_at = :now_at
FROM jsonb_array_elements(:rewrites::jsonb) AS r (new)
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq = (r.new ->> 'place')::bigint;

-- name: copy @sqlite
-- New contents for messages that others see as well: copies of them, at other places and with ids of their own.
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT m.tenant_id, m.session_id, json_extract(r.value, '$.new_place'), json_extract(r.value, '$.id'), m.kind, m.role,
       json_extract(r.value, '$.content'), json_extract(r.value, '$.token_count'), m.metadata,
       m.is_preserved, m.is_summary, m.created_at, :now_at
FROM json_each(:rewrites) AS r
CROSS JOIN messages AS m
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq = json_extract(r.value, '$.place');

-- name: copy @postgres
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT m.tenant_id, m.session_id, (r.new ->> 'new_place')::bigint, (r.new ->> 'id')::uuid, m.kind, m.role,
       (r.new ->> 'content')::jsonb, (r.new ->> 'token_count')::integer, m.metadata,
       m.is_preserved, m.is_summary, m.created_at, :now_at::timestamptz
FROM jsonb_array_elements(:rewrites::jsonb) AS r (new)
JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.seq = (r.new ->> 'place')::bigint;

-- name: settle
-- What the session shows and how much that is, after a compaction or its rollback. The next automatic one is due when the policy
-- says so, or, if the session is there already, when it has grown by a sixteenth of that.
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
-- Of one event: the block its messages are in, if branches shared what it covered, and how many originals are in the archive.
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
-- What hangs on one message, before it goes.
DELETE FROM feedback WHERE tenant_id = :tenant_id AND message_id = :message_id;

-- name: drop
DELETE FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = :message_id;

-- name: place
-- Where a message stands in the log.
SELECT seq FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = :message_id;

-- name: archived_places
SELECT seq FROM message_archive WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id;

-- name: archived_rewritten @sqlite
-- Where rewritten messages were, and when they had last been changed.
SELECT seq, json_extract(original_message, '$.updated_at') FROM message_archive
WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id AND is_rewritten IS TRUE;

-- name: archived_rewritten @postgres
SELECT seq, (original_message ->> 'updated_at')::timestamptz FROM message_archive
WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id AND is_rewritten IS TRUE;

-- name: rewritten_ids
SELECT id/*pg ::text*/ FROM message_archive
WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id AND is_rewritten IS TRUE;

-- name: still_rewritten
-- The same without those that were deleted since.
SELECT a.seq FROM message_archive AS a
JOIN messages AS m ON m.tenant_id = a.tenant_id AND m.id = a.id
WHERE a.tenant_id = :tenant_id AND m.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS TRUE;

-- name: block
-- What is in a block of the log.
SELECT seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq >= :first_place AND seq <= :last_place;

-- name: restore @sqlite
-- Removed messages back into the log, byte for byte: each to its old place where :block is -1, or else to the same
-- number in that block.
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT a.tenant_id, a.session_id, CASE WHEN :block = -1 THEN a.seq ELSE :block + (a.seq & 1099511627775) END, a.id,
       json_extract(a.original_message, '$.kind'), json_extract(a.original_message, '$.role'),
       json_extract(a.original_message, '$.content'), json_extract(a.original_message, '$.token_count'),
       json_extract(a.original_message, '$.metadata'), json_extract(a.original_message, '$.is_preserved'),
       json_extract(a.original_message, '$.is_summary'), json_extract(a.original_message, '$.created_at'),
       json_extract(a.original_message, '$.updated_at')
FROM message_archive AS a
WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS FALSE;

-- name: restore @postgres
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT a.tenant_id, a.session_id,
       CASE WHEN :block::bigint = -1 THEN a.seq ELSE :block::bigint + (a.seq & 1099511627775) END, a.id,
       a.original_message ->> 'kind', a.original_message ->> 'role', a.original_message -> 'content',
       (a.original_message ->> 'token_count')::integer, a.original_message -> 'metadata',
       (a.original_message ->> 'is_preserved')::boolean, (a.original_message ->> 'is_summary')::boolean,
       (a.original_message ->> 'created_at')::timestamptz, (a.original_message ->> 'updated_at')::timestamptz
FROM message_archive AS a
WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS FALSE;

-- name: restore_feedback @sqlite
-- And what hung on them.
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
SELECT a.tenant_id, json_extract(f.value, '$.id'), json_extract(f.value, '$.message_id'),
       json_extract(f.value, '$.session_id'), json_extract(f.value, '$.user_id'), json_extract(f.value, '$.is_positive'),
       json_extract(f.value, '$.feedback_text'), json_extract(f.value, '$.issue_type'), json_extract(f.value, '$.metadata'),
       json_extract(f.value, '$.created_at'), json_extract(f.value, '$.updated_at')
FROM message_archive AS a
CROSS JOIN json_each(json_extract(a.original_message, '$.feedback')) AS f
WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS FALSE;

-- name: restore_feedback @postgres
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
SELECT a.tenant_id, (f.old ->> 'id')::uuid, (f.old ->> 'message_id')::uuid, (f.old ->> 'session_id')::uuid,
       f.old ->> 'user_id', (f.old ->> 'is_positive')::boolean, f.old ->> 'feedback_text', f.old ->> 'issue_type',
       f.old -> 'metadata', (f.old ->> 'created_at')::timestamptz, (f.old ->> 'updated_at')::timestamptz
FROM message_archive AS a
CROSS JOIN LATERAL jsonb_array_elements(a.original_message -> 'feedback') AS f (old)
WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS FALSE;

-- name: unwrite @sqlite
-- Rewritten messages as they were. One that was deleted since stays deleted.
UPDATE messages SET
    kind = json_extract(a.original_message, '$.kind'),
    role = json_extract(a.original_message, '$.role'),
    content = json_extract(a.original_message, '$.content'),
    token_count = json_extract(a.original_message, '$.token_count'),
    metadata = json_extract(a.original_message, '$.metadata'),
    is_preserved = json_extract(a.original_message, '$.is_preserved'),
    is_summary = json_extract(a.original_message, '$.is_summary'),
    updated_at = json_extract(a.original_message, '$.updated_at')
FROM message_archive AS a
WHERE messages.tenant_id = :tenant_id AND messages.session_id = :session_id
      AND a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS TRUE
      AND messages.seq = a.seq AND messages.id = a.id;

-- name: unwrite @postgres
-- The times come as parameters: how text is read as a time depends on the connection, and Citus refuses such a function of a
-- column in an UPDATE.
UPDATE messages AS m SET
    kind = a.original_message ->> 'kind',
    role = a.original_message ->> 'role',
    content = a.original_message -> 'content',
    token_count = (a.original_message ->> 'token_count')::integer,
    metadata = a.original_message -> 'metadata',
    is_preserved = (a.original_message ->> 'is_preserved')::boolean,
    is_summary = (a.original_message ->> 'is_summary')::boolean,
    updated_at = t.updated_at
FROM message_archive AS a
JOIN unnest(:places::bigint[], :updated_at::timestamptz[]) AS t (place, updated_at) ON t.place = a.seq
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id
      AND a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.is_rewritten IS TRUE
      AND m.seq = a.seq AND m.id = a.id;

-- name: uncopy @sqlite
-- Rewritten messages as they were, beside what other branches see of them: at other places and with ids of their own.
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT a.tenant_id, a.session_id, :block + (a.seq & 1099511627775), json_extract(r.value, '$.id'),
       json_extract(a.original_message, '$.kind'), json_extract(a.original_message, '$.role'),
       json_extract(a.original_message, '$.content'), json_extract(a.original_message, '$.token_count'),
       json_extract(a.original_message, '$.metadata'), json_extract(a.original_message, '$.is_preserved'),
       json_extract(a.original_message, '$.is_summary'), json_extract(a.original_message, '$.created_at'),
       json_extract(a.original_message, '$.updated_at')
FROM json_each(:rewrites) AS r
CROSS JOIN message_archive AS a
WHERE a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id AND a.seq = json_extract(r.value, '$.place');

-- name: uncopy @postgres
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT a.tenant_id, a.session_id, :block::bigint + (a.seq & 1099511627775), (r.new ->> 'id')::uuid,
       a.original_message ->> 'kind', a.original_message ->> 'role', a.original_message -> 'content',
       (a.original_message ->> 'token_count')::integer, a.original_message -> 'metadata',
       (a.original_message ->> 'is_preserved')::boolean, (a.original_message ->> 'is_summary')::boolean,
       (a.original_message ->> 'created_at')::timestamptz, (a.original_message ->> 'updated_at')::timestamptz
FROM jsonb_array_elements(:rewrites::jsonb) AS r (new)
JOIN message_archive AS a ON a.tenant_id = :tenant_id AND a.compaction_event_id = :event_id
                             AND a.seq = (r.new ->> 'place')::bigint;

-- name: forget_originals @sqlite
-- What is kept of messages that are deleted on purpose.
DELETE FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id IN (SELECT value FROM json_each(:ids))
RETURNING id, compaction_event_id, is_rewritten;

-- name: forget_originals @postgres
DELETE FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = ANY(:ids::uuid[])
RETURNING id::text, compaction_event_id::text, is_rewritten;

-- name: file
-- What a compaction that was recorded has taken out since.
UPDATE compaction_events SET
    messages_removed = messages_removed + :more_removed,
    summary_message_id = :summary_message_id,
    block = :block,
    compacted_tokens = :compacted_tokens,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :event_id
RETURNING /*columns CompactionEvent*/ *;

-- name: discount
-- So many originals of an event fewer, which are then no longer missed.
UPDATE compaction_events SET
    messages_removed = messages_removed - :fewer_removed,
    messages_rewritten = messages_rewritten - :fewer_rewritten,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :event_id;

-- name: empty_archive
-- The originals are in the log again.
DELETE FROM message_archive WHERE tenant_id = :tenant_id AND compaction_event_id = :event_id;

-- name: mark_rolled_back
UPDATE compaction_events SET rolled_back_at = :now_at, updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns CompactionEvent*/ *;

-- name: archived @sqlite
-- Originals, in the order they were archived and then of the log; of one event, or of all of a live session.
SELECT a.id, a.session_id, a.seq & 1099511627775, json_extract(a.original_message, '$.kind'),
       json_extract(a.original_message, '$.role'), json_extract(a.original_message, '$.content'),
       json_extract(a.original_message, '$.token_count'), json_extract(a.original_message, '$.metadata'),
       json_extract(a.original_message, '$.is_preserved'), json_extract(a.original_message, '$.is_summary'),
       json_extract(a.original_message, '$.created_at'), json_extract(a.original_message, '$.updated_at'),
       a.compaction_event_id, a.is_rewritten, a.archived_at, e.number
FROM compaction_events AS e
CROSS JOIN message_archive AS a ON a.tenant_id = e.tenant_id AND a.compaction_event_id = e.id
WHERE e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id
      AND e.number >= :from_number AND e.number <= :to_number
      AND (e.number, a.seq & 1099511627775) > (:after_number, :after_seq)
ORDER BY e.number, a.seq & 1099511627775
LIMIT :limit;

-- name: archived @postgres
SELECT a.id::text, a.session_id::text, a.seq & 1099511627775, a.original_message ->> 'kind',
       a.original_message ->> 'role', (a.original_message -> 'content')::text,
       (a.original_message ->> 'token_count')::integer, (a.original_message -> 'metadata')::text,
       (a.original_message ->> 'is_preserved')::boolean, (a.original_message ->> 'is_summary')::boolean,
       (a.original_message ->> 'created_at')::timestamptz, (a.original_message ->> 'updated_at')::timestamptz,
       a.compaction_event_id::text, a.is_rewritten, a.archived_at, e.number
FROM compaction_events AS e
JOIN message_archive AS a ON a.tenant_id = e.tenant_id AND a.compaction_event_id = e.id
WHERE e.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND e.session_id = :session_id
      AND e.number >= :from_number AND e.number <= :to_number
      AND (e.number, a.seq & 1099511627775) > (:after_number, :after_seq)
ORDER BY e.number, a.seq & 1099511627775
LIMIT :limit;

-- name: attach
-- A policy that compacts by itself, for one session or for all of an agent.
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
-- Let a session follow the policy that holds for it now.
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
-- A compaction by itself did not work out: the next try is made when the session has grown.
UPDATE sessions SET compact_from = token_count + compact_from / 16 + 1
WHERE tenant_id = :tenant_id AND id = :session_id AND token_count >= compact_from;
