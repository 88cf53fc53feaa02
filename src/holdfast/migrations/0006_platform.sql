-- The audit log, API keys, erasure requests and settings.

-- Who did what to which subject, and why. Rows are never changed; they are removed with their tenant.
CREATE TABLE activity (
    tenant_id    {text} NOT NULL,
    id           {id}   NOT NULL,
    -- user, agent, api_key or system.
    actor_type   {text} NOT NULL DEFAULT 'system',
    -- Empty for a worker or a policy.
    actor        {text} NOT NULL DEFAULT '',
    action       {text} NOT NULL CHECK (action <> ''),
    subject_kind {text} NOT NULL DEFAULT '',
    subject_id   {text} NOT NULL DEFAULT '',
    reason       {text} NOT NULL DEFAULT '',
    details      {json} NOT NULL DEFAULT '{}',
    -- The network address of the actor, for an HTTP request.
    address      {text} NOT NULL DEFAULT '',
    created_at   {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE INDEX activity_by_time ON activity (tenant_id, created_at, id);
CREATE INDEX activity_by_actor ON activity (tenant_id, actor, created_at, id);
CREATE INDEX activity_by_action ON activity (tenant_id, action, created_at, id);
CREATE INDEX activity_by_subject ON activity (tenant_id, subject_kind, subject_id, created_at, id);

-- Keys for the HTTP API; only a digest of the key is stored. Not of one tenant, because the key determines the tenant of a request.
CREATE TABLE api_keys (
    id           {id}   NOT NULL PRIMARY KEY,
    -- Empty for a key to all tenants.
    tenant       {text} NOT NULL,
    name         {text} NOT NULL CHECK (name <> ''),
    -- The beginning of the key: enough to find it, far from enough to guess it.
    prefix       {text} NOT NULL,
    key_hash     {text} NOT NULL,
    scopes       {json} NOT NULL,
    created_at   {time} NOT NULL /*pg DEFAULT now()*/,
    expires_at   {time},
    last_used_at {time},
    revoked_at   {time}
) {clustered};

CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (key_hash);
CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, id);

-- Requests to erase a tenant. Not of one tenant, because a row outlives its tenant.
CREATE TABLE erasures (
    tenant       {text} NOT NULL,
    -- The same request may arrive several times.
    event_id     {text} NOT NULL,
    -- Whether the whole tenant is erased, or only its snapshots.
    is_whole     {bool} NOT NULL,
    requested_at {time} NOT NULL,
    due_at       {time} NOT NULL,
    finished_at  {time},
    PRIMARY KEY (tenant, event_id)
) {clustered};

CREATE INDEX erasures_open ON erasures (due_at, tenant, event_id) WHERE finished_at IS NULL;

-- Settings shared by all processes on this database. A row that expires is a lease; its value names the holder.
CREATE TABLE server_settings (
    name       {text} NOT NULL,
    value      {text} NOT NULL,
    expires_at {time},
    PRIMARY KEY (name)
) {clustered};

-- down

DROP TABLE server_settings;
DROP TABLE erasures;
DROP TABLE api_keys;
DROP TABLE activity;
