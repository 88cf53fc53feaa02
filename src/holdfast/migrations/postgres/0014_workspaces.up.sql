-- Workspaces: snapshots of directory trees. What a snapshot consists of lies in layers: each is a tree, or the difference to the
-- layer below it, and may carry several snapshots and further layers.

CREATE TABLE snapshot_layers (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    id           UUID             NOT NULL,
    -- What it is the difference to; nothing if it is a whole tree.
    parent_id    UUID,
    -- Layers below it.
    depth        BIGINT           NOT NULL,
    -- The object that says which entries it has.
    manifest     BYTEA            NOT NULL,
    -- Of the objects that were stored for it.
    stored_bytes BIGINT           NOT NULL,
    -- Of the files below it that it replaces or removes: what can be freed once no snapshot needs the layer below.
    replaced_bytes BIGINT         NOT NULL,
    created_at   TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

CREATE INDEX snapshot_layers_by_parent ON snapshot_layers (tenant_id, parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE snapshots (
    tenant_id   TEXT COLLATE "C" NOT NULL,
    id          UUID             NOT NULL,
    run_id      UUID             NOT NULL,
    -- The iteration of the run after which it was taken.
    step        BIGINT,
    -- The snapshot it was taken after; it may be gone by now.
    parent_id   UUID,
    kind        TEXT COLLATE "C" NOT NULL,
    layer_id    UUID             NOT NULL,
    entry_count BIGINT           NOT NULL,
    -- Of all files in it.
    tree_bytes  BIGINT           NOT NULL,
    -- Stored for it that were not stored before.
    size_bytes  BIGINT           NOT NULL,
    depth       BIGINT           NOT NULL,
    created_at  TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (kind IN ('step', 'dirty', 'imported'))
);

CREATE INDEX snapshots_by_run ON snapshots (tenant_id, run_id, created_at, id);
CREATE INDEX snapshots_by_time ON snapshots (tenant_id, created_at, id);
CREATE INDEX snapshots_by_layer ON snapshots (tenant_id, layer_id);
