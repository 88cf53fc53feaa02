-- part: stretch
-- A stretch of a live session's log; nothing where the session has a view.
SELECT /*columns Message*/ * FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq > :after AND seq < :before/*where*/
  AND EXISTS (SELECT 1 FROM sessions
              WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
                AND (view IS NULL) IS TRUE)

-- name: list
-- Oldest first.
/*part stretch*/
ORDER BY seq
LIMIT :limit;

-- name: list_newest
-- Newest first: the last N cost the same however long the log is.
/*part stretch*/
ORDER BY seq DESC
LIMIT :limit;

-- name: shown
-- What a live session shows of its log, where the next message goes, and how many there are.
SELECT view/*pg ::text*/, next_seq, message_count FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: ranges @sqlite
-- Some ranges of a live session's log, in any order, if what it shows is still this view: then there is at least one row,
-- perhaps of nothing but NULL. So the rows and the view they were found by are of one moment.
SELECT /*columns Message m*/ * FROM (
    SELECT 1 AS here FROM sessions
    WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE AND view IS NOT DISTINCT FROM :view
) AS s
LEFT JOIN json_each(:ranges) AS r ON TRUE
LEFT JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = :session_id
      AND m.seq >= json_extract(r.value, '$[0]') AND m.seq <= json_extract(r.value, '$[1]')/*where*/;

-- name: ranges @postgres
-- OFFSET 0 lets PostgreSQL do it in no other way than range by range.
SELECT /*columns Message m*/ * FROM (
    SELECT 1 AS here FROM sessions
    WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
          AND view IS NOT DISTINCT FROM :view::jsonb
) AS s
LEFT JOIN jsonb_array_elements(:ranges::jsonb) AS r (span) ON TRUE
LEFT JOIN LATERAL (
    SELECT * FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id
          AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint/*where*/
    OFFSET 0
) AS m ON TRUE;

-- name: sizes @sqlite
-- The places of some ranges and the characters of each content, without loading the contents.
SELECT seq & 1099511627775, LENGTH(content) FROM json_each(:ranges) AS r
CROSS JOIN messages
WHERE tenant_id = :tenant_id AND session_id = :session_id
      AND seq >= json_extract(r.value, '$[0]') AND seq <= json_extract(r.value, '$[1]')/*where*/;

-- name: sizes @postgres
-- The size on disk would say nothing: a megabyte of one letter is stored in a few kilobytes.
SELECT m.seq & 1099511627775, LENGTH(m.content::text)
FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
CROSS JOIN LATERAL (
    SELECT seq, content FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id
          AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint/*where*/
    OFFSET 0
) AS m;

-- name: count @sqlite
-- How many messages of some ranges match, and their tokens.
SELECT COUNT(*), COALESCE(SUM(token_count), 0) FROM json_each(:ranges) AS r
CROSS JOIN messages
WHERE tenant_id = :tenant_id AND session_id = :session_id
      AND seq >= json_extract(r.value, '$[0]') AND seq <= json_extract(r.value, '$[1]')/*where*/;

-- name: count @postgres
SELECT COUNT(*), COALESCE(SUM(m.token_count), 0) FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
CROSS JOIN LATERAL (
    SELECT token_count FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id
          AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint/*where*/
    OFFSET 0
) AS m;
