-- name: put
-- Creates a checkpoint, or replaces the one with this id.
INSERT INTO lg_checkpoint (tenant_id, thread, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, metadata,
                           checkpoint, pieces, leans, created_at)
VALUES (:tenant_id, :thread, :checkpoint_ns, :checkpoint_id, :parent_id, :run_id, :metadata,
        :checkpoint, :pieces, :leans, :now_at)
ON CONFLICT (tenant_id, thread, checkpoint_ns, checkpoint_id) DO UPDATE SET
    parent_checkpoint_id = excluded.parent_checkpoint_id,
    run_id = excluded.run_id,
    metadata = excluded.metadata,
    checkpoint = excluded.checkpoint,
    pieces = excluded.pieces,
    leans = excluded.leans;

-- name: log_and_places @postgres
-- The log of a thread, and the positions of two pieces in it. See optimistic.py.
SELECT t.number, t.log, l.next_place, l.stamp::text,
       (SELECT p.place FROM lg_piece AS p
        WHERE p.tenant_id = :tenant_id AND p.log = t.log
          AND substr(p.digest, 1, 3) = substr(:one::bytea, 1, 3) AND p.digest = :one),
       (SELECT p.place FROM lg_piece AS p
        WHERE p.tenant_id = :tenant_id AND p.log = t.log
          AND substr(p.digest, 1, 3) = substr(:other::bytea, 1, 3) AND p.digest = :other)
FROM lg_thread AS t
JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND t.thread_id = :thread_id AND t.user_id = :user_id;

-- part: unchanged_log
-- Locks the log and adds up to two new pieces, if the log is what the caller expects. A statement that waited for another writer
-- compares the row that this writer committed.
WITH found AS (
    SELECT t.number AS thread, t.log FROM lg_thread AS t
    JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
    WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND t.thread_id = :thread_id AND t.user_id = :user_id
      AND l.stamp = :stamp AND l.next_place = :next_place
    FOR UPDATE
), log AS (
    SELECT thread, log FROM found
    WHERE NOT EXISTS (SELECT 1 FROM lg_piece AS p
                      WHERE p.tenant_id = :tenant_id AND p.log = found.log
                        AND substr(p.digest, 1, 3) = substr(:one::bytea, 1, 3) AND p.digest = :one)
      AND NOT EXISTS (SELECT 1 FROM lg_piece AS p
                      WHERE p.tenant_id = :tenant_id AND p.log = found.log
                        AND substr(p.digest, 1, 3) = substr(:other::bytea, 1, 3) AND p.digest = :other)
), added AS (
    INSERT INTO lg_piece (tenant_id, log, place, digest, codec, body)
    SELECT :tenant_id, log, :next_place, :one::bytea, :one_codec::smallint, :one_body::bytea FROM log WHERE :count > 0
    UNION ALL
    SELECT :tenant_id, log, :next_place + 1, :other::bytea, :other_codec::smallint, :other_body::bytea FROM log
    WHERE :count > 1
), moved AS (
    UPDATE lg_log AS l SET next_place = l.next_place + :count FROM log
    WHERE l.tenant_id = :tenant_id AND l.number = log.log AND :count > 0
)

-- name: put_if_unchanged @postgres
/*part unchanged_log*/
INSERT INTO lg_checkpoint (tenant_id, thread, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, metadata,
                           checkpoint, pieces, leans, created_at)
SELECT :tenant_id, thread, :checkpoint_ns, :checkpoint_id, :parent_id, :run_id, :metadata,
       :checkpoint, :pieces, :leans, :now_at
FROM log
RETURNING 1;

-- name: head
-- The newest checkpoint of a namespace.
SELECT checkpoint_id FROM lg_checkpoint
WHERE tenant_id = :tenant_id AND thread = :thread AND checkpoint_ns = :checkpoint_ns
ORDER BY checkpoint_id DESC
LIMIT 1;

-- name: latest
-- The newest checkpoint of a namespace, with the writes to it: a row for each task with writes, and one row if there are none.
WITH head AS (
    SELECT /*columns CheckpointRow c*/ *, t.log, l.stamp/*pg ::text*/ AS stamp FROM lg_thread AS t
    JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
    JOIN lg_checkpoint AS c ON c.tenant_id = t.tenant_id AND c.thread = t.number
    WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND c.tenant_id = :tenant_id
      AND t.thread_id = :thread_id AND t.user_id = :user_id AND c.checkpoint_ns = :checkpoint_ns
    ORDER BY c.checkpoint_id DESC
    LIMIT 1
)
SELECT head.*, w.task_id, w.task_path, w.writes, w.pieces FROM head
LEFT JOIN lg_checkpoint_write AS w ON w.tenant_id = :tenant_id AND w.thread = head.thread
     AND w.checkpoint_ns = head.checkpoint_ns AND w.checkpoint_id = head.checkpoint_id
ORDER BY w.task_path, w.task_id;

-- name: exact
-- One checkpoint by its id, in the same form.
WITH head AS (
    SELECT /*columns CheckpointRow c*/ *, t.log, l.stamp/*pg ::text*/ AS stamp FROM lg_thread AS t
    JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
    JOIN lg_checkpoint AS c ON c.tenant_id = t.tenant_id AND c.thread = t.number
    WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND c.tenant_id = :tenant_id
      AND t.thread_id = :thread_id AND t.user_id = :user_id
      AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = :checkpoint_id
)
SELECT head.*, w.task_id, w.task_path, w.writes, w.pieces FROM head
LEFT JOIN lg_checkpoint_write AS w ON w.tenant_id = :tenant_id AND w.thread = head.thread
     AND w.checkpoint_ns = head.checkpoint_ns AND w.checkpoint_id = head.checkpoint_id
ORDER BY w.task_path, w.task_id;

-- part: leaning @sqlite
EXISTS (SELECT 1 FROM json_each(chain.leans) AS m WHERE m.value IN (SELECT value FROM json_each(:marks)))

-- part: leaning @postgres
COALESCE(jsonb_exists_any(chain.leans::jsonb, :marks::text[]), FALSE)

-- name: history
-- A checkpoint and its ancestors: at least :least, and further ones while one of the requested channels has no value.
WITH RECURSIVE chain AS (
    SELECT /*columns CheckpointRow c*/ *, t.log, l.stamp/*pg ::text*/ AS stamp, 0 AS depth FROM lg_thread AS t
    JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
    JOIN lg_checkpoint AS c ON c.tenant_id = t.tenant_id AND c.thread = t.number
    WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND c.tenant_id = :tenant_id
      AND t.thread_id = :thread_id AND t.user_id = :user_id
      AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = :checkpoint_id
    UNION ALL
    SELECT /*columns CheckpointRow c*/ *, chain.log, chain.stamp, chain.depth + 1 FROM chain
    JOIN lg_checkpoint AS c ON c.tenant_id = :tenant_id AND c.thread = chain.thread
         AND c.checkpoint_ns = chain.checkpoint_ns AND c.checkpoint_id = chain.parent_checkpoint_id
    WHERE (chain.depth < :least OR /*part leaning*/) AND chain.depth < :limit
)
SELECT chain.*, w.task_id, w.task_path, w.writes, w.pieces FROM chain
LEFT JOIN lg_checkpoint_write AS w ON w.tenant_id = :tenant_id AND w.thread = chain.thread
     AND w.checkpoint_ns = chain.checkpoint_ns AND w.checkpoint_id = chain.checkpoint_id
ORDER BY chain.depth, w.task_path, w.task_id;

-- name: history_of_latest
-- Like history, starting from the newest checkpoint of a namespace.
WITH RECURSIVE chain AS (
    SELECT /*columns CheckpointRow c*/ *, t.log, l.stamp/*pg ::text*/ AS stamp, 0 AS depth FROM lg_thread AS t
    JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
    JOIN lg_checkpoint AS c ON c.tenant_id = t.tenant_id AND c.thread = t.number
    WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND c.tenant_id = :tenant_id
      AND t.thread_id = :thread_id AND t.user_id = :user_id AND c.checkpoint_ns = :checkpoint_ns
      -- Not MAX, which PostgreSQL supports for this type only since version 18.
      AND c.checkpoint_id = (SELECT n.checkpoint_id FROM lg_checkpoint AS n
                             WHERE n.tenant_id = :tenant_id AND n.thread = t.number AND n.checkpoint_ns = :checkpoint_ns
                             ORDER BY n.checkpoint_id DESC LIMIT 1)
    UNION ALL
    SELECT /*columns CheckpointRow c*/ *, chain.log, chain.stamp, chain.depth + 1 FROM chain
    JOIN lg_checkpoint AS c ON c.tenant_id = :tenant_id AND c.thread = chain.thread
         AND c.checkpoint_ns = chain.checkpoint_ns AND c.checkpoint_id = chain.parent_checkpoint_id
    WHERE (chain.depth < :least OR /*part leaning*/) AND chain.depth < :limit
)
SELECT chain.*, w.task_id, w.task_path, w.writes, w.pieces FROM chain
LEFT JOIN lg_checkpoint_write AS w ON w.tenant_id = :tenant_id AND w.thread = chain.thread
     AND w.checkpoint_ns = chain.checkpoint_ns AND w.checkpoint_id = chain.checkpoint_id
ORDER BY chain.depth, w.task_path, w.task_id;

-- name: list
-- Checkpoints of one user, the newest first.
SELECT /*columns CheckpointRow c*/ *, t.log, l.stamp/*pg ::text*/ AS stamp, t.thread_id FROM lg_thread AS t
JOIN lg_log AS l ON l.tenant_id = t.tenant_id AND l.number = t.log
JOIN lg_checkpoint AS c ON c.tenant_id = t.tenant_id AND c.thread = t.number
WHERE t.tenant_id = :tenant_id AND l.tenant_id = :tenant_id AND c.tenant_id = :tenant_id/*where*/
ORDER BY checkpoint_id DESC, thread DESC, checkpoint_ns DESC
LIMIT :limit;

-- name: writes_of @sqlite
-- The writes to several checkpoints; the caller drops rows that belong to other checkpoints with the same ids.
SELECT thread, checkpoint_ns, checkpoint_id, task_id, task_path, writes, pieces FROM lg_checkpoint_write
WHERE tenant_id = :tenant_id AND thread IN (SELECT value FROM json_each(:threads))
  AND hex(checkpoint_id) IN (SELECT value FROM json_each(:checkpoint_ids))
ORDER BY task_path, task_id;

-- name: writes_of @postgres
SELECT thread, checkpoint_ns, checkpoint_id, task_id, task_path, writes, pieces FROM lg_checkpoint_write
WHERE tenant_id = :tenant_id AND thread = ANY(:threads::bigint[]) AND checkpoint_id = ANY(:checkpoint_ids::bytea[])
ORDER BY task_path, task_id;

-- name: put_writes
INSERT INTO lg_checkpoint_write (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id, task_path, writes, pieces)
VALUES (:tenant_id, :thread, :checkpoint_ns, :checkpoint_id, :task_id, :task_path, :writes, :pieces)
ON CONFLICT (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id) DO NOTHING
RETURNING 1;

-- name: put_writes_if_unchanged @postgres
/*part unchanged_log*/
INSERT INTO lg_checkpoint_write (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id, task_path, writes, pieces)
SELECT :tenant_id, thread, :checkpoint_ns, :checkpoint_id, :task_id, :task_path, :writes, :pieces
FROM log
RETURNING 1;

-- name: task
-- The previous writes of a task; the log is locked, so they do not change concurrently.
SELECT writes, pieces FROM lg_checkpoint_write
WHERE tenant_id = :tenant_id AND thread = :thread AND checkpoint_ns = :checkpoint_ns
  AND checkpoint_id = :checkpoint_id AND task_id = :task_id;

-- name: change_writes
UPDATE lg_checkpoint_write SET task_path = :task_path, writes = :writes, pieces = :pieces
WHERE tenant_id = :tenant_id AND thread = :thread AND checkpoint_ns = :checkpoint_ns
  AND checkpoint_id = :checkpoint_id AND task_id = :task_id;

-- name: threads
-- All threads of a tenant, to verify them.
SELECT number, thread_id, user_id, log FROM lg_thread
WHERE tenant_id = :tenant_id AND number > :after/*pg ::bigint*/
ORDER BY number
LIMIT :limit;

-- name: everything
-- The checkpoints of a thread in their stored form.
SELECT /*columns CheckpointRow*/ * FROM lg_checkpoint
WHERE tenant_id = :tenant_id AND thread = :thread
ORDER BY checkpoint_ns, checkpoint_id;

-- name: every_write
SELECT checkpoint_ns, checkpoint_id, writes, pieces FROM lg_checkpoint_write
WHERE tenant_id = :tenant_id AND thread = :thread
ORDER BY checkpoint_ns, checkpoint_id, task_id;

-- name: own
-- A checkpoint of a copy that its original thread does not have.
SELECT 1 FROM lg_checkpoint AS c
WHERE c.tenant_id = :tenant_id AND c.thread = :target
  AND NOT EXISTS (SELECT 1 FROM lg_checkpoint AS s
                  WHERE s.tenant_id = :tenant_id AND s.tenant_id = c.tenant_id AND s.thread = :thread
                    AND s.checkpoint_ns = c.checkpoint_ns AND s.checkpoint_id = c.checkpoint_id)
LIMIT 1;

-- name: copy
-- Copies all checkpoints of a thread to another one that shares its log.
INSERT INTO lg_checkpoint (tenant_id, thread, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, metadata,
                           checkpoint, pieces, leans, created_at)
SELECT tenant_id, :target /*pg ::integer*/, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, metadata,
       checkpoint, pieces, leans, created_at
FROM lg_checkpoint WHERE tenant_id = :tenant_id AND thread = :thread
ON CONFLICT (tenant_id, thread, checkpoint_ns, checkpoint_id) DO NOTHING;

-- name: copy_writes
INSERT INTO lg_checkpoint_write (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id, task_path, writes, pieces)
SELECT tenant_id, :target /*pg ::integer*/, checkpoint_ns, checkpoint_id, task_id, task_path, writes, pieces
FROM lg_checkpoint_write WHERE tenant_id = :tenant_id AND thread = :thread
ON CONFLICT (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id) DO NOTHING;

-- name: ancestry
-- The parents of checkpoints, and the channels for which they need an ancestor.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, leans/*pg ::text*/, run_id, created_at > :since_at
FROM lg_checkpoint
WHERE tenant_id = :tenant_id AND thread = :thread
ORDER BY checkpoint_id DESC;

-- name: ids
SELECT checkpoint_id FROM lg_checkpoint WHERE tenant_id = :tenant_id AND thread = :thread;

-- name: threads_of_runs
SELECT DISTINCT t.thread_id, t.user_id FROM lg_checkpoint AS c
JOIN lg_thread AS t ON t.tenant_id = c.tenant_id AND t.number = c.thread
WHERE c.tenant_id = :tenant_id AND t.tenant_id = :tenant_id AND t.user_id = :user_id
  AND c.run_id /*in run_ids text*/;

-- name: delete
DELETE FROM lg_checkpoint
WHERE tenant_id = :tenant_id AND thread = :thread AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id;

-- name: delete_writes
DELETE FROM lg_checkpoint_write
WHERE tenant_id = :tenant_id AND thread = :thread AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id;

-- name: delete_all
DELETE FROM lg_checkpoint WHERE tenant_id = :tenant_id AND thread = :thread
RETURNING 1;

-- name: delete_all_writes
DELETE FROM lg_checkpoint_write WHERE tenant_id = :tenant_id AND thread = :thread
RETURNING 1;
