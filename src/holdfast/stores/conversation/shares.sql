-- name: lock_session
-- A live session, locked until the transaction ends, so that its links get consecutive numbers.
SELECT user_id FROM sessions WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE
/*pg FOR UPDATE*/;

-- name: next_number
SELECT COALESCE(MAX(number), 0) + 1 FROM session_shares WHERE tenant_id = :tenant_id AND session_id = :session_id;

-- name: list
SELECT /*columns SessionShare h*/ * FROM session_shares AS h
JOIN sessions AS s ON s.tenant_id = h.tenant_id AND s.id = h.session_id
WHERE h.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND h.session_id = :session_id AND s.deleted_at IS NULL
  AND (h.expires_at IS NULL OR h.expires_at > :now_at)
ORDER BY h.number
LIMIT :limit;

-- name: used_by
-- The links that a user has used, newest first.
SELECT /*columns SessionShare h*/ * FROM session_share_uses AS u
JOIN session_shares AS h ON h.tenant_id = u.tenant_id AND h.token_hash = u.token_hash
JOIN sessions AS s ON s.tenant_id = h.tenant_id AND s.id = h.session_id
WHERE u.tenant_id = :tenant_id AND h.tenant_id = :tenant_id AND s.tenant_id = :tenant_id AND u.user_id = :user_id
  AND s.deleted_at IS NULL AND (h.expires_at IS NULL OR h.expires_at > :now_at)
ORDER BY h.created_at DESC, h.token_hash
LIMIT :limit;

-- name: prune_uses
-- The uses of the links that are pruned next.
DELETE FROM session_share_uses WHERE tenant_id = :tenant_id AND token_hash IN (
    SELECT token_hash FROM session_shares WHERE tenant_id = :tenant_id AND expires_at <= :now_at
    ORDER BY expires_at, token_hash
    LIMIT :limit);

-- name: delete_uses
DELETE FROM session_share_uses WHERE tenant_id = :tenant_id AND token_hash IN (
    SELECT token_hash FROM session_shares
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND (token_hash = :token_hash OR number = :number));

-- name: delete
DELETE FROM session_shares
WHERE tenant_id = :tenant_id AND session_id = :session_id AND (token_hash = :token_hash OR number = :number)
RETURNING 1;
