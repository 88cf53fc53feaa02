-- Tenants, sessions and the one log of messages. Times are microseconds since 1970; JSON is text.

CREATE TABLE tenants (
    id         TEXT    NOT NULL PRIMARY KEY CHECK (id <> ''),
    metadata   TEXT    NOT NULL DEFAULT '{}',
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- Set while everything the tenant has is being removed. The row goes last.
    deleted_at INTEGER
) STRICT;

CREATE INDEX tenants_deleted ON tenants (id) WHERE deleted_at IS NOT NULL;

CREATE TABLE sessions (
    tenant_id        TEXT    NOT NULL CHECK (tenant_id <> ''),
    id               TEXT    NOT NULL,
    identifier       TEXT    NOT NULL CHECK (identifier <> ''),
    user_id          TEXT    NOT NULL DEFAULT '',
    agent_id         TEXT    NOT NULL DEFAULT '',
    metadata         TEXT    NOT NULL DEFAULT '{}',
    message_count    INTEGER NOT NULL DEFAULT 0,
    token_count      INTEGER NOT NULL DEFAULT 0,
    compaction_count INTEGER NOT NULL DEFAULT 0,
    next_seq         INTEGER NOT NULL DEFAULT 1,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    -- The minute of updated_at. Lists by recency are indexed on it and sorted within it, so that
    -- an append touches those indexes once a minute and not every time.
    updated_minute   INTEGER NOT NULL DEFAULT 0,
    deleted_at       INTEGER,
    -- '~' for the session that has its identifier to itself; the session's id where several share one. '~' sorts after every id.
    identifier_rank  TEXT    NOT NULL DEFAULT '~',
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

-- An identifier is one user's, and free again once its session is deleted.
CREATE UNIQUE INDEX sessions_by_identifier ON sessions (tenant_id, identifier, user_id, identifier_rank)
    WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_recency ON sessions (tenant_id, updated_minute) WHERE deleted_at IS NULL;
CREATE INDEX sessions_deleted ON sessions (tenant_id, updated_minute) WHERE deleted_at IS NOT NULL;
CREATE INDEX sessions_by_user ON sessions (tenant_id, user_id, updated_minute) WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant_id, agent_id, updated_minute) WHERE deleted_at IS NULL;

CREATE TABLE messages (
    tenant_id    TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    seq          INTEGER NOT NULL CHECK (seq > 0),
    id           TEXT    NOT NULL,
    kind         TEXT    NOT NULL DEFAULT 'message',
    role         TEXT,
    content      TEXT    NOT NULL,
    token_count  INTEGER NOT NULL DEFAULT 0 CHECK (token_count >= 0),
    metadata     TEXT    NOT NULL DEFAULT '{}',
    is_preserved INTEGER NOT NULL DEFAULT 0,
    is_summary   INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, seq),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (kind <> 'message' OR role = 'user' OR role = 'assistant' OR role = 'system')
) STRICT;

CREATE UNIQUE INDEX messages_by_id ON messages (tenant_id, id);
CREATE INDEX messages_preserved ON messages (tenant_id, session_id, seq) WHERE is_preserved = 1;
CREATE INDEX messages_summary ON messages (tenant_id, session_id, seq) WHERE is_summary = 1;
