-- part: stretch
-- A range of a live session's log; nothing if the session has a view.
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
-- Newest first: the last messages cost the same in a log of any length.
/*part stretch*/
ORDER BY seq DESC
LIMIT :limit;

-- name: shown
-- The view of a live session, the position of the next message, and the number of messages.
SELECT view/*pg ::text*/, next_seq, message_count FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: ranges @sqlite
-- Some ranges of a live session's log, in any order, if the session still has this view: then there is at least one row,
-- possibly of NULLs only. So the rows are consistent with the view that selected them.
SELECT /*columns Message m*/ * FROM (
    SELECT 1 AS here FROM sessions
    WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE AND view IS NOT DISTINCT FROM :view
) AS s
LEFT JOIN json_each(:ranges) AS r ON TRUE
LEFT JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = :session_id
      AND m.seq >= json_extract(r.value, '$[0]') AND m.seq <= json_extract(r.value, '$[1]')/*where*/;

-- name: ranges @postgres
-- OFFSET 0 keeps PostgreSQL from flattening the subquery: it must read range by range.
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
-- The positions in some ranges and the number of characters of each content, without loading the contents.
SELECT seq & 1099511627775, LENGTH(content) FROM json_each(:ranges) AS r
CROSS JOIN messages
WHERE tenant_id = :tenant_id AND session_id = :session_id
      AND seq >= json_extract(r.value, '$[0]') AND seq <= json_extract(r.value, '$[1]')/*where*/;

-- name: sizes @postgres
-- The size on disk would not help: a megabyte of one letter is stored in a few kilobytes.
SELECT m.seq & 1099511627775, LENGTH(m.content::text)
FROM jsonb_array_elements(:ranges::jsonb) AS r (span)
CROSS JOIN LATERAL (
    SELECT seq, content FROM messages
    WHERE tenant_id = :tenant_id AND session_id = :session_id
          AND seq >= (r.span ->> 0)::bigint AND seq <= (r.span ->> 1)::bigint/*where*/
    OFFSET 0
) AS m;

-- name: count @sqlite
-- The number of messages in some ranges that match, and their tokens.
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
