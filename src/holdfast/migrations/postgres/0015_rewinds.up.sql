-- Rewinds of runs: which step a run was taken back to, and everything that it takes to undo it. What a rewind takes out of the
-- run's steps and tool calls lies here, as it was, until it is redone.

CREATE TABLE rewinds (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    id               UUID             NOT NULL,
    run_id           UUID             NOT NULL,
    from_step        BIGINT           NOT NULL,
    to_step          BIGINT           NOT NULL,
    status           TEXT COLLATE "C" NOT NULL,
    -- Where the tree is; NULL where the worker that next claims the run brings its own workspace to the snapshot.
    path             TEXT COLLATE "C",
    -- What the tree is brought to by the rewind, and what it was before.
    snapshot         TEXT COLLATE "C",
    dirty            TEXT COLLATE "C",
    -- Why the tree is not there yet; NULL once the rewind or redo is finished.
    pending_reason   TEXT COLLATE "C",
    -- The branches that the session showed before and after.
    branch_before    BIGINT           NOT NULL,
    branch_after     BIGINT           NOT NULL,
    -- Which step to_step was: a run that has come to the same number another way is another.
    anchor           TEXT COLLATE "C" NOT NULL,
    -- The run as it was, and the runs below it that no call of it stands for any longer.
    run_before       JSONB            NOT NULL,
    created_at       TIMESTAMPTZ      NOT NULL,
    finished_at      TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (status IN ('rewinding', 'rewound', 'redoing', 'redone'))
);

CREATE INDEX rewinds_by_run ON rewinds (tenant_id, run_id, id);
-- Those whose tree is still to be brought to where the run already is.
CREATE INDEX rewinds_open ON rewinds (tenant_id, id) WHERE status IN ('rewinding', 'redoing');

CREATE TABLE rewound_steps (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    rewind_id        UUID             NOT NULL,
    iteration        BIGINT           NOT NULL,
    epoch            BIGINT           NOT NULL,
    state            JSONB            NOT NULL,
    last_tool_result TEXT COLLATE "C",
    first_seq        BIGINT,
    last_seq         BIGINT,
    input_tokens     BIGINT           NOT NULL,
    output_tokens    BIGINT           NOT NULL,
    snapshot         TEXT COLLATE "C",
    fingerprint      TEXT COLLATE "C" NOT NULL,
    created_at       TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, rewind_id, iteration),
    FOREIGN KEY (tenant_id, rewind_id) REFERENCES rewinds (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE rewound_calls (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    rewind_id        UUID             NOT NULL,
    id               TEXT COLLATE "C" NOT NULL,
    tool_name        TEXT COLLATE "C" NOT NULL,
    tool_input       JSONB            NOT NULL,
    safety           TEXT COLLATE "C" NOT NULL,
    status           TEXT COLLATE "C" NOT NULL,
    iteration        BIGINT           NOT NULL,
    place            BIGINT           NOT NULL,
    epoch            BIGINT           NOT NULL,
    attempts         BIGINT           NOT NULL,
    pause_until      TIMESTAMPTZ,
    result           JSONB,
    error            TEXT COLLATE "C",
    step             BIGINT,
    started_at       TIMESTAMPTZ      NOT NULL,
    finished_at      TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, rewind_id, id),
    FOREIGN KEY (tenant_id, rewind_id) REFERENCES rewinds (tenant_id, id) ON DELETE CASCADE
);
