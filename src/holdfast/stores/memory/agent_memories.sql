-- name: add
INSERT INTO agent_memories (tenant_id, agent_id, user_id, id, content, metadata, embedding, dimensions, created_at,
                            updated_at, expires_at)
VALUES (:tenant_id, :agent_id, :user_id, :id, :content, :metadata, :embedding, :dimensions, :now_at, :now_at,
        :expires_at);

-- name: candidates
-- Embeddings to compare, one slice at a time, without expired memories that were not found often.
SELECT id/*pg ::text*/, embedding FROM agent_memories
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id AND dimensions = :dimensions AND id > :after
  AND (expires_at > :now_at OR access_count >= :popular)
ORDER BY id
LIMIT :limit;

-- name: found
UPDATE agent_memories SET access_count = access_count + 1
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id AND id /*in ids uuid*/
RETURNING /*columns AgentMemory*/ *;

-- name: list
-- The most used first.
SELECT /*columns AgentMemory*/ * FROM agent_memories
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id
  AND (expires_at > :now_at OR access_count >= :popular)
ORDER BY access_count DESC, id DESC
LIMIT :limit;

-- name: delete
DELETE FROM agent_memories
WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND user_id = :user_id
RETURNING 1;

-- name: extend
-- Extend expired memories that were found often, and reset their counts.
UPDATE agent_memories SET expires_at = :extended_at, access_count = 0, updated_at = :now_at
WHERE tenant_id = :tenant_id AND expires_at <= :now_at AND access_count >= :popular/*where*/
RETURNING 1;

-- name: remove_expired
DELETE FROM agent_memories
WHERE tenant_id = :tenant_id AND expires_at <= :now_at AND access_count < :popular/*where*/
RETURNING 1;
