-- Rows of the memory stores that belong to a session. When the session is deleted, restored or purged, all queries that begin with
-- hide_, show_ or purge_ are run, in the order of this file.

-- name: hide_memories
UPDATE crewai_agent_memory SET thread_id = :hidden
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :thread_id;

-- name: show_memories
UPDATE crewai_agent_memory SET thread_id = :thread_id
WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;

-- name: purge_memories
DELETE FROM crewai_agent_memory WHERE tenant_id = :tenant_id AND user_id IN (:user_id, :service_user_id) AND thread_id = :hidden;
