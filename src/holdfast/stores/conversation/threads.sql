-- name: same_key
-- Whether another live session has the same key, whosever it is.
SELECT 1 FROM sessions
WHERE tenant_id = :tenant_id AND identifier = :identifier AND deleted_at IS NULL AND id <> :id
LIMIT 1;

-- name: hide_tasks
-- What belongs to a session by name, hidden under the session's id: all queries called hide_... are run when it is deleted.
UPDATE a2a_tasks SET deleted_with = :deleted_with, deleted_at = :now_at
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND context_id = :identifier AND deleted_with = '';

-- name: hide_configs
UPDATE a2a_push_configs SET deleted_with = :deleted_with, deleted_at = :now_at
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND deleted_with = ''
  AND EXISTS (SELECT 1 FROM a2a_tasks AS t
              WHERE t.tenant_id = :tenant_id AND t.user_id = a2a_push_configs.user_id
                AND t.task_id = a2a_push_configs.task_id AND t.deleted_with = :deleted_with);

-- name: hide_checkpoints
UPDATE lg_thread SET thread_id = :hidden
WHERE tenant_id = :tenant_id AND thread_id = :thread_id AND user_id IN (:user_id, :service_user_id);

-- name: hide_flows
UPDATE crewai_flow SET thread_id = :hidden
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :thread_id;

-- name: hide_flow_states
UPDATE crewai_flow_state SET thread_id = :hidden
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :thread_id;

-- name: hide_memories
UPDATE crewai_agent_memory SET thread_id = :hidden
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :thread_id;

-- name: show_tasks
-- The same back, when the session is restored.
UPDATE a2a_tasks SET deleted_with = '', deleted_at = NULL
WHERE tenant_id = :tenant_id AND deleted_with = :deleted_with;

-- name: show_configs
UPDATE a2a_push_configs SET deleted_with = '', deleted_at = NULL
WHERE tenant_id = :tenant_id AND deleted_with = :deleted_with;

-- name: show_checkpoints
UPDATE lg_thread SET thread_id = :thread_id
WHERE tenant_id = :tenant_id AND thread_id = :hidden AND user_id IN (:user_id, :service_user_id);

-- name: show_flows
UPDATE crewai_flow SET thread_id = :thread_id
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: show_flow_states
UPDATE crewai_flow_state SET thread_id = :thread_id
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: show_memories
UPDATE crewai_agent_memory SET thread_id = :thread_id
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: purge_items
-- And for good, when it is purged.
DELETE FROM a2a_task_items WHERE tenant_id = :tenant_id
  AND task IN (SELECT id FROM a2a_tasks WHERE tenant_id = :tenant_id AND deleted_with = :deleted_with);

-- name: purge_tasks
DELETE FROM a2a_tasks WHERE tenant_id = :tenant_id AND deleted_with = :deleted_with;

-- name: purge_configs
DELETE FROM a2a_push_configs WHERE tenant_id = :tenant_id AND deleted_with = :deleted_with;

-- name: purge_flows
DELETE FROM crewai_flow WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: purge_flow_states
DELETE FROM crewai_flow_state WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: purge_memories
DELETE FROM crewai_agent_memory WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: purge_share_uses
DELETE FROM session_share_uses WHERE tenant_id = :tenant_id
  AND token_hash IN (SELECT token_hash FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_shares
DELETE FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :id;
