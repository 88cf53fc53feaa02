-- name: start @sqlite
-- All that most contexts need, in one statement: the session, the messages that are always included, and the last messages,
-- which are marked. Each arm has a partial index of its own. If the session has a view, only the session is returned. There are
-- no joins, because SQLite would copy all of the messages first.
SELECT s.view, s.next_seq, s.message_count, s.compaction_count, COALESCE(t.summary, ''), NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM sessions AS s
LEFT JOIN session_state AS t ON t.tenant_id = :tenant_id AND t.session_id = :session_id
WHERE s.tenant_id = :tenant_id AND s.id = :session_id AND (s.deleted_at IS NULL) IS TRUE
UNION ALL
SELECT * FROM (SELECT NULL, NULL, NULL, NULL, NULL, FALSE, /*columns Message*/ * FROM messages INDEXED BY messages_system
               WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before AND role = 'system'
                 AND EXISTS (SELECT 1 FROM sessions
                             WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
               ORDER BY seq DESC LIMIT :pinned)
UNION ALL
SELECT * FROM (SELECT NULL, NULL, NULL, NULL, NULL, FALSE, /*columns Message*/ * FROM messages INDEXED BY messages_preserved
               WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before AND is_preserved = 1
                 AND EXISTS (SELECT 1 FROM sessions
                             WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
               ORDER BY seq DESC LIMIT :pinned)
UNION ALL
SELECT * FROM (SELECT NULL, NULL, NULL, NULL, NULL, FALSE, /*columns Message*/ * FROM messages INDEXED BY messages_summary
               WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before AND is_summary = 1
                 AND EXISTS (SELECT 1 FROM sessions
                             WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
               ORDER BY seq DESC LIMIT 1)
UNION ALL
SELECT * FROM (SELECT NULL, NULL, NULL, NULL, NULL, TRUE, /*columns Message*/ * FROM messages
               WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before
                 AND EXISTS (SELECT 1 FROM sessions
                             WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
               ORDER BY seq DESC LIMIT :limit);

-- name: start @postgres
SELECT s.view::text, s.next_seq, s.message_count, s.compaction_count, COALESCE(t.summary, ''), NULL::boolean,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM sessions AS s
LEFT JOIN session_state AS t ON t.tenant_id = :tenant_id AND t.session_id = :session_id
WHERE s.tenant_id = :tenant_id AND s.id = :session_id AND (s.deleted_at IS NULL) IS TRUE
UNION ALL
(SELECT NULL, NULL, NULL, NULL, NULL, FALSE, /*columns Message*/ * FROM messages
 WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before AND role = 'system'
   AND EXISTS (SELECT 1 FROM sessions
               WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
 ORDER BY seq DESC LIMIT :pinned)
UNION ALL
(SELECT NULL, NULL, NULL, NULL, NULL, FALSE, /*columns Message*/ * FROM messages
 WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before AND is_preserved
   AND EXISTS (SELECT 1 FROM sessions
               WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
 ORDER BY seq DESC LIMIT :pinned)
UNION ALL
(SELECT NULL, NULL, NULL, NULL, NULL, FALSE, /*columns Message*/ * FROM messages
 WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before AND is_summary
   AND EXISTS (SELECT 1 FROM sessions
               WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
 ORDER BY seq DESC LIMIT 1)
UNION ALL
(SELECT NULL, NULL, NULL, NULL, NULL, TRUE, /*columns Message*/ * FROM messages
 WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq < :before
   AND EXISTS (SELECT 1 FROM sessions
               WHERE tenant_id = :tenant_id AND id = :session_id AND (view IS NULL) IS TRUE)
 ORDER BY seq DESC LIMIT :limit);

-- name: pinned @sqlite
-- The messages that are always included, in the ranges of a view.
SELECT * FROM (
    SELECT /*columns Message m*/ * FROM json_each(:ranges) AS r CROSS JOIN messages AS m INDEXED BY messages_system
    WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.role = 'system'
      AND m.seq >= json_extract(r.value, '$[0]') AND m.seq <= json_extract(r.value, '$[1]')
    LIMIT :pinned)
UNION ALL
SELECT * FROM (
    SELECT /*columns Message m*/ * FROM json_each(:ranges) AS r CROSS JOIN messages AS m INDEXED BY messages_preserved
    WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.is_preserved = 1
      AND m.seq >= json_extract(r.value, '$[0]') AND m.seq <= json_extract(r.value, '$[1]')
    LIMIT :pinned)
UNION ALL
SELECT * FROM (
    SELECT /*columns Message m*/ * FROM json_each(:ranges) AS r CROSS JOIN messages AS m INDEXED BY messages_summary
    WHERE m.tenant_id = :tenant_id AND m.session_id = :session_id AND m.is_summary = 1
      AND m.seq >= json_extract(r.value, '$[0]') AND m.seq <= json_extract(r.value, '$[1]')
    ORDER BY m.seq & :mask DESC LIMIT 1);

-- name: pinned @postgres
-- OFFSET 0 keeps PostgreSQL from flattening the subquery: it must read range by range.
(SELECT /*columns Message m*/ * FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
 CROSS JOIN LATERAL (SELECT * FROM messages
                     WHERE tenant_id = :tenant_id AND session_id = :session_id AND role = 'system'
                       AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint OFFSET 0) AS m
 LIMIT :pinned)
UNION ALL
(SELECT /*columns Message m*/ * FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
 CROSS JOIN LATERAL (SELECT * FROM messages
                     WHERE tenant_id = :tenant_id AND session_id = :session_id AND is_preserved
                       AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint OFFSET 0) AS m
 LIMIT :pinned)
UNION ALL
(SELECT /*columns Message m*/ * FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
 CROSS JOIN LATERAL (SELECT * FROM messages
                     WHERE tenant_id = :tenant_id AND session_id = :session_id AND is_summary
                       AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint OFFSET 0) AS m
 ORDER BY m.seq & :mask::bigint DESC LIMIT 1);

-- name: state
-- The view of a live session, its number of compactions, and a difference that no append changes but every removal does. If all
-- of these are unchanged, everything read in between is consistent, up to the message that was the last one.
SELECT view/*pg ::text*/, compaction_count, next_seq - message_count FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;
