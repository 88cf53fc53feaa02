-- Compactions: what each one did, and the original of everything it took out or rewrote.

CREATE TABLE compaction_events (
    tenant_id             TEXT COLLATE "C" NOT NULL,
    id                    UUID             NOT NULL,
    session_id            UUID             NOT NULL,
    -- The first, second, third ... compaction of the session.
    number                BIGINT           NOT NULL,
    branch                BIGINT           NOT NULL DEFAULT 0,
    strategy              TEXT COLLATE "C" NOT NULL,
    original_tokens       BIGINT           NOT NULL,
    compacted_tokens      BIGINT           NOT NULL,
    messages_removed      BIGINT           NOT NULL,
    messages_rewritten    BIGINT           NOT NULL DEFAULT 0,
    summary_content       TEXT COLLATE "C",
    summary_message_id    UUID,
    preserved_message_ids JSONB            NOT NULL DEFAULT '[]',
    model_used            TEXT COLLATE "C",
    duration_ms           BIGINT           NOT NULL DEFAULT 0,
    -- Where branches share what was compacted nothing leaves the log: what was made is in this block, and only what the session
    -- shows has changed. Nothing, where messages were really removed.
    block                 BIGINT,
    created_at            TIMESTAMPTZ      NOT NULL DEFAULT now(),
    updated_at            TIMESTAMPTZ      NOT NULL DEFAULT now(),
    rolled_back_at        TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX compaction_events_by_session ON compaction_events (tenant_id, session_id, number);
CREATE INDEX compaction_events_by_strategy ON compaction_events (tenant_id, strategy);

CREATE TABLE message_archive (
    tenant_id           TEXT COLLATE "C" NOT NULL,
    compaction_event_id UUID             NOT NULL,
    -- The place in the log, so that the order is known without looking inside.
    seq                 BIGINT           NOT NULL,
    id                  UUID             NOT NULL,
    session_id          UUID             NOT NULL,
    -- Whether the message is still in the log, with another content.
    is_rewritten        BOOLEAN          NOT NULL,
    original_message    JSONB            NOT NULL,
    archived_at         TIMESTAMPTZ      NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, compaction_event_id, seq),
    FOREIGN KEY (tenant_id, compaction_event_id) REFERENCES compaction_events (tenant_id, id) ON DELETE CASCADE
);

CREATE INDEX message_archive_by_session ON message_archive (tenant_id, session_id, archived_at);

-- Messages that were deleted and can be restored: as they were in the log, and their originals that were in the archive.
CREATE TABLE deleted_messages (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    session_id       UUID             NOT NULL,
    id               UUID             NOT NULL,
    -- The compaction whose original it is; nothing, where it was in the log.
    source           TEXT COLLATE "C" NOT NULL DEFAULT '',
    seq              BIGINT           NOT NULL,
    is_rewritten     BOOLEAN          NOT NULL,
    original_message JSONB            NOT NULL,
    deleted_at       TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, session_id, id, source),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- Policies that compact by themselves: of one session, or of every session of an agent.
CREATE TABLE compaction_policies (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    scope        TEXT COLLATE "C" NOT NULL,
    name         TEXT COLLATE "C" NOT NULL,
    policy       JSONB            NOT NULL,
    -- The token count from which on the policy wants a session compacted.
    compact_from BIGINT           NOT NULL,
    created_at   TIMESTAMPTZ      NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ      NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, scope, name),
    CHECK (scope = 'session' OR scope = 'agent')
);
