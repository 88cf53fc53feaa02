-- Large bodies, each once for a tenant under the digest of its content, and who holds them.

CREATE TABLE objects (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    digest       BYTEA            NOT NULL,
    -- How the body is written down: see core/objects.py.
    codec        BIGINT           NOT NULL,
    size_bytes   BIGINT           NOT NULL,
    body         BYTEA            NOT NULL,
    created_at   TIMESTAMPTZ      NOT NULL,
    -- Since when nobody has held it. What is held again before it is removed stays.
    condemned_at TIMESTAMPTZ,
    PRIMARY KEY (tenant_id, digest)
);

-- It is compressed already.
ALTER TABLE objects ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE INDEX objects_condemned ON objects (tenant_id, condemned_at) WHERE condemned_at IS NOT NULL;

CREATE TABLE object_refs (
    tenant_id TEXT COLLATE "C" NOT NULL,
    digest    BYTEA            NOT NULL,
    holder    TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_id, digest, holder)
);

CREATE INDEX object_refs_by_holder ON object_refs (tenant_id, holder);
