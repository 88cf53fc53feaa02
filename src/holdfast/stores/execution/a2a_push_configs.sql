-- name: clear
DELETE FROM a2a_push_configs
WHERE tenant_id = :tenant_id AND user_id = :user_id AND task_id = :task_id AND deleted_with = ''/*where*/
RETURNING 1;
