-- Full-text search over messages. Nothing is indexed at an append: a search first indexes what was appended since the last one.

-- Sessions with messages that are not indexed yet.
CREATE INDEX sessions_search_behind ON sessions (tenant_id, id) WHERE search_behind AND deleted_at IS NULL;

-- The words of each indexed message, in one case and without diacritics.
CREATE TABLE message_texts (
    tenant_id  TEXT    NOT NULL,
    -- The order of hits: later messages have higher numbers. It is the message's rowid in the index.
    number     INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    -- The place of the message in its session's log.
    seq        INTEGER NOT NULL,
    -- Of the message, when it was indexed.
    updated_at INTEGER NOT NULL,
    words      TEXT    NOT NULL,
    PRIMARY KEY (tenant_id, number),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE UNIQUE INDEX message_texts_by_message ON message_texts (tenant_id, message_id);
-- All that a search needs of these rows, so that it need not read the words.
CREATE INDEX message_texts_places ON message_texts (tenant_id, number, session_id, seq, message_id);

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

-- What has to leave the index, which wants to be told what it held. A trigger may not write to the index itself: the SQLite of many
-- Python builds refuses that on connections that do not trust the schema of a file.
CREATE TABLE message_index_removed (
    tenant_id TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    words     TEXT    NOT NULL
) STRICT;

CREATE INDEX message_index_removed_by_tenant ON message_index_removed (tenant_id);

CREATE TRIGGER message_texts_deleted AFTER DELETE ON message_texts BEGIN
    INSERT INTO message_index_removed (tenant_id, number, words) VALUES (old.tenant_id, old.number, old.words);
END;

CREATE TRIGGER message_texts_changed AFTER UPDATE OF words ON message_texts BEGIN
    INSERT INTO message_index_removed (tenant_id, number, words) VALUES (old.tenant_id, old.number, old.words);
END;

-- A caller's own connection may have foreign keys switched off, and what was deleted must not stay behind here.
CREATE TRIGGER messages_deleted AFTER DELETE ON messages BEGIN
    DELETE FROM message_texts WHERE tenant_id = old.tenant_id AND message_id = old.id;
END;
