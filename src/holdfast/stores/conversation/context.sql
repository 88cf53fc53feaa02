-- name: state
-- What a live session shows, and how often it was compacted: if neither changes, what is read in between belongs together.
SELECT view/*pg ::text*/, compaction_count FROM sessions
WHERE tenant_id = :tenant_id AND id = :session_id AND (deleted_at IS NULL) IS TRUE;

-- name: pinned @sqlite
-- What is preserved and what sums up, on whatever branch, with its place. Each half has an index that holds nothing else.
SELECT /*columns Message*/ *, seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND is_preserved = 1
UNION ALL
SELECT /*columns Message*/ *, seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND is_summary = 1
LIMIT :limit;

-- name: pinned @postgres
SELECT /*columns Message*/ *, seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND is_preserved
UNION ALL
SELECT /*columns Message*/ *, seq FROM messages
WHERE tenant_id = :tenant_id AND session_id = :session_id AND is_summary
LIMIT :limit;
