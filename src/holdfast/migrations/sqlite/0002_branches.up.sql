-- Branches of a session. Each has a block of 2^40 places of its own in the session's log, so that a message never has to
-- move: the place is block * 2^40 + seq. A session that was never branched is block 0, where the place is the seq.

ALTER TABLE sessions ADD COLUMN branch INTEGER NOT NULL DEFAULT 0;
-- Blocks given out so far.
ALTER TABLE sessions ADD COLUMN blocks INTEGER NOT NULL DEFAULT 1;
-- What of the log is seen, as a list of [first place, last place]; nothing means all of block 0.
ALTER TABLE sessions ADD COLUMN view TEXT;
-- Whether messages were appended since the session was last indexed for search.
ALTER TABLE sessions ADD COLUMN search_behind INTEGER NOT NULL DEFAULT 1;
-- The token count from which on a policy wants the session compacted.
ALTER TABLE sessions ADD COLUMN compact_from INTEGER;

CREATE TABLE branches (
    tenant_id    TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    number       INTEGER NOT NULL,
    parent       INTEGER,
    forked_after INTEGER NOT NULL DEFAULT 0,
    origin       TEXT    NOT NULL,
    label        TEXT    NOT NULL DEFAULT '',
    view         TEXT,
    next_seq     INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, session_id, number),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (origin = 'start' OR origin = 'fork' OR origin = 'rewind')
) STRICT, WITHOUT ROWID;
