-- What an agent loop keeps beside the messages of a session. Apart from sessions, because every append rewrites those rows.

CREATE TABLE session_state (
    tenant_id                     TEXT    NOT NULL,
    session_id                    TEXT    NOT NULL,
    summary                       TEXT    NOT NULL DEFAULT '',
    label                         TEXT    NOT NULL DEFAULT '',
    model                         TEXT    NOT NULL DEFAULT '',
    provider                      TEXT    NOT NULL DEFAULT '',
    channel                       TEXT    NOT NULL DEFAULT '',
    input_tokens                  INTEGER NOT NULL DEFAULT 0,
    output_tokens                 INTEGER NOT NULL DEFAULT 0,
    compaction_count              INTEGER NOT NULL DEFAULT 0,
    memory_flush_compaction_count INTEGER NOT NULL DEFAULT 0,
    memory_flush_at               INTEGER,
    spawned_by                    TEXT    NOT NULL DEFAULT '',
    spawn_depth                   INTEGER NOT NULL DEFAULT 0,
    -- The save that wrote this row: a writer sees that another was here, and one whose answer was lost that it was itself.
    save_id                       TEXT    NOT NULL,
    created_at                    INTEGER NOT NULL,
    updated_at                    INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- What stands at the head of every context, however long the log is.
CREATE INDEX messages_system ON messages (tenant_id, session_id, seq) WHERE role = 'system';
