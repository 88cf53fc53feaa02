-- Tenants, sessions, and the message log of each session with its branches, compactions and search index.

CREATE TABLE tenants (
    id                   {text} NOT NULL PRIMARY KEY CHECK (id <> ''),
    metadata             {json} NOT NULL DEFAULT '{}',
    created_at           {time} NOT NULL /*pg DEFAULT now()*/,
    updated_at           {time} NOT NULL /*pg DEFAULT now()*/,
    -- Set while everything the tenant has is being removed. The row goes last.
    deleted_at           {time},
    -- Limit for the stored bytes of the tenant's snapshots; NULL means the default. Only an operator sets it.
    checkpoint_quota_mib {int}  CHECK (checkpoint_quota_mib >= 0)
) {strict};

CREATE INDEX tenants_deleted ON tenants (id) WHERE deleted_at IS NOT NULL;

CREATE TABLE sessions (
    tenant_id        {text}  NOT NULL CHECK (tenant_id <> ''),
    id               {id}    NOT NULL,
    identifier       {text}  NOT NULL CHECK (identifier <> ''),
    user_id          {text}  NOT NULL DEFAULT '',
    agent_id         {text}  NOT NULL DEFAULT '',
    metadata         {json}  NOT NULL DEFAULT '{}',
    message_count    {int}   NOT NULL DEFAULT 0,
    token_count      {int}   NOT NULL DEFAULT 0,
    compaction_count {int32} NOT NULL DEFAULT 0,
    next_seq         {int}   NOT NULL DEFAULT 1,
    created_at       {time}  NOT NULL /*pg DEFAULT now()*/,
    updated_at       {time}  NOT NULL /*pg DEFAULT now()*/,
    -- The minute of updated_at. Lists by recency are indexed on it and sorted within it, so that an append changes an
    -- indexed column once a minute: PostgreSQL updates the row in place (HOT), SQLite leaves the indexes alone.
    updated_minute   {int}   NOT NULL DEFAULT 0,
    deleted_at       {time},
    -- '~' for the session that has its identifier to itself; the session's id where several share one. '~' sorts after every id.
    identifier_rank  {text}  NOT NULL DEFAULT '~',
    -- The branch that is shown, and how many blocks were given out (see branches).
    branch           {int}   NOT NULL DEFAULT 0,
    blocks           {int}   NOT NULL DEFAULT 1,
    -- The visible part of the log, as a list of [first place, last place]; NULL means all of block 0.
    view             {json},
    -- Whether messages were appended since the session was last indexed for search.
    search_behind    {bool}  NOT NULL DEFAULT TRUE,
    -- The token count at which a policy compacts the session.
    compact_from     {int},
    PRIMARY KEY (tenant_id, id)
) {clustered} /*pg WITH (fillfactor = 70)*/;

-- An identifier is one user's, and free again once its session is deleted.
CREATE UNIQUE INDEX sessions_by_identifier ON sessions (tenant_id, identifier, user_id, identifier_rank)
    WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_recency ON sessions (tenant_id, updated_minute) WHERE deleted_at IS NULL;
CREATE INDEX sessions_deleted ON sessions (tenant_id, updated_minute) WHERE deleted_at IS NOT NULL;
CREATE INDEX sessions_by_user ON sessions (tenant_id, user_id, updated_minute) WHERE deleted_at IS NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant_id, agent_id, updated_minute) WHERE deleted_at IS NULL;

CREATE TABLE messages (
    tenant_id    {text}  NOT NULL,
    session_id   {id}    NOT NULL,
    seq          {int}   NOT NULL CHECK (seq > 0),
    id           {id}    NOT NULL,
    kind         {text}  NOT NULL DEFAULT 'message',
    role         {text},
    content      {json}  NOT NULL,
    token_count  {int32} NOT NULL DEFAULT 0 CHECK (token_count >= 0),
    metadata     {json}  NOT NULL DEFAULT '{}',
    is_preserved {bool}  NOT NULL DEFAULT FALSE,
    is_summary   {bool}  NOT NULL DEFAULT FALSE,
    created_at   {time}  NOT NULL /*pg DEFAULT now()*/,
    updated_at   {time}  NOT NULL /*pg DEFAULT now()*/,
    PRIMARY KEY (tenant_id, session_id, seq),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (kind <> 'message' OR role = 'user' OR role = 'assistant' OR role = 'system')
) {strict};

CREATE UNIQUE INDEX messages_by_id ON messages (tenant_id, id);
CREATE INDEX messages_preserved ON messages (tenant_id, session_id, seq) WHERE is_preserved /*sqlite = 1*/;
CREATE INDEX messages_summary ON messages (tenant_id, session_id, seq) WHERE is_summary /*sqlite = 1*/;
-- System messages stand at the head of every context, however long the log is.
CREATE INDEX messages_system ON messages (tenant_id, session_id, seq) WHERE role = 'system';

-- Branches of a session. Each has a block of 2^40 places in the session's log, so that a message never has to move: its place
-- is block * 2^40 + seq. A session that was never branched has block 0 only, where the place is the seq.
CREATE TABLE branches (
    tenant_id    {text} NOT NULL,
    session_id   {id}   NOT NULL,
    number       {int}  NOT NULL,
    parent       {int},
    forked_after {int}  NOT NULL DEFAULT 0,
    origin       {text} NOT NULL,
    label        {text} NOT NULL DEFAULT '',
    view         {json},
    next_seq     {int}  NOT NULL,
    created_at   {time} NOT NULL /*pg DEFAULT now()*/,
    PRIMARY KEY (tenant_id, session_id, number),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (origin = 'start' OR origin = 'fork' OR origin = 'rewind')
) {clustered};

-- Compactions: what each one did, and the originals of the messages it removed or rewrote.
CREATE TABLE compaction_events (
    tenant_id             {text} NOT NULL,
    id                    {id}   NOT NULL,
    session_id            {id}   NOT NULL,
    -- The first, second, third ... compaction of the session.
    number                {int}  NOT NULL,
    branch                {int}  NOT NULL DEFAULT 0,
    strategy              {text} NOT NULL,
    original_tokens       {int}  NOT NULL,
    compacted_tokens      {int}  NOT NULL,
    messages_removed      {int}  NOT NULL,
    messages_rewritten    {int}  NOT NULL DEFAULT 0,
    summary_content       {text},
    summary_message_id    {id},
    preserved_message_ids {json} NOT NULL DEFAULT '[]',
    model_used            {text},
    duration_ms           {int}  NOT NULL DEFAULT 0,
    -- Where branches share the compacted messages nothing leaves the log: the result is in this block, and only the view of the
    -- session changed. NULL where messages were removed.
    block                 {int},
    created_at            {time} NOT NULL /*pg DEFAULT now()*/,
    updated_at            {time} NOT NULL /*pg DEFAULT now()*/,
    rolled_back_at        {time},
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE UNIQUE INDEX compaction_events_by_session ON compaction_events (tenant_id, session_id, number);
CREATE INDEX compaction_events_by_strategy ON compaction_events (tenant_id, strategy);

CREATE TABLE message_archive (
    tenant_id           {text} NOT NULL,
    compaction_event_id {id}   NOT NULL,
    -- The place in the log, so that rows can be ordered without decoding the message.
    seq                 {int}  NOT NULL,
    id                  {id}   NOT NULL,
    session_id          {id}   NOT NULL,
    -- Whether the message is still in the log, with other content.
    is_rewritten        {bool} NOT NULL,
    original_message    {json} NOT NULL,
    archived_at         {time} NOT NULL /*pg DEFAULT now()*/,
    PRIMARY KEY (tenant_id, compaction_event_id, seq),
    FOREIGN KEY (tenant_id, compaction_event_id) REFERENCES compaction_events (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE INDEX message_archive_by_session ON message_archive (tenant_id, session_id, archived_at);

-- Messages that were deleted and can be restored: as they were in the log, and their originals from the archive.
CREATE TABLE deleted_messages (
    tenant_id        {text} NOT NULL,
    session_id       {id}   NOT NULL,
    id               {id}   NOT NULL,
    -- The compaction whose archive it was in; empty if it was in the log.
    source           {text} NOT NULL DEFAULT '',
    seq              {int}  NOT NULL,
    is_rewritten     {bool} NOT NULL,
    original_message {json} NOT NULL,
    deleted_at       {time} NOT NULL,
    PRIMARY KEY (tenant_id, session_id, id, source),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) {strict};

-- Automatic compaction: the policy of one session, or of every session of an agent.
CREATE TABLE compaction_policies (
    tenant_id    {text} NOT NULL,
    scope        {text} NOT NULL,
    name         {text} NOT NULL,
    policy       {json} NOT NULL,
    -- The token count at which the policy compacts a session.
    compact_from {int}  NOT NULL,
    created_at   {time} NOT NULL /*pg DEFAULT now()*/,
    updated_at   {time} NOT NULL /*pg DEFAULT now()*/,
    PRIMARY KEY (tenant_id, scope, name),
    CHECK (scope = 'session' OR scope = 'agent')
) {clustered};

-- State of an agent loop beside the messages. Not in sessions, because every append rewrites those rows.
CREATE TABLE session_state (
    tenant_id                     {text} NOT NULL,
    session_id                    {id}   NOT NULL,
    summary                       {text} NOT NULL DEFAULT '',
    label                         {text} NOT NULL DEFAULT '',
    model                         {text} NOT NULL DEFAULT '',
    provider                      {text} NOT NULL DEFAULT '',
    channel                       {text} NOT NULL DEFAULT '',
    input_tokens                  {int}  NOT NULL DEFAULT 0,
    output_tokens                 {int}  NOT NULL DEFAULT 0,
    compaction_count              {int}  NOT NULL DEFAULT 0,
    memory_flush_compaction_count {int}  NOT NULL DEFAULT 0,
    memory_flush_at               {time},
    spawned_by                    {text} NOT NULL DEFAULT '',
    spawn_depth                   {int}  NOT NULL DEFAULT 0,
    -- The id of the save that wrote this row: detects a concurrent save, and recognises one whose answer was lost.
    save_id                       {id}   NOT NULL,
    created_at                    {time} NOT NULL,
    updated_at                    {time} NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) {clustered};

-- Full-text search over messages. An append only marks its session; marked sessions are indexed later, in small transactions.
CREATE INDEX sessions_search_behind ON sessions (tenant_id, id) WHERE search_behind AND deleted_at IS NULL;

-- The indexed messages. PostgreSQL keeps their words here, folded to one case without diacritics, each prefixed with its tenant;
-- words of ordinary messages are not compressed, because they are read far more often than written.
CREATE TABLE message_texts (
    tenant_id  {text} NOT NULL,
    -- The order of hits: later messages have higher numbers. On SQLite it is the rowid in message_index.
    number     {int}  NOT NULL,
    message_id {id}   NOT NULL,
    session_id {id}   NOT NULL,
    -- The place of the message in its session's log.
    seq        {int}  NOT NULL,
    /*pg words   TSVECTOR NOT NULL,*/
    PRIMARY KEY (tenant_id, number),
    FOREIGN KEY (tenant_id, message_id) REFERENCES messages (tenant_id, id) ON DELETE CASCADE
) {clustered} /*pg WITH (toast_tuple_target = 8160)*/;

CREATE UNIQUE INDEX message_texts_by_message ON message_texts (tenant_id, message_id);

-- How far each block of a session's log is indexed.
CREATE TABLE search_progress (
    tenant_id  {text} NOT NULL,
    session_id {id}   NOT NULL,
    block      {int}  NOT NULL,
    seq        {int}  NOT NULL,
    PRIMARY KEY (tenant_id, session_id, block),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
) {clustered};

/*pg
-- Each word is prefixed with its tenant, so the words of one tenant are adjacent. The pending list is short, because every search reads it.
CREATE INDEX message_texts_words ON message_texts USING gin (words) WITH (gin_pending_list_limit = 256);
*/
/*sqlite
-- The words are tokenized by Holdfast, each prefixed with its tenant. The ascii tokenizer takes them as they are: it splits at
-- spaces and at no character that occurs in a word. The index holds no text of its own.
CREATE VIRTUAL TABLE message_index USING fts5(words, content = '', columnsize = 0, tokenize = 'ascii');

-- Entries to be removed from the index, which needs the words it held: they are computed from the message as it was. Rows stay
-- here until the end of the transaction. A trigger may not write to the index itself: the SQLite of many Python builds refuses
-- that on connections that do not trust the schema.
CREATE TABLE message_index_removed (
    tenant_id  TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    session_id TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    content    TEXT    NOT NULL
) STRICT;

CREATE INDEX message_index_removed_by_tenant ON message_index_removed (tenant_id);

-- BEFORE, because a foreign key removes the row of message_texts before an AFTER trigger runs. The trigger deletes it as well,
-- because a caller's own connection may have foreign keys switched off.
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
*/

-- down

/*sqlite
DROP TRIGGER messages_changed;
DROP TRIGGER messages_deleted;
DROP TABLE message_index_removed;
DROP TABLE message_index;
*/
DROP TABLE search_progress;
DROP TABLE message_texts;
DROP TABLE session_state;
DROP TABLE compaction_policies;
DROP TABLE deleted_messages;
DROP TABLE message_archive;
DROP TABLE compaction_events;
DROP TABLE branches;
DROP TABLE messages;
DROP TABLE sessions;
DROP TABLE tenants;
