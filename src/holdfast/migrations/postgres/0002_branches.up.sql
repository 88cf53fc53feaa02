-- Branches of a session. Each has a block of 2^40 places of its own in the session's log, so that a message never has to
-- move: the place is block * 2^40 + seq. A session that was never branched is block 0, where the place is the seq.

ALTER TABLE sessions
    ADD COLUMN branch        BIGINT  NOT NULL DEFAULT 0,
    -- Blocks given out so far.
    ADD COLUMN blocks        BIGINT  NOT NULL DEFAULT 1,
    -- What of the log is seen, as a list of [first place, last place]; nothing means all of block 0.
    ADD COLUMN view          JSONB,
    -- Whether messages were appended since the session was last indexed for search.
    ADD COLUMN search_behind BOOLEAN NOT NULL DEFAULT TRUE,
    -- The token count from which on a policy wants the session compacted.
    ADD COLUMN compact_from  BIGINT;

CREATE TABLE branches (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    session_id   UUID             NOT NULL,
    number       BIGINT           NOT NULL,
    parent       BIGINT,
    forked_after BIGINT           NOT NULL DEFAULT 0,
    origin       TEXT COLLATE "C" NOT NULL,
    label        TEXT COLLATE "C" NOT NULL DEFAULT '',
    view         JSONB,
    next_seq     BIGINT           NOT NULL,
    created_at   TIMESTAMPTZ      NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, session_id, number),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (origin = 'start' OR origin = 'fork' OR origin = 'rewind')
);
