-- Keys that programs come with over HTTP. Of the key itself only a digest is kept.

-- Above all tenants, because a key is what says which tenant a request may speak of.
CREATE TABLE api_keys (
    id           TEXT    NOT NULL PRIMARY KEY,
    -- Empty: of all tenants.
    tenant       TEXT    NOT NULL,
    name         TEXT    NOT NULL CHECK (name <> ''),
    -- The beginning of the key: enough to find it by, and far from enough to guess it.
    prefix       TEXT    NOT NULL,
    key_hash     TEXT    NOT NULL,
    scopes       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (key_hash);
CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, id);
