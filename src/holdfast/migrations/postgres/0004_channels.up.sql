-- What comes in through channels: messages that wait for their turn, the people who send them, and what they think of the answers.

-- A group chat in which something waits. Whoever writes to it holds this row, so that no place is given twice.
CREATE TABLE pending_groups (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    channel_name TEXT COLLATE "C" NOT NULL CHECK (channel_name <> ''),
    history_key  TEXT COLLATE "C" NOT NULL CHECK (history_key <> ''),
    next_seq     BIGINT           NOT NULL,
    PRIMARY KEY (tenant_id, channel_name, history_key)
);

CREATE TABLE pending_messages (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    channel_name     TEXT COLLATE "C" NOT NULL,
    history_key      TEXT COLLATE "C" NOT NULL,
    -- The order within a group; a summary takes the place of the last message it stands for.
    seq              BIGINT           NOT NULL,
    id               UUID             NOT NULL,
    sender           TEXT COLLATE "C" NOT NULL DEFAULT '',
    sender_id        TEXT COLLATE "C" NOT NULL DEFAULT '',
    body             TEXT COLLATE "C" NOT NULL,
    platform_msg_id  TEXT COLLATE "C" NOT NULL DEFAULT '',
    is_summary       BOOLEAN          NOT NULL DEFAULT FALSE,
    created_at       TIMESTAMPTZ      NOT NULL,
    updated_at       TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, channel_name, history_key, seq)
);

CREATE UNIQUE INDEX pending_messages_by_id ON pending_messages (tenant_id, id);
CREATE INDEX pending_messages_by_age ON pending_messages (tenant_id, updated_at);

CREATE TABLE contacts (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    id               UUID             NOT NULL,
    channel_type     TEXT COLLATE "C" NOT NULL CHECK (channel_type <> ''),
    sender_id        TEXT COLLATE "C" NOT NULL CHECK (sender_id <> ''),
    channel_instance TEXT COLLATE "C" NOT NULL DEFAULT '',
    user_id          TEXT COLLATE "C" NOT NULL DEFAULT '',
    display_name     TEXT COLLATE "C" NOT NULL DEFAULT '',
    username         TEXT COLLATE "C" NOT NULL DEFAULT '',
    avatar_url       TEXT COLLATE "C" NOT NULL DEFAULT '',
    peer_kind        TEXT COLLATE "C" NOT NULL DEFAULT '',
    metadata         JSONB            NOT NULL DEFAULT '{}',
    -- Contacts with the same merged_id are one person.
    merged_id        UUID,
    -- What a search compares with: the beginnings of names and ids, in one case.
    search_name      TEXT COLLATE "C" NOT NULL DEFAULT '',
    search_username  TEXT COLLATE "C" NOT NULL DEFAULT '',
    search_sender    TEXT COLLATE "C" NOT NULL DEFAULT '',
    first_seen_at    TIMESTAMPTZ      NOT NULL,
    last_seen_at     TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

CREATE UNIQUE INDEX contacts_by_sender ON contacts (tenant_id, channel_type, sender_id);
CREATE INDEX contacts_by_sender_id ON contacts (tenant_id, sender_id);
CREATE INDEX contacts_by_recency ON contacts (tenant_id, last_seen_at, id);
CREATE INDEX contacts_by_search_name ON contacts (tenant_id, search_name);
CREATE INDEX contacts_by_search_username ON contacts (tenant_id, search_username);
CREATE INDEX contacts_by_search_sender ON contacts (tenant_id, search_sender);
CREATE INDEX contacts_by_merged ON contacts (tenant_id, merged_id) WHERE merged_id IS NOT NULL;

CREATE TABLE feedback (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    id               UUID             NOT NULL,
    message_id       UUID             NOT NULL,
    -- The session of the message, which never changes.
    session_id       UUID             NOT NULL,
    user_id          TEXT COLLATE "C" NOT NULL DEFAULT '',
    is_positive      BOOLEAN          NOT NULL,
    feedback_text    TEXT COLLATE "C" NOT NULL DEFAULT '',
    issue_type       TEXT COLLATE "C" NOT NULL DEFAULT '',
    metadata         JSONB            NOT NULL DEFAULT '{}',
    created_at       TIMESTAMPTZ      NOT NULL,
    updated_at       TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE,
    CHECK (issue_type IN ('', 'instructions', 'factual', 'incomplete', 'tool'))
);

-- A person has one opinion of a message; nobody in particular may have many.
CREATE UNIQUE INDEX feedback_by_opinion ON feedback (tenant_id, message_id, user_id) WHERE user_id <> '';
CREATE INDEX feedback_by_message ON feedback (tenant_id, message_id, created_at, id);
CREATE INDEX feedback_by_session ON feedback (tenant_id, session_id, created_at, id);
CREATE INDEX feedback_by_user ON feedback (tenant_id, user_id, created_at, id);
CREATE INDEX feedback_by_time ON feedback (tenant_id, created_at, id);
