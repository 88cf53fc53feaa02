-- name: upsert
-- One that was deleted comes back, with the tools that are given now.
INSERT INTO tool_servers (tenant_id, name, group_kind, description, last_connected_at, created_at, updated_at)
VALUES (:tenant_id, :name, :group_kind, :description, :connected_at, :now_at, :now_at)
ON CONFLICT (tenant_id, name, group_kind) DO UPDATE SET
    description = excluded.description,
    last_connected_at = COALESCE(excluded.last_connected_at, tool_servers.last_connected_at),
    updated_at = excluded.updated_at,
    deleted_at = NULL
RETURNING /*columns ToolServer*/ *;

-- name: put_tool
INSERT INTO tools (tenant_id, server_name, group_kind, name, description, created_at, updated_at)
VALUES (:tenant_id, :name, :group_kind, :tool, :tool_description, :now_at, :now_at)
ON CONFLICT (tenant_id, server_name, group_kind, name) DO UPDATE SET
    description = excluded.description, updated_at = excluded.updated_at;

-- name: names
SELECT name FROM tools WHERE tenant_id = :tenant_id AND server_name = :name AND group_kind = :group_kind;

-- name: delete_tool
DELETE FROM tools
WHERE tenant_id = :tenant_id AND server_name = :name AND group_kind = :group_kind AND name = :tool;

-- name: find
SELECT /*columns ToolServer*/ * FROM tool_servers
WHERE tenant_id = :tenant_id AND name = :name AND group_kind = :group_kind AND deleted_at IS NULL;

-- name: list
SELECT /*columns ToolServer*/ * FROM tool_servers
WHERE tenant_id = :tenant_id AND deleted_at IS NULL AND (name, group_kind) > (:after_name, :after_kind)
ORDER BY name, group_kind
LIMIT :limit;

-- name: tools
-- Tools of servers that are not deleted.
SELECT /*columns Tool t*/ * FROM tools AS t
JOIN tool_servers AS s ON s.tenant_id = t.tenant_id AND s.name = t.server_name AND s.group_kind = t.group_kind
WHERE t.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND s.deleted_at IS NULL/*where*/
ORDER BY t.server_name, t.group_kind, t.name
LIMIT :limit;

-- name: delete
UPDATE tool_servers SET deleted_at = :now_at
WHERE tenant_id = :tenant_id AND name = :name AND group_kind = :group_kind AND deleted_at IS NULL
RETURNING 1;

-- name: restore
UPDATE tool_servers SET deleted_at = NULL
WHERE tenant_id = :tenant_id AND name = :name AND group_kind = :group_kind
RETURNING /*columns ToolServer*/ *;
