-- What CrewAI keeps: the state of flows, and the memories of crews.

-- A flow. Whoever saves to it holds this row, so that its states have an order.
CREATE TABLE crewai_flow (
    tenant_id       TEXT    NOT NULL,
    user_id         TEXT    NOT NULL DEFAULT '',
    thread_id       TEXT    NOT NULL DEFAULT '',
    flow_uuid       TEXT    NOT NULL CHECK (flow_uuid <> ''),
    -- How often its state was saved.
    seq             INTEGER NOT NULL,
    -- What it asked a person, and its state when it did, while it waits for the answer.
    pending_context TEXT,
    pending_state   TEXT,
    pending_at      INTEGER,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, flow_uuid)
) STRICT, WITHOUT ROWID;

CREATE INDEX crewai_flow_by_recency ON crewai_flow (tenant_id, user_id, updated_at, flow_uuid, thread_id);

-- The state of a flow after each of its methods, as it was saved last; the one with the highest seq is the newest.
CREATE TABLE crewai_flow_state (
    tenant_id   TEXT    NOT NULL,
    user_id     TEXT    NOT NULL DEFAULT '',
    thread_id   TEXT    NOT NULL DEFAULT '',
    flow_uuid   TEXT    NOT NULL,
    method_name TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    state_data  TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, flow_uuid, method_name)
) STRICT;

-- All memories, each by itself.
CREATE TABLE crewai_agent_memory (
    tenant_id   TEXT    NOT NULL,
    user_id     TEXT    NOT NULL DEFAULT '',
    thread_id   TEXT    NOT NULL DEFAULT '',
    memory_id   TEXT    NOT NULL CHECK (memory_id <> ''),
    content     TEXT    NOT NULL,
    -- A path, such as /company/team: what is asked of a scope is asked of all below it.
    scope       TEXT    NOT NULL DEFAULT '/',
    categories  TEXT    NOT NULL DEFAULT '[]',
    metadata    TEXT    NOT NULL DEFAULT '{}',
    importance  REAL    NOT NULL DEFAULT 0.5,
    source      TEXT,
    is_private  INTEGER NOT NULL DEFAULT 0,
    -- 32-bit floats, the lowest byte first; as many as dimensions says.
    embedding   BLOB    NOT NULL,
    dimensions  INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    accessed_at INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, user_id, thread_id, memory_id)
) STRICT;

CREATE INDEX crewai_agent_memory_by_scope ON crewai_agent_memory (tenant_id, user_id, thread_id, scope);
CREATE INDEX crewai_agent_memory_by_age ON crewai_agent_memory (tenant_id, user_id, thread_id, created_at, memory_id);
CREATE INDEX crewai_agent_memory_by_dimensions ON crewai_agent_memory (tenant_id, user_id, thread_id, dimensions);
