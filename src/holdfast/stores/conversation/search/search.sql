-- name: behind @sqlite
-- Whether anything is not indexed yet, or has not left the index yet.
SELECT 1 WHERE EXISTS (SELECT 1 FROM sessions/*index*/
                       WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/)
            OR EXISTS (SELECT 1 FROM message_index_removed WHERE tenant_id = :tenant_id);

-- name: behind @postgres
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/ LIMIT 1;

-- name: lock_behind
-- Sessions with messages that are not indexed, the newest first, held until the transaction ends. Those that somebody else holds,
-- to append to them or to index them, are left out: nobody waits, and several processes index different sessions.
SELECT id/*pg ::text*/, blocks FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/
ORDER BY id DESC
LIMIT :limit
/*pg FOR UPDATE SKIP LOCKED*/;

-- name: list_behind
-- The same for a search, which only reads them, with what says whether their messages are found.
SELECT s.id/*pg ::text*/, s.blocks, s.view/*pg ::text*/ FROM sessions AS s/*index*/
WHERE s.tenant_id = :tenant_id AND s.search_behind AND s.deleted_at IS NULL/*where*/
ORDER BY s.id DESC
LIMIT :limit;

-- name: progress
-- How far they are:
SELECT session_id/*pg ::text*/, block, seq FROM search_progress
WHERE tenant_id = :tenant_id AND session_id /*in ids uuid*/;

-- name: places @sqlite
-- The messages of several stretches of the log, in the order of these, and whether each is indexed.
SELECT r.key, m.seq, m.id, t.number IS NOT NULL
FROM json_each(:stretches) AS r
CROSS JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = r.value ->> 0
    AND m.seq > r.value ->> 1 AND m.seq < r.value ->> 2
LEFT JOIN message_texts AS t ON t.tenant_id = :tenant_id AND t.message_id = m.id
WHERE m.tenant_id = :tenant_id
ORDER BY r.key, m.seq
LIMIT :limit;

-- name: places @postgres
SELECT r.place - 1, m.seq, m.id::text, t.number IS NOT NULL
FROM jsonb_array_elements(:stretches::text::jsonb) WITH ORDINALITY AS r (stretch, place)
JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = (r.stretch ->> 0)::uuid
    AND m.seq > (r.stretch -> 1)::bigint AND m.seq < (r.stretch -> 2)::bigint
LEFT JOIN message_texts AS t ON t.tenant_id = :tenant_id AND t.message_id = m.id
WHERE m.tenant_id = :tenant_id
ORDER BY r.place, m.seq
LIMIT :limit;

-- name: contents
-- Messages by their ids, and their places in the log.
SELECT /*columns Message m*/ *, m.seq FROM messages AS m
WHERE m.tenant_id = :tenant_id AND m.id /*in ids uuid*/;

-- name: taken
-- Which of these numbers other messages have.
SELECT number FROM message_texts WHERE tenant_id = :tenant_id AND number /*in numbers bigint*/;

-- name: add @sqlite
-- A message is indexed from now on. Only PostgreSQL keeps its words beside it.
INSERT INTO message_texts (tenant_id, number, message_id, session_id, seq)
VALUES (:tenant_id, :number, :message_id, :session_id, :seq);

-- name: add @postgres
INSERT INTO message_texts (tenant_id, number, message_id, session_id, seq, words)
VALUES (:tenant_id, :number, :message_id, :session_id, :seq, :words::text::tsvector);

-- name: drop @postgres
-- These messages are not indexed any more. On SQLite a trigger sees to it.
DELETE FROM message_texts WHERE tenant_id = :tenant_id AND message_id = ANY(:ids::uuid[]);

-- name: index @sqlite
-- The words of a message enter SQLite's index, each with its tenant's tag in front.
INSERT INTO message_index (rowid, words) VALUES (:number, :words);

-- name: to_remove @sqlite
-- What has to leave the index, in the order in which it was removed.
SELECT rowid, number, session_id, kind, content FROM message_index_removed
WHERE tenant_id = :tenant_id
ORDER BY rowid
LIMIT :limit;

-- name: remove @sqlite
-- The words of a message leave SQLite's index, which must be told the words it held.
INSERT INTO message_index (message_index, rowid, words) VALUES ('delete', :number, :words);

-- name: removed @sqlite
DELETE FROM message_index_removed WHERE tenant_id = :tenant_id AND rowid <= :last;

-- name: can_index @sqlite
-- Whether this SQLite can search at all; a caller's own may have been built without.
SELECT 1 FROM pragma_module_list WHERE name = 'fts5';

-- name: advance
INSERT INTO search_progress (tenant_id, session_id, block, seq) VALUES (:tenant_id, :session_id, :block, :seq)
ON CONFLICT (tenant_id, session_id, block) DO UPDATE SET seq = :seq;

-- name: up_to_date
-- All messages of these sessions are indexed.
UPDATE sessions SET search_behind = FALSE
WHERE tenant_id = :tenant_id AND id /*in ids uuid*/;

-- name: places_of
-- Where these messages are in the log.
SELECT seq FROM messages WHERE tenant_id = :tenant_id AND id /*in ids uuid*/;

-- name: lower
-- A block is looked at again from a place on.
UPDATE search_progress SET seq = :seq
WHERE tenant_id = :tenant_id AND session_id = :session_id AND block = :block AND seq > :seq;

-- name: restart
-- All blocks of a session are looked at again.
DELETE FROM search_progress WHERE tenant_id = :tenant_id AND session_id = :session_id;

-- name: mark_behind
UPDATE sessions SET search_behind = TRUE WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: find @sqlite
-- Messages that match, newest first, from live sessions; whether a session that has a view shows them is for the caller to see.
SELECT /*columns Message m*/ *, t.number, s.view, t.seq
FROM message_index AS f
CROSS JOIN message_texts AS t ON t.tenant_id = :tenant_id AND t.number = f.rowid
CROSS JOIN sessions AS s ON s.tenant_id = :tenant_id AND s.id = t.session_id
CROSS JOIN messages AS m ON m.tenant_id = :tenant_id AND m.id = t.message_id
WHERE f.message_index MATCH :query AND f.rowid < :before_number
  AND (s.deleted_at IS NULL) IS TRUE AND (t.seq < 1099511627776 OR (s.view IS NOT NULL) IS TRUE)/*where*/
ORDER BY f.rowid DESC
LIMIT :limit;

-- name: find @postgres
-- First among the newest messages, read as they come: words that many have are found there, and PostgreSQL, which plans for any
-- word, would collect all messages that have them. The rest comes from the index over words and from no other: "+ 0" keeps the
-- index over numbers from being read backwards, which for a word that no message has means to read all of it.
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
    ORDER BY t.number + 0 DESC
    LIMIT :limit
)
SELECT /*columns Message m*/ *, h.number, h.view::text, h.seq
FROM (SELECT * FROM near UNION ALL SELECT * FROM far) AS h
JOIN messages AS m ON m.tenant_id = :tenant_id AND m.id = h.message_id
WHERE m.tenant_id = :tenant_id
ORDER BY h.number DESC
LIMIT :limit;
