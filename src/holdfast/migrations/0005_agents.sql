-- Definitions of agents and their memories.

CREATE TABLE agents (
    tenant_id             {text} NOT NULL,
    id                    {text} NOT NULL CHECK (id <> ''),
    key                   {text} NOT NULL CHECK (key <> ''),
    display_name          {text} NOT NULL DEFAULT '',
    owner_id              {text} NOT NULL DEFAULT '',
    agent_type            {text} NOT NULL DEFAULT 'open',
    status                {text} NOT NULL DEFAULT 'active',
    is_default            {bool} NOT NULL DEFAULT FALSE,
    description           {text} NOT NULL DEFAULT '',
    provider              {text} NOT NULL DEFAULT '',
    model                 {text} NOT NULL DEFAULT '',
    system                {text} NOT NULL DEFAULT '',
    frontmatter           {text} NOT NULL DEFAULT '',
    context_window        {int},
    max_tool_iterations   {int},
    budget_monthly_cents  {int},
    workspace             {text} NOT NULL DEFAULT '',
    restrict_to_workspace {bool} NOT NULL DEFAULT TRUE,
    tool_ids              {json} NOT NULL DEFAULT '[]',
    -- Configurations; NULL means that the program's own default applies.
    tools_config          {json},
    sandbox_config        {json},
    subagents_config      {json},
    memory_config         {json},
    compaction_config     {json},
    context_pruning       {json},
    other_config          {json},
    tags                  {json} NOT NULL DEFAULT '[]',
    metadata              {json} NOT NULL DEFAULT '{}',
    -- Raised by every change, to detect concurrent updates.
    version               {int}  NOT NULL DEFAULT 1,
    created_at            {time} NOT NULL,
    updated_at            {time} NOT NULL,
    deleted_at            {time},
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX agents_by_key ON agents (tenant_id, key) WHERE deleted_at IS NULL;
CREATE INDEX agents_by_owner ON agents (tenant_id, owner_id, id) WHERE deleted_at IS NULL;
CREATE INDEX agents_by_age ON agents (tenant_id, created_at, id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX agents_by_default ON agents (tenant_id) WHERE is_default;

-- The tags of agents once more, to find agents by tag.
CREATE TABLE agent_tags (
    tenant_id {text} NOT NULL,
    tag       {text} NOT NULL,
    agent_id  {text} NOT NULL,
    PRIMARY KEY (tenant_id, tag, agent_id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {clustered};

CREATE INDEX agent_tags_by_agent ON agent_tags (tenant_id, agent_id);

-- The users who may use an agent, beside its owner.
CREATE TABLE agent_shares (
    tenant_id  {text} NOT NULL,
    agent_id   {text} NOT NULL,
    user_id    {text} NOT NULL CHECK (user_id <> ''),
    role       {text} NOT NULL,
    granted_by {text} NOT NULL,
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {clustered};

CREATE INDEX agent_shares_by_user ON agent_shares (tenant_id, user_id, agent_id);

-- Blocks of memory that are part of an agent's context at every turn.
CREATE TABLE core_blocks (
    tenant_id   {text} NOT NULL,
    agent_id    {text} NOT NULL,
    label       {text} NOT NULL CHECK (label <> ''),
    -- The order in which an agent's blocks are shown.
    place       {int}  NOT NULL,
    value       {text} NOT NULL,
    description {text} NOT NULL DEFAULT '',
    limit_bytes {int}  NOT NULL,
    version     {int}  NOT NULL DEFAULT 1,
    created_at  {time} NOT NULL,
    updated_at  {time} NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, label),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE TABLE agent_memories (
    tenant_id    {text}  NOT NULL,
    agent_id     {text}  NOT NULL CHECK (agent_id <> ''),
    user_id      {text}  NOT NULL DEFAULT '',
    id           {id}    NOT NULL,
    content      {text}  NOT NULL,
    metadata     {json}  NOT NULL DEFAULT '{}',
    -- 32-bit little-endian floats, as many as dimensions says.
    embedding    {bytes} NOT NULL,
    dimensions   {int}   NOT NULL,
    -- How often it was found since it was created or last extended.
    access_count {int}   NOT NULL DEFAULT 0,
    created_at   {time}  NOT NULL,
    updated_at   {time}  NOT NULL,
    expires_at   {time}  NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id, id)
) {strict};

CREATE INDEX agent_memories_by_expiry ON agent_memories (tenant_id, expires_at);

-- A flow of CrewAI. Saves lock this row, so that its states have an order.
CREATE TABLE crewai_flow (
    tenant_id       {text}         NOT NULL,
    user_id         {text}         NOT NULL DEFAULT '',
    thread_id       {text}         NOT NULL DEFAULT '',
    flow_uuid       {text}         NOT NULL CHECK (flow_uuid <> ''),
    -- Number of saves so far.
    seq             {int}          NOT NULL,
    -- The question it asked a person, and its state at that time, while it waits for the answer.
    pending_context {ordered_json},
    pending_state   {ordered_json},
    pending_at      {time},
    created_at      {time}         NOT NULL,
    updated_at      {time}         NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, flow_uuid)
) {clustered};

CREATE INDEX crewai_flow_by_recency ON crewai_flow (tenant_id, user_id, updated_at, flow_uuid, thread_id);

-- The last saved state of a flow after each of its methods; the highest seq is the newest.
CREATE TABLE crewai_flow_state (
    tenant_id   {text}         NOT NULL,
    user_id     {text}         NOT NULL DEFAULT '',
    thread_id   {text}         NOT NULL DEFAULT '',
    flow_uuid   {text}         NOT NULL,
    method_name {text}         NOT NULL,
    seq         {int}          NOT NULL,
    state_data  {ordered_json} NOT NULL,
    created_at  {time}         NOT NULL,
    updated_at  {time}         NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, flow_uuid, method_name)
) {strict};

-- Memories of CrewAI crews.
CREATE TABLE crewai_agent_memory (
    tenant_id   {text}         NOT NULL,
    user_id     {text}         NOT NULL DEFAULT '',
    thread_id   {text}         NOT NULL DEFAULT '',
    memory_id   {text}         NOT NULL CHECK (memory_id <> ''),
    content     {text}         NOT NULL,
    -- A path such as /company/team; a query for a scope includes all below it.
    scope       {text}         NOT NULL DEFAULT '/',
    categories  {json}         NOT NULL DEFAULT '[]',
    metadata    {ordered_json} NOT NULL DEFAULT '{}',
    importance  {float}        NOT NULL DEFAULT 0.5,
    source      {text},
    is_private  {bool}         NOT NULL DEFAULT FALSE,
    -- 32-bit little-endian floats, as many as dimensions says.
    embedding   {bytes}        NOT NULL,
    dimensions  {int}          NOT NULL DEFAULT 0,
    created_at  {time}         NOT NULL,
    accessed_at {time}         NOT NULL,
    updated_at  {time}         NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, memory_id)
) {strict};

CREATE INDEX crewai_agent_memory_by_scope ON crewai_agent_memory (tenant_id, user_id, thread_id, scope);
CREATE INDEX crewai_agent_memory_by_age ON crewai_agent_memory (tenant_id, user_id, thread_id, created_at, memory_id);
CREATE INDEX crewai_agent_memory_by_dimensions ON crewai_agent_memory (tenant_id, user_id, thread_id, dimensions);

-- down

DROP TABLE crewai_agent_memory;
DROP TABLE crewai_flow_state;
DROP TABLE crewai_flow;
DROP TABLE agent_memories;
DROP TABLE core_blocks;
DROP TABLE agent_shares;
DROP TABLE agent_tags;
DROP TABLE agents;
