-- name: same_key
-- Whether another live session has the same key, whosever it is.
SELECT 1 FROM sessions
WHERE tenant_id = :tenant_id AND identifier = :identifier AND deleted_at IS NULL AND id <> :id
LIMIT 1;
