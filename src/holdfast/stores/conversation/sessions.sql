-- Where a session is looked up by its id, "(deleted_at IS NULL) IS TRUE" keeps PostgreSQL from using an index of live sessions:
-- planned while the table is small, that index seems as good as the primary key, and the plan is kept while the table grows.

-- part: follow_agent
-- A new agent's compaction policy applies, unless the session has a policy of its own.
agent_id = COALESCE(:agent_id, agent_id),
    compact_from = CASE WHEN COALESCE(:agent_id, sessions.agent_id) = sessions.agent_id THEN sessions.compact_from ELSE
        COALESCE((SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
                 (SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id)) END

-- name: create
-- The unique index rejects the session if the user's key is taken. SELECT and not VALUES, because Citus allows no
-- subquery there; "WHERE TRUE" tells SQLite that ON does not begin a join condition.
INSERT INTO sessions (tenant_id, id, identifier, user_id, agent_id, metadata, created_at, updated_at, updated_minute,
                      identifier_rank, compact_from)
SELECT :tenant_id, :id /*pg ::uuid*/, :identifier, :user_id, :agent_id, :metadata /*pg ::jsonb*/,
       :now_at /*pg ::timestamptz*/, :now_at, :now_minute /*pg ::bigint*/, :identifier_rank,
       (SELECT compact_from FROM compaction_policies
        WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id)
WHERE TRUE
ON CONFLICT DO NOTHING
RETURNING /*columns Session*/ *;

-- name: update_by_key
-- The user's live session with this key. Columns whose parameter is NULL keep their value.
UPDATE sessions SET
    /*part follow_agent*/,
    metadata = COALESCE(:metadata, metadata),
    updated_at = :now_at,
    updated_minute = :now_minute
WHERE tenant_id = :tenant_id AND identifier = :identifier AND user_id = :user_id AND identifier_rank = '~'
  AND deleted_at IS NULL
RETURNING /*columns Session*/ *;

-- name: get
-- A session by id, deleted or not.
SELECT /*columns Session*/ * FROM sessions WHERE tenant_id = :tenant_id AND id = :id;

-- name: find
-- A user's live session with a key: the one that has it to itself, else the newest of those that share it.
SELECT /*columns Session*/ * FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND identifier = :identifier AND user_id = :user_id AND deleted_at IS NULL
ORDER BY identifier_rank DESC
LIMIT 1;

-- name: find_of_anybody
-- The same for any user, and whether another user has a session with this key.
SELECT /*columns Session*/ *, user_id <> (SELECT MIN(user_id) FROM sessions
                                          WHERE tenant_id = :tenant_id AND identifier = :identifier AND deleted_at IS NULL)
FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND identifier = :identifier AND deleted_at IS NULL
ORDER BY user_id DESC, identifier_rank DESC
LIMIT 1;

-- name: list
-- Live sessions, the most recently used first. The minute comes first because it is the column in the indexes.
SELECT /*columns Session*/ * FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND deleted_at IS NULL/*where*/
ORDER BY updated_minute DESC, updated_at DESC, id DESC
LIMIT :limit;

-- name: list_deleted
-- Deleted sessions that can still be restored, in the same order.
SELECT /*columns Session*/ * FROM sessions
WHERE tenant_id = :tenant_id AND deleted_at IS NOT NULL/*where*/
ORDER BY updated_minute DESC, updated_at DESC, id DESC
LIMIT :limit;

-- name: count
-- The number of live sessions.
SELECT COUNT(*) FROM sessions WHERE tenant_id = :tenant_id AND deleted_at IS NULL/*where*/;

-- name: lock
-- A live session, locked until the transaction ends, to compare it before it is changed.
SELECT /*columns Session*/ * FROM sessions WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: update
-- Columns whose parameter is NULL keep their value.
UPDATE sessions SET
    /*part follow_agent*/,
    metadata = COALESCE(:metadata, metadata),
    updated_at = :now_at,
    updated_minute = :now_minute
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
RETURNING /*columns Session*/ *;

-- name: delete
-- Hide a session with all of its rows, until it is restored or purged.
UPDATE sessions SET deleted_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
RETURNING identifier, user_id, identifier_rank;

-- name: restore
-- Restore a session; the unique index rejects it if its key has been taken.
UPDATE sessions SET
    deleted_at = NULL,
    compact_from = COALESCE(
        (SELECT compact_from FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
        (SELECT compact_from FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = sessions.agent_id))
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NOT NULL) IS TRUE
RETURNING /*columns Session*/ *;

-- name: purge_messages
-- All rows of a session are removed, explicitly for each table, because a caller's own SQLite connection may have foreign keys
-- switched off. All queries called purge_... are run, in this order.
DELETE FROM messages WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_feedback
DELETE FROM feedback WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_branches
DELETE FROM branches WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_deleted_messages
DELETE FROM deleted_messages WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_message_archive
DELETE FROM message_archive WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_compaction_events
DELETE FROM compaction_events WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_compaction_policy
DELETE FROM compaction_policies WHERE tenant_id = :tenant_id AND scope = 'session' AND name = :id;

-- name: purge_session_state
DELETE FROM session_state WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_search_progress
DELETE FROM search_progress WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_share_uses
DELETE FROM session_share_uses WHERE tenant_id = :tenant_id
  AND token_hash IN (SELECT token_hash FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_shares
DELETE FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge
DELETE FROM sessions WHERE tenant_id = :tenant_id AND id = :id
RETURNING id;
