-- Channels: messages waiting in group chats, contacts, feedback on answers, and links that share a session.

-- A group chat with waiting messages. Writers lock this row, so that no place is given twice.
CREATE TABLE pending_groups (
    tenant_id    {text} NOT NULL,
    channel_name {text} NOT NULL CHECK (channel_name <> ''),
    history_key  {text} NOT NULL CHECK (history_key <> ''),
    next_seq     {int}  NOT NULL,
    PRIMARY KEY (tenant_id, channel_name, history_key)
) {clustered};

CREATE TABLE pending_messages (
    tenant_id       {text} NOT NULL,
    channel_name    {text} NOT NULL,
    history_key     {text} NOT NULL,
    -- The order within a group; a summary takes the place of the last message it stands for.
    seq             {int}  NOT NULL,
    id              {id}   NOT NULL,
    sender          {text} NOT NULL DEFAULT '',
    sender_id       {text} NOT NULL DEFAULT '',
    body            {text} NOT NULL,
    platform_msg_id {text} NOT NULL DEFAULT '',
    is_summary      {bool} NOT NULL DEFAULT FALSE,
    created_at      {time} NOT NULL,
    updated_at      {time} NOT NULL,
    PRIMARY KEY (tenant_id, channel_name, history_key, seq)
) {strict};

CREATE UNIQUE INDEX pending_messages_by_id ON pending_messages (tenant_id, id);
CREATE INDEX pending_messages_by_age ON pending_messages (tenant_id, updated_at);

CREATE TABLE contacts (
    tenant_id        {text} NOT NULL,
    id               {id}   NOT NULL,
    channel_type     {text} NOT NULL CHECK (channel_type <> ''),
    sender_id        {text} NOT NULL CHECK (sender_id <> ''),
    channel_instance {text} NOT NULL DEFAULT '',
    user_id          {text} NOT NULL DEFAULT '',
    display_name     {text} NOT NULL DEFAULT '',
    username         {text} NOT NULL DEFAULT '',
    avatar_url       {text} NOT NULL DEFAULT '',
    peer_kind        {text} NOT NULL DEFAULT '',
    metadata         {json} NOT NULL DEFAULT '{}',
    -- Contacts with the same merged_id are one person.
    merged_id        {id},
    -- Case-folded copies that a prefix search compares with.
    search_name      {text} NOT NULL DEFAULT '',
    search_username  {text} NOT NULL DEFAULT '',
    search_sender    {text} NOT NULL DEFAULT '',
    first_seen_at    {time} NOT NULL,
    last_seen_at     {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {clustered};

CREATE UNIQUE INDEX contacts_by_sender ON contacts (tenant_id, channel_type, sender_id);
CREATE INDEX contacts_by_sender_id ON contacts (tenant_id, sender_id);
CREATE INDEX contacts_by_recency ON contacts (tenant_id, last_seen_at, id);
CREATE INDEX contacts_by_search_name ON contacts (tenant_id, search_name);
CREATE INDEX contacts_by_search_username ON contacts (tenant_id, search_username);
CREATE INDEX contacts_by_search_sender ON contacts (tenant_id, search_sender);
CREATE INDEX contacts_by_merged ON contacts (tenant_id, merged_id) WHERE merged_id IS NOT NULL;

-- Not clustered: SQLite would then scan all feedback of the tenant for one message, whatever index there is.
CREATE TABLE feedback (
    tenant_id     {text} NOT NULL,
    id            {id}   NOT NULL,
    message_id    {id}   NOT NULL,
    -- The session of the message, which never changes.
    session_id    {id}   NOT NULL,
    user_id       {text} NOT NULL DEFAULT '',
    is_positive   {bool} NOT NULL,
    feedback_text {text} NOT NULL DEFAULT '',
    issue_type    {text} NOT NULL DEFAULT '',
    metadata      {json} NOT NULL DEFAULT '{}',
    created_at    {time} NOT NULL,
    updated_at    {time} NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE,
    CHECK (issue_type IN ('', 'instructions', 'factual', 'incomplete', 'tool'))
) {strict};

-- One feedback per user and message; any number without a user.
CREATE UNIQUE INDEX feedback_by_opinion ON feedback (tenant_id, message_id, user_id) WHERE user_id <> '';
CREATE INDEX feedback_by_message ON feedback (tenant_id, message_id, created_at, id);
CREATE INDEX feedback_by_session ON feedback (tenant_id, session_id, created_at, id);
CREATE INDEX feedback_by_user ON feedback (tenant_id, user_id, created_at, id);
CREATE INDEX feedback_by_time ON feedback (tenant_id, created_at, id);

CREATE TABLE session_shares (
    tenant_id   {text} NOT NULL,
    token_hash  {text} NOT NULL,
    session_id  {id}   NOT NULL,
    -- Numbers the links of one session.
    number      {int}  NOT NULL,
    user_id     {text} NOT NULL DEFAULT '',
    read_only   {bool} NOT NULL DEFAULT TRUE,
    -- The token itself, for links whose lists may show it again.
    shown_token {text},
    created_at  {time} NOT NULL,
    expires_at  {time},
    PRIMARY KEY (tenant_id, token_hash),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE INDEX session_shares_by_session ON session_shares (tenant_id, session_id, number);
CREATE INDEX session_shares_by_expiry ON session_shares (tenant_id, expires_at, token_hash);

CREATE TABLE session_share_uses (
    tenant_id  {text} NOT NULL,
    token_hash {text} NOT NULL,
    user_id    {text} NOT NULL,
    used_at    {time} NOT NULL,
    PRIMARY KEY (tenant_id, token_hash, user_id),
    FOREIGN KEY (tenant_id, token_hash) REFERENCES session_shares (tenant_id, token_hash) ON DELETE CASCADE
) {strict};

CREATE INDEX session_share_uses_by_user ON session_share_uses (tenant_id, user_id);

-- Feedback on no message in particular.
CREATE TABLE general_feedback (
    tenant_id      {text} NOT NULL,
    user_id        {text} NOT NULL DEFAULT '',
    id             {id}   NOT NULL,
    is_positive    {bool} NOT NULL,
    feedback_text  {text} NOT NULL,
    issue_type     {text} NOT NULL DEFAULT '',
    -- The client's own number of the subject, if any.
    message_number {int},
    created_at     {time} NOT NULL,
    updated_at     {time} NOT NULL,
    PRIMARY KEY (tenant_id, user_id, id),
    CHECK (issue_type IN ('', 'instructions', 'factual', 'incomplete', 'tool'))
) {strict};

-- down

DROP TABLE general_feedback;
DROP TABLE session_share_uses;
DROP TABLE session_shares;
DROP TABLE feedback;
DROP TABLE contacts;
DROP TABLE pending_messages;
DROP TABLE pending_groups;
