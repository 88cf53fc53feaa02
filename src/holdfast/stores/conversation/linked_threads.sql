-- name: same_key
-- Whether another live session, of any user, has the same key.
SELECT 1 FROM sessions
WHERE tenant_id = :tenant_id AND identifier = :identifier AND deleted_at IS NULL AND id <> :id
LIMIT 1;
