-- Not scoped to a tenant: these rows outlive the tenant they name.

-- name: request
INSERT INTO erasures (tenant, event_id, is_whole, requested_at, due_at)
VALUES (:tenant_id, :event_id, :is_whole, :requested_at, :due_at)
ON CONFLICT (tenant, event_id) DO NOTHING;

-- name: get
SELECT /*columns Erasure*/ * FROM erasures WHERE tenant = :tenant_id AND event_id = :event_id;

-- name: open
-- Unfinished erasures, the most urgent first.
SELECT /*columns Erasure*/ * FROM erasures
WHERE finished_at IS NULL AND (due_at, tenant, event_id) > (:after_at, :after_tenant, :after_event)
ORDER BY due_at, tenant, event_id
LIMIT :limit;

-- name: all
SELECT /*columns Erasure*/ * FROM erasures
WHERE (due_at, tenant, event_id) > (:after_at, :after_tenant, :after_event)
ORDER BY due_at, tenant, event_id
LIMIT :limit;

-- name: open_of
SELECT event_id, is_whole FROM erasures WHERE tenant = :tenant_id AND finished_at IS NULL;

-- name: finish
UPDATE erasures SET finished_at = :now_at
WHERE tenant = :tenant_id AND event_id = :event_id;
