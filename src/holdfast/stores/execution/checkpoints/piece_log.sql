-- name: find_thread
-- A thread and the log of its pieces.
SELECT t.number, t.log, l.next_place, l.stamp/*pg ::text*/ FROM lg_thread AS t
JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND t.thread_id = :thread_id AND t.user_id = :user_id;

-- name: lock_thread
-- Like find_thread, but locks the log until the transaction ends: no other writer adds to it or removes from it.
SELECT t.number, t.log, l.next_place, l.stamp/*pg ::text*/ FROM lg_thread AS t
JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND t.thread_id = :thread_id AND t.user_id = :user_id
/*pg FOR UPDATE*/;

-- name: lock_tenant
-- Serializes the numbering of a tenant's threads.
SELECT id FROM tenants WHERE id = :tenant_id
/*pg FOR UPDATE*/;

-- name: next_number
SELECT COALESCE(MAX(number), 0) + 1 FROM lg_thread WHERE tenant_id = :tenant_id;

-- name: create_log
INSERT INTO lg_log (tenant_id, number, stamp) VALUES (:tenant_id, :log, :stamp);

-- name: create_thread
INSERT INTO lg_thread (tenant_id, number, user_id, thread_id, log)
VALUES (:tenant_id, :number, :user_id, :thread_id, :log);

-- name: known @sqlite
-- The positions of the bodies that the log already has. SQLite takes the digests as one long blob, PostgreSQL as an array.
WITH RECURSIVE wanted (n, digest) AS (
    SELECT 1, substr(:digests, 1, 16)
    UNION ALL
    SELECT n + 1, substr(:digests, n * 16 + 1, 16) FROM wanted WHERE n * 16 < length(:digests)
)
SELECT p.digest, p.place FROM wanted CROSS JOIN lg_piece AS p
WHERE p.tenant_id = :tenant_id AND p.log = :log AND substr(p.digest, 1, 3) = substr(wanted.digest, 1, 3)
  AND p.digest = wanted.digest;

-- name: known_two @postgres
-- Like known, for two digests, or the same one twice, as most steps need: without an array, the plan can be reused.
SELECT digest, place FROM lg_piece
WHERE tenant_id = :tenant_id AND log = :log AND substr(digest, 1, 3) = substr(:one::bytea, 1, 3) AND digest = :one
UNION ALL
SELECT digest, place FROM lg_piece
WHERE tenant_id = :tenant_id AND log = :log AND substr(digest, 1, 3) = substr(:other::bytea, 1, 3) AND digest = :other;

-- name: known @postgres
-- One digest after the other: without statistics of the table, PostgreSQL would estimate a scan of the whole log to be as fast.
SELECT wanted.digest, p.place FROM unnest(:digests::bytea[]) AS wanted (digest)
CROSS JOIN LATERAL (SELECT place FROM lg_piece
                    WHERE tenant_id = :tenant_id AND log = :log
                      AND substr(digest, 1, 3) = substr(wanted.digest, 1, 3) AND digest = wanted.digest
                    LIMIT 1) AS p;

-- name: add
INSERT INTO lg_piece (tenant_id, log, place, digest, codec, body)
VALUES (:tenant_id, :log, :place, :digest, :codec, :body);

-- name: advance
UPDATE lg_log SET next_place = next_place + :count, stamp = :stamp WHERE tenant_id = :tenant_id AND number = :log;

-- name: read @sqlite
-- The pieces at some ranges of positions.
SELECT p.place, p.digest, p.codec, p.body FROM json_each(:ranges) AS r CROSS JOIN lg_piece AS p
WHERE p.tenant_id = :tenant_id AND p.log = :log
  AND p.place BETWEEN json_extract(r.value, '$[0]') AND json_extract(r.value, '$[1]');

-- name: read @postgres
SELECT p.place, p.digest, p.codec, p.body FROM unnest(:firsts::bigint[], :lasts::bigint[]) AS r (first, last)
JOIN lg_piece AS p ON p.tenant_id = :tenant_id AND p.log = :log AND p.place BETWEEN r.first AND r.last;

-- name: used
-- The pieces used by all threads that share a log: the thread that it was created for, if it still exists, and its copies.
WITH sharing AS (
    SELECT number FROM lg_thread WHERE tenant_id = :tenant_id AND number = :log AND log = number
    UNION ALL
    SELECT number FROM lg_thread WHERE tenant_id = :tenant_id AND log = :log AND log <> number
)
SELECT c.pieces FROM sharing JOIN lg_checkpoint AS c ON c.tenant_id = :tenant_id AND c.thread = sharing.number;

-- name: used_by_writes
WITH sharing AS (
    SELECT number FROM lg_thread WHERE tenant_id = :tenant_id AND number = :log AND log = number
    UNION ALL
    SELECT number FROM lg_thread WHERE tenant_id = :tenant_id AND log = :log AND log <> number
)
SELECT w.pieces FROM sharing JOIN lg_checkpoint_write AS w ON w.tenant_id = :tenant_id AND w.thread = sharing.number;

-- name: remove @sqlite
-- Removes the pieces at some ranges of positions permanently.
DELETE FROM lg_piece
WHERE tenant_id = :tenant_id AND log = :log
  AND EXISTS (SELECT 1 FROM json_each(:ranges) AS r
              WHERE lg_piece.place BETWEEN json_extract(r.value, '$[0]') AND json_extract(r.value, '$[1]'))
RETURNING codec, body;

-- name: remove @postgres
DELETE FROM lg_piece AS p USING unnest(:firsts::bigint[], :lasts::bigint[]) AS r (first, last)
WHERE p.tenant_id = :tenant_id AND p.log = :log AND p.place BETWEEN r.first AND r.last
RETURNING p.codec, p.body;

-- name: restamp
UPDATE lg_log SET stamp = :stamp WHERE tenant_id = :tenant_id AND number = :log;

-- name: delete_thread
DELETE FROM lg_thread WHERE tenant_id = :tenant_id AND number = :thread;

-- name: delete_log
-- Removes a log that no thread uses any more.
DELETE FROM lg_log
WHERE tenant_id = :tenant_id AND number = :log
  AND NOT EXISTS (SELECT 1 FROM lg_thread AS t WHERE t.tenant_id = :tenant_id AND t.number = :log AND t.log = t.number)
  AND NOT EXISTS (SELECT 1 FROM lg_thread AS t WHERE t.tenant_id = :tenant_id AND t.log = :log AND t.log <> t.number)
RETURNING number;

-- name: delete_pieces
DELETE FROM lg_piece WHERE tenant_id = :tenant_id AND log = :log;
