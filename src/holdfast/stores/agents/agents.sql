-- name: oldest
SELECT /*columns Agent*/ * FROM agents
WHERE tenant_id = :tenant_id AND deleted_at IS NULL
ORDER BY created_at, id
LIMIT 1;

-- name: by_ids
SELECT /*columns Agent*/ * FROM agents
WHERE tenant_id = :tenant_id AND deleted_at IS NULL AND id /*in values text*/;

-- name: by_keys
SELECT /*columns Agent*/ * FROM agents
WHERE tenant_id = :tenant_id AND deleted_at IS NULL AND key /*in values text*/;

-- name: access
SELECT a.owner_id, a.is_default, s.role FROM agents AS a
LEFT JOIN agent_shares AS s ON s.tenant_id = :tenant_id AND s.agent_id = a.id AND s.user_id = :user_id
WHERE a.tenant_id = :tenant_id AND a.id = :id AND a.deleted_at IS NULL;

-- name: accessible
-- Each part reads the page from an index of its own: with OR, a page would read all agents that the user may use. Without the
-- LIMIT, SQLite would look for the default agent, of which there is one, by its id.
SELECT /*columns Agent*/ * FROM agents
WHERE tenant_id = :tenant_id AND id IN (
    SELECT id FROM (
        SELECT id FROM agents
        WHERE tenant_id = :tenant_id AND owner_id = :user_id AND deleted_at IS NULL AND id > :after_id
        ORDER BY id LIMIT :limit) AS owned
    UNION
    SELECT id FROM (
        SELECT id FROM agents WHERE tenant_id = :tenant_id AND is_default AND deleted_at IS NULL LIMIT 1) AS preset
    WHERE id > :after_id
    UNION
    SELECT agent_id FROM (
        SELECT s.agent_id FROM agent_shares AS s
        JOIN agents AS a ON a.tenant_id = s.tenant_id AND a.id = s.agent_id
        WHERE s.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND s.user_id = :user_id
          AND a.deleted_at IS NULL AND s.agent_id > :after_id
        ORDER BY s.agent_id LIMIT :limit) AS shared)
ORDER BY id
LIMIT :limit;
