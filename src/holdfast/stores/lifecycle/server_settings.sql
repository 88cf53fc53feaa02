-- Above all tenants: what all processes on one database agree on.

-- name: get
SELECT value FROM server_settings WHERE name = :name;

-- name: set
INSERT INTO server_settings (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: lead
-- Take or renew a lease: one that is free, one's own, one that has lapsed, or one that a clock has given that was put back since.
INSERT INTO server_settings (name, value, expires_at) VALUES (:name, :holder, :until_at)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
WHERE server_settings.value = excluded.value OR server_settings.expires_at <= :now_at
   OR server_settings.expires_at > :latest_at
RETURNING 1;

-- name: resign
DELETE FROM server_settings WHERE name = :name AND value = :holder;
