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
SELECT /*columns McpTool*/ * FROM mcp_servers AS s/*index*/
JOIN mcp_tools AS t ON t.tenant_id = s.tenant_id AND t.server_id = s.id
WHERE s.tenant_id = :tenant_id AND t.tenant_id = :tenant_id AND s.deleted_at IS NULL/*where*/
ORDER BY s.name, s.group_kind, t.name
LIMIT :limit;

-- part: accessible
-- The servers that an agent may use for a user, with the grant to each. A null user has no grants.
SELECT /*columns McpServer s*/ *, /*columns _GrantedTools*/ * FROM mcp_agent_grants AS g
JOIN agents AS a ON a.tenant_id = g.tenant_id AND a.id = g.agent_id
JOIN mcp_servers AS s ON s.tenant_id = g.tenant_id AND s.id = g.server_id
LEFT JOIN mcp_user_grants AS u ON u.tenant_id = g.tenant_id AND u.server_id = g.server_id AND u.user_id = :user_id
WHERE g.tenant_id = :tenant_id AND g.agent_id = :agent_id AND g.is_enabled
  AND a.tenant_id = :tenant_id AND a.deleted_at IS NULL
  AND s.tenant_id = :tenant_id AND s.is_enabled AND s.deleted_at IS NULL AND (u.user_id IS NULL OR u.is_enabled)

-- name: accessible
/*part accessible*/
ORDER BY g.server_id
LIMIT :limit;

-- name: accessible_after
/*part accessible*/
  AND g.server_id > :after_id
ORDER BY g.server_id
LIMIT :limit;
