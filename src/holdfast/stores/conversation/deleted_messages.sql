-- Messages that were deleted and can be restored. Lists travel as one argument: as JSON on SQLite, as arrays on PostgreSQL.

-- name: hold @sqlite
-- Wait for those who are just adding feedback to these messages, so that it is kept too. On SQLite nobody else is writing.
SELECT 0 FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: hold @postgres
SELECT COUNT(*) FROM (
    SELECT 1 FROM messages WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = ANY(:ids::uuid[]) FOR UPDATE
) AS held;

-- name: keep @sqlite
-- Every column of some messages in the log, and their feedback: see archive in compactions.sql.
INSERT INTO deleted_messages (tenant_id, session_id, id, source, seq, is_rewritten, original_message, deleted_at)
SELECT m.tenant_id, m.session_id, m.id, '', m.seq, 0,
    json_object(
        'tenant_id', m.tenant_id, 'session_id', m.session_id, 'seq', m.seq, 'id', m.id, 'kind', m.kind, 'role', m.role,
        'content', m.content, 'token_count', m.token_count, 'metadata', m.metadata, 'is_preserved', m.is_preserved,
        'is_summary', m.is_summary, 'created_at', m.created_at, 'updated_at', m.updated_at,
        'feedback', json((
            SELECT json_group_array(json_object(
                'id', f.id, 'message_id', f.message_id, 'session_id', f.session_id, 'user_id', f.user_id,
                'is_positive', f.is_positive, 'feedback_text', f.feedback_text, 'issue_type', f.issue_type,
                'metadata', f.metadata, 'created_at', f.created_at, 'updated_at', f.updated_at))
            FROM feedback AS f WHERE f.tenant_id = :tenant_id AND f.message_id = m.id))),
    :now_at
FROM messages AS m
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.id IN (SELECT value FROM json_each(:ids))
ON CONFLICT (tenant_id, session_id, id, source) DO UPDATE SET
    seq = excluded.seq, is_rewritten = excluded.is_rewritten, original_message = excluded.original_message,
    deleted_at = excluded.deleted_at;

-- name: keep @postgres
INSERT INTO deleted_messages (tenant_id, session_id, id, source, seq, is_rewritten, original_message, deleted_at)
SELECT m.tenant_id, m.session_id, m.id, '', m.seq, FALSE,
    to_jsonb(m) || jsonb_build_object('feedback', COALESCE(f.given, '[]'::jsonb)), :now_at::timestamptz
FROM messages AS m
LEFT JOIN (
    SELECT message_id, jsonb_agg(to_jsonb(feedback)) AS given FROM feedback
    WHERE tenant_id = :tenant_id AND message_id = ANY(:ids::uuid[])
    GROUP BY message_id
) AS f ON f.message_id = m.id
WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.id = ANY(:ids::uuid[])
ON CONFLICT (tenant_id, session_id, id, source) DO UPDATE SET
    seq = excluded.seq, is_rewritten = excluded.is_rewritten, original_message = excluded.original_message,
    deleted_at = excluded.deleted_at;

-- name: keep_originals @sqlite
-- What compactions have of them.
INSERT INTO deleted_messages (tenant_id, session_id, id, source, seq, is_rewritten, original_message, deleted_at)
SELECT tenant_id, session_id, id, compaction_event_id, seq, is_rewritten, original_message, :now_at FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id IN (SELECT value FROM json_each(:ids))
ON CONFLICT (tenant_id, session_id, id, source) DO UPDATE SET
    seq = excluded.seq, is_rewritten = excluded.is_rewritten, original_message = excluded.original_message,
    deleted_at = excluded.deleted_at;

-- name: keep_originals @postgres
INSERT INTO deleted_messages (tenant_id, session_id, id, source, seq, is_rewritten, original_message, deleted_at)
SELECT tenant_id, session_id, id, compaction_event_id::text, seq, is_rewritten, original_message, :now_at::timestamptz
FROM message_archive
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = ANY(:ids::uuid[])
ON CONFLICT (tenant_id, session_id, id, source) DO UPDATE SET
    seq = excluded.seq, is_rewritten = excluded.is_rewritten, original_message = excluded.original_message,
    deleted_at = excluded.deleted_at;

-- name: found @sqlite
-- All that is kept of some messages; for the original of a compaction its number, and whether it was rolled back.
SELECT d.id, d.source, d.is_rewritten, e.number, e.rolled_back_at IS NOT NULL
FROM deleted_messages AS d
LEFT JOIN compaction_events AS e ON e.tenant_id = d.tenant_id AND e.session_id = d.session_id AND e.id = d.source
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id AND d.id IN (SELECT value FROM json_each(:ids));

-- name: found @postgres
SELECT d.id::text, d.source, d.is_rewritten, e.number, e.rolled_back_at IS NOT NULL
FROM deleted_messages AS d
LEFT JOIN compaction_events AS e ON e.tenant_id = d.tenant_id AND e.session_id = d.session_id AND e.id::text = d.source
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id AND d.id = ANY(:ids::uuid[]);

-- name: restore @sqlite
-- Back into the log, each to its place.
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT d.tenant_id, d.session_id, d.seq, d.id,
       json_extract(d.original_message, '$.kind'), json_extract(d.original_message, '$.role'),
       json_extract(d.original_message, '$.content'), json_extract(d.original_message, '$.token_count'),
       json_extract(d.original_message, '$.metadata'), json_extract(d.original_message, '$.is_preserved'),
       json_extract(d.original_message, '$.is_summary'), json_extract(d.original_message, '$.created_at'),
       json_extract(d.original_message, '$.updated_at')
FROM json_each(:chosen) AS c
CROSS JOIN deleted_messages AS d
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id
      AND d.id = json_extract(c.value, '$[0]') AND d.source = json_extract(c.value, '$[1]');

-- name: restore @postgres
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT d.tenant_id, d.session_id, d.seq, d.id,
       d.original_message ->> 'kind', d.original_message ->> 'role', d.original_message -> 'content',
       (d.original_message ->> 'token_count')::integer, d.original_message -> 'metadata',
       (d.original_message ->> 'is_preserved')::boolean, (d.original_message ->> 'is_summary')::boolean,
       (d.original_message ->> 'created_at')::timestamptz, (d.original_message ->> 'updated_at')::timestamptz
FROM jsonb_array_elements(:chosen::jsonb) AS c (pair)
JOIN deleted_messages AS d ON d.tenant_id = :tenant_id AND d.session_id = :session_id
                              AND d.id = (c.pair ->> 0)::uuid AND d.source = c.pair ->> 1;

-- name: restore_feedback @sqlite
-- And the feedback on them.
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
SELECT d.tenant_id, json_extract(f.value, '$.id'), json_extract(f.value, '$.message_id'),
       json_extract(f.value, '$.session_id'), json_extract(f.value, '$.user_id'), json_extract(f.value, '$.is_positive'),
       json_extract(f.value, '$.feedback_text'), json_extract(f.value, '$.issue_type'), json_extract(f.value, '$.metadata'),
       json_extract(f.value, '$.created_at'), json_extract(f.value, '$.updated_at')
FROM json_each(:chosen) AS c
CROSS JOIN deleted_messages AS d
CROSS JOIN json_each(json_extract(d.original_message, '$.feedback')) AS f
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id
      AND d.id = json_extract(c.value, '$[0]') AND d.source = json_extract(c.value, '$[1]');

-- name: restore_feedback @postgres
INSERT INTO feedback (tenant_id, id, message_id, session_id, user_id, is_positive, feedback_text, issue_type, metadata,
                      created_at, updated_at)
SELECT d.tenant_id, (f.old ->> 'id')::uuid, (f.old ->> 'message_id')::uuid, (f.old ->> 'session_id')::uuid,
       f.old ->> 'user_id', (f.old ->> 'is_positive')::boolean, f.old ->> 'feedback_text', f.old ->> 'issue_type',
       f.old -> 'metadata', (f.old ->> 'created_at')::timestamptz, (f.old ->> 'updated_at')::timestamptz
FROM jsonb_array_elements(:chosen::jsonb) AS c (pair)
JOIN deleted_messages AS d ON d.tenant_id = :tenant_id AND d.session_id = :session_id
                              AND d.id = (c.pair ->> 0)::uuid AND d.source = c.pair ->> 1
CROSS JOIN LATERAL jsonb_array_elements(d.original_message -> 'feedback') AS f (old);

-- name: restore_originals @sqlite
-- Back into the archive of compactions that still hold.
INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, is_rewritten, original_message, archived_at)
SELECT d.tenant_id, d.source, d.seq, d.id, d.session_id, d.is_rewritten, d.original_message, :now_at
FROM json_each(:chosen) AS c
CROSS JOIN deleted_messages AS d
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id
      AND d.id = json_extract(c.value, '$[0]') AND d.source = json_extract(c.value, '$[1]');

-- name: restore_originals @postgres
INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, is_rewritten, original_message, archived_at)
SELECT d.tenant_id, d.source::uuid, d.seq, d.id, d.session_id, d.is_rewritten, d.original_message, :now_at::timestamptz
FROM jsonb_array_elements(:chosen::jsonb) AS c (pair)
JOIN deleted_messages AS d ON d.tenant_id = :tenant_id AND d.session_id = :session_id
                              AND d.id = (c.pair ->> 0)::uuid AND d.source = c.pair ->> 1;

-- name: restored @sqlite
-- Tokens and places of what is in the log again.
SELECT token_count, seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id IN (SELECT value FROM json_each(:ids));

-- name: restored @postgres
SELECT token_count, seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = ANY(:ids::uuid[]);

-- name: forget @sqlite
-- Nothing is kept of them any more.
DELETE FROM deleted_messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id IN (SELECT value FROM json_each(:ids))
RETURNING id;

-- name: forget @postgres
DELETE FROM deleted_messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = ANY(:ids::uuid[])
RETURNING id::text;

-- name: list @sqlite
-- Each once, as it was in the log, or else as the first compaction found it.
SELECT d.id, d.session_id, d.seq & 1099511627775,
       json_extract(d.original_message, '$.kind'), json_extract(d.original_message, '$.role'),
       json_extract(d.original_message, '$.content'), json_extract(d.original_message, '$.token_count'),
       json_extract(d.original_message, '$.metadata'), json_extract(d.original_message, '$.is_preserved'),
       json_extract(d.original_message, '$.is_summary'), json_extract(d.original_message, '$.created_at'),
       json_extract(d.original_message, '$.updated_at'), d.deleted_at
FROM deleted_messages AS d
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id AND d.id > :after
  AND NOT EXISTS (SELECT 1 FROM deleted_messages AS o
                  WHERE o.tenant_id = :tenant_id AND o.session_id = :session_id AND o.id = d.id AND o.source < d.source)
ORDER BY d.id
LIMIT :limit;

-- name: list @postgres
SELECT d.id::text, d.session_id::text, d.seq & 1099511627775,
       d.original_message ->> 'kind', d.original_message ->> 'role', (d.original_message -> 'content')::text,
       (d.original_message ->> 'token_count')::integer, (d.original_message -> 'metadata')::text,
       (d.original_message ->> 'is_preserved')::boolean, (d.original_message ->> 'is_summary')::boolean,
       (d.original_message ->> 'created_at')::timestamptz, (d.original_message ->> 'updated_at')::timestamptz, d.deleted_at
FROM deleted_messages AS d
WHERE d.tenant_id = :tenant_id AND d.session_id = :session_id AND d.id > :after::uuid
  AND NOT EXISTS (SELECT 1 FROM deleted_messages AS o
                  WHERE o.tenant_id = :tenant_id AND o.session_id = :session_id AND o.id = d.id AND o.source < d.source)
ORDER BY d.id
LIMIT :limit;
