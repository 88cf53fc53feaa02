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

-- name: tools
-- Tools of servers that are not deleted.
SELECT /*columns ServerTool t*/ * FROM tools AS t
JOIN tool_servers AS s ON s.tenant_id = t.tenant_id AND s.name = t.server_name AND s.group_kind = t.group_kind
WHERE t.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND s.deleted_at IS NULL/*where*/
ORDER BY t.server_name, t.group_kind, t.name
LIMIT :limit;
