-- Tenants, sessions and the one log of messages. Text is compared by code point, as SQLite does it.

CREATE TABLE tenants (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (id <> ''),
    metadata   JSONB            NOT NULL DEFAULT '{}',
    created_at TIMESTAMPTZ      NOT NULL DEFAULT now(),
    updated_at TIMESTAMPTZ      NOT NULL DEFAULT now(),
    -- Set while everything the tenant has is being removed. The row goes last.
    deleted_at TIMESTAMPTZ
);

CREATE INDEX tenants_deleted ON tenants (id) WHERE deleted_at IS NOT NULL;

CREATE TABLE sessions (
    tenant_id        TEXT COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    id               UUID             NOT NULL,
    identifier       TEXT COLLATE "C" NOT NULL CHECK (identifier <> ''),
    user_id          TEXT COLLATE "C" NOT NULL DEFAULT '',
    agent_id         TEXT COLLATE "C" NOT NULL DEFAULT '',
    metadata         JSONB            NOT NULL DEFAULT '{}',
    message_count    BIGINT           NOT NULL DEFAULT 0,
    token_count      BIGINT           NOT NULL DEFAULT 0,
    compaction_count INTEGER          NOT NULL DEFAULT 0,
    next_seq         BIGINT           NOT NULL DEFAULT 1,
    created_at       TIMESTAMPTZ      NOT NULL DEFAULT now(),
    updated_at       TIMESTAMPTZ      NOT NULL DEFAULT now(),
    -- The minute of updated_at. Lists by recency are indexed on it and sorted within it: as long as no indexed
    -- column changes, an append updates the row in place (HOT) and touches no index at all.
    updated_minute   BIGINT           NOT NULL DEFAULT 0,
    deleted_at       TIMESTAMPTZ,
    -- '~' for the session that has its identifier to itself; the session's id where several share one. '~' sorts after every id.
    identifier_rank  TEXT COLLATE "C" NOT NULL DEFAULT '~',
    PRIMARY KEY (tenant_id, id)
) WITH (fillfactor = 70);

-- An identifier is one user's, and free again once its session is deleted.
CREATE UNIQUE INDEX sessions_by_identifier ON sessions (tenant_id, identifier, user_id, identifier_rank)
    WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_recency ON sessions (tenant_id, updated_minute) WHERE deleted_at IS NULL;
CREATE INDEX sessions_deleted ON sessions (tenant_id, updated_minute) WHERE deleted_at IS NOT NULL;
CREATE INDEX sessions_by_user ON sessions (tenant_id, user_id, updated_minute) WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant_id, agent_id, updated_minute) WHERE deleted_at IS NULL;

CREATE TABLE messages (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    session_id   UUID             NOT NULL,
    seq          BIGINT           NOT NULL CHECK (seq > 0),
    id           UUID             NOT NULL,
    kind         TEXT COLLATE "C" NOT NULL DEFAULT 'message',
    role         TEXT COLLATE "C",
    content      JSONB            NOT NULL,
    token_count  INTEGER          NOT NULL DEFAULT 0 CHECK (token_count >= 0),
    metadata     JSONB            NOT NULL DEFAULT '{}',
    is_preserved BOOLEAN          NOT NULL DEFAULT FALSE,
    is_summary   BOOLEAN          NOT NULL DEFAULT FALSE,
    created_at   TIMESTAMPTZ      NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ      NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, session_id, seq),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (kind <> 'message' OR role = 'user' OR role = 'assistant' OR role = 'system')
);

CREATE UNIQUE INDEX messages_by_id ON messages (tenant_id, id);
CREATE INDEX messages_preserved ON messages (tenant_id, session_id, seq) WHERE is_preserved;
CREATE INDEX messages_summary ON messages (tenant_id, session_id, seq) WHERE is_summary;
