-- What comes in through channels: messages that wait for their turn, the people who send them, and what they think of the answers.

-- A group chat in which something waits. Whoever writes to it holds this row, so that no place is given twice.
CREATE TABLE pending_groups (
    tenant_id    TEXT    NOT NULL,
    channel_name TEXT    NOT NULL CHECK (channel_name <> ''),
    history_key  TEXT    NOT NULL CHECK (history_key <> ''),
    next_seq     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, channel_name, history_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE pending_messages (
    tenant_id       TEXT    NOT NULL,
    channel_name    TEXT    NOT NULL,
    history_key     TEXT    NOT NULL,
    -- The order within a group; a summary takes the place of the last message it stands for.
    seq             INTEGER NOT NULL,
    id              TEXT    NOT NULL,
    sender          TEXT    NOT NULL DEFAULT '',
    sender_id       TEXT    NOT NULL DEFAULT '',
    body            TEXT    NOT NULL,
    platform_msg_id TEXT    NOT NULL DEFAULT '',
    is_summary      INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, channel_name, history_key, seq)
) STRICT;

CREATE UNIQUE INDEX pending_messages_by_id ON pending_messages (tenant_id, id);
CREATE INDEX pending_messages_by_age ON pending_messages (tenant_id, updated_at);

CREATE TABLE contacts (
    tenant_id        TEXT    NOT NULL,
    id               TEXT    NOT NULL,
    channel_type     TEXT    NOT NULL CHECK (channel_type <> ''),
    sender_id        TEXT    NOT NULL CHECK (sender_id <> ''),
    channel_instance TEXT    NOT NULL DEFAULT '',
    user_id          TEXT    NOT NULL DEFAULT '',
    display_name     TEXT    NOT NULL DEFAULT '',
    username         TEXT    NOT NULL DEFAULT '',
    avatar_url       TEXT    NOT NULL DEFAULT '',
    peer_kind        TEXT    NOT NULL DEFAULT '',
    metadata         TEXT    NOT NULL DEFAULT '{}',
    -- Contacts with the same merged_id are one person.
    merged_id        TEXT,
    -- What a search compares with: the beginnings of names and ids, in one case.
    search_name      TEXT    NOT NULL DEFAULT '',
    search_username  TEXT    NOT NULL DEFAULT '',
    search_sender    TEXT    NOT NULL DEFAULT '',
    first_seen_at    INTEGER NOT NULL,
    last_seen_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX contacts_by_sender ON contacts (tenant_id, channel_type, sender_id);
CREATE INDEX contacts_by_sender_id ON contacts (tenant_id, sender_id);
CREATE INDEX contacts_by_recency ON contacts (tenant_id, last_seen_at, id);
CREATE INDEX contacts_by_search_name ON contacts (tenant_id, search_name);
CREATE INDEX contacts_by_search_username ON contacts (tenant_id, search_username);
CREATE INDEX contacts_by_search_sender ON contacts (tenant_id, search_sender);
CREATE INDEX contacts_by_merged ON contacts (tenant_id, merged_id) WHERE merged_id IS NOT NULL;

-- Not without rowid: then SQLite would look for the feedback on a message among all of the tenant's, whatever index there is.
CREATE TABLE feedback (
    tenant_id     TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    message_id    TEXT    NOT NULL,
    -- The session of the message, which never changes.
    session_id    TEXT    NOT NULL,
    user_id       TEXT    NOT NULL DEFAULT '',
    is_positive   INTEGER NOT NULL,
    feedback_text TEXT    NOT NULL DEFAULT '',
    issue_type    TEXT    NOT NULL DEFAULT '',
    metadata      TEXT    NOT NULL DEFAULT '{}',
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE,
    CHECK (issue_type IN ('', 'instructions', 'factual', 'incomplete', 'tool'))
) STRICT;

-- A person has one opinion of a message; nobody in particular may have many.
CREATE UNIQUE INDEX feedback_by_opinion ON feedback (tenant_id, message_id, user_id) WHERE user_id <> '';
CREATE INDEX feedback_by_message ON feedback (tenant_id, message_id, created_at, id);
CREATE INDEX feedback_by_session ON feedback (tenant_id, session_id, created_at, id);
CREATE INDEX feedback_by_user ON feedback (tenant_id, user_id, created_at, id);
CREATE INDEX feedback_by_time ON feedback (tenant_id, created_at, id);
