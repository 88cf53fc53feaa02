-- Rewinds of runs: which step a run was taken back to, and everything that it takes to undo it. What a rewind takes out of the
-- run's steps and tool calls lies here, as it was, until it is redone.

CREATE TABLE rewinds (
    tenant_id     TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    run_id        TEXT    NOT NULL,
    from_step     INTEGER NOT NULL,
    to_step       INTEGER NOT NULL,
    status        TEXT    NOT NULL,
    -- Where the tree is; NULL where the worker that next claims the run brings its own workspace to the snapshot.
    path          TEXT,
    -- What the tree is brought to by the rewind, and what it was before.
    snapshot      TEXT,
    dirty         TEXT,
    -- Why the tree is not there yet; NULL once the rewind or redo is finished.
    pending_reason TEXT,
    -- The branches that the session showed before and after.
    branch_before INTEGER NOT NULL,
    branch_after  INTEGER NOT NULL,
    -- Which step to_step was: a run that has come to the same number another way is another.
    anchor        TEXT    NOT NULL,
    -- The run as it was, and the runs below it that no call of it stands for any longer.
    run_before    TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (status IN ('rewinding', 'rewound', 'redoing', 'redone'))
) STRICT;

CREATE INDEX rewinds_by_run ON rewinds (tenant_id, run_id, id);
-- Those whose tree is still to be brought to where the run already is.
CREATE INDEX rewinds_open ON rewinds (tenant_id, id) WHERE status IN ('rewinding', 'redoing');

CREATE TABLE rewound_steps (
    tenant_id        TEXT    NOT NULL,
    rewind_id        TEXT    NOT NULL,
    iteration        INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    state            TEXT    NOT NULL,
    last_tool_result TEXT,
    first_seq        INTEGER,
    last_seq         INTEGER,
    input_tokens     INTEGER NOT NULL,
    output_tokens    INTEGER NOT NULL,
    snapshot         TEXT,
    fingerprint      TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, rewind_id, iteration),
    FOREIGN KEY (tenant_id, rewind_id) REFERENCES rewinds (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE TABLE rewound_calls (
    tenant_id   TEXT    NOT NULL,
    rewind_id   TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    tool_name   TEXT    NOT NULL,
    tool_input  TEXT    NOT NULL,
    safety      TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    iteration   INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    pause_until INTEGER,
    result      TEXT,
    error       TEXT,
    step        INTEGER,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    PRIMARY KEY (tenant_id, rewind_id, id),
    FOREIGN KEY (tenant_id, rewind_id) REFERENCES rewinds (tenant_id, id) ON DELETE CASCADE
) STRICT;
