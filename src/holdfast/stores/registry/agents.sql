-- name: create
INSERT INTO agents (tenant_id, id, name, agent_type, description, model, system, tool_ids, tags, metadata, created_at, updated_at)
VALUES (:tenant_id, :id, :name, :agent_type, :description, :model, :system, :tool_ids, :tags, :metadata, :now_at, :now_at)
ON CONFLICT DO NOTHING
RETURNING /*columns Agent*/ *;

-- name: get
SELECT /*columns Agent*/ * FROM agents WHERE tenant_id = :tenant_id AND id = :id;

-- name: lock
-- The same, held until the transaction ends: what belongs to an agent is changed by one at a time.
SELECT /*columns Agent*/ * FROM agents WHERE tenant_id = :tenant_id AND id = :id /*pg FOR UPDATE*/;

-- name: list
SELECT /*columns Agent*/ * FROM agents
WHERE tenant_id = :tenant_id AND id > :after
ORDER BY id
LIMIT :limit;

-- name: list_tagged
-- Those with a tag. They come out of the tags in order, so that a page reads no more than it shows.
SELECT /*columns Agent a*/ * FROM agent_tags AS t
JOIN agents AS a ON a.tenant_id = t.tenant_id AND a.id = t.agent_id
WHERE t.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND t.tag = :tag AND t.agent_id > :after
ORDER BY t.agent_id
LIMIT :limit;

-- name: update
UPDATE agents SET
    name = :name,
    agent_type = :agent_type,
    description = :description,
    model = :model,
    system = :system,
    tool_ids = :tool_ids,
    tags = :tags,
    metadata = :metadata,
    version = version + 1,
    updated_at = :now_at
WHERE tenant_id = :tenant_id AND id = :id
RETURNING /*columns Agent*/ *;

-- name: add_tag
INSERT INTO agent_tags (tenant_id, tag, agent_id) VALUES (:tenant_id, :tag, :id);

-- name: delete_tags
-- Also what hangs on the agent is removed in so many words, because a caller's own SQLite connection may have foreign keys
-- switched off.
DELETE FROM agent_tags WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete_blocks
DELETE FROM core_blocks WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: delete
DELETE FROM agents WHERE tenant_id = :tenant_id AND id = :id
RETURNING id;
