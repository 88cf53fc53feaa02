-- Large bodies, each once for a tenant under the digest of its content, and who holds them.

CREATE TABLE objects (
    tenant_id    TEXT    NOT NULL,
    digest       BLOB    NOT NULL,
    -- How the body is written down: see core/objects.py.
    codec        INTEGER NOT NULL,
    size_bytes   INTEGER NOT NULL,
    body         BLOB    NOT NULL,
    created_at   INTEGER NOT NULL,
    -- Since when nobody has held it. What is held again before it is removed stays.
    condemned_at INTEGER,
    PRIMARY KEY (tenant_id, digest)
) STRICT;

CREATE INDEX objects_condemned ON objects (tenant_id, condemned_at) WHERE condemned_at IS NOT NULL;

CREATE TABLE object_refs (
    tenant_id TEXT NOT NULL,
    digest    BLOB NOT NULL,
    holder    TEXT NOT NULL,
    PRIMARY KEY (tenant_id, digest, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX object_refs_by_holder ON object_refs (tenant_id, holder);
