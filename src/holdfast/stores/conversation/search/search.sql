-- name: behind @sqlite
-- Whether anything is to be indexed, or to leave the index, before it can be searched.
SELECT 1 WHERE EXISTS (SELECT 1 FROM sessions/*index*/
                       WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/)
            OR EXISTS (SELECT 1 FROM message_index_removed WHERE tenant_id = :tenant_id);

-- name: behind @postgres
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/ LIMIT 1;

-- name: lock_behind
-- The next sessions with messages that are not indexed, in the order in which appends lock them, held until the transaction ends.
SELECT id/*pg ::text*/, blocks FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL AND id > :after_id/*where*/
ORDER BY id
LIMIT :limit
/*pg FOR UPDATE*/;

-- name: progress @sqlite
-- How far they are: SQLite takes the list as JSON, PostgreSQL as an array.
SELECT session_id, block, seq FROM search_progress
WHERE tenant_id = :tenant_id AND session_id IN (SELECT value FROM json_each(:ids));

-- name: progress @postgres
SELECT session_id::text, block, seq FROM search_progress
WHERE tenant_id = :tenant_id AND session_id = ANY(:ids::uuid[]);

-- name: unindexed @sqlite
-- Messages of several stretches of the log, in the order of these, that are not indexed as they are now.
SELECT r.key, /*columns Unindexed m*/ *, t.number
FROM json_each(:stretches) AS r
CROSS JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = r.value ->> 0
    AND m.seq > r.value ->> 1 AND m.seq < r.value ->> 2
LEFT JOIN message_texts AS t ON t.tenant_id = :tenant_id AND t.message_id = m.id
WHERE m.tenant_id = :tenant_id AND (t.updated_at = m.updated_at) IS NOT TRUE
ORDER BY r.key, m.seq
LIMIT :limit;

-- name: unindexed @postgres
SELECT r.place - 1, /*columns Unindexed m*/ *, t.number
FROM jsonb_array_elements(:stretches::text::jsonb) WITH ORDINALITY AS r (stretch, place)
JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = (r.stretch ->> 0)::uuid
    AND m.seq > (r.stretch -> 1)::bigint AND m.seq < (r.stretch -> 2)::bigint
LEFT JOIN message_texts AS t ON t.tenant_id = :tenant_id AND t.message_id = m.id
WHERE m.tenant_id = :tenant_id AND (t.updated_at = m.updated_at) IS NOT TRUE
ORDER BY r.place, m.seq
LIMIT :limit;

-- name: taken @sqlite
-- Which of these numbers other messages have.
SELECT number FROM message_texts WHERE tenant_id = :tenant_id AND number IN (SELECT value FROM json_each(:numbers));

-- name: taken @postgres
SELECT number FROM message_texts WHERE tenant_id = :tenant_id AND number = ANY(:numbers::bigint[]);

-- name: add
INSERT INTO message_texts (tenant_id, number, message_id, session_id, seq, updated_at, words)
VALUES (:tenant_id, :number, :message_id, :session_id, :seq, :updated_at, :words /*pg ::text::tsvector*/);

-- name: change
UPDATE message_texts SET words = :words /*pg ::text::tsvector*/, updated_at = :updated_at
WHERE tenant_id = :tenant_id AND message_id = :message_id;

-- name: drop @sqlite
-- These messages are not indexed any more.
DELETE FROM message_texts WHERE tenant_id = :tenant_id AND message_id IN (SELECT value FROM json_each(:ids));

-- name: drop @postgres
DELETE FROM message_texts WHERE tenant_id = :tenant_id AND message_id = ANY(:ids::uuid[]);

-- name: index @sqlite
-- The words of a message enter SQLite's index, each with its tenant's tag in front.
INSERT INTO message_index (rowid, words) VALUES (:number, :tagged);

-- name: remove @sqlite
-- What was deleted or changed leaves it. It must be told what it held: the words, with tags.
INSERT INTO message_index (message_index, rowid, words)
SELECT 'delete', number, replace(' ' || words, ' ', ' ' || :tag) FROM message_index_removed
WHERE tenant_id = :tenant_id
ORDER BY number, rowid;

-- name: removed @sqlite
DELETE FROM message_index_removed WHERE tenant_id = :tenant_id;

-- name: merge @sqlite
-- The parts of the index become one, some pages of them: the fewer there are, the quicker it is searched.
INSERT INTO message_index (message_index, rank) VALUES ('merge', -:pages);

-- name: to_remove @sqlite
-- Whether anything is to leave the index.
SELECT 1 FROM message_index_removed WHERE tenant_id = :tenant_id LIMIT 1;

-- name: can_index @sqlite
-- Whether this SQLite can search at all; a caller's own may have been built without.
SELECT 1 FROM pragma_module_list WHERE name = 'fts5';

-- name: advance
INSERT INTO search_progress (tenant_id, session_id, block, seq) VALUES (:tenant_id, :session_id, :block, :seq)
ON CONFLICT (tenant_id, session_id, block) DO UPDATE SET seq = :seq;

-- name: up_to_date @sqlite
-- All messages of these sessions are indexed.
UPDATE sessions SET search_behind = FALSE
WHERE tenant_id = :tenant_id AND id IN (SELECT value FROM json_each(:ids));

-- name: up_to_date @postgres
UPDATE sessions SET search_behind = FALSE
WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- name: reconsider_progress
-- Other messages of a session than new ones were changed: all queries called reconsider_... are run, and the next search looks at
-- all of it.
DELETE FROM search_progress WHERE tenant_id = :tenant_id AND session_id = :session_id;

-- name: reconsider_session
UPDATE sessions SET search_behind = TRUE WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: find @sqlite
-- Messages that match, newest first, from live sessions; whether a session that has a view shows them is for the caller to see.
SELECT /*columns Message m*/ *, t.number, s.view, t.seq
FROM message_index AS f
CROSS JOIN message_texts AS t INDEXED BY message_texts_places ON t.tenant_id = :tenant_id AND t.number = f.rowid
CROSS JOIN sessions AS s ON s.tenant_id = :tenant_id AND s.id = t.session_id
CROSS JOIN messages AS m ON m.tenant_id = :tenant_id AND m.id = t.message_id
WHERE f.message_index MATCH :query AND f.rowid < :before_number
  AND (s.deleted_at IS NULL) IS TRUE AND (t.seq < 1099511627776 OR (s.view IS NOT NULL) IS TRUE)/*where*/
ORDER BY f.rowid DESC
LIMIT :limit;

-- name: find @postgres
-- First among the newest messages, read as they come: words that many have are found there, and PostgreSQL, which plans for any
-- word, would collect all messages that have them. The rest comes from the index over words and, hence "+ 0", from no other.
WITH newest AS MATERIALIZED (
    SELECT number, message_id, session_id, seq, words FROM message_texts
    WHERE tenant_id = :tenant_id AND number < :before_number
    ORDER BY number DESC
    LIMIT 100
), near AS MATERIALIZED (
    SELECT t.number, t.message_id, t.seq, s.view
    FROM newest AS t JOIN sessions AS s ON s.tenant_id = :tenant_id AND s.id = t.session_id
    WHERE s.tenant_id = :tenant_id AND t.words @@ :query::text::tsquery
      AND (s.deleted_at IS NULL) IS TRUE AND (t.seq < 1099511627776 OR (s.view IS NOT NULL) IS TRUE)/*where*/
    ORDER BY t.number DESC
    LIMIT :limit
), far AS MATERIALIZED (
    SELECT t.number, t.message_id, t.seq, s.view
    FROM message_texts AS t JOIN sessions AS s ON s.tenant_id = :tenant_id AND s.id = t.session_id
    WHERE t.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND t.words @@ :query::text::tsquery
      AND (SELECT COUNT(*) FROM near) < :limit AND t.number + 0 < (SELECT MIN(number) FROM newest)
      AND (s.deleted_at IS NULL) IS TRUE AND (t.seq < 1099511627776 OR (s.view IS NOT NULL) IS TRUE)/*where*/
    ORDER BY t.number DESC
    LIMIT :limit
)
SELECT /*columns Message m*/ *, h.number, h.view::text, h.seq
FROM (SELECT * FROM near UNION ALL SELECT * FROM far) AS h
JOIN messages AS m ON m.tenant_id = :tenant_id AND m.id = h.message_id
WHERE m.tenant_id = :tenant_id
ORDER BY h.number DESC
LIMIT :limit;
