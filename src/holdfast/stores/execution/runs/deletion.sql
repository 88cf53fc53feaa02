-- All queries with the prefix delete_ are run, in file order, when a run is deleted: explicitly, because a caller's own SQLite
-- connection may have foreign keys switched off.

-- name: delete_parent
-- The runs that it has started stay, without a parent: another run may get its id.
UPDATE runs SET parent_run_id = NULL, parent_call_id = NULL WHERE tenant_id = :tenant_id AND parent_run_id = :run_id;

-- name: delete_tool_calls
DELETE FROM tool_calls WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: delete_steps
DELETE FROM run_steps WHERE tenant_id = :tenant_id AND run_id = :run_id;

-- name: delete_run
DELETE FROM runs WHERE tenant_id = :tenant_id AND id = :run_id;
