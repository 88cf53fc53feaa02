-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- name: advance_this_minute
-- Reserve the next places in a session's log. Only SQLite needs this half: it rewrites an index whenever its column is
-- named in SET, even when the value stays the same, so as long as they stay the same those columns are not named.
UPDATE sessions SET
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :token_count,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
  AND updated_minute = :now_minute AND search_behind
RETURNING next_seq - :rows, (token_count >= compact_from) IS TRUE;

-- name: advance
-- Reserve the next places in a session's log.
UPDATE sessions SET
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :token_count,
    updated_at = :now_at,
    updated_minute = :now_minute,
    search_behind = TRUE
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
RETURNING next_seq - :rows, (token_count >= compact_from) IS TRUE;

-- name: heads @sqlite
-- The heads of several live sessions, for who may write already and so can first look and then write. RETURNING would be
-- one statement less for each session and take twice as long: SQLite fills a table for it.
SELECT s.id, s.next_seq, s.token_count, s.compact_from, s.updated_minute, s.search_behind
FROM json_each(:session_ids) AS asked
CROSS JOIN sessions AS s ON s.tenant_id = :tenant_id AND s.id = asked.value AND (s.deleted_at IS NULL) IS TRUE;

-- name: advance_known @sqlite
-- Reserve the next places in the log of a session whose head says that this minute and what is to be indexed stand there already.
UPDATE sessions SET
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :token_count,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: insert
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
VALUES (:tenant_id, :session_id, :seq, :id, :kind, :role, :content, :token_count, :metadata,
        :is_preserved, :is_summary, :now_at, :now_at);

-- name: insert_all @postgres
-- Many at consecutive places of one session. Why an array may be empty: see append. RETURNING, because without it Citus copies the
-- rows and reports every violation of a constraint as an internal error.
INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                      is_preserved, is_summary, created_at, updated_at)
SELECT :tenant_id, :session_id, :first_seq::bigint + i.number - 1, i.id, COALESCE(i.kind, 'message'), i.role, i.content,
       COALESCE(i.token_count, 0), COALESCE(i.metadata, '{}'), COALESCE(i.is_preserved, FALSE),
       COALESCE(i.is_summary, FALSE), i.created_at, i.created_at
FROM unnest(:id::uuid[], :kind::text[], :role::text[], :content::jsonb[], :token_count::integer[], :metadata::jsonb[],
            :is_preserved::boolean[], :is_summary::boolean[], :created_at::timestamptz[]) WITH ORDINALITY
     AS i (id, kind, role, content, token_count, metadata, is_preserved, is_summary, created_at, number)
RETURNING 1;

-- name: advance_all @postgres
-- Reserve the next places in the logs of several sessions. Why they are sorted and named twice: see append.
UPDATE sessions AS s SET
    next_seq = s.next_seq + t.rows,
    message_count = s.message_count + t.rows,
    token_count = s.token_count + t.tokens,
    updated_at = :now_at,
    updated_minute = :now_minute,
    search_behind = TRUE
FROM unnest(:session_ids::uuid[], :rows::bigint[], :tokens::bigint[]) AS t (id, rows, tokens)
WHERE s.tenant_id = :tenant_id AND s.id = ANY(:session_ids::uuid[]) AND s.id = t.id AND (s.deleted_at IS NULL) IS TRUE
RETURNING s.id::text, s.next_seq - t.rows, (s.token_count >= s.compact_from) IS TRUE;

-- name: append_one @postgres
-- Both halves in one statement: PostgreSQL lets an INSERT use the rows an UPDATE returned, so that an append is one round trip.
-- It returns one row in any case, of NULLs if there is no live session, so that the rows of many executions stay in step.
-- Where Citus distributes the tables, each half is a statement of its own: it sends both together to every machine.
WITH head AS (
    UPDATE sessions SET
        next_seq = next_seq + 1,
        message_count = message_count + 1,
        token_count = token_count + :token_count,
        updated_at = :now_at,
        updated_minute = :now_minute,
        search_behind = TRUE
    WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
    RETURNING next_seq - 1 AS seq, (token_count >= compact_from) IS TRUE AS due
), added AS (
    INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                          is_preserved, is_summary, created_at, updated_at)
    SELECT :tenant_id, :session_id, head.seq, :id::uuid, :kind::text, :role::text, :content::jsonb, :token_count::integer,
           :metadata::jsonb, :is_preserved::boolean, :is_summary::boolean, :now_at::timestamptz, :now_at
    FROM head
    RETURNING seq
)
SELECT (SELECT seq FROM added), (SELECT due FROM head);

-- name: append @postgres
-- The same for everybody in a group: one statement is one round trip and one flush for all. Sessions come sorted, so that two
-- groups lock them in one order, and are named twice, so that the primary key is used however small the table was when planned.
-- An array of usual values only is sent empty: unnest fills it up with NULL, and COALESCE says what is usual.
WITH head AS (
    UPDATE sessions AS s SET
        next_seq = s.next_seq + COALESCE(t.rows, 1),
        message_count = s.message_count + COALESCE(t.rows, 1),
        token_count = s.token_count + COALESCE(t.tokens, 0),
        updated_at = :now_at,
        updated_minute = :now_minute,
        search_behind = TRUE
    FROM unnest(:session_ids::uuid[], :rows::bigint[], :tokens::bigint[]) AS t (id, rows, tokens)
    WHERE s.tenant_id = :tenant_id AND s.id = ANY(:session_ids::uuid[]) AND s.id = t.id
          AND (s.deleted_at IS NULL) IS TRUE
    RETURNING s.id, s.next_seq - COALESCE(t.rows, 1) AS first_seq, (s.token_count >= s.compact_from) IS TRUE AS due
), added AS (
    INSERT INTO messages (tenant_id, session_id, seq, id, kind, role, content, token_count, metadata,
                          is_preserved, is_summary, created_at, updated_at)
    SELECT :tenant_id, head.id, head.first_seq + COALESCE(i.place, 0), i.id, COALESCE(i.kind, 'message'), i.role, i.content,
           COALESCE(i.token_count, 0), COALESCE(i.metadata, '{}'), COALESCE(i.is_preserved, FALSE),
           COALESCE(i.is_summary, FALSE), i.created_at, i.created_at
    FROM unnest(:session_id::uuid[], :place::bigint[], :id::uuid[], :kind::text[], :role::text[], :content::jsonb[],
                :token_count::integer[], :metadata::jsonb[], :is_preserved::boolean[], :is_summary::boolean[],
                :created_at::timestamptz[])
         AS i (session_id, place, id, kind, role, content, token_count, metadata, is_preserved, is_summary, created_at)
    JOIN head ON head.id = i.session_id
    RETURNING id, session_id, seq
)
SELECT :tenant_id::text, added.id::text, added.seq, head.due FROM added JOIN head ON head.id = added.session_id;

-- name: by_ids @sqlite
-- Messages by their ids, of any session: SQLite takes the list as JSON, PostgreSQL as an array.
SELECT /*columns Message*/ * FROM messages
WHERE tenant_id = :tenant_id AND id IN (SELECT value FROM json_each(:ids));

-- name: by_ids @postgres
SELECT /*columns Message*/ * FROM messages
WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- name: get
-- One message of a live session.
SELECT /*columns Message m*/ * FROM messages AS m
JOIN sessions AS s ON s.tenant_id = m.tenant_id AND s.id = m.session_id
WHERE m.tenant_id = :tenant_id AND m.id = :id AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE;

-- name: lock
-- The same, held until the transaction ends, so that what it counted for is still true when the counters follow.
SELECT /*columns Message m*/ * FROM messages AS m
JOIN sessions AS s ON s.tenant_id = m.tenant_id AND s.id = m.session_id
WHERE m.tenant_id = :tenant_id AND m.id = :id AND s.tenant_id = :tenant_id AND (s.deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE OF m*/;

-- name: list @sqlite
-- A stretch of a live session's log, oldest first. Where the session has a view, nothing: see log_reading.sql. SQLite hands over
-- value by value, and each costs as much as finding it: so not what is asked for, and in one what hardly any message has (see
-- log_reading.py).
SELECT id, seq & 1099511627775, kind, role, content, token_count, metadata, created_at,
       CASE WHEN updated_at = created_at AND is_preserved = 0 AND is_summary = 0 THEN NULL
            ELSE updated_at * 4 + (is_preserved <> 0) * 2 + (is_summary <> 0) END
FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq > :after AND seq < :before/*where*/
  AND EXISTS (SELECT 1 FROM sessions
              WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
                AND (view IS NULL) IS TRUE)
ORDER BY seq
LIMIT :limit;

-- name: list @postgres
SELECT /*columns Message*/ * FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq > :after AND seq < :before/*where*/
  AND EXISTS (SELECT 1 FROM sessions
              WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
                AND (view IS NULL) IS TRUE)
ORDER BY seq
LIMIT :limit;

-- name: list_newest @sqlite
-- The same stretch, newest first: the last N cost the same however long the log is.
SELECT id, seq & 1099511627775, kind, role, content, token_count, metadata, created_at,
       CASE WHEN updated_at = created_at AND is_preserved = 0 AND is_summary = 0 THEN NULL
            ELSE updated_at * 4 + (is_preserved <> 0) * 2 + (is_summary <> 0) END
FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq > :after AND seq < :before/*where*/
  AND EXISTS (SELECT 1 FROM sessions
              WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
                AND (view IS NULL) IS TRUE)
ORDER BY seq DESC
LIMIT :limit;

-- name: list_newest @postgres
SELECT /*columns Message*/ * FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq > :after AND seq < :before/*where*/
  AND EXISTS (SELECT 1 FROM sessions
              WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
                AND (view IS NULL) IS TRUE)
ORDER BY seq DESC
LIMIT :limit;

-- name: live_session
-- What a live session shows of its log.
SELECT view/*pg ::text*/ FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: update
-- What is not given stays. The old token count is returned by `lock` before.
UPDATE messages SET
    content = COALESCE(:content, content),
    metadata = COALESCE(:metadata, metadata),
    token_count = COALESCE(:token_count, token_count),
    is_preserved = COALESCE(:is_preserved, is_preserved),
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns Message*/ *, seq;

-- name: delete @sqlite
-- Exactly these messages of this session: SQLite takes the list as JSON, PostgreSQL as an array.
DELETE FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id IN (SELECT value FROM json_each(:ids))
RETURNING id/*pg ::text*/, token_count, seq;

-- name: delete @postgres
DELETE FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND id = ANY(:ids::uuid[])
RETURNING id/*pg ::text*/, token_count, seq;

-- name: delete_feedback @sqlite
-- What hangs on them, in so many words, because a caller's own SQLite connection may have foreign keys switched off. After them,
-- because whoever gives feedback holds the message first and what was said before second.
DELETE FROM feedback
WHERE tenant_id = :tenant_id AND session_id = :session_id AND message_id IN (SELECT value FROM json_each(:ids));

-- name: delete_feedback @postgres
DELETE FROM feedback
WHERE tenant_id = :tenant_id AND session_id = :session_id AND message_id = ANY(:ids::uuid[]);

-- name: recount
-- The session's counters follow what was changed or removed, and where it is smaller now, its next automatic compaction does:
-- see show in branches.sql.
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
