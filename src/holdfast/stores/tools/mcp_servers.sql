-- name: put_tool
INSERT INTO mcp_tools (tenant_id, server_id, name, description, created_at, updated_at)
VALUES (:tenant_id, :id, :tool, :description, :now_at, :now_at)
ON CONFLICT (tenant_id, server_id, name) DO UPDATE SET
    description = excluded.description, updated_at = excluded.updated_at;

-- name: tools_of_server
SELECT name, description FROM mcp_tools WHERE tenant_id = :tenant_id AND server_id = :id;

-- name: delete_tool
DELETE FROM mcp_tools WHERE tenant_id = :tenant_id AND server_id = :id AND name = :tool;

-- name: tools
-- Tools of servers that are not deleted.
SELECT /*columns McpTool*/ * FROM mcp_servers AS s
JOIN mcp_tools AS t ON t.tenant_id = s.tenant_id AND t.server_id = s.id
WHERE s.tenant_id = :tenant_id AND t.tenant_id = :tenant_id AND s.deleted_at IS NULL/*where*/
ORDER BY s.name, s.group_kind, t.name
LIMIT :limit;
