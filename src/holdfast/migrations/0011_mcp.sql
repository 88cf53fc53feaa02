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

-- The agents that may use a server.
CREATE TABLE mcp_agent_grants (
    tenant_id        {text} NOT NULL,
    server_id        {id}   NOT NULL,
    agent_id         {text} NOT NULL,
    is_enabled       {bool} NOT NULL,
    -- The tools that may be used; all if it is null.
    tool_allow       {json},
    tool_deny        {json} NOT NULL,
    config_overrides {json} NOT NULL,
    granted_by       {text} NOT NULL,
    created_at       {time} NOT NULL,
    updated_at       {time} NOT NULL,
    PRIMARY KEY (tenant_id, server_id, agent_id),
    FOREIGN KEY (tenant_id, server_id) REFERENCES mcp_servers (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE INDEX mcp_agent_grants_by_agent ON mcp_agent_grants (tenant_id, agent_id, server_id);

-- What a user may use of a server, whatever the agent may use.
CREATE TABLE mcp_user_grants (
    tenant_id  {text} NOT NULL,
    server_id  {id}   NOT NULL,
    user_id    {text} NOT NULL CHECK (user_id <> ''),
    is_enabled {bool} NOT NULL,
    tool_allow {json},
    tool_deny  {json} NOT NULL,
    granted_by {text} NOT NULL,
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, server_id, user_id),
    FOREIGN KEY (tenant_id, server_id) REFERENCES mcp_servers (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE INDEX mcp_user_grants_by_user ON mcp_user_grants (tenant_id, user_id, server_id);

CREATE TABLE mcp_requests (
    tenant_id    {text} NOT NULL,
    id           {id}   NOT NULL,
    server_id    {id}   NOT NULL,
    -- agent or user: the kind of the requested grant, and which of the next two columns is set.
    scope        {text} NOT NULL,
    agent_id     {text},
    user_id      {text},
    tool_allow   {json},
    reason       {text} NOT NULL,
    requested_by {text} NOT NULL,
    -- pending, approved, rejected or cancelled
    status       {text} NOT NULL,
    reviewed_by  {text},
    reviewed_at  {time},
    review_note  {text},
    created_at   {time} NOT NULL,
    updated_at   {time} NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, server_id) REFERENCES mcp_servers (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE INDEX mcp_requests_by_time ON mcp_requests (tenant_id, created_at, id);
CREATE INDEX mcp_requests_by_status ON mcp_requests (tenant_id, status, created_at, id);

-- down

DROP TABLE mcp_requests;
DROP TABLE mcp_user_grants;
DROP TABLE mcp_agent_grants;
DROP TABLE mcp_tools;
DROP TABLE mcp_servers;
