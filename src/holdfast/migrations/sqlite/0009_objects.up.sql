-- Large bodies, each once for a tenant under the digest of its content, and who holds them.

CREATE TABLE objects (
    tenant_id    TEXT    NOT NULL,
    digest       BLOB    NOT NULL,
    -- How the body is written down: see core/objects.py.
    codec        INTEGER NOT NULL,
    size_bytes   INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL,
    -- Nothing if it lies in a pack.
    body         BLOB,
    pack         TEXT,
    pack_start   INTEGER,
    created_at   INTEGER NOT NULL,
    -- Since when nobody has held it. What is held again before it is removed stays.
    condemned_at INTEGER,
    PRIMARY KEY (tenant_id, digest)
) STRICT;

CREATE INDEX objects_condemned ON objects (tenant_id, condemned_at) WHERE condemned_at IS NOT NULL;

CREATE INDEX objects_by_pack ON objects (tenant_id, pack) WHERE pack IS NOT NULL;

-- Files outside of the database that large bodies lie in. A note comes before its file and goes after it.
CREATE TABLE object_packs (
    tenant_id    TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    size_bytes   INTEGER NOT NULL,
    -- Whether objects lie in it, and no more are coming.
    is_sealed    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    condemned_at INTEGER,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

-- What the objects of a tenant amount to.
CREATE TABLE object_totals (
    tenant_id    TEXT    NOT NULL,
    count        INTEGER NOT NULL,
    size_bytes   INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL,
    PRIMARY KEY (tenant_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE object_refs (
    tenant_id TEXT NOT NULL,
    digest    BLOB NOT NULL,
    holder    TEXT NOT NULL,
    PRIMARY KEY (tenant_id, digest, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX object_refs_by_holder ON object_refs (tenant_id, holder);
