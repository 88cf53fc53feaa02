-- Runs of agents: what each is doing, one row for every iteration it has committed, the ledger of its tool calls, and the
-- queue of those that wait for somebody to drive them.

CREATE TABLE runs (
    tenant_id       TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    session_id      TEXT    NOT NULL,
    agent_id        TEXT    NOT NULL DEFAULT '',
    status          TEXT    NOT NULL,
    -- Steps committed so far.
    iteration       INTEGER NOT NULL DEFAULT 0,
    -- Raised by every claim; what carries an older one is refused.
    epoch           INTEGER NOT NULL DEFAULT 0,
    -- Claims in a row that came to nothing.
    attempts        INTEGER NOT NULL DEFAULT 0,
    max_attempts    INTEGER NOT NULL,
    lease_holder    TEXT    NOT NULL DEFAULT '',
    lease_ms        INTEGER NOT NULL DEFAULT 0,
    lease_until     INTEGER,
    -- When somebody first saw that the lease had run out; a renewal takes it back.
    doubted_at      INTEGER,
    pause_until     INTEGER,
    stop_reason     TEXT,
    error           TEXT,
    parent_run_id   TEXT,
    parent_call_id  TEXT,
    depth           INTEGER NOT NULL DEFAULT 0,
    input_tokens    INTEGER NOT NULL DEFAULT 0,
    output_tokens   INTEGER NOT NULL DEFAULT 0,
    metadata        TEXT    NOT NULL DEFAULT '{}',
    started_at      INTEGER NOT NULL,
    checkpointed_at INTEGER,
    finished_at     INTEGER,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (status IN ('pending', 'running', 'paused', 'waiting', 'completed', 'failed', 'cancelled')),
    CHECK ((finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))),
    CHECK ((lease_until IS NOT NULL) = (status = 'running'))
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_by_start ON runs (tenant_id, started_at, id);
CREATE INDEX runs_by_session ON runs (tenant_id, session_id, started_at, id);
CREATE INDEX runs_by_status ON runs (tenant_id, status, started_at, id);
-- A call of a tool starts one run, however often it is tried.
CREATE UNIQUE INDEX runs_by_parent ON runs (tenant_id, parent_run_id, parent_call_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE run_steps (
    tenant_id        TEXT    NOT NULL,
    run_id           TEXT    NOT NULL,
    iteration        INTEGER NOT NULL CHECK (iteration > 0),
    epoch            INTEGER NOT NULL,
    state            TEXT    NOT NULL,
    last_tool_result TEXT,
    -- The places of the step's messages in the session's log; nothing where it has none.
    first_seq        INTEGER,
    last_seq         INTEGER,
    input_tokens     INTEGER NOT NULL DEFAULT 0,
    output_tokens    INTEGER NOT NULL DEFAULT 0,
    snapshot         TEXT,
    -- Of all that the step was given, to tell the same step tried again from another.
    fingerprint      TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, run_id, iteration),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE
) STRICT;

CREATE TABLE tool_calls (
    tenant_id   TEXT    NOT NULL,
    run_id      TEXT    NOT NULL,
    id          TEXT    NOT NULL CHECK (id <> ''),
    tool_name   TEXT    NOT NULL,
    tool_input  TEXT    NOT NULL,
    safety      TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    -- The step it was first intended for, and its place among the calls of that step.
    iteration   INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    -- Of whoever began it last.
    epoch       INTEGER NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    -- Not to be begun before this.
    pause_until INTEGER,
    result      TEXT,
    error       TEXT,
    -- The step that took its outcome in; nothing as long as none has.
    step        INTEGER,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    PRIMARY KEY (tenant_id, run_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (safety IN ('idempotent', 'at_most_once', 'ask')),
    CHECK (status IN ('held', 'ready', 'begun', 'finished', 'failed', 'cancelled', 'discarded', 'unknown')),
    CHECK ((finished_at IS NULL) = (status IN ('held', 'ready', 'begun')))
) STRICT;

CREATE INDEX tool_calls_open ON tool_calls (tenant_id, run_id, iteration, place) WHERE step IS NULL;

-- Above all tenants, because a worker drives runs of any. It says where to look and is not believed: what may be claimed is
-- decided by the run's own row, and a row here that is wrong is put right when it is looked at.
CREATE TABLE run_queue (
    tenant TEXT    NOT NULL,
    run_id TEXT    NOT NULL,
    agent  TEXT    NOT NULL,
    -- ready: at any time; paused and leased: not before due_at.
    kind   TEXT    NOT NULL,
    due_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_queue_by_turn ON run_queue (kind, due_at, run_id);
CREATE INDEX run_queue_by_agent ON run_queue (agent, kind, due_at, run_id);
CREATE INDEX run_queue_by_tenant ON run_queue (tenant, kind, due_at, run_id);
CREATE INDEX run_queue_by_tenant_agent ON run_queue (tenant, agent, kind, due_at, run_id);
