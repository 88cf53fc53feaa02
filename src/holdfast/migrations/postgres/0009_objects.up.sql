-- Large bodies, each once for a tenant under the digest of its content, and who holds them.

CREATE TABLE objects (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    digest       BYTEA            NOT NULL,
    -- How the body is written down: see core/objects.py.
    codec        BIGINT           NOT NULL,
    size_bytes   BIGINT           NOT NULL,
    stored_bytes BIGINT           NOT NULL,
    -- Nothing if it lies in a pack.
    body         BYTEA,
    pack         UUID,
    pack_start   BIGINT,
    created_at   TIMESTAMPTZ      NOT NULL,
    -- Since when nobody has held it. What is held again before it is removed stays.
    condemned_at TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, digest)
);

-- It is compressed already.
ALTER TABLE objects ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE INDEX objects_condemned ON objects (tenant_id, condemned_at) WHERE condemned_at IS NOT NULL;

CREATE INDEX objects_by_pack ON objects (tenant_id, pack) WHERE pack IS NOT NULL;

-- Files outside of the database that large bodies lie in. A note comes before its file and goes after it.
CREATE TABLE object_packs (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    id           UUID             NOT NULL,
    size_bytes   BIGINT           NOT NULL,
    -- Whether objects lie in it, and no more are coming.
    is_sealed    BOOLEAN          NOT NULL,
    created_at   TIMESTAMPTZ      NOT NULL,
    condemned_at TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, id)
);

-- What the objects of a tenant amount to.
CREATE TABLE object_totals (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    count        BIGINT           NOT NULL,
    size_bytes   BIGINT           NOT NULL,
    stored_bytes BIGINT           NOT NULL,
    PRIMARY KEY (tenant_id)
) WITH (fillfactor = 70);

CREATE TABLE object_refs (
    tenant_id TEXT COLLATE "C" NOT NULL,
    digest    BYTEA            NOT NULL,
    holder    TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_id, digest, holder)
);

CREATE INDEX object_refs_by_holder ON object_refs (tenant_id, holder);
