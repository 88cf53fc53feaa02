-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- part: into_messages
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)

-- part: new_messages @postgres
-- Arrays of messages, each at a position relative to its head. The statement has a table "head" with the columns
-- number, session_id and first_seq. An array that contains only defaults is sent empty; unnest fills it with NULL.
SELECT :tenant_id, head.session_id, head.first_seq + COALESCE(m.place, 0), m.id, COALESCE(m.kind, 'message'), m.role, m.content,
       COALESCE(m.token_count, 0), COALESCE(m.metadata, '{}'), COALESCE(m.is_preserved, FALSE), COALESCE(m.is_summary, FALSE),
       m.created_at, COALESCE(m.updated_at, m.created_at)
FROM unnest(:head::bigint[], :place::bigint[], :id::uuid[], :kind::text[], :role::text[], :content::jsonb[],
            :token_count::integer[], :metadata::jsonb[], :is_preserved::boolean[], :is_summary::boolean[],
            :created_at::timestamptz[], :updated_at::timestamptz[])
     AS m (head, place, id, kind, role, content, token_count, metadata, is_preserved, is_summary, created_at, updated_at)
JOIN head ON head.number = m.head

-- name: insert
-- One message at a known position: for SQLite, and for tables that Citus distributes.
/*part into_messages*/
VALUES (:tenant_id, :session_id, :seq, :id, :kind, :role, :content, :token_count, :metadata,
        :is_preserved, :is_summary, :created_at, :updated_at);

-- name: insert_many @postgres
-- Messages at known positions of one session. Without RETURNING, Citus would copy the rows and report a duplicate as an
-- internal error.
/*part into_messages*/
WITH head AS (SELECT 0 AS number, :session_id::uuid AS session_id, 0 AS first_seq)
/*part new_messages*/
RETURNING 1;

-- name: advance_this_minute
-- Reserve the next positions in a session's log. SQLite rewrites an index whenever one of its columns is named in SET, even if
-- the value stays the same. So this form, which is tried first, does not name the indexed columns.
UPDATE sessions SET
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :tokens,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
  AND updated_minute = :now_minute AND search_behind
RETURNING next_seq - :rows, (token_count >= compact_from) IS TRUE;

-- name: advance
-- Reserve the next positions in a session's log.
UPDATE sessions SET
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :tokens,
    updated_at = :now_at,
    updated_minute = :now_minute,
    search_behind = TRUE
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
RETURNING next_seq - :rows, (token_count >= compact_from) IS TRUE, CAST(:number AS BIGINT);

-- name: append @postgres
-- Reserve the positions and insert the messages of many appends: one statement is one round trip and one flush. Session ids are
-- sorted, so that concurrent statements lock them in the same order. They are named twice, so that PostgreSQL uses the primary
-- key even if the table was small when it planned the statement.
WITH head AS (
    UPDATE sessions AS s SET
        next_seq = s.next_seq + t.rows,
        message_count = s.message_count + t.rows,
        token_count = s.token_count + t.tokens,
        updated_at = :now_at,
        updated_minute = :now_minute,
        search_behind = TRUE
    FROM unnest(:session_ids::uuid[], :rows::bigint[], :tokens::bigint[]) WITH ORDINALITY AS t (id, rows, tokens, number)
    WHERE s.tenant_id = :tenant_id AND s.id = ANY(:session_ids::uuid[]) AND s.id = t.id
          AND (s.deleted_at IS NULL) IS TRUE
    RETURNING t.number, s.id AS session_id, s.next_seq - t.rows AS first_seq, (s.token_count >= s.compact_from) IS TRUE AS due
), added AS (
    /*part into_messages*/
    /*part new_messages*/
)
SELECT :tenant_id::text, session_id::text, first_seq, due FROM head;

-- name: append_one @postgres
-- The same for one message. Without arrays it takes two thirds of the time, which matters to a single writer.
WITH head AS (
    UPDATE sessions SET
        next_seq = next_seq + 1,
        message_count = message_count + 1,
        token_count = token_count + :token_count,
        updated_at = :now_at,
        updated_minute = :now_minute,
        search_behind = TRUE
    WHERE tenant_id = :tenant_id AND id = :session_id::uuid AND (deleted_at IS NULL) IS TRUE
    RETURNING id, next_seq - 1 AS first_seq, (token_count >= compact_from) IS TRUE AS due
), added AS (
    /*part into_messages*/
    SELECT :tenant_id, id, first_seq, :id::uuid, :kind::text, :role::text, :content::jsonb, :token_count::integer,
           :metadata::jsonb, :is_preserved::boolean, :is_summary::boolean, :now_at::timestamptz, :now_at
    FROM head
)
SELECT :tenant_id::text, id::text, first_seq, due FROM head;

-- name: by_ids
-- Messages of any session.
SELECT /*columns Message*/ * FROM messages WHERE tenant_id = :tenant_id AND id /*in ids uuid*/;

-- name: live_session
-- The view of a live session.
SELECT view/*pg ::text*/ FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;
