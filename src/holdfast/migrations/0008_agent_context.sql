-- What agents keep for each of their users: context files, profiles, and overrides of their settings.

-- Files that are part of an agent's prompt. The row of the agent itself has the user ''.
CREATE TABLE context_files (
    tenant_id  {text} NOT NULL,
    agent_id   {text} NOT NULL,
    user_id    {text} NOT NULL DEFAULT '',
    file_name  {text} NOT NULL CHECK (file_name <> ''),
    content    {text} NOT NULL,
    version    {int}  NOT NULL DEFAULT 1,
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id, file_name),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE TABLE agent_profiles (
    tenant_id    {text} NOT NULL,
    agent_id     {text} NOT NULL,
    user_id      {text} NOT NULL CHECK (user_id <> ''),
    workspace    {text} NOT NULL DEFAULT '',
    metadata     {json} NOT NULL DEFAULT '{}',
    -- How often the user was seen. The visit that finds 1 has created the row.
    visits       {int}  NOT NULL DEFAULT 1,
    version      {int}  NOT NULL DEFAULT 1,
    created_at   {time} NOT NULL,
    updated_at   {time} NOT NULL,
    last_seen_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE INDEX agent_profiles_by_recency ON agent_profiles (tenant_id, agent_id, last_seen_at, user_id);

-- The provider, the model and settings that an agent uses for one user instead of its own.
CREATE TABLE agent_overrides (
    tenant_id  {text} NOT NULL,
    agent_id   {text} NOT NULL,
    user_id    {text} NOT NULL CHECK (user_id <> ''),
    provider   {text} NOT NULL DEFAULT '',
    model      {text} NOT NULL DEFAULT '',
    settings   {json} NOT NULL DEFAULT '{}',
    version    {int}  NOT NULL DEFAULT 1,
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {strict};

-- down

DROP TABLE agent_overrides;
DROP TABLE agent_profiles;
DROP TABLE context_files;
