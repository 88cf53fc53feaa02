-- Full-text search over messages. An append indexes nothing: its session is marked as behind, and what is behind is indexed later,
-- in small pieces.

-- Sessions with messages that are not indexed yet.
CREATE INDEX sessions_search_behind ON sessions (tenant_id, id) WHERE search_behind AND deleted_at IS NULL;

-- The words of each indexed message, in one case and without diacritics, each with its tenant in front. Those of a message of
-- ordinary length are not compressed, because they are read much more often than written.
CREATE TABLE message_texts (
    tenant_id  TEXT COLLATE "C" NOT NULL,
    -- The order of hits: later messages have higher numbers.
    number     BIGINT           NOT NULL,
    message_id UUID             NOT NULL,
    session_id UUID             NOT NULL,
    -- The place of the message in its session's log.
    seq        BIGINT           NOT NULL,
    words      TSVECTOR         NOT NULL,
    PRIMARY KEY (tenant_id, number),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE
) WITH (toast_tuple_target = 8160);

CREATE UNIQUE INDEX message_texts_by_message ON message_texts (tenant_id, message_id);
-- The tenant is part of every word, so the words of one tenant lie together here, too. Little of what is new is kept apart for
-- later, because every search would have to read it.
CREATE INDEX message_texts_words ON message_texts USING gin (words) WITH (gin_pending_list_limit = 256);

-- How far each block of a session's log is indexed.
CREATE TABLE search_progress (
    tenant_id  TEXT COLLATE "C" NOT NULL,
    session_id UUID             NOT NULL,
    block      BIGINT           NOT NULL,
    seq        BIGINT           NOT NULL,
    PRIMARY KEY (tenant_id, session_id, block),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);
