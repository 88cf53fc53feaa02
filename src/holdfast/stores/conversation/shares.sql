-- name: session
-- A live session, held until the transaction ends, so that its links are numbered one by one.
SELECT user_id FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: create
-- SELECT and "WHERE TRUE": see create in sessions.sql.
INSERT INTO session_shares (tenant_id, token, session_id, number, user_id, read_only, shows_token, created_at,
                            updated_at)
SELECT :tenant_id, :token, :session_id /*pg ::uuid*/,
       (SELECT COALESCE(MAX(number), 0) + 1 FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :session_id),
       :user_id, :read_only /*pg ::boolean*/, :shows_token /*pg ::boolean*/, :now_at /*pg ::timestamptz*/, :now_at
WHERE TRUE
ON CONFLICT DO NOTHING
RETURNING /*columns SessionShare*/ *;

-- name: list
SELECT /*columns SessionShare h*/ * FROM session_shares AS h
JOIN sessions AS s ON s.tenant_id = h.tenant_id AND s.id = h.session_id
WHERE h.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND h.session_id = :session_id AND s.deleted_at IS NULL
ORDER BY h.number
LIMIT :limit;

-- name: find
-- A link leads nowhere while its session is deleted.
SELECT /*columns SessionShare h*/ * FROM session_shares AS h
JOIN sessions AS s ON s.tenant_id = h.tenant_id AND s.id = h.session_id
WHERE h.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND h.token = :token AND s.deleted_at IS NULL;

-- name: use
INSERT INTO session_share_uses (tenant_id, token, user_id, used_at) VALUES (:tenant_id, :token, :user_id, :now_at)
ON CONFLICT (tenant_id, token, user_id) DO UPDATE SET used_at = excluded.used_at;

-- name: used_by
-- The links that somebody has used, the one made last first.
SELECT /*columns SessionShare h*/ * FROM session_share_uses AS u
JOIN session_shares AS h ON h.tenant_id = u.tenant_id AND h.token = u.token
JOIN sessions AS s ON s.tenant_id = h.tenant_id AND s.id = h.session_id
WHERE u.tenant_id = :tenant_id AND h.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND u.user_id = :user_id
  AND s.deleted_at IS NULL
ORDER BY h.created_at DESC, h.token
LIMIT :limit;

-- name: delete_uses
DELETE FROM session_share_uses WHERE tenant_id = :tenant_id AND token = :token
  AND token IN (SELECT token FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :session_id);

-- name: delete
DELETE FROM session_shares WHERE tenant_id = :tenant_id AND token = :token AND session_id = :session_id
RETURNING 1;
