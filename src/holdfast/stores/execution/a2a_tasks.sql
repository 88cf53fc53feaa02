-- name: save
-- Creates or replaces the live task with this id and locks it until the transaction ends.
INSERT INTO a2a_tasks (tenant_id, id, user_id, task_id, context_id, state, state_at, frame, created_at, updated_at)
VALUES (:tenant_id, :id, :user_id, :task_id, :context_id, :state, :state_at, :frame, :now_at, :now_at)
ON CONFLICT (tenant_id, user_id, task_id, deleted_with) DO UPDATE SET
    context_id = excluded.context_id, state = excluded.state, state_at = excluded.state_at, frame = excluded.frame,
    updated_at = excluded.updated_at
RETURNING id/*pg ::text*/;

-- name: touch_session
-- A saved task counts as use of its session.
UPDATE sessions SET updated_at = :now_at, updated_minute = :now_minute
WHERE tenant_id = :tenant_id AND identifier = :context_id AND user_id = :user_id AND identifier_rank = '~'
  AND deleted_at IS NULL;

-- name: digests
SELECT list, place, part, digest FROM a2a_task_items WHERE tenant_id = :tenant_id AND task = :id;

-- name: put_item
INSERT INTO a2a_task_items (tenant_id, task, list, place, part, digest, body)
VALUES (:tenant_id, :id, :list, :place, :part, :digest, :body)
ON CONFLICT (tenant_id, task, list, place, part) DO UPDATE SET digest = excluded.digest, body = excluded.body;

-- name: delete_item
DELETE FROM a2a_task_items
WHERE tenant_id = :tenant_id AND task = :id AND list = :list AND place = :place AND part = :part;

-- name: find
SELECT /*columns TaskFrame*/ * FROM a2a_tasks
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = '';

-- name: items_of_many
-- The elements of tasks, in order.
SELECT task/*pg ::text*/, list, place, part, body FROM a2a_task_items
WHERE tenant_id = :tenant_id AND task /*in ids uuid*/
ORDER BY task, list, place, part;

-- name: list
-- The newest state first.
SELECT /*columns TaskFrame*/ * FROM a2a_tasks/*index*/
WHERE tenant_id = :tenant_id AND user_id = :user_id AND deleted_with = ''/*where*/
ORDER BY state_at DESC, task_id DESC
LIMIT :limit;

-- name: count
SELECT COUNT(*) FROM a2a_tasks
WHERE tenant_id = :tenant_id AND user_id = :user_id AND deleted_with = ''/*where*/;

-- name: delete
-- The task's own id marks the deleted row, so that its task id is free.
UPDATE a2a_tasks SET deleted_with = CAST(id AS TEXT), deleted_at = :now_at
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = ''
RETURNING id/*pg ::text*/;

-- name: delete_configs
UPDATE a2a_push_configs SET deleted_with = :deleted_with, deleted_at = :now_at
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = '';

-- name: last_deleted
-- The task that was last deleted under this task id, by itself or with its session.
SELECT id/*pg ::text*/, deleted_with FROM a2a_tasks
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with <> ''
ORDER BY deleted_at DESC, id DESC
LIMIT 1;

-- name: restore
UPDATE a2a_tasks SET deleted_with = '', deleted_at = NULL
WHERE tenant_id = :tenant_id AND id = :id AND deleted_with <> ''
RETURNING /*columns TaskFrame*/ *;

-- name: restore_configs
UPDATE a2a_push_configs SET deleted_with = '', deleted_at = NULL
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = :deleted_with;

-- name: purge_items
DELETE FROM a2a_task_items WHERE tenant_id = :tenant_id
  AND task IN (SELECT id FROM a2a_tasks WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id);

-- name: purge_configs
DELETE FROM a2a_push_configs WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id;

-- name: purge
DELETE FROM a2a_tasks WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id
RETURNING 1;
