-- Why "(deleted_at IS NULL) IS TRUE": see sessions.sql.

-- name: open
-- The live session of one user under a key, as a buffer begins with it, and what was last saved beside it.
SELECT /*columns Head s*/ *, /*columns SessionState t*/ *, t.save_id/*pg ::text*/
FROM sessions AS s/*index*/
LEFT JOIN session_state AS t ON t.tenant_id = :tenant_id AND t.session_id = s.id
WHERE s.tenant_id = :tenant_id AND s.identifier = :identifier AND s.user_id = :user_id AND s.identifier_rank = '~'
  AND s.deleted_at IS NULL;

-- name: lock
-- One live session, held until the transaction ends, to compare before it is saved.
SELECT /*columns Head*/ * FROM sessions WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: last_save
-- Who wrote the state of a session; asked once the session is held, so that nobody can write it meanwhile.
SELECT save_id/*pg ::text*/ FROM session_state WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: create
-- A session that is not there yet, with what it begins with; nothing, where the user's key or the id is taken. What became of it
-- is asked for afterwards: to return it, SQLite would build a table. SELECT and "WHERE TRUE": see sessions.sql.
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
-- What a save changes in a session that is held.
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
-- The same where agent and minute stay what they are; why they are not named then: see advance_this_minute in messages.sql.
UPDATE sessions SET
    metadata = :metadata,
    next_seq = next_seq + :rows,
    message_count = message_count + :rows,
    token_count = token_count + :tokens,
    updated_at = :now_at,
    search_behind = search_behind OR :rows > 0
WHERE tenant_id = :tenant_id AND id = :id;

-- name: mark
-- What the session looks like then, which is what the next save compares with; and whether it is to be compacted now.
SELECT /*columns Head*/ *, (token_count >= compact_from) IS TRUE FROM sessions
WHERE tenant_id = :tenant_id AND id = :id AND (deleted_at IS NULL) IS TRUE;

-- name: save
-- What is kept beside the messages, made if it is not there.
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
