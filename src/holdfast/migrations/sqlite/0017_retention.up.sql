-- How many snapshots are kept and for how long, what must be kept whatever the rules say, and who is tidying up.

-- Of MiB of stored bytes that a tenant's snapshots may take; nothing for what everybody has. Only who looks after all tenants sets it.
ALTER TABLE tenants ADD COLUMN checkpoint_quota_mib INTEGER CHECK (checkpoint_quota_mib >= 0);

-- What a tenant has instead of the defaults; nothing where it has none of its own.
CREATE TABLE retention_policies (
    tenant_id  TEXT    NOT NULL,
    per_run    INTEGER CHECK (per_run > 0),
    grace_s    INTEGER CHECK (grace_s >= 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id)
) STRICT, WITHOUT ROWID;

-- What a run has instead of its tenant's.
CREATE TABLE run_retention (
    tenant_id  TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    per_run    INTEGER CHECK (per_run > 0),
    -- Seconds after its end for which its snapshots are kept, where that is longer than the grace.
    keep_s     INTEGER CHECK (keep_s >= 0),
    -- When a run that had ended was rewound: when it had ended, and its epoch since. Its grace goes on while it only waits.
    ended_at   INTEGER,
    ended_epoch INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, run_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- What must be kept: a run's, a session's, or, where neither is named, all of a tenant's.
CREATE TABLE retention_holds (
    tenant_id  TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    run_id     TEXT,
    session_id TEXT,
    reason     TEXT    NOT NULL CHECK (reason <> ''),
    placed_by  TEXT    NOT NULL DEFAULT '',
    -- Whether the tenant's own key placed it: such a hold does not keep the tenant from being erased.
    by_tenant  INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

-- One row for each tenant that was ever swept. Whoever removes snapshots by a rule, and whoever places a hold, takes it first, so
-- that neither overlooks the other. Every claim raises the epoch; what carries an older one is refused.
CREATE TABLE retention_sweeps (
    tenant_id   TEXT    NOT NULL,
    epoch       INTEGER NOT NULL DEFAULT 0,
    holder      TEXT    NOT NULL DEFAULT '',
    lease_until INTEGER,
    finished_at INTEGER,
    PRIMARY KEY (tenant_id)
) STRICT, WITHOUT ROWID;

-- Above all tenants, because it says what became of a tenant that is no more.
CREATE TABLE erasures (
    tenant       TEXT    NOT NULL,
    -- The same request may come several times.
    event_id     TEXT    NOT NULL,
    -- Whether everything of the tenant goes, or only its snapshots.
    is_whole     INTEGER NOT NULL,
    requested_at INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    finished_at  INTEGER,
    PRIMARY KEY (tenant, event_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX erasures_open ON erasures (due_at, tenant, event_id) WHERE finished_at IS NULL;

-- Above all tenants: what all processes on this database agree on. A lease is one that expires, and its value names the holder.
CREATE TABLE server_settings (
    name       TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;
