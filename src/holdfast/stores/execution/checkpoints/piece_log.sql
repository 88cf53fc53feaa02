-- name: find_thread
-- A thread and the log its pieces lie in.
SELECT t.number, t.log, l.next_place, l.stamp/*pg ::text*/ FROM lg_thread AS t
JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND t.thread_id = :thread_id AND t.user_id = :user_id;

-- name: lock_thread
-- The same, held until the transaction ends: nobody else adds to the log or removes from it.
SELECT t.number, t.log, l.next_place, l.stamp/*pg ::text*/ FROM lg_thread AS t
JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND t.thread_id = :thread_id AND t.user_id = :user_id
/*pg FOR UPDATE*/;

-- name: lock_tenant
-- Threads of a tenant get their numbers one after the other.
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
-- Where bodies lie that the log has already. SQLite takes the digests as one long text of bytes, PostgreSQL as an array.
WITH RECURSIVE wanted (n, digest) AS (
    SELECT 1, substr(:digests, 1, 16)
    UNION ALL
    SELECT n + 1, substr(:digests, n * 16 + 1, 16) FROM wanted WHERE n * 16 < length(:digests)
)
SELECT p.digest, p.place FROM wanted CROSS JOIN lg_piece AS p
WHERE p.tenant_id = :tenant_id AND p.log = :log AND substr(p.digest, 1, 3) = substr(wanted.digest, 1, 3)
  AND p.digest = wanted.digest;

-- name: known_two @postgres
-- The same for two, or the same one twice, which is what a step mostly asks for: without an array it need not be planned anew.
SELECT digest, place FROM lg_piece
WHERE tenant_id = :tenant_id AND log = :log AND substr(digest, 1, 3) = substr(:one::bytea, 1, 3) AND digest = :one
UNION ALL
SELECT digest, place FROM lg_piece
WHERE tenant_id = :tenant_id AND log = :log AND substr(digest, 1, 3) = substr(:other::bytea, 1, 3) AND digest = :other;

-- name: known @postgres
-- One after the other: of a table it has no statistics of yet, PostgreSQL believes that the whole log is read as quickly.
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
-- The pieces in some ranges of places.
SELECT p.place, p.digest, p.codec, p.body FROM json_each(:ranges) AS r CROSS JOIN lg_piece AS p
WHERE p.tenant_id = :tenant_id AND p.log = :log
  AND p.place BETWEEN json_extract(r.value, '$[0]') AND json_extract(r.value, '$[1]');

-- name: read @postgres
SELECT p.place, p.digest, p.codec, p.body FROM unnest(:firsts::bigint[], :lasts::bigint[]) AS r (first, last)
JOIN lg_piece AS p ON p.tenant_id = :tenant_id AND p.log = :log AND p.place BETWEEN r.first AND r.last;

-- name: used
-- What everybody who shares a log needs of it: the thread that it was made for, if it is still there, and its copies.
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
-- The pieces in some ranges of places, for good.
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
-- A log that no thread has any longer.
DELETE FROM lg_log
WHERE tenant_id = :tenant_id AND number = :log
  AND NOT EXISTS (SELECT 1 FROM lg_thread AS t WHERE t.tenant_id = :tenant_id AND t.number = :log AND t.log = t.number)
  AND NOT EXISTS (SELECT 1 FROM lg_thread AS t WHERE t.tenant_id = :tenant_id AND t.log = :log AND t.log <> t.number)
RETURNING number;

-- name: delete_pieces
DELETE FROM lg_piece WHERE tenant_id = :tenant_id AND log = :log;
