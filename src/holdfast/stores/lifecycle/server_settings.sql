-- Not scoped to a tenant: settings shared by all processes on one database.

-- name: get
SELECT value FROM server_settings WHERE name = :name;

-- name: set
INSERT INTO server_settings (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: lead
-- Take or renew a lease: a free one, the caller's own, an expired one, or one that ends implausibly late because it was
-- granted by a clock that has been set back since.
INSERT INTO server_settings (name, value, expires_at) VALUES (:name, :holder, :until_at)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
WHERE server_settings.value = excluded.value OR server_settings.expires_at <= :now_at
   OR server_settings.expires_at > :latest_at
RETURNING 1;

-- name: resign
DELETE FROM server_settings WHERE name = :name AND value = :holder;
