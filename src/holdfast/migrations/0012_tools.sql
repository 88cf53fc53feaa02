-- Tools that run as commands: custom tools, builtin tools, and programs with credentials.

CREATE TABLE custom_tools (
    tenant_id       {text} NOT NULL,
    id              {id}   NOT NULL,
    name            {text} NOT NULL CHECK (name <> ''),
    -- Empty for a tool of all agents.
    agent_id        {text} NOT NULL,
    description     {text} NOT NULL,
    -- JSON Schema of the arguments.
    parameters      {json} NOT NULL,
    -- Shell text with a placeholder for each argument.
    command         {text} NOT NULL,
    working_dir     {text} NOT NULL,
    timeout_seconds {int}  NOT NULL,
    env             {text},
    is_enabled      {bool} NOT NULL,
    created_by      {text} NOT NULL,
    version         {int}  NOT NULL DEFAULT 1,
    created_at      {time} NOT NULL,
    updated_at      {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX custom_tools_by_name ON custom_tools (tenant_id, name, agent_id);

CREATE TABLE builtin_tools (
    tenant_id    {text} NOT NULL,
    name         {text} NOT NULL CHECK (name <> ''),
    display_name {text} NOT NULL,
    description  {text} NOT NULL,
    category     {text} NOT NULL,
    settings     {json} NOT NULL,
    requires     {json} NOT NULL,
    metadata     {json} NOT NULL,
    is_enabled   {bool} NOT NULL,
    version      {int}  NOT NULL DEFAULT 1,
    created_at   {time} NOT NULL,
    updated_at   {time} NOT NULL,
    PRIMARY KEY (tenant_id, name)
) {strict};

CREATE INDEX builtin_tools_by_category ON builtin_tools (tenant_id, category, name);

CREATE TABLE secure_cli (
    tenant_id       {text} NOT NULL,
    id              {id}   NOT NULL,
    binary_name     {text} NOT NULL CHECK (binary_name <> ''),
    -- Empty for a program of all agents.
    agent_id        {text} NOT NULL,
    binary_path     {text} NOT NULL,
    description     {text} NOT NULL,
    env             {text},
    -- Regular expressions.
    deny_args       {json} NOT NULL,
    deny_verbose    {json} NOT NULL,
    timeout_seconds {int}  NOT NULL,
    tips            {text} NOT NULL,
    is_enabled      {bool} NOT NULL,
    -- Whether it replaces the configuration for all agents even when it is disabled.
    hides_global    {bool} NOT NULL,
    created_by      {text} NOT NULL,
    version         {int}  NOT NULL DEFAULT 1,
    created_at      {time} NOT NULL,
    updated_at      {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX secure_cli_by_name ON secure_cli (tenant_id, binary_name, agent_id);

-- down

DROP TABLE secure_cli;
DROP TABLE builtin_tools;
DROP TABLE custom_tools;
