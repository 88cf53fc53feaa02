-- What belongs to a session in this part of the stores. All queries called hide_, show_ or purge_ are run, in this order, when the
-- session is deleted, restored or purged.

-- name: hide_memories
UPDATE crewai_agent_memory SET thread_id = :hidden
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :thread_id;

-- name: show_memories
UPDATE crewai_agent_memory SET thread_id = :thread_id
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: purge_memories
DELETE FROM crewai_agent_memory WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;
