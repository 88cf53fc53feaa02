-- name: agent_type
SELECT agent_type FROM agents WHERE tenant_id = :tenant_id AND id = :agent_id AND deleted_at IS NULL;

-- name: lock
-- A file of one level, whether it applies or not.
SELECT /*columns ContextFile*/ * FROM context_files
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id AND file_name = :file_name
/*pg FOR UPDATE*/;

-- name: count
-- The files of one level.
SELECT COUNT(*) FROM context_files WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id;

-- name: create
INSERT INTO context_files (tenant_id, agent_id, user_id, file_name, content, created_at, updated_at)
VALUES (:tenant_id, :agent_id, :user_id, :file_name, :content, :now_at, :now_at)
RETURNING /*columns ContextFile*/ *;

-- name: update
UPDATE context_files SET content = :content, version = version + 1, updated_at = :now_at
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id AND file_name = :file_name
RETURNING /*columns ContextFile*/ *;

-- name: delete
DELETE FROM context_files
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id AND file_name = :file_name;

-- name: seed
-- Copy the templates of an agent that a user has no copy of.
INSERT INTO context_files (tenant_id, agent_id, user_id, file_name, content, created_at, updated_at)
SELECT :tenant_id, f.agent_id, :user_id /*pg ::text*/, f.file_name, f.content, :now_at /*pg ::timestamptz*/, :now_at
FROM context_files AS f
JOIN agents AS a ON a.tenant_id = f.tenant_id AND a.id = f.agent_id
WHERE f.tenant_id = :tenant_id AND a.tenant_id = :tenant_id AND f.agent_id = :agent_id AND f.user_id = ''
  AND a.deleted_at IS NULL AND (a.agent_type <> 'predefined' OR f.file_name = :user_file)
ON CONFLICT DO NOTHING
RETURNING /*columns ContextFile*/ *;

-- name: copies
-- The users who have a copy of a file, in order.
SELECT user_id FROM context_files
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id > :after AND file_name = :file_name
ORDER BY user_id
LIMIT :limit;

-- name: overwrite
-- Replace the copies of these users that differ.
UPDATE context_files SET content = :content, version = version + 1, updated_at = :now_at
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id > :after AND user_id <= :last AND file_name = :file_name
  AND content <> :content
RETURNING 1;
