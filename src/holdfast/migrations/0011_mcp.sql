-- MCP servers, the tools discovered on them, grants to agents and users, and requests for such grants.

CREATE TABLE mcp_servers (
    tenant_id         {text} NOT NULL,
    id                {id}   NOT NULL,
    name              {text} NOT NULL CHECK (name <> ''),
    group_kind        {text} NOT NULL,
    display_name      {text} NOT NULL,
    description       {text} NOT NULL,
    -- Without a transport, Holdfast does not know how to connect to the server.
    transport         {text},
    command           {text} NOT NULL,
    args              {json} NOT NULL,
    env               {text},
    url               {text} NOT NULL,
    headers           {text},
    api_key           {text},
    tool_prefix       {text} NOT NULL,
    timeout_ms        {int}  NOT NULL,
    settings          {json} NOT NULL,
    -- What the server was declared with and no other column holds.
    spec              {json} NOT NULL,
    is_enabled        {bool} NOT NULL,
    created_by        {text} NOT NULL,
    last_connected_at {time},
    version           {int}  NOT NULL DEFAULT 1,
    created_at        {time} NOT NULL,
    updated_at        {time} NOT NULL,
    deleted_at        {time},
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX mcp_servers_by_name ON mcp_servers (tenant_id, name, group_kind) WHERE deleted_at IS NULL;

CREATE TABLE mcp_tools (
    tenant_id   {text} NOT NULL,
    server_id   {id}   NOT NULL,
    name        {text} NOT NULL CHECK (name <> ''),
    description {text} NOT NULL,
    created_at  {time} NOT NULL,
    updated_at  {time} NOT NULL,
    PRIMARY KEY (tenant_id, server_id, name),
    FOREIGN KEY (tenant_id, server_id) REFERENCES mcp_servers (tenant_id, id) ON DELETE CASCADE
) {strict};

-- down

DROP TABLE mcp_tools;
DROP TABLE mcp_servers;
