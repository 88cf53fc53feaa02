-- What an agent loop keeps beside the messages of a session. Apart from sessions, because every append rewrites those rows.

CREATE TABLE session_state (
    tenant_id                     TEXT COLLATE "C" NOT NULL,
    session_id                    UUID             NOT NULL,
    summary                       TEXT COLLATE "C" NOT NULL DEFAULT '',
    label                         TEXT COLLATE "C" NOT NULL DEFAULT '',
    model                         TEXT COLLATE "C" NOT NULL DEFAULT '',
    provider                      TEXT COLLATE "C" NOT NULL DEFAULT '',
    channel                       TEXT COLLATE "C" NOT NULL DEFAULT '',
    input_tokens                  BIGINT           NOT NULL DEFAULT 0,
    output_tokens                 BIGINT           NOT NULL DEFAULT 0,
    compaction_count              BIGINT           NOT NULL DEFAULT 0,
    memory_flush_compaction_count BIGINT           NOT NULL DEFAULT 0,
    memory_flush_at               TIMESTAMPTZ,
    spawned_by                    TEXT COLLATE "C" NOT NULL DEFAULT '',
    spawn_depth                   BIGINT           NOT NULL DEFAULT 0,
    -- The save that wrote this row: a writer sees that another was here, and one whose answer was lost that it was itself.
    save_id                       UUID             NOT NULL,
    created_at                    TIMESTAMPTZ      NOT NULL,
    updated_at                    TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);

-- What stands at the head of every context, however long the log is.
CREATE INDEX messages_system ON messages (tenant_id, session_id, seq) WHERE role = 'system';
