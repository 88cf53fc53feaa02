-- name: create
INSERT INTO remarks (tenant_id, user_id, id, is_positive, feedback_text, issue_type, message_number, created_at,
                     updated_at)
VALUES (:tenant_id, :user_id, :id, :is_positive, :feedback_text, :issue_type, :message_number, :now_at, :now_at)
RETURNING /*columns Remark*/ *;

-- name: list
-- Ids sort by the time they were made.
SELECT /*columns Remark*/ * FROM remarks
WHERE tenant_id = :tenant_id AND user_id = :user_id AND id > :after
ORDER BY id
LIMIT :limit;

-- name: delete
DELETE FROM remarks WHERE tenant_id = :tenant_id AND user_id = :user_id AND id = :id
RETURNING 1;
