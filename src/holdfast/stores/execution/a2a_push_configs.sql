-- name: save
INSERT INTO a2a_push_configs (tenant_id, user_id, task_id, id, config, created_at, updated_at)
VALUES (:tenant_id, :user_id, :task_id, :id, :config, :now_at, :now_at)
ON CONFLICT (tenant_id, user_id, task_id, id, deleted_with) DO UPDATE SET
    config = excluded.config, updated_at = excluded.updated_at
RETURNING /*columns A2APushConfig*/ *;

-- name: list
-- The one made first comes first.
SELECT /*columns A2APushConfig*/ * FROM a2a_push_configs
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = ''
ORDER BY created_at, id
LIMIT :limit;

-- name: of_everybody
-- Whoever asked: what tells them that a task went on has no user of its own.
SELECT /*columns A2APushConfig*/ * FROM a2a_push_configs
WHERE tenant_id = :tenant_id AND task_id = :task_id AND deleted_with = ''
ORDER BY created_at, user_id, id
LIMIT :limit;

-- name: delete
DELETE FROM a2a_push_configs
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = ''/*where*/
RETURNING 1;
