-- Every writer to a group locks its row in pending_groups first. So each position is assigned once, and a group is not cleared
-- while a summary is being inserted. Several groups are locked in the order of their names.

-- name: reserve
-- The next positions of a group, which is inserted if it does not exist.
INSERT INTO pending_groups (tenant_id, channel_name, history_key, next_seq)
VALUES (:tenant_id, :channel_name, :history_key, 1 + :rows /*pg ::bigint*/)
ON CONFLICT (tenant_id, channel_name, history_key) DO UPDATE SET
    next_seq = pending_groups.next_seq + :rows /*pg ::bigint*/
RETURNING next_seq - :rows /*pg ::bigint*/;

-- name: insert
INSERT INTO pending_messages (tenant_id, channel_name, history_key, seq, id, sender, sender_id, body, platform_msg_id,
                              is_summary, created_at, updated_at)
VALUES (:tenant_id, :channel_name, :history_key, :seq, :id, :sender, :sender_id, :body, :platform_msg_id,
        :is_summary, :created_at, :now_at);

-- name: by_ids
-- Messages by their ids, of any group.
SELECT /*columns PendingMessage*/ * FROM pending_messages
WHERE tenant_id = :tenant_id AND id /*in ids uuid*/;

-- name: list
-- The messages of a group, after a position.
SELECT /*columns PendingMessage*/ * FROM pending_messages
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key AND seq > :after
ORDER BY seq
LIMIT :limit;

-- name: count
SELECT COUNT(*) FROM pending_messages
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key;

-- name: count_all
SELECT COUNT(*) FROM pending_messages WHERE tenant_id = :tenant_id;

-- name: groups
-- Groups, the one with the newest message first. A summary has the time of the newest message it replaces.
SELECT channel_name, history_key, COUNT(*),
       COALESCE(MAX(CASE WHEN is_summary THEN seq END) = MAX(seq), FALSE),
       MAX(created_at)
FROM pending_messages
WHERE tenant_id = :tenant_id
GROUP BY channel_name, history_key
HAVING COUNT(*) > 0/*where*/
ORDER BY MAX(created_at) DESC, channel_name, history_key
LIMIT :limit;

-- name: lock
-- A group, locked until the transaction ends.
SELECT next_seq FROM pending_groups
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key
/*pg FOR UPDATE*/;

-- name: delete
-- Exactly these messages of this group.
DELETE FROM pending_messages
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key AND id /*in ids uuid*/
RETURNING /*columns PendingMessage*/ *;

-- name: forget_group
-- This comes first, because it waits for concurrent writers to the group.
DELETE FROM pending_groups
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key;

-- name: clear
DELETE FROM pending_messages
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key
RETURNING 1;

-- name: lock_stale
-- The groups with stale messages, locked until the transaction ends.
SELECT channel_name, history_key FROM pending_groups AS g
WHERE tenant_id = :tenant_id AND (channel_name, history_key) IN (
    SELECT channel_name, history_key FROM pending_messages WHERE tenant_id = :tenant_id AND updated_at < :stale_at)
ORDER BY channel_name, history_key
/*pg FOR UPDATE*/;

-- name: delete_stale
DELETE FROM pending_messages WHERE tenant_id = :tenant_id AND updated_at < :stale_at
RETURNING 1;

-- name: forget_if_empty
-- Remove a locked group if it has no messages left.
DELETE FROM pending_groups
WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key
  AND NOT EXISTS (SELECT 1 FROM pending_messages
                  WHERE tenant_id = :tenant_id AND channel_name = :channel_name AND history_key = :history_key);

-- name: titles @sqlite
-- The chat titles of sessions whose key is that of a group, by the part of the key that follows the agent. The engines differ in
-- their functions for text and JSON.
SELECT substr(identifier, 7 + instr(substr(identifier, 7), ':')), metadata ->> '$.chat_title' FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND deleted_at IS NULL AND identifier >= 'agent:' AND identifier < 'agent;'
  AND substr(identifier, 7 + instr(substr(identifier, 7), ':')) IN (SELECT value FROM json_each(:tails))
  AND json_type(metadata, '$.chat_title') = 'text'
ORDER BY updated_at DESC, id DESC;

-- name: titles @postgres
SELECT substr(identifier, 7 + strpos(substr(identifier, 7), ':')), metadata ->> 'chat_title' FROM sessions
WHERE tenant_id = :tenant_id AND deleted_at IS NULL AND identifier >= 'agent:' AND identifier < 'agent;'
  AND substr(identifier, 7 + strpos(substr(identifier, 7), ':')) = ANY(:tails::text[])
  AND jsonb_typeof(metadata -> 'chat_title') = 'string'
ORDER BY updated_at DESC, id DESC;
