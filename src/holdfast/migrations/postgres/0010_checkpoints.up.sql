-- Checkpoints of graphs. What a checkpoint is made of lies in pieces, each once in a log; a checkpoint, and each task's writes to
-- it, only say which places of the log they consist of. A copy of a thread shares the log.

CREATE TABLE lg_log (
    tenant_id  TEXT COLLATE "C" NOT NULL,
    number     INTEGER          NOT NULL,
    next_place INTEGER          NOT NULL DEFAULT 1,
    -- Another one whenever pieces are removed: who remembers places under an older one must look again.
    stamp      UUID             NOT NULL,
    PRIMARY KEY (tenant_id, number)
) WITH (fillfactor = 70);

CREATE TABLE lg_thread (
    tenant_id TEXT COLLATE "C" NOT NULL,
    number    INTEGER          NOT NULL,
    user_id   TEXT COLLATE "C" NOT NULL DEFAULT '',
    thread_id TEXT COLLATE "C" NOT NULL,
    log       INTEGER          NOT NULL,
    PRIMARY KEY (tenant_id, number)
);

CREATE UNIQUE INDEX lg_thread_by_name ON lg_thread (tenant_id, thread_id, user_id);
-- Copies only: a thread with a log of its own has its number.
CREATE INDEX lg_thread_by_log ON lg_thread (tenant_id, log) WHERE log <> number;

-- Columns of a fixed width come first, and are as short as they can be: PostgreSQL fills up what is before a number. Keys of
-- what only grows are kept full.
CREATE TABLE lg_piece (
    log       INTEGER          NOT NULL,
    place     INTEGER          NOT NULL,
    -- How the body is written down, as in objects; 9: it is the digest of an object.
    codec     SMALLINT         NOT NULL,
    tenant_id TEXT COLLATE "C" NOT NULL,
    digest    BYTEA            NOT NULL,
    body      BYTEA            NOT NULL,
    PRIMARY KEY (tenant_id, log, place) WITH (fillfactor = 100)
);

-- It is compressed already.
ALTER TABLE lg_piece ALTER COLUMN body SET STORAGE EXTERNAL;

-- The beginning is enough to find a piece among those of one log; that none is there twice is seen to by who holds the log.
CREATE INDEX lg_piece_by_digest ON lg_piece (tenant_id, log, substr(digest, 1, 3));

-- How ids and metadata are written down: see stores/execution/checkpoints/compact_columns.py.
CREATE TABLE lg_checkpoint (
    created_at           TIMESTAMPTZ      NOT NULL,
    thread               INTEGER          NOT NULL,
    tenant_id            TEXT COLLATE "C" NOT NULL,
    checkpoint_ns        TEXT COLLATE "C" NOT NULL DEFAULT '',
    checkpoint_id        BYTEA            NOT NULL,
    parent_checkpoint_id BYTEA,
    run_id               TEXT COLLATE "C",
    metadata             TEXT COLLATE "C" NOT NULL DEFAULT '{}',
    checkpoint           BYTEA            NOT NULL,
    -- The places of its pieces, in order: see stores/execution/checkpoints/places.py.
    pieces               BYTEA            NOT NULL,
    -- Channels whose value must be looked up at an ancestor, as a JSON list; nothing means none.
    leans                JSONB,
    PRIMARY KEY (tenant_id, thread, checkpoint_ns, checkpoint_id) WITH (fillfactor = 100)
);

CREATE INDEX lg_checkpoint_by_run ON lg_checkpoint (tenant_id, run_id) WHERE run_id IS NOT NULL;

-- A row for all writes of one task. They may come before their checkpoint, so nothing refers to it.
CREATE TABLE lg_checkpoint_write (
    thread        INTEGER          NOT NULL,
    tenant_id     TEXT COLLATE "C" NOT NULL,
    checkpoint_ns TEXT COLLATE "C" NOT NULL DEFAULT '',
    checkpoint_id BYTEA            NOT NULL,
    task_id       BYTEA            NOT NULL,
    task_path     TEXT COLLATE "C" NOT NULL DEFAULT '',
    writes        BYTEA            NOT NULL,
    pieces        BYTEA            NOT NULL,
    PRIMARY KEY (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id) WITH (fillfactor = 100)
);
