-- part: live
EXISTS (SELECT 1 FROM agents AS a WHERE a.tenant_id = :tenant_id AND a.id = :id AND a.deleted_at IS NULL)

-- name: list
-- All blocks of an agent in their order.
SELECT /*columns Block*/ * FROM core_blocks
WHERE tenant_id = :tenant_id AND agent_id = :id AND /*part live*/
ORDER BY place, label;

-- name: get
SELECT /*columns Block*/ * FROM core_blocks
WHERE tenant_id = :tenant_id AND agent_id = :id AND label = :label AND /*part live*/;

-- name: create
-- A new block comes last.
INSERT INTO core_blocks (tenant_id, agent_id, label, place, value, description, limit_bytes, created_at, updated_at)
SELECT :tenant_id, :id, :label,
       COALESCE((SELECT MAX(place) FROM core_blocks WHERE tenant_id = :tenant_id AND agent_id = :id), 0) + 1,
       :value, :description, :limit_bytes /*pg ::bigint*/, :now_at /*pg ::timestamptz*/, :now_at
RETURNING /*columns Block*/ *;

-- name: update
UPDATE core_blocks SET
    value = :value, description = :description, limit_bytes = :limit_bytes, version = version + 1, updated_at = :now_at
WHERE tenant_id = :tenant_id AND agent_id = :id AND label = :label
RETURNING /*columns Block*/ *;

-- name: put
-- Set the position of a block.
UPDATE core_blocks SET place = :place
WHERE tenant_id = :tenant_id AND agent_id = :id AND label = :label;

-- name: delete
DELETE FROM core_blocks WHERE tenant_id = :tenant_id AND agent_id = :id AND label = :label
RETURNING label;
