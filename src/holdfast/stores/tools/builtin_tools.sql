-- name: lock_all
-- Every tool, locked until the transaction ends.
SELECT /*columns BuiltinTool*/ * FROM builtin_tools
WHERE tenant_id = :tenant_id
ORDER BY name /*pg FOR UPDATE*/;

-- name: describe
-- Updates what a program says about a tool; settings that were set stay.
UPDATE builtin_tools
SET display_name = :display_name, description = :description, category = :category, requires = :requires,
    metadata = :metadata, settings = :settings, version = version + 1, updated_at = :now_at
WHERE tenant_id = :tenant_id AND name = :name
RETURNING /*columns BuiltinTool*/ *;
