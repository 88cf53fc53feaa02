-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- name: open
-- The live session of one user under a key, with the state and the id of its last save.
SELECT /*columns SessionColumns s*/ *, /*columns SessionState t*/ *, t.save_id/*pg ::text*/
FROM sessions AS s/*index*/
LEFT JOIN session_state AS t ON t.tenant_id = :tenant_id AND t.session_id = s.id
WHERE s.tenant_id = :tenant_id AND s.identifier = :identifier AND s.user_id = :user_id AND s.identifier_rank = '~'
  AND s.deleted_at IS NULL;

-- name: lock
-- Lock one live session until the transaction ends, and read it for comparison.
SELECT /*columns SessionColumns*/ * FROM sessions WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: last_save
-- The id of the save that wrote a session's state; read under the session's lock, so that no other save can change it.
SELECT save_id/*pg ::text*/ FROM session_state WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: create
-- Create a session with its first values; do nothing if the user's key or the id is taken. The row is read by a second query: for
-- RETURNING, SQLite would build a table. SELECT and "WHERE TRUE": see sessions.sql.
INSERT INTO sessions (tenant_id, id, identifier, user_id, agent_id, metadata, created_at, updated_at, updated_minute,
                      next_seq, message_count, token_count, compact_from)
SELECT :tenant_id, :id /*pg ::uuid*/, :identifier, :user_id, :agent_id, :metadata /*pg ::jsonb*/,
       :now_at /*pg ::timestamptz*/, :now_at, :now_minute /*pg ::bigint*/,
       :rows /*pg ::bigint*/ + 1, :rows /*pg ::bigint*/, :tokens /*pg ::bigint*/,
       (SELECT compact_from FROM compaction_policies
        WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id)
WHERE TRUE
ON CONFLICT DO NOTHING /*pg RETURNING 1*/;

-- name: touch
-- Update a locked session with the changes of a save.
UPDATE sessions SET
    agent_id = :agent_id,
    compact_from = CASE WHEN :agent_id = agent_id THEN compact_from ELSE
        COALESCE((SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'session' AND name = CAST(sessions.id AS TEXT)),
                 (SELECT compact_from FROM compaction_policies
                  WHERE tenant_id = :tenant_id AND scope = 'agent' AND name = :agent_id)) END,
    metadata = :metadata,
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :tokens,
    updated_at = :now_at,
    updated_minute = :now_minute,
    search_behind = search_behind OR :rows > 0
WHERE tenant_id = :tenant_id AND id = :id;

-- name: touch_this_minute @sqlite
-- The same if agent and minute are unchanged; why they are not named then: see advance_this_minute in message_log.sql.
UPDATE sessions SET
    metadata = :metadata,
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :tokens,
    updated_at = :now_at,
    search_behind = search_behind OR :rows > 0
WHERE tenant_id = :tenant_id AND id = :id;

-- name: mark
-- The session row after the save, with which the next save compares, and whether a compaction is due.
SELECT /*columns SessionColumns*/ *, (token_count >= compact_from) IS TRUE FROM sessions
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE;

-- name: save
-- Insert or update the state beside the messages.
INSERT INTO session_state (tenant_id, session_id, summary, label, model, provider, channel, input_tokens, output_tokens,
                           compaction_count, memory_flush_compaction_count, memory_flush_at, spawned_by, spawn_depth,
                           save_id, created_at, updated_at)
VALUES (:tenant_id, :id, :summary, :label, :model, :provider, :channel, :input_tokens, :output_tokens,
        :compaction_count, :memory_flush_compaction_count, :memory_flush_at, :spawned_by, :spawn_depth,
        :save_id, :now_at, :now_at)
ON CONFLICT (tenant_id, session_id) DO UPDATE SET
    summary = excluded.summary,
    label = excluded.label,
    model = excluded.model,
    provider = excluded.provider,
    channel = excluded.channel,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens,
    compaction_count = excluded.compaction_count,
    memory_flush_compaction_count = excluded.memory_flush_compaction_count,
    memory_flush_at = excluded.memory_flush_at,
    spawned_by = excluded.spawned_by,
    spawn_depth = excluded.spawn_depth,
    save_id = excluded.save_id,
    updated_at = excluded.updated_at;
