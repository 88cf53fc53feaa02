-- Rows of these stores that belong to a session. All queries with the prefix hide_, show_ or purge_ are run, in file order, when
-- the session is deleted, restored or purged.

-- name: hide_tasks
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

-- name: show_tasks
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

-- name: purge_items
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

-- name: active_run
-- A run of the session that has not ended.
SELECT 1 FROM runs WHERE tenant_id = :tenant_id AND session_id = :id AND finished_at IS NULL LIMIT 1;

-- name: run_ids
-- The runs of a session. Their queue entries are deleted one by one: on Citus, a DELETE on the replicated queue table cannot
-- refer to a distributed table.
SELECT id/*pg ::text*/ AS run_id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id;

-- name: purge_tool_calls
DELETE FROM tool_calls WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_run_steps
DELETE FROM run_steps WHERE tenant_id = :tenant_id
  AND run_id IN (SELECT id FROM runs WHERE tenant_id = :tenant_id AND session_id = :id);

-- name: purge_runs
DELETE FROM runs WHERE tenant_id = :tenant_id AND session_id = :id;
