-- Runs of agents: what each is doing, one row for every iteration it has committed, the ledger of its tool calls, and the
-- queue of those that wait for somebody to drive them.

CREATE TABLE runs (
    tenant_id       TEXT COLLATE "C" NOT NULL,
    id              UUID             NOT NULL,
    session_id      UUID             NOT NULL,
    agent_id        TEXT COLLATE "C" NOT NULL DEFAULT '',
    status          TEXT COLLATE "C" NOT NULL,
    -- Steps committed so far.
    iteration       BIGINT           NOT NULL DEFAULT 0,
    -- Raised by every claim; what carries an older one is refused.
    epoch           BIGINT           NOT NULL DEFAULT 0,
    -- Claims in a row that came to nothing.
    attempts        BIGINT           NOT NULL DEFAULT 0,
    max_attempts    BIGINT           NOT NULL,
    lease_holder    TEXT COLLATE "C" NOT NULL DEFAULT '',
    lease_ms        BIGINT           NOT NULL DEFAULT 0,
    lease_until     TIMESTAMPTZ,
    -- When somebody first saw that the lease had run out; a renewal takes it back.
    doubted_at      TIMESTAMPTZ,
    pause_until     TIMESTAMPTZ,
    stop_reason     TEXT COLLATE "C",
    error           TEXT COLLATE "C",
    parent_run_id   UUID,
    parent_call_id  TEXT COLLATE "C",
    depth           BIGINT           NOT NULL DEFAULT 0,
    input_tokens    BIGINT           NOT NULL DEFAULT 0,
    output_tokens   BIGINT           NOT NULL DEFAULT 0,
    metadata        JSONB            NOT NULL DEFAULT '{}',
    started_at      TIMESTAMPTZ      NOT NULL,
    checkpointed_at TIMESTAMPTZ,
    finished_at     TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (status IN ('pending', 'running', 'paused', 'waiting', 'completed', 'failed', 'cancelled')),
    CHECK ((finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))),
    CHECK ((lease_until IS NOT NULL) = (status = 'running'))
) WITH (fillfactor = 70);

CREATE INDEX runs_by_start ON runs (tenant_id, started_at, id);
CREATE INDEX runs_by_session ON runs (tenant_id, session_id, started_at, id);
CREATE INDEX runs_by_status ON runs (tenant_id, status, started_at, id);
-- A call of a tool starts one run, however often it is tried.
CREATE UNIQUE INDEX runs_by_parent ON runs (tenant_id, parent_run_id, parent_call_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE run_steps (
    tenant_id        TEXT COLLATE "C" NOT NULL,
    run_id           UUID             NOT NULL,
    iteration        BIGINT           NOT NULL CHECK (iteration > 0),
    epoch            BIGINT           NOT NULL,
    state            JSONB            NOT NULL,
    last_tool_result TEXT COLLATE "C",
    -- The places of the step's messages in the session's log; nothing where it has none.
    first_seq        BIGINT,
    last_seq         BIGINT,
    input_tokens     BIGINT           NOT NULL DEFAULT 0,
    output_tokens    BIGINT           NOT NULL DEFAULT 0,
    snapshot         TEXT COLLATE "C",
    -- Of all that the step was given, to tell the same step tried again from another.
    fingerprint      TEXT COLLATE "C" NOT NULL,
    created_at       TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, run_id, iteration),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE tool_calls (
    tenant_id   TEXT COLLATE "C" NOT NULL,
    run_id      UUID             NOT NULL,
    id          TEXT COLLATE "C" NOT NULL CHECK (id <> ''),
    tool_name   TEXT COLLATE "C" NOT NULL,
    tool_input  JSONB            NOT NULL,
    safety      TEXT COLLATE "C" NOT NULL,
    status      TEXT COLLATE "C" NOT NULL,
    -- The step it was first intended for, and its place among the calls of that step.
    iteration   BIGINT           NOT NULL,
    place       BIGINT           NOT NULL,
    -- Of whoever began it last.
    epoch       BIGINT           NOT NULL,
    attempts    BIGINT           NOT NULL DEFAULT 0,
    -- Not to be begun before this.
    pause_until TIMESTAMPTZ,
    result      JSONB,
    error       TEXT COLLATE "C",
    -- The step that took its outcome in; nothing as long as none has.
    step        BIGINT,
    started_at  TIMESTAMPTZ      NOT NULL,
    finished_at TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, run_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (safety IN ('idempotent', 'at_most_once', 'ask')),
    CHECK (status IN ('held', 'ready', 'begun', 'finished', 'failed', 'cancelled', 'discarded', 'unknown')),
    CHECK ((finished_at IS NULL) = (status IN ('held', 'ready', 'begun')))
);

CREATE INDEX tool_calls_open ON tool_calls (tenant_id, run_id, iteration, place) WHERE step IS NULL;

-- Above all tenants, because a worker drives runs of any. It says where to look and is not believed: what may be claimed is
-- decided by the run's own row, and a row here that is wrong is put right when it is looked at.
CREATE TABLE run_queue (
    tenant TEXT COLLATE "C" NOT NULL,
    run_id UUID             NOT NULL,
    agent  TEXT COLLATE "C" NOT NULL,
    -- ready: at any time; paused and leased: not before due_at.
    kind   TEXT COLLATE "C" NOT NULL,
    due_at TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant, run_id)
);

CREATE INDEX run_queue_by_turn ON run_queue (kind, due_at, run_id);
CREATE INDEX run_queue_by_agent ON run_queue (agent, kind, due_at, run_id);
CREATE INDEX run_queue_by_tenant ON run_queue (tenant, kind, due_at, run_id);
CREATE INDEX run_queue_by_tenant_agent ON run_queue (tenant, agent, kind, due_at, run_id);
