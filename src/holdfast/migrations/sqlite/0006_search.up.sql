-- Full-text search over messages. An append indexes nothing: its session is marked as behind, and what is behind is indexed later,
-- in small pieces.

-- Sessions with messages that are not indexed yet.
CREATE INDEX sessions_search_behind ON sessions (tenant_id, id) WHERE search_behind AND deleted_at IS NULL;

-- The messages that are indexed. Their words are in the index alone.
CREATE TABLE message_texts (
    tenant_id  TEXT    NOT NULL,
    -- The order of hits: later messages have higher numbers. It is the message's rowid in the index.
    number     INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    -- The place of the message in its session's log.
    seq        INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, number),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX message_texts_by_message ON message_texts (tenant_id, message_id);

-- How far each block of a session's log is indexed.
CREATE TABLE search_progress (
    tenant_id  TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    block      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, block),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- The words come ready to be indexed, each with its tenant in front, and must be taken as they are: the plainest tokenizer does
-- that, splitting at spaces and at nothing that is in a word. The index holds no text of its own.
CREATE VIRTUAL TABLE message_index USING fts5(words, content = '', columnsize = 0, tokenize = 'ascii');

-- What has to leave the index, which must be told the words it held: they are made again from the message as it was. Rows stay here
-- until the end of the transaction. A trigger may not write to the index itself: the SQLite of many Python builds refuses that on
-- connections that do not trust the schema of a file.
CREATE TABLE message_index_removed (
    tenant_id  TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    session_id TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    content    TEXT    NOT NULL
) STRICT;

CREATE INDEX message_index_removed_by_tenant ON message_index_removed (tenant_id);

-- Before and not after, because a foreign key removes the row of message_texts in between; and not left to the foreign key, because
-- a caller's own connection may have those switched off.
CREATE TRIGGER messages_deleted BEFORE DELETE ON messages BEGIN
    INSERT INTO message_index_removed (tenant_id, number, session_id, kind, content)
    SELECT old.tenant_id, t.number, old.session_id, old.kind, old.content FROM message_texts AS t
    WHERE t.tenant_id = old.tenant_id AND t.message_id = old.id;
    DELETE FROM message_texts WHERE tenant_id = old.tenant_id AND message_id = old.id;
END;

CREATE TRIGGER messages_changed BEFORE UPDATE OF kind, content ON messages
WHEN old.kind IS NOT new.kind OR old.content IS NOT new.content BEGIN
    INSERT INTO message_index_removed (tenant_id, number, session_id, kind, content)
    SELECT old.tenant_id, t.number, old.session_id, old.kind, old.content FROM message_texts AS t
    WHERE t.tenant_id = old.tenant_id AND t.message_id = old.id;
    DELETE FROM message_texts WHERE tenant_id = old.tenant_id AND message_id = old.id;
END;
