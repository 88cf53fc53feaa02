-- name: behind @sqlite
-- Whether any message is not indexed yet, or not removed from the index yet.
SELECT 1 WHERE EXISTS (SELECT 1 FROM sessions/*index*/
                       WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/)
            OR EXISTS (SELECT 1 FROM message_index_removed WHERE tenant_id = :tenant_id);

-- name: behind @postgres
SELECT 1 FROM sessions WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/ LIMIT 1;

-- name: lock_behind
-- Lock sessions with messages that are not indexed, newest first. Sessions locked by another transaction, which appends to them or
-- indexes them, are skipped: no process waits, and several processes index different sessions.
SELECT id/*pg ::text*/, blocks FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND search_behind AND deleted_at IS NULL/*where*/
ORDER BY id DESC
LIMIT :limit
/*pg FOR UPDATE SKIP LOCKED*/;

-- name: list_behind
-- The same for a search, without locks, with the views of the sessions.
SELECT s.id/*pg ::text*/, s.blocks, s.view/*pg ::text*/ FROM sessions AS s/*index*/
WHERE s.tenant_id = :tenant_id AND s.search_behind AND s.deleted_at IS NULL/*where*/
ORDER BY s.id DESC
LIMIT :limit;

-- name: progress
-- The last indexed positions of sessions, by block.
SELECT session_id/*pg ::text*/, block, seq FROM search_progress
WHERE tenant_id = :tenant_id AND session_id /*in ids uuid*/;

-- name: places @sqlite
-- The messages of several ranges of the log, in the order of the ranges, and whether each is indexed.
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
-- Messages by their ids, with their positions in the log.
SELECT /*columns Message m*/ *, m.seq FROM messages AS m
WHERE m.tenant_id = :tenant_id AND m.id /*in ids uuid*/;

-- name: taken
-- The numbers that are taken by other messages.
SELECT number FROM message_texts WHERE tenant_id = :tenant_id AND number /*in numbers bigint*/;

-- name: add @sqlite
-- Mark a message as indexed. Only PostgreSQL stores its words here.
INSERT INTO message_texts (tenant_id, number, message_id, session_id, seq)
VALUES (:tenant_id, :number, :message_id, :session_id, :seq);

-- name: add @postgres
INSERT INTO message_texts (tenant_id, number, message_id, session_id, seq, words)
VALUES (:tenant_id, :number, :message_id, :session_id, :seq, :words::text::tsvector);

-- name: drop @postgres
-- Mark messages as not indexed. On SQLite a trigger does this.
DELETE FROM message_texts WHERE tenant_id = :tenant_id AND message_id = ANY(:ids::uuid[]);

-- name: index @sqlite
-- Add the words of a message to SQLite's index, each prefixed with its tenant's tag.
INSERT INTO message_index (rowid, words) VALUES (:number, :words);

-- name: to_remove @sqlite
-- Entries to remove from the index, in the order in which their messages were deleted or changed.
SELECT rowid, number, session_id, kind, content FROM message_index_removed
WHERE tenant_id = :tenant_id
ORDER BY rowid
LIMIT :limit;

-- name: remove @sqlite
-- Remove a message from SQLite's index, which needs exactly the words that were added.
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
-- Index a block again from a position on.
UPDATE search_progress SET seq = :seq
WHERE tenant_id = :tenant_id AND session_id = :session_id AND block = :block AND seq > :seq;

-- name: restart
-- Index all blocks of a session again.
DELETE FROM search_progress WHERE tenant_id = :tenant_id AND session_id = :session_id;

-- name: mark_behind
UPDATE sessions SET search_behind = TRUE WHERE tenant_id = :tenant_id AND id = :session_id;

-- name: find @sqlite
-- Matching messages of live sessions, newest first. The caller checks whether a session with a view shows them.
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
-- Search the newest messages first, in order: frequent words are found there, while PostgreSQL, which plans the same for all
-- words, would collect all messages with them. The rest comes from the index over words only: "+ 0" keeps PostgreSQL from reading
-- the index over numbers backwards, which for a word in no message would read all of it.
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
