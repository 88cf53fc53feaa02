-- name: record
INSERT INTO activity (tenant_id, id, actor, action, subject_kind, subject_id, reason, details, created_at)
VALUES (:tenant_id, :id, :actor, :action, :subject_kind, :subject_id, :reason, :details, :now_at)
ON CONFLICT (tenant_id, id) DO NOTHING
RETURNING /*columns Activity*/ *;

-- name: note
-- The same without an answer, for many at once.
INSERT INTO activity (tenant_id, id, actor, action, subject_kind, subject_id, reason, details, created_at)
VALUES (:tenant_id, :id, :actor, :action, :subject_kind, :subject_id, :reason, :details, :now_at);

-- name: get
SELECT /*columns Activity*/ * FROM activity WHERE tenant_id = :tenant_id AND id = :id;

-- name: list
-- Newest first.
SELECT /*columns Activity*/ * FROM activity/*index*/
WHERE tenant_id = :tenant_id/*where*/
ORDER BY created_at DESC, id DESC
LIMIT :limit;

-- name: count
SELECT COUNT(*) FROM activity/*index*/
WHERE tenant_id = :tenant_id/*where*/;
