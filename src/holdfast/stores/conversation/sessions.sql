-- Where one session is looked up by its id, "(deleted_at IS NULL) IS TRUE" keeps PostgreSQL from taking an index of live sessions for it:
-- planned while the table is small that looks as good as the primary key, and the plan is kept while the table grows.

-- name: create
-- A session of its own; refused by the unique index when the user's key is taken.
INSERT INTO sessions (tenant_id, id, identifier, user_id, agent_id, metadata, created_at, updated_at, updated_minute,
                      compact_from)
VALUES (:tenant_id, :id, :identifier, :user_id, :agent_id, :metadata, :now_at, :now_at, :now_minute,
        (SELECT compact_from FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id))
ON CONFLICT DO NOTHING
RETURNING /*columns Session*/ *;

-- name: upsert
-- The user's live session under this key, made if need be, for the agent who is acting if none is given; what is given replaces
-- what was there.
INSERT INTO sessions (tenant_id, id, identifier, user_id, agent_id, metadata, created_at, updated_at, updated_minute,
                      compact_from)
VALUES (:tenant_id, :id, :identifier, :user_id, :new_agent_id, COALESCE(:metadata /*pg ::jsonb*/, '{}'),
        :now_at, :now_at, :now_minute,
        (SELECT compact_from FROM compaction_policies
         WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :new_agent_id))
ON CONFLICT (tenant_id, identifier, user_id) WHERE deleted_at IS NULL DO UPDATE SET
    agent_id = COALESCE(:agent_id, sessions.agent_id),
    compact_from = CASE WHEN COALESCE(:agent_id, sessions.agent_id) = sessions.agent_id THEN sessions.compact_from ELSE
        COALESCE((SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
                 (SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id)) END,
    metadata = COALESCE(:metadata, sessions.metadata),
    updated_at = :now_at,
    updated_minute = :now_minute
RETURNING /*columns Session*/ *;

-- name: get
-- One session by id, deleted or not.
SELECT /*columns Session*/ * FROM sessions WHERE tenant_id = :tenant_id AND id = :id;

-- name: find
-- The live session of one user under a key.
SELECT /*columns Session*/ * FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND identifier = :identifier AND user_id = :user_id AND deleted_at IS NULL;

-- name: find_of_anybody
-- Live sessions under a key, at most two: enough to see whether the key alone says which.
SELECT /*columns Session*/ * FROM sessions/*index*/
WHERE tenant_id = :tenant_id AND identifier = :identifier AND deleted_at IS NULL
LIMIT 2;

-- name: list
-- Live sessions, the one used last first. The minute leads because that is what the indexes hold.
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
-- How many live sessions there are.
SELECT COUNT(*) FROM sessions WHERE tenant_id = :tenant_id AND deleted_at IS NULL/*where*/;

-- name: lock
-- One live session, held until the transaction ends, to compare before it is changed.
SELECT /*columns Session*/ * FROM sessions WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: update
-- What is not given stays.
UPDATE sessions SET
    agent_id = COALESCE(:agent_id, agent_id),
    compact_from = CASE WHEN COALESCE(:agent_id, sessions.agent_id) = sessions.agent_id THEN sessions.compact_from ELSE
        COALESCE((SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
                 (SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id)) END,
    metadata = COALESCE(:metadata, metadata),
    updated_at = :now_at,
    updated_minute = :now_minute
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
RETURNING /*columns Session*/ *;

-- name: delete
-- Hidden, with everything below it, until it is restored or purged.
UPDATE sessions SET deleted_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
RETURNING identifier, user_id;

-- name: restore
-- Back as it was; refused by the unique index when its key has been taken meanwhile.
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
-- Everything below a session, each table in so many words, because a caller's own SQLite connection may have foreign keys
-- switched off. All queries called purge_... are run, in this order.
DELETE FROM messages WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_feedback
DELETE FROM feedback WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_branches
DELETE FROM branches WHERE tenant_id = :tenant_id AND session_id = :id;

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

-- name: purge_run_queue
DELETE FROM run_queue WHERE tenant = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_tool_calls
DELETE FROM tool_calls WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_run_steps
DELETE FROM run_steps WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_runs
DELETE FROM runs WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge
DELETE FROM sessions WHERE tenant_id = :tenant_id AND id = :id
RETURNING id;

-- name: register_tenant
-- A tenant comes into being with its first session.
INSERT INTO tenants (id, created_at, updated_at) VALUES (:tenant_id, :now_at, :now_at)
ON CONFLICT (id) DO NOTHING;
