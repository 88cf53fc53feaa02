-- What CrewAI keeps: the state of flows, and the memories of crews. JSON, where JSONB would lose the order of keys.

-- A flow. Whoever saves to it holds this row, so that its states have an order.
CREATE TABLE crewai_flow (
    tenant_id       TEXT COLLATE "C" NOT NULL,
    user_id         TEXT COLLATE "C" NOT NULL DEFAULT '',
    thread_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    flow_uuid       TEXT COLLATE "C" NOT NULL CHECK (flow_uuid <> ''),
    -- How often its state was saved.
    seq             BIGINT           NOT NULL,
    -- What it asked a person, and its state when it did, while it waits for the answer.
    pending_context JSON,
    pending_state   JSON,
    pending_at      TIMESTAMPTZ,
    created_at      TIMESTAMPTZ      NOT NULL,
    updated_at      TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, flow_uuid)
);

CREATE INDEX crewai_flow_by_recency ON crewai_flow (tenant_id, user_id, updated_at, flow_uuid, thread_id);

-- The state of a flow after each of its methods, as it was saved last; the one with the highest seq is the newest.
CREATE TABLE crewai_flow_state (
    tenant_id       TEXT COLLATE "C" NOT NULL,
    user_id         TEXT COLLATE "C" NOT NULL DEFAULT '',
    thread_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    flow_uuid       TEXT COLLATE "C" NOT NULL,
    method_name     TEXT COLLATE "C" NOT NULL,
    seq             BIGINT           NOT NULL,
    state_data      JSON             NOT NULL,
    created_at      TIMESTAMPTZ      NOT NULL,
    updated_at      TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, flow_uuid, method_name)
);

-- All memories, each by itself.
CREATE TABLE crewai_agent_memory (
    tenant_id       TEXT COLLATE "C" NOT NULL,
    user_id         TEXT COLLATE "C" NOT NULL DEFAULT '',
    thread_id       TEXT COLLATE "C" NOT NULL DEFAULT '',
    memory_id       TEXT COLLATE "C" NOT NULL CHECK (memory_id <> ''),
    content         TEXT COLLATE "C" NOT NULL,
    -- A path, such as /company/team: what is asked of a scope is asked of all below it.
    scope           TEXT COLLATE "C" NOT NULL DEFAULT '/',
    categories      JSONB            NOT NULL DEFAULT '[]',
    metadata        JSON             NOT NULL DEFAULT '{}',
    importance      DOUBLE PRECISION NOT NULL DEFAULT 0.5,
    source          TEXT COLLATE "C",
    is_private      BOOLEAN          NOT NULL DEFAULT FALSE,
    -- 32-bit floats, the lowest byte first; as many as dimensions says.
    embedding       BYTEA            NOT NULL,
    dimensions      BIGINT           NOT NULL DEFAULT 0,
    created_at      TIMESTAMPTZ      NOT NULL,
    accessed_at     TIMESTAMPTZ      NOT NULL,
    updated_at      TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, memory_id)
);

CREATE INDEX crewai_agent_memory_by_scope ON crewai_agent_memory (tenant_id, user_id, thread_id, scope);
CREATE INDEX crewai_agent_memory_by_age ON crewai_agent_memory (tenant_id, user_id, thread_id, created_at, memory_id);
CREATE INDEX crewai_agent_memory_by_dimensions ON crewai_agent_memory (tenant_id, user_id, thread_id, dimensions);
