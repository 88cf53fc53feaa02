-- Agents as they are defined, and the core blocks of memory that each has at every turn.

CREATE TABLE agents (
    tenant_id   TEXT    NOT NULL,
    id          TEXT    NOT NULL CHECK (id <> ''),
    name        TEXT    NOT NULL CHECK (name <> ''),
    agent_type  TEXT    NOT NULL DEFAULT '',
    description TEXT    NOT NULL DEFAULT '',
    model       TEXT    NOT NULL DEFAULT '',
    system      TEXT    NOT NULL DEFAULT '',
    tool_ids    TEXT    NOT NULL DEFAULT '[]',
    tags        TEXT    NOT NULL DEFAULT '[]',
    metadata    TEXT    NOT NULL DEFAULT '{}',
    -- Raised by every change, so that a writer sees that another was here.
    version     INTEGER NOT NULL DEFAULT 1,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

-- The same tags once more, by which agents are found.
CREATE TABLE agent_tags (
    tenant_id TEXT NOT NULL,
    tag       TEXT NOT NULL,
    agent_id  TEXT NOT NULL,
    PRIMARY KEY (tenant_id, tag, agent_id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX agent_tags_by_agent ON agent_tags (tenant_id, agent_id);

CREATE TABLE core_blocks (
    tenant_id   TEXT    NOT NULL,
    agent_id    TEXT    NOT NULL,
    label       TEXT    NOT NULL CHECK (label <> ''),
    -- The order in which an agent's blocks are shown.
    place       INTEGER NOT NULL,
    value       TEXT    NOT NULL,
    description TEXT    NOT NULL DEFAULT '',
    limit_bytes INTEGER NOT NULL,
    version     INTEGER NOT NULL DEFAULT 1,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, label),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents (tenant_id, id) ON DELETE CASCADE
) STRICT;
