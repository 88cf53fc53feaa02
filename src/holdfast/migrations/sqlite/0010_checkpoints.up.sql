-- Checkpoints of graphs. What a checkpoint is made of lies in pieces, each once in a log; a checkpoint, and each task's writes to
-- it, only say which places of the log they consist of. A copy of a thread shares the log.

CREATE TABLE lg_log (
    tenant_id  TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    next_place INTEGER NOT NULL DEFAULT 1,
    -- Another one whenever pieces are removed: who remembers places under an older one must look again.
    stamp      TEXT    NOT NULL,
    PRIMARY KEY (tenant_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE lg_thread (
    tenant_id TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    user_id   TEXT    NOT NULL DEFAULT '',
    thread_id TEXT    NOT NULL,
    log       INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, number)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX lg_thread_by_name ON lg_thread (tenant_id, thread_id, user_id);
-- Copies only: a thread with a log of its own has its number.
CREATE INDEX lg_thread_by_log ON lg_thread (tenant_id, log) WHERE log <> number;

-- With a row number of its own: rows of a kilobyte do not fit well into an index.
CREATE TABLE lg_piece (
    log       INTEGER NOT NULL,
    place     INTEGER NOT NULL,
    -- How the body is written down, as in objects; 9: it is the digest of an object.
    codec     INTEGER NOT NULL,
    tenant_id TEXT    NOT NULL,
    digest    BLOB    NOT NULL,
    body      BLOB    NOT NULL,
    PRIMARY KEY (tenant_id, log, place)
) STRICT;

-- The beginning is enough to find a piece among those of one log; that none is there twice is seen to by who holds the log.
CREATE INDEX lg_piece_by_digest ON lg_piece (tenant_id, log, substr(digest, 1, 3));

-- How ids and metadata are written down: see stores/execution/checkpoints/compact_columns.py.
CREATE TABLE lg_checkpoint (
    created_at           INTEGER NOT NULL,
    thread               INTEGER NOT NULL,
    tenant_id            TEXT    NOT NULL,
    checkpoint_ns        TEXT    NOT NULL DEFAULT '',
    checkpoint_id        BLOB    NOT NULL,
    parent_checkpoint_id BLOB,
    run_id               TEXT,
    metadata             TEXT    NOT NULL DEFAULT '{}',
    checkpoint           BLOB    NOT NULL,
    -- The places of its pieces, in order: see stores/execution/checkpoints/places.py.
    pieces               BLOB    NOT NULL,
    -- Channels whose value must be looked up at an ancestor, as a JSON list; nothing means none.
    leans                TEXT,
    PRIMARY KEY (tenant_id, thread, checkpoint_ns, checkpoint_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX lg_checkpoint_by_run ON lg_checkpoint (tenant_id, run_id) WHERE run_id IS NOT NULL;

-- A row for all writes of one task. They may come before their checkpoint, so nothing refers to it.
CREATE TABLE lg_checkpoint_write (
    thread        INTEGER NOT NULL,
    tenant_id     TEXT    NOT NULL,
    checkpoint_ns TEXT    NOT NULL DEFAULT '',
    checkpoint_id BLOB    NOT NULL,
    task_id       BLOB    NOT NULL,
    task_path     TEXT    NOT NULL DEFAULT '',
    writes        BLOB    NOT NULL,
    pieces        BLOB    NOT NULL,
    PRIMARY KEY (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id)
) STRICT, WITHOUT ROWID;
