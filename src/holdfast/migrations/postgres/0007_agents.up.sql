-- Agents as they are defined, and the core blocks of memory that each has at every turn.

CREATE TABLE agents (
    tenant_id   TEXT COLLATE "C" NOT NULL,
    id          TEXT COLLATE "C" NOT NULL CHECK (id <> ''),
    name        TEXT COLLATE "C" NOT NULL CHECK (name <> ''),
    agent_type  TEXT COLLATE "C" NOT NULL DEFAULT '',
    description TEXT COLLATE "C" NOT NULL DEFAULT '',
    model       TEXT COLLATE "C" NOT NULL DEFAULT '',
    system      TEXT COLLATE "C" NOT NULL DEFAULT '',
    tool_ids    JSONB            NOT NULL DEFAULT '[]',
    tags        JSONB            NOT NULL DEFAULT '[]',
    metadata    JSONB            NOT NULL DEFAULT '{}',
    -- Raised by every change, so that a writer sees that another was here.
    version     BIGINT           NOT NULL DEFAULT 1,
    created_at  TIMESTAMPTZ      NOT NULL,
    updated_at  TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

-- The same tags once more, by which agents are found.
CREATE TABLE agent_tags (
    tenant_id TEXT COLLATE "C" NOT NULL,
    tag       TEXT COLLATE "C" NOT NULL,
    agent_id  TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_id, tag, agent_id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX agent_tags_by_agent ON agent_tags (tenant_id, agent_id);

CREATE TABLE core_blocks (
    tenant_id   TEXT COLLATE "C" NOT NULL,
    agent_id    TEXT COLLATE "C" NOT NULL,
    label       TEXT COLLATE "C" NOT NULL CHECK (label <> ''),
    -- The order in which an agent's blocks are shown.
    place       BIGINT           NOT NULL,
    value       TEXT COLLATE "C" NOT NULL,
    description TEXT COLLATE "C" NOT NULL DEFAULT '',
    limit_bytes BIGINT           NOT NULL,
    version     BIGINT           NOT NULL DEFAULT 1,
    created_at  TIMESTAMPTZ      NOT NULL,
    updated_at  TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, label),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
);
