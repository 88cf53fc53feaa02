-- name: delete_models
-- Delete explicitly: each is logged, and a caller's own SQLite connection may have foreign keys switched off.
DELETE FROM llm_models WHERE tenant_id = :tenant_id AND provider_id = :id RETURNING CAST(id AS text);
