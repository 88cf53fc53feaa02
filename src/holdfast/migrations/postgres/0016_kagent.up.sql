-- What agents of other frameworks keep here over HTTP: tasks of the A2A protocol, links that share a session, tools and the servers
-- that have them, memories that expire, and remarks about no message in particular.

-- A task. What it consists of lies beside it, each element once: a save writes what is new.
CREATE TABLE a2a_tasks (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    id            UUID             NOT NULL,
    user_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    task_id       TEXT COLLATE "C" NOT NULL CHECK (task_id <> ''),
    context_id    TEXT COLLATE "C" NOT NULL DEFAULT '',
    state         TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- Since when it is in that state, as the agent says.
    state_at      TIMESTAMPTZ      NOT NULL,
    -- The task as JSON, with the number of its elements where a list of them stood.
    frame         TEXT COLLATE "C" NOT NULL,
    -- What it was deleted with, itself or its session; nothing while it is live. A task id is free again once it is deleted.
    deleted_with  TEXT COLLATE "C" NOT NULL DEFAULT '',
    created_at    TIMESTAMPTZ      NOT NULL,
    updated_at    TIMESTAMPTZ      NOT NULL,
    deleted_at    TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id)
);

CREATE UNIQUE INDEX a2a_tasks_by_name ON a2a_tasks (tenant_id, user_id, task_id, deleted_with);
CREATE INDEX a2a_tasks_by_context ON a2a_tasks (tenant_id, user_id, context_id, deleted_with, state_at, task_id);
CREATE INDEX a2a_tasks_by_recency ON a2a_tasks (tenant_id, user_id, deleted_with, state_at, task_id);
CREATE INDEX a2a_tasks_by_deletion ON a2a_tasks (tenant_id, deleted_with);

CREATE TABLE a2a_task_items (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    task          UUID             NOT NULL,
    -- history or artifacts
    list          TEXT COLLATE "C" NOT NULL,
    place         BIGINT           NOT NULL,
    -- -1 for the element itself, from 0 on for the parts of an artifact.
    part          BIGINT           NOT NULL,
    digest        BYTEA            NOT NULL,
    body          TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_id, task, list, place, part),
    FOREIGN KEY (tenant_id, task) REFERENCES a2a_tasks (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE a2a_push_configs (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    user_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    task_id       TEXT COLLATE "C" NOT NULL CHECK (task_id <> ''),
    id            TEXT COLLATE "C" NOT NULL CHECK (id <> ''),
    deleted_with  TEXT COLLATE "C" NOT NULL DEFAULT '',
    config        TEXT COLLATE "C" NOT NULL,
    created_at    TIMESTAMPTZ      NOT NULL,
    updated_at    TIMESTAMPTZ      NOT NULL,
    deleted_at    TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, user_id, task_id, id, deleted_with)
);

CREATE INDEX a2a_push_configs_by_deletion ON a2a_push_configs (tenant_id, deleted_with);

CREATE TABLE session_shares (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    token         TEXT COLLATE "C" NOT NULL CHECK (token <> ''),
    session_id    UUID             NOT NULL,
    -- Counts the links of one session.
    number        BIGINT           NOT NULL,
    user_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    read_only     BOOLEAN          NOT NULL DEFAULT TRUE,
    -- Whether lists over HTTP may show the token again.
    shows_token   BOOLEAN          NOT NULL DEFAULT FALSE,
    created_at    TIMESTAMPTZ      NOT NULL,
    updated_at    TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, token),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX session_shares_by_session ON session_shares (tenant_id, session_id, number);

CREATE TABLE session_share_uses (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    token         TEXT COLLATE "C" NOT NULL,
    user_id       TEXT COLLATE "C" NOT NULL,
    used_at       TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, token, user_id),
    FOREIGN KEY (tenant_id, token) REFERENCES session_shares (tenant_id, token) ON DELETE CASCADE
);

CREATE INDEX session_share_uses_by_user ON session_share_uses (tenant_id, user_id);

CREATE TABLE tool_servers (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    name          TEXT COLLATE "C" NOT NULL CHECK (name <> ''),
    group_kind    TEXT COLLATE "C" NOT NULL DEFAULT '',
    description   TEXT COLLATE "C" NOT NULL DEFAULT '',
    last_connected_at TIMESTAMPTZ,
    created_at    TIMESTAMPTZ      NOT NULL,
    updated_at    TIMESTAMPTZ      NOT NULL,
    deleted_at    TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, name, group_kind)
);

CREATE TABLE tools (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    server_name   TEXT COLLATE "C" NOT NULL,
    group_kind    TEXT COLLATE "C" NOT NULL,
    name          TEXT COLLATE "C" NOT NULL CHECK (name <> ''),
    description   TEXT COLLATE "C" NOT NULL DEFAULT '',
    created_at    TIMESTAMPTZ      NOT NULL,
    updated_at    TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, server_name, group_kind, name),
    FOREIGN KEY (tenant_id, server_name, group_kind) REFERENCES tool_servers (tenant_id, name, group_kind)
        ON DELETE CASCADE
);

CREATE TABLE agent_memories (
    tenant_id     TEXT COLLATE "C" NOT NULL,
    agent_id      TEXT COLLATE "C" NOT NULL CHECK (agent_id <> ''),
    user_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    id            UUID             NOT NULL,
    content       TEXT COLLATE "C" NOT NULL,
    metadata      JSONB            NOT NULL DEFAULT '{}',
    -- 32-bit floats, the lowest byte first; as many as dimensions says.
    embedding     BYTEA            NOT NULL,
    dimensions    BIGINT           NOT NULL,
    -- How often it was found since it was made or its time was extended.
    access_count  BIGINT           NOT NULL DEFAULT 0,
    created_at    TIMESTAMPTZ      NOT NULL,
    updated_at    TIMESTAMPTZ      NOT NULL,
    expires_at    TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id, id)
);

CREATE INDEX agent_memories_by_expiry ON agent_memories (tenant_id, expires_at);

CREATE TABLE remarks (
    tenant_id      TEXT COLLATE "C" NOT NULL,
    user_id        TEXT COLLATE "C" NOT NULL DEFAULT '',
    id             UUID             NOT NULL,
    is_positive    BOOLEAN          NOT NULL,
    feedback_text  TEXT COLLATE "C" NOT NULL,
    issue_type     TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- The number that its author's program has for what it is about, if any.
    message_number BIGINT,
    created_at     TIMESTAMPTZ      NOT NULL,
    updated_at     TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, user_id, id),
    CHECK (issue_type IN ('', 'instructions', 'factual', 'incomplete', 'tool'))
);
