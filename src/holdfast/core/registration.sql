-- name: is_registered
SELECT 1 FROM tenants WHERE id = :tenant_id;

-- name: register
-- Waits for a concurrent deletion of the tenant, and then registers it again.
INSERT INTO tenants (id, created_at, updated_at) VALUES (:tenant_id, :now_at, :now_at)
ON CONFLICT (id) DO NOTHING;
