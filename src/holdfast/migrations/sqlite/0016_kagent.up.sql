-- What agents of other frameworks keep here over HTTP: tasks of the A2A protocol, links that share a session, tools and the servers
-- that have them, memories that expire, and remarks about no message in particular.

-- A task. What it consists of lies beside it, each element once: a save writes what is new.
CREATE TABLE a2a_tasks (
    tenant_id      TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    user_id        TEXT    NOT NULL DEFAULT '',
    task_id        TEXT    NOT NULL CHECK (task_id <> ''),
    context_id     TEXT    NOT NULL DEFAULT '',
    state          TEXT    NOT NULL DEFAULT '',
    -- Since when it is in that state, as the agent says.
    state_at       INTEGER NOT NULL,
    -- The task as JSON, with the number of its elements where a list of them stood.
    frame          TEXT    NOT NULL,
    -- What it was deleted with, itself or its session; nothing while it is live. A task id is free again once it is deleted.
    deleted_with   TEXT    NOT NULL DEFAULT '',
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    deleted_at     INTEGER,
    PRIMARY KEY (tenant_id, id)
) STRICT;

CREATE UNIQUE INDEX a2a_tasks_by_name ON a2a_tasks (tenant_id, user_id, task_id, deleted_with);
CREATE INDEX a2a_tasks_by_context ON a2a_tasks (tenant_id, user_id, context_id, deleted_with, state_at, task_id);
CREATE INDEX a2a_tasks_by_recency ON a2a_tasks (tenant_id, user_id, deleted_with, state_at, task_id);
CREATE INDEX a2a_tasks_by_deletion ON a2a_tasks (tenant_id, deleted_with);

CREATE TABLE a2a_task_items (
    tenant_id      TEXT    NOT NULL,
    task           TEXT    NOT NULL,
    -- history or artifacts
    list           TEXT    NOT NULL,
    place          INTEGER NOT NULL,
    -- -1 for the element itself, from 0 on for the parts of an artifact.
    part           INTEGER NOT NULL,
    digest         BLOB    NOT NULL,
    body           TEXT    NOT NULL,
    PRIMARY KEY (tenant_id, task, list, place, part),
    FOREIGN KEY (tenant_id, task) REFERENCES a2a_tasks (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE TABLE a2a_push_configs (
    tenant_id      TEXT    NOT NULL,
    user_id        TEXT    NOT NULL DEFAULT '',
    task_id        TEXT    NOT NULL CHECK (task_id <> ''),
    id             TEXT    NOT NULL CHECK (id <> ''),
    deleted_with   TEXT    NOT NULL DEFAULT '',
    config         TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    deleted_at     INTEGER,
    PRIMARY KEY (tenant_id, user_id, task_id, id, deleted_with)
) STRICT;

CREATE INDEX a2a_push_configs_by_deletion ON a2a_push_configs (tenant_id, deleted_with);

CREATE TABLE session_shares (
    tenant_id      TEXT    NOT NULL,
    token          TEXT    NOT NULL CHECK (token <> ''),
    session_id     TEXT    NOT NULL,
    -- Counts the links of one session.
    number         INTEGER NOT NULL,
    user_id        TEXT    NOT NULL DEFAULT '',
    read_only      INTEGER NOT NULL DEFAULT 1,
    -- Whether lists over HTTP may show the token again.
    shows_token    INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, token),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE INDEX session_shares_by_session ON session_shares (tenant_id, session_id, number);

CREATE TABLE session_share_uses (
    tenant_id      TEXT    NOT NULL,
    token          TEXT    NOT NULL,
    user_id        TEXT    NOT NULL,
    used_at        INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, token, user_id),
    FOREIGN KEY (tenant_id, token) REFERENCES session_shares (tenant_id, token) ON DELETE CASCADE
) STRICT;

CREATE INDEX session_share_uses_by_user ON session_share_uses (tenant_id, user_id);

CREATE TABLE tool_servers (
    tenant_id      TEXT    NOT NULL,
    name           TEXT    NOT NULL CHECK (name <> ''),
    group_kind     TEXT    NOT NULL DEFAULT '',
    description    TEXT    NOT NULL DEFAULT '',
    last_connected_at INTEGER,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    deleted_at     INTEGER,
    PRIMARY KEY (tenant_id, name, group_kind)
) STRICT;

CREATE TABLE tools (
    tenant_id      TEXT    NOT NULL,
    server_name    TEXT    NOT NULL,
    group_kind     TEXT    NOT NULL,
    name           TEXT    NOT NULL CHECK (name <> ''),
    description    TEXT    NOT NULL DEFAULT '',
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, server_name, group_kind, name),
    FOREIGN KEY (tenant_id, server_name, group_kind) REFERENCES tool_servers (tenant_id, name, group_kind)
        ON DELETE CASCADE
) STRICT;

CREATE TABLE agent_memories (
    tenant_id      TEXT    NOT NULL,
    agent_id       TEXT    NOT NULL CHECK (agent_id <> ''),
    user_id        TEXT    NOT NULL DEFAULT '',
    id             TEXT    NOT NULL,
    content        TEXT    NOT NULL,
    metadata       TEXT    NOT NULL DEFAULT '{}',
    -- 32-bit floats, the lowest byte first; as many as dimensions says.
    embedding      BLOB    NOT NULL,
    dimensions     INTEGER NOT NULL,
    -- How often it was found since it was made or its time was extended.
    access_count   INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, user_id, id)
) STRICT;

CREATE INDEX agent_memories_by_expiry ON agent_memories (tenant_id, expires_at);

CREATE TABLE remarks (
    tenant_id      TEXT    NOT NULL,
    user_id        TEXT    NOT NULL DEFAULT '',
    id             TEXT    NOT NULL,
    is_positive    INTEGER NOT NULL,
    feedback_text  TEXT    NOT NULL,
    issue_type     TEXT    NOT NULL DEFAULT '',
    -- The number that its author's program has for what it is about, if any.
    message_number INTEGER,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, user_id, id),
    CHECK (issue_type IN ('', 'instructions', 'factual', 'incomplete', 'tool'))
) STRICT;
