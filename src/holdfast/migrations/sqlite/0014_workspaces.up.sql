-- Workspaces: snapshots of directory trees. What a snapshot consists of lies in layers: each is a tree, or the difference to the
-- layer below it, and may carry several snapshots and further layers.

CREATE TABLE snapshot_layers (
    tenant_id    TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    -- What it is the difference to; nothing if it is a whole tree.
    parent_id    TEXT,
    -- Layers below it.
    depth        INTEGER NOT NULL,
    -- The object that says which entries it has.
    manifest     BLOB    NOT NULL,
    -- Of the objects that were stored for it.
    stored_bytes INTEGER NOT NULL,
    -- Of the files below it that it replaces or removes: what can be freed once no snapshot needs the layer below.
    replaced_bytes INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX snapshot_layers_by_parent ON snapshot_layers (tenant_id, parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE snapshots (
    tenant_id   TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    run_id      TEXT    NOT NULL,
    -- The iteration of the run after which it was taken.
    step        INTEGER,
    -- The snapshot it was taken after; it may be gone by now.
    parent_id   TEXT,
    kind        TEXT    NOT NULL,
    layer_id    TEXT    NOT NULL,
    entry_count INTEGER NOT NULL,
    -- Of all files in it.
    tree_bytes  INTEGER NOT NULL,
    -- Stored for it that were not stored before.
    size_bytes  INTEGER NOT NULL,
    depth       INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (kind IN ('step', 'dirty', 'imported'))
) STRICT, WITHOUT ROWID;

CREATE INDEX snapshots_by_run ON snapshots (tenant_id, run_id, created_at, id);
CREATE INDEX snapshots_by_time ON snapshots (tenant_id, created_at, id);
CREATE INDEX snapshots_by_layer ON snapshots (tenant_id, layer_id);
