-- name: advance
-- Creates the flow if it does not exist, locks it and returns the number of its next state.
INSERT INTO crewai_flow (tenant_id, user_id, thread_id, flow_uuid, seq, created_at, updated_at)
VALUES (:tenant_id, :user_id, :thread_id, :flow_uuid, 1, :now_at, :now_at)
ON CONFLICT (tenant_id, user_id, thread_id, flow_uuid) DO UPDATE SET
    seq = crewai_flow.seq + 1, updated_at = excluded.updated_at
RETURNING seq;

-- name: put
-- Creates or replaces the state after a method.
INSERT INTO crewai_flow_state (tenant_id, user_id, thread_id, flow_uuid, method_name, seq, state_data, created_at, updated_at)
VALUES (:tenant_id, :user_id, :thread_id, :flow_uuid, :method_name, :seq, :state_data, :now_at, :now_at)
ON CONFLICT (tenant_id, user_id, thread_id, flow_uuid, method_name) DO UPDATE SET
    seq = excluded.seq, state_data = excluded.state_data, updated_at = excluded.updated_at
RETURNING /*columns FlowState*/ *;

-- name: latest
SELECT /*columns FlowState*/ * FROM crewai_flow_state
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid
ORDER BY seq DESC
LIMIT 1;

-- name: history
-- The newest state after each method, newest first.
SELECT /*columns FlowState*/ * FROM crewai_flow_state
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid
ORDER BY seq DESC
LIMIT :limit;

-- name: wait
-- Marks a locked flow as waiting for a person.
UPDATE crewai_flow SET pending_context = :context, pending_state = :state_data, pending_at = :now_at
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid;

-- name: pending
SELECT /*columns PendingFeedback*/ * FROM crewai_flow
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid
  AND pending_at IS NOT NULL;

-- name: clear
UPDATE crewai_flow SET pending_context = NULL, pending_state = NULL, pending_at = NULL
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid
  AND pending_at IS NOT NULL
RETURNING flow_uuid;

-- name: list
-- The most recently saved flow first.
SELECT /*columns Flow*/ * FROM crewai_flow/*index*/
WHERE tenant_id = :tenant_id AND user_id = :user_id/*where*/
ORDER BY updated_at DESC, flow_uuid DESC, thread_id DESC
LIMIT :limit;

-- name: delete
-- The flow is deleted before its states: its row lock orders a concurrent save before or after the whole deletion.
DELETE FROM crewai_flow
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid
RETURNING flow_uuid;

-- name: delete_states
DELETE FROM crewai_flow_state
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND flow_uuid = :flow_uuid;
