-- Keys that programs come with over HTTP. Of the key itself only a digest is kept.

-- Above all tenants, because a key is what says which tenant a request may speak of.
CREATE TABLE api_keys (
    id           UUID             NOT NULL PRIMARY KEY,
    -- Empty: of all tenants.
    tenant       TEXT COLLATE "C" NOT NULL,
    name         TEXT COLLATE "C" NOT NULL CHECK (name <> ''),
    -- The beginning of the key: enough to find it by, and far from enough to guess it.
    prefix       TEXT COLLATE "C" NOT NULL,
    key_hash     TEXT COLLATE "C" NOT NULL,
    scopes       JSONB            NOT NULL,
    created_at   TIMESTAMPTZ      NOT NULL DEFAULT now(),
    expires_at   TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ,
    revoked_at   TIMESTAMPTZ
);

CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (key_hash);
CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, id);
