-- Compactions: what each one did, and the original of everything it took out or rewrote.

CREATE TABLE compaction_events (
    tenant_id             TEXT    NOT NULL,
    id                    TEXT    NOT NULL,
    session_id            TEXT    NOT NULL,
    -- The first, second, third ... compaction of the session.
    number                INTEGER NOT NULL,
    branch                INTEGER NOT NULL DEFAULT 0,
    strategy              TEXT    NOT NULL,
    original_tokens       INTEGER NOT NULL,
    compacted_tokens      INTEGER NOT NULL,
    messages_removed      INTEGER NOT NULL,
    messages_rewritten    INTEGER NOT NULL DEFAULT 0,
    summary_content       TEXT,
    summary_message_id    TEXT,
    preserved_message_ids TEXT    NOT NULL DEFAULT '[]',
    model_used            TEXT,
    duration_ms           INTEGER NOT NULL DEFAULT 0,
    -- Where branches share what was compacted nothing leaves the log: what was made is in this block, and only what the session
    -- shows has changed. Nothing, where messages were really removed.
    block                 INTEGER,
    created_at            INTEGER NOT NULL,
    updated_at            INTEGER NOT NULL,
    rolled_back_at        INTEGER,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX compaction_events_by_session ON compaction_events (tenant_id, session_id, number);
CREATE INDEX compaction_events_by_strategy ON compaction_events (tenant_id, strategy);

CREATE TABLE message_archive (
    tenant_id           TEXT    NOT NULL,
    compaction_event_id TEXT    NOT NULL,
    -- The place in the log, so that the order is known without looking inside.
    seq                 INTEGER NOT NULL,
    id                  TEXT    NOT NULL,
    session_id          TEXT    NOT NULL,
    -- Whether the message is still in the log, with another content.
    is_rewritten        INTEGER NOT NULL,
    original_message    TEXT    NOT NULL,
    archived_at         INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, compaction_event_id, seq),
    FOREIGN KEY (tenant_id, compaction_event_id) REFERENCES compaction_events (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE INDEX message_archive_by_session ON message_archive (tenant_id, session_id, archived_at);

-- Messages that were deleted and can be restored: as they were in the log, and their originals that were in the archive.
CREATE TABLE deleted_messages (
    tenant_id        TEXT    NOT NULL,
    session_id       TEXT    NOT NULL,
    id               TEXT    NOT NULL,
    -- The compaction whose original it is; nothing, where it was in the log.
    source           TEXT    NOT NULL DEFAULT '',
    seq              INTEGER NOT NULL,
    is_rewritten     INTEGER NOT NULL,
    original_message TEXT    NOT NULL,
    deleted_at       INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, id, source),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) STRICT;

-- Policies that compact by themselves: of one session, or of every session of an agent.
CREATE TABLE compaction_policies (
    tenant_id    TEXT    NOT NULL,
    scope        TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    policy       TEXT    NOT NULL,
    -- The token count from which on the policy wants a session compacted.
    compact_from INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, scope, name),
    CHECK (scope = 'session' OR scope = 'agent')
) STRICT, WITHOUT ROWID;
