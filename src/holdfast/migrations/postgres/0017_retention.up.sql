-- How many snapshots are kept and for how long, what must be kept whatever the rules say, and who is tidying up.

-- Of MiB of stored bytes that a tenant's snapshots may take; nothing for what everybody has. Only who looks after all tenants sets it.
-- The check is a statement of its own: Citus adds no column with a constraint to a table that it distributes.
ALTER TABLE tenants ADD COLUMN checkpoint_quota_mib BIGINT;
ALTER TABLE tenants ADD CONSTRAINT tenants_checkpoint_quota_mib_check CHECK (checkpoint_quota_mib >= 0);

-- What a tenant has instead of the defaults; nothing where it has none of its own.
CREATE TABLE retention_policies (
    tenant_id  TEXT COLLATE "C" NOT NULL,
    per_run    BIGINT CHECK (per_run > 0),
    grace_s    BIGINT CHECK (grace_s >= 0),
    created_at TIMESTAMPTZ      NOT NULL,
    updated_at TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id)
);

-- What a run has instead of its tenant's.
CREATE TABLE run_retention (
    tenant_id  TEXT COLLATE "C" NOT NULL,
    run_id     UUID             NOT NULL,
    per_run    BIGINT CHECK (per_run > 0),
    -- Seconds after its end for which its snapshots are kept, where that is longer than the grace.
    keep_s     BIGINT CHECK (keep_s >= 0),
    -- When a run that had ended was rewound: when it had ended, and its epoch since. Its grace goes on while it only waits.
    ended_at   TIMESTAMPTZ,
    ended_epoch BIGINT,
    created_at TIMESTAMPTZ      NOT NULL,
    updated_at TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, run_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE
);

-- What must be kept: a run's, a session's, or, where neither is named, all of a tenant's.
CREATE TABLE retention_holds (
    tenant_id  TEXT COLLATE "C" NOT NULL,
    id         UUID             NOT NULL,
    run_id     UUID,
    session_id UUID,
    reason     TEXT COLLATE "C" NOT NULL CHECK (reason <> ''),
    placed_by  TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- Whether the tenant's own key placed it: such a hold does not keep the tenant from being erased.
    by_tenant  BOOLEAN          NOT NULL DEFAULT FALSE,
    created_at TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

-- One row for each tenant that was ever swept. Whoever removes snapshots by a rule, and whoever places a hold, takes it first, so
-- that neither overlooks the other. Every claim raises the epoch; what carries an older one is refused.
CREATE TABLE retention_sweeps (
    tenant_id   TEXT COLLATE "C" NOT NULL,
    epoch       BIGINT           NOT NULL DEFAULT 0,
    holder      TEXT COLLATE "C" NOT NULL DEFAULT '',
    lease_until TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    PRIMARY KEY (tenant_id)
) WITH (fillfactor = 70);

-- Above all tenants, because it says what became of a tenant that is no more.
CREATE TABLE erasures (
    tenant       TEXT COLLATE "C" NOT NULL,
    -- The same request may come several times.
    event_id     TEXT COLLATE "C" NOT NULL,
    -- Whether everything of the tenant goes, or only its snapshots.
    is_whole     BOOLEAN          NOT NULL,
    requested_at TIMESTAMPTZ      NOT NULL,
    due_at       TIMESTAMPTZ      NOT NULL,
    finished_at  TIMESTAMPTZ,
    PRIMARY KEY (tenant, event_id)
);

CREATE INDEX erasures_open ON erasures (due_at, tenant, event_id) WHERE finished_at IS NULL;

-- Above all tenants: what all processes on this database agree on. A lease is one that expires, and its value names the holder.
CREATE TABLE server_settings (
    name       TEXT COLLATE "C" NOT NULL,
    value      TEXT COLLATE "C" NOT NULL,
    expires_at TIMESTAMPTZ,
    PRIMARY KEY (name)
);
