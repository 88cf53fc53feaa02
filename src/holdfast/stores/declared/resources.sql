-- Rows that refer to the rows of a declared resource. Each query is named after the store of the row and after the rows that it
-- counts.

-- name: agents_dependents_sessions
-- The live sessions of an agent.
SELECT count(*) FROM sessions WHERE tenant_id = :tenant_id AND agent_id = :id AND deleted_at IS NULL;

-- name: agents_dependents_channels
-- The chat platforms that an agent is connected to.
SELECT count(*) FROM channel_instances WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: providers_dependents_models
-- The models of a provider.
SELECT count(*) FROM llm_models WHERE tenant_id = :tenant_id AND provider_id = :id;

-- name: mcp_servers_dependents_tools
-- The tools that were discovered on a server.
SELECT count(*) FROM mcp_tools WHERE tenant_id = :tenant_id AND server_id = :id;

-- name: agents_dependents_open_runs
-- The runs of an agent that have not ended.
SELECT count(*) FROM runs
WHERE tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused', 'waiting') AND agent_id = :id;

-- name: agents_dependents_shares
-- The users with whom an agent is shared.
SELECT count(*) FROM agent_shares WHERE tenant_id = :tenant_id AND agent_id = :id;

-- name: providers_dependents_agents
-- The agents that use a provider.
SELECT count(*) FROM agents WHERE tenant_id = :tenant_id AND provider = :name AND deleted_at IS NULL;

-- name: namespaces
-- The namespaces of the live resources.
SELECT DISTINCT namespace FROM declared_resources WHERE tenant_id = :tenant_id AND deleted_at IS NULL ORDER BY namespace;

-- name: mcp_servers_dependents_agent_grants
-- The agents that may use a server.
SELECT count(*) FROM mcp_agent_grants WHERE tenant_id = :tenant_id AND server_id = :id;

-- name: mcp_servers_dependents_user_grants
-- The users with grants of their own for a server.
SELECT count(*) FROM mcp_user_grants WHERE tenant_id = :tenant_id AND server_id = :id;
